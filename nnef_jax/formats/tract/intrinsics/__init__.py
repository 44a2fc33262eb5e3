"""Intrinsics: operations that need their site, such as inputs, variables, shapes and scans."""

from __future__ import annotations

from nnef_jax.formats.tract.operators.registry import INTRINSICS

INTRINSICS.families = (
    "nnef_jax.formats.tract.intrinsics.structure",
    "nnef_jax.formats.tract.intrinsics.pulse",
    "nnef_jax.formats.tract.intrinsics.scan",
)
