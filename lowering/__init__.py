"""Lowers a flat graph to a pure JAX function; knows no file format and no parser."""
