"""The table of NNEF 1.0's operations: graph operations, definitions and declarations."""

from __future__ import annotations

from collections.abc import Iterator

from lowering.ops import rules
from nnef_jax.flattening.operators.table import OperatorEntry
from nnef_jax.formats.syntax.declared_operators import entry_of
from nnef_jax.formats.syntax.standard import INTRODUCING, standard


def entries() -> Iterator[OperatorEntry]:
    """Yield the entries, in the order of the standard."""
    for name, fragment in standard().items():
        if name in rules:
            yield entry_of(fragment, "operation", [name])
        elif name in INTRODUCING:
            yield entry_of(fragment, "structure")
        else:
            yield entry_of(fragment, "definition")
