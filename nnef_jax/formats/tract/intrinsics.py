"""Import the modules of the dialect that register intrinsics."""

from __future__ import annotations

from nnef_jax.formats.tract import introduction, known_values, pulse, scan
from nnef_jax.formats.tract.call_site import INTRINSICS

__all__ = ["INTRINSICS", "introduction", "known_values", "pulse", "scan"]
