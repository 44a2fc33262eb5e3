"""The operators of a format: their registry and table, the sites where they occur, attributes.

Where is an operator looked up by name and version? `registry`
Where do `nnef-jax formats` and the generated pages get their rows? `table`, `inspection`
"""
