"""Helps to word messages and output: finds similar names, and escapes control characters."""
