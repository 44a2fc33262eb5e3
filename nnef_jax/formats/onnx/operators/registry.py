"""The operators of ONNX, of its standard and of other domains."""

from __future__ import annotations

from nnef_jax.flattening.operators.registry import Operators

OPERATORS = Operators()
operator = OPERATORS.operator
