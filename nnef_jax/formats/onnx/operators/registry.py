"""The registry of the operators of ONNX, in the standard's domain and in others."""

from __future__ import annotations

from nnef_jax.flattening.operators.registry import Operators, Registration

OPERATORS = Operators()
operator: Registration = OPERATORS.operator
