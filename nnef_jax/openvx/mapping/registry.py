"""The registry of the kinds of operations for which OpenVX has nodes."""

from __future__ import annotations

from nnef_jax.flattening.operators.registry import Operators, Registration

KINDS = Operators()
maps: Registration = KINDS.operator
