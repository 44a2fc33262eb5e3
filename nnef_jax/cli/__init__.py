"""The command line, `nnef-jax`: what a terminal shows of the library, over its public names.

`commands` holds the options of each command, the other modules what it reads and prints.
"""

from nnef_jax.cli.commands import app, main

__all__ = ["app", "main"]
