"""The command line, `nnef-jax`, whose commands call functions of the package.

Each command is a function. Its parameters are the options, and its docstring is the help.
Computation does not belong here.

Where are the options that commands share? `command_options`
Where do results, progress and errors get printed? `terminal`
"""

# The import of each of these modules adds commands to `app`.
from nnef_jax.cli import (
    batch,
    comparisons,
    fixed_point,
    formats,
    generate,
    measure,
    serve,
    view,
)
from nnef_jax.cli.commands import app, main

__all__ = [
    "app",
    "batch",
    "comparisons",
    "fixed_point",
    "formats",
    "generate",
    "main",
    "measure",
    "serve",
    "view",
]
