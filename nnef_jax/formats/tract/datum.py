"""Datum types of the dialect by name, and their dtypes.

Without jax's x64 mode 64-bit integers become int32, real numbers float32; integers that do not fit
are an error, never wrapped. `real` replaces float32.
"""

from __future__ import annotations

import re

import jax

from lowering.errors import InvalidOperation

TYPES = {
    "bool": "bool",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "tdim": "int64",
    "f16": "float16", "f32": "float32", "f64": "float64",
    "complexf16": "complex64", "complexf32": "complex64", "complexf64": "complex128",
}  # fmt: skip
_NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
_QUANTISED = re.compile(r"q(u8|i8|i32)\s*\(")


def has_x64() -> bool:
    """Return whether jax keeps 64-bit numbers."""
    return bool(jax.config.read("jax_enable_x64"))


def dtype_of(name: str, real: str) -> str:
    """Return the dtype of a datum type, in any case. Raises InvalidOperation where it has none."""
    key = name.lower()
    if _QUANTISED.match(key):
        return real
    if key not in TYPES:
        known = ", ".join(TYPES)
        reason = (
            "cannot be computed with" if key in ("string", "blob") or "complexi" in key
            else "is not one of tract's"
        )  # fmt: skip
        raise InvalidOperation(f"datum type '{name}' {reason}", hint=f"there are {known}")
    return compute_dtype(TYPES[key], real)


def compute_dtype(stored: str, real: str) -> str:
    """Return the dtype that tensors of a stored one are computed in."""
    if stored == "float32":
        return real
    if has_x64() or stored not in _NARROW:
        return stored
    narrow = _NARROW[stored]
    return real if narrow == "float32" else narrow
