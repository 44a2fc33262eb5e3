"""The registry of kinds of operations that OpenVX has nodes for."""

from __future__ import annotations

from nnef_jax.flattening.operators.registry import Operators

KINDS = Operators()
maps = KINDS.operator
