"""The command line, `nnef-jax`: what a terminal shows of the library, over its public names."""

from nnef_jax.cli.batch import app  # which has all commands then
from nnef_jax.cli.commands import main

__all__ = ["app", "main"]
