"""Reads networks of any format: sources of bytes, the network that is read, unreadable files."""
