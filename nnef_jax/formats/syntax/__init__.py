"""NNEF's language: parsing, printing, types and front ends, for all formats that are written in it.

Nothing here names a format.
"""
