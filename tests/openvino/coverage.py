"""Finds the test of a layer's result: file and line, noted where rows and tests are defined."""

from __future__ import annotations

from nnef_jax.flattening.operators.registry import Refusal
from nnef_jax.formats.openvino.layers import OPERATORS
from tests.openvino import rare_layers, test_documents, test_layers, test_loops
from tests.openvino.layers import LEGACY, OPSETS, place, remember

TESTS = (test_documents, test_layers, test_loops)  # which say what they show when imported
for uses, version in ((rare_layers.OLD, LEGACY), (rare_layers.USES, OPSETS)):
    for use in uses:
        remember([use.type], [version], use.place)


def is_refused(type: str) -> bool:
    """Tell whether a layer of operation sets is known but refused, with the reason."""
    operator = OPERATORS.get(type, OPSETS)
    return operator is not None and isinstance(operator.meaning, Refusal)


def shown(type: str, version: int) -> str:
    """Return file and line of a test of a layer's result, "" if there is none.

    A layer that has one function in all versions is shown by a test of any.
    """
    line = place(type, version)
    old, new = (OPERATORS.get(type, version) for version in (LEGACY, OPSETS))
    if not line and old is not None and new is not None and old.meaning is new.meaning:
        line = place(type, OPSETS if version == LEGACY else LEGACY)
    return line
