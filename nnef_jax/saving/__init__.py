"""Writes networks: NNEF archives, the current version of a format, functions of jax.

Where is an archive checked before it is written? `archives`
Where is a network exported to StableHLO? `export`
"""
