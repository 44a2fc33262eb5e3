"""The registry of ONNX's operators, in the standard's and other domains."""

from __future__ import annotations

from nnef_jax.flattening.operators.registry import Operators, Registration

OPERATORS = Operators()
operator: Registration = OPERATORS.operator
