"""The command line, `nnef-jax`: commands around functions of the library."""

# Each of these modules adds commands to `app`.
from nnef_jax.cli import batch, comparisons, fixed_point, formats, measure, serve, view
from nnef_jax.cli.commands import app, main

__all__ = [
    "app",
    "batch",
    "comparisons",
    "fixed_point",
    "formats",
    "main",
    "measure",
    "serve",
    "view",
]
