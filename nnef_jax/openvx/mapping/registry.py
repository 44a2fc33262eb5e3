"""The registry of kinds of operations with nodes in OpenVX."""

from __future__ import annotations

from nnef_jax.flattening.operators.registry import Operators

KINDS = Operators()
maps = KINDS.operator
