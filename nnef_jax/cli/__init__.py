"""The command line, `nnef-jax`: commands around functions of the library.

A command is a function: its parameters are the options, its docstring is the help. Computation
belongs in the library.

Where are the options that commands share? `command_options`
Where do results, progress and errors get printed? `terminal`
"""

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
