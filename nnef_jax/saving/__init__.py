"""Writes networks as NNEF archives, in the current version of their format, or as jax functions.

Where is an archive checked before it is written? `archives`
Where is a network exported to StableHLO? `export`
"""
