"""NNEF's language: parsing, printing, types and front ends, for all formats in this language.

This package does not name any format.

Where is a text parsed? `parsing`, which calls `reader`, or `grammar` if `reader` gives up
Where is a text divided into tokens? `token_reader`, by the patterns in `tokens`
Where is a graph written as a flat document? `flat_document`, `printing`
Where are the operations of the standard declared? `standard`
"""
