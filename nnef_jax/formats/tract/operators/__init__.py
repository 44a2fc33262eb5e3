"""The meanings of the dialect's operations: functions, a file a family, and the table in `rows`.

A function takes the site and the first operands, named as in the kind. An operation without a
meaning is the kind of its name.
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
