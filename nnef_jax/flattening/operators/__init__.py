"""The operators of a format: a registry of their meanings, their sites and attributes, a table.

Where is an operator looked up by name and version? `registry`
Where do `nnef-jax formats` and the generated pages get their rows? `table`, `inspection`
"""
