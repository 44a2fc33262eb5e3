"""The meanings of the dialect's operations, with a module for each family of operations.

The module `rows` has a table of meanings that are a single operation. All other meanings are
functions. A function takes the site and the first operands, whose names are those of the kind's
parameters. An operation without a meaning is the kind of the same name.
"""

from __future__ import annotations

from nnef_jax.formats.tract.operators.registry import OPERATORS

OPERATORS.families = (
    "nnef_jax.formats.tract.operators.rows",
    "nnef_jax.formats.tract.operators.geometry",
    "nnef_jax.formats.tract.operators.windows",
    "nnef_jax.formats.tract.operators.products",
    "nnef_jax.formats.tract.operators.composites",
)
