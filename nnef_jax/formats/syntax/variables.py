"""Stored data as a document declares them: shape, kind and dtype (spec 5.1, 5.2)."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from lowering.alignment import aligned
from lowering.extents import Shape, show
from nnef_jax.errors import ArchiveError, DataError
from nnef_jax.limits import Meter
from nnef_jax.storage.archive import Archive

_KINDS = {
    "f": "scalars",
    "i": "integers",
    "u": "integers",
    "b": "logical values",
    "c": "complex numbers",
    "O": "strings",
}
_CONVERTIBLE = {"f": "fiu", "i": "iu", "u": "iu", "b": "b", "c": "cfiu"}  # kinds, to each kind


def without_member(archive: Archive, member: str, label: str) -> ArchiveError:
    """Return what to raise where a variable has no data."""
    return ArchiveError(
        f"{archive.name} has no member '{member}' for the variable '{label}'",
        hint="each variable is stored in LABEL.dat: correct the label, or add the file",
    )


def check_shape(stored: Shape, declared: Shape, label: str, member: str) -> None:
    """Raise DataError where the stored shape is another one, but for trailing 1s (spec 4.1.3)."""
    if any(a != b for a, b in zip_longest(stored, declared, fillvalue=1)):
        raise DataError(
            f"{member} has shape {show(stored)}, variable '{label}' is declared "
            f"with {show(declared)}",
            hint="declare the shape that is stored, or store a tensor of the declared shape",
        )


def convert(
    array: NDArray[Any],
    dtype: np.dtype[Any],
    member: str,
    meter: Meter,
    hint: str = "integer tensors are int32",
) -> NDArray[Any]:
    """Return the array in another dtype; DataError where that would change its meaning.

    `hint` says what to do about integers that are too large.
    """
    if array.dtype == dtype:
        return array
    require_kind(array, dtype, member)
    if dtype.kind in "iu" and array.size:
        low, high, bounds = int(array.min()), int(array.max()), np.iinfo(dtype)
        if low < bounds.min or high > bounds.max:
            raise DataError(
                f"{member} holds values from {low} to {high}, which do not fit {dtype}", hint=hint
            )
    meter.expand(array.size * dtype.itemsize, member)
    converted = aligned(array.shape, dtype)
    with np.errstate(over="ignore"):  # to infinity, as in any computation
        np.copyto(converted, array, casting="unsafe")
    return converted


def require_kind(array: NDArray[Any], dtype: np.dtype[Any], what: str) -> None:
    """Raise DataError for items of another kind than a dtype's: logical ones for scalars, say."""
    kind, stored = _kind(dtype), _kind(array.dtype)
    if stored not in _CONVERTIBLE[kind]:
        raise DataError(
            f"{what} holds {_KINDS.get(stored, array.dtype)}, the variable is declared "
            f"to hold {_KINDS[kind]}"
        )


def _kind(dtype: np.dtype[Any]) -> str:
    for kind, items in (("f", jnp.floating), ("i", jnp.signedinteger), ("u", jnp.unsignedinteger)):
        if jnp.issubdtype(dtype, items):  # of 4 bits too, which numpy calls void
            return kind
    return dtype.kind
