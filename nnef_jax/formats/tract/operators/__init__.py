"""The functions that flatten the dialect's operations, with a module for each family.

The module `rows` has a table of the operations of the dialect that become a single operation of the
graph. The other modules have functions. A function takes the site and the first operands. These
have the names of the parameters of the graph's operation. An operation that is in no module here
becomes the graph's operation of the same name.
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
