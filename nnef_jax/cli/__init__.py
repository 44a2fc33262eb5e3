"""The command line, `nnef-jax`: what a terminal shows of the library."""

# Each adds its commands.
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
