"""Operators of all formats: their registry, their sites and attributes, and the table of them."""
