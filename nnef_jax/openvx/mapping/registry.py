"""The registry of kinds of operations that OpenVX has nodes for."""

from __future__ import annotations

from nnef_jax.flattening.operators.registry import Operators, Registration

KINDS = Operators()
maps: Registration = KINDS.operator
