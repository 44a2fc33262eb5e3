"""The table of the ONNX operators for which the package `operators` has a function.

The standard defines other operators by functions, which consist of nodes. These operators are
supported too, but are not in the table.
"""

from __future__ import annotations

from collections.abc import Iterable

from nnef_jax.flattening.operators.table import OperatorEntry, entries_of
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import OPERATORS


def entries() -> Iterable[OperatorEntry]:
    """Return the entries, sorted by domain and name."""
    return entries_of(OPERATORS, NodeSite)
