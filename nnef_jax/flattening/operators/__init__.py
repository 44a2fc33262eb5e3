"""Operators of a format: their registry, sites and attributes, and a table of what they become."""
