"""Writes networks: NNEF archives, the current version of a format, functions of jax."""
