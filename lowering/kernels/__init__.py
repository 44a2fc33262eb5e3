"""Computes the hard operations on any platform."""
