"""Reads and writes bytes: containers, tensor files, member names, atomic replacement of files."""
