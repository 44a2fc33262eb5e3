"""Values known when a document is flattened: shapes, indices, ranges.

A host value is a numpy array of Python integers (dtype object), float64 or bool. Integers never
wrap; open extents are `UNKNOWN`, symbolic ones whatever jax.export has. NaN is a real number that
depends on an open extent.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, is_symbolic
from nnef_jax.limits import LETTERS_PER_STEP

Host = NDArray[Any]
LARGEST = 1 << 16  # items of a host value; larger ones are left to the compiled network
WEIGHTY = frozenset({list, tuple, str, np.ndarray})  # types of values that have a weight
_DEEPEST = 32  # lists in lists

# Hints where an extent is open, or is symbolic.
GIVE_SHAPES = "give the shapes of the inputs by load(..., input_shapes=...)"
EXPORT_KNOWN = "export it for known shapes"


def host(value: Any) -> Host:
    """Return numbers, arrays or nested lists as a host value. Raises InvalidOperation."""
    if isinstance(value, np.ndarray):
        kind = value.dtype.kind
        if kind == "c":
            raise InvalidOperation("a real number is due, these are complex ones")
        return value if kind in "Ob" else value.astype(object if kind in "iu" else np.float64)
    if isinstance(value, bool | np.bool_):
        return np.array(bool(value))
    if isinstance(value, int) or is_symbolic(value):
        return boxes([value], ())
    if isinstance(value, float):
        return np.array(value, np.float64)
    if isinstance(value, list | tuple):
        kinds = set(map(type, value))  # pyright: ignore[reportUnknownArgumentType]
        if kinds and kinds <= {int, float}:  # the commonest case, and the fastest
            return np.array(value, np.float64 if float in kinds else object)
        items = [host(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        if not items:
            return np.array([], object)
        if len({item.shape for item in items}) > 1:
            raise InvalidOperation("the lists in this array have different lengths")
        if items[0].ndim >= _DEEPEST:
            raise InvalidOperation(f"lists are nested more than {_DEEPEST} deep")
        kinds = {item.dtype.kind for item in items}
        if "f" in kinds:
            items = [to_float(item) for item in items]
        return np.stack(items)
    raise InvalidOperation(f"a number is due, this is {reprlib.repr(value)}")


def is_integer(value: Host) -> bool:
    """Tell whether a host value holds integers."""
    return value.dtype.kind == "O"


def integers(value: Host) -> list[int]:
    """Return the items in order as integers. Raises InvalidOperation for one that is not whole."""
    if is_integer(value):
        return list(value.ravel())
    items: list[int] = []
    for item in value.ravel().tolist():
        if isinstance(item, float) and math.isnan(item):
            items.append(UNKNOWN)
        elif not math.isfinite(item) or int(item) != item:
            raise InvalidOperation(f"a whole number is due, this is {item}")
        else:
            items.append(int(item))
    return items


def boxes(items: Sequence[int], shape: Sequence[int] = (-1,)) -> Host:
    """Return integers as a host value."""
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


def is_plain(items: Iterable[Any]) -> bool:
    """Tell whether all items are numbers, and none is an extent that is open or symbolic."""
    return not any(item is UNKNOWN or is_symbolic(item) for item in items)


def is_open(items: Iterable[Any]) -> bool:
    """Tell whether an extent that is open is among the items."""
    return any(item is UNKNOWN for item in items)


def weight(value: Any) -> int:
    """Return how many items a value has, through lists and host values; letters count less."""
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, str):
        return len(value) // LETTERS_PER_STEP
    if not isinstance(value, list | tuple):
        return 0
    return len(value) + sum([weight(x) for x in value if type(x) in WEIGHTY])  # pyright: ignore


class NotFolded(Exception):
    """An operation on host values is left to the compiled network."""


def to_float(value: Host) -> Host:
    """Return the value as real numbers."""
    if not is_integer(value):
        return value.astype(np.float64)
    if any(map(is_symbolic, value.ravel())):
        raise NotFolded
    items = [math.nan if x is UNKNOWN else float(x) for x in value.ravel()]
    return np.array(items, np.float64).reshape(value.shape)


def to_integer(value: Host) -> Host:
    """Return the value as integers, real numbers cut off towards 0."""
    if is_integer(value):
        return value
    items = value.ravel().tolist()
    bound = 2.0**63
    whole = [UNKNOWN if x != x else int(max(min(x, bound), -bound)) for x in items]
    return boxes(whole, value.shape)


def cast(value: Host, kind: str) -> Host:
    """Return the value as "integer", "scalar" or "logical"."""
    if kind == "integer":
        return to_integer(value)
    if kind == "scalar":
        return to_float(value)
    if is_integer(value) and is_open(value.ravel()):
        items = [x if x is UNKNOWN else int(x != 0) for x in value.ravel()]
        return boxes(items, value.shape)
    return value.astype(bool)
