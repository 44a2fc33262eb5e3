"""Intrinsics, which are operations whose functions need the site of the call.

Examples are inputs, variables, shapes and scans.
"""

from __future__ import annotations

from nnef_jax.formats.tract.operators.registry import INTRINSICS

INTRINSICS.families = (
    "nnef_jax.formats.tract.intrinsics.structure",
    "nnef_jax.formats.tract.intrinsics.pulse",
    "nnef_jax.formats.tract.intrinsics.scan",
)
