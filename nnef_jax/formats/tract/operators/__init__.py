"""What operations of the dialect mean: functions, a file a family, and `rows`.

A function takes the site and the first operands, which it names as kinds do. An operation that is
not here is the kind of its name.
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
