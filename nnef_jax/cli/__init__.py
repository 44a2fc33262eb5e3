"""The command line, `nnef-jax`: what a terminal shows of the library, over its public names."""

from nnef_jax.cli import batch, view  # each adds its command
from nnef_jax.cli.commands import app, main

__all__ = ["app", "batch", "main", "view"]
