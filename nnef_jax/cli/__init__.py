"""The command line, `nnef-jax`: what a terminal shows of the library."""

# Each adds its commands.
from nnef_jax.cli import batch, contrast, fixed_point, measure, serve, view
from nnef_jax.cli.commands import app, main

__all__ = ["app", "batch", "contrast", "fixed_point", "main", "measure", "serve", "view"]
