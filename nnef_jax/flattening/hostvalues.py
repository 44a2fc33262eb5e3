"""Host values: shapes and other arrays that are known before a run, and conversions of them.

The arrays are shapes, indices, ranges and the like. A host value is a numpy array of Python
integers (dtype object), of real numbers, or of bool. Integers never wrap. An open extent is the
item `UNKNOWN`, and a symbolic extent is an object of jax.export. A real number that depends on an
open extent is NaN. `host_operations` has the operations on host values.
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
# The largest number of items that the host computes; the compiled network computes larger results.
LARGEST = 1 << 16
COSTLY_TYPES = frozenset({list, tuple, str, np.ndarray})  # types whose `weight` is not 0
_DEEPEST = 32  # the deepest nesting of lists that is read


class NotFolded(Exception):
    """The host cannot compute an operation, so the compiled network must compute it."""


def host(value: Any) -> Host:
    """Convert a number, an array or a nested list of numbers to a host value.

    Raises InvalidOperation for complex numbers, and for anything that is not a number.
    """
    if isinstance(value, np.ndarray):
        kind = value.dtype.kind
        if kind == "c":  # complex
            raise InvalidOperation("a real number is due, these numbers are complex")
        if kind in "Ob":  # objects or bool
            return value
        if kind in "iu":  # signed or unsigned integers
            return value.astype(object)
        return value.astype(np.float64)
    if isinstance(value, bool | np.bool_):
        return np.array(bool(value))
    if isinstance(value, int) or is_symbolic(value):
        return integer_array([value], ())
    if isinstance(value, float):
        return np.array(value, np.float64)
    if isinstance(value, list | tuple):
        return _stacked(value)
    raise InvalidOperation(f"a number is due, this is {reprlib.repr(value)}")


def _stacked(values: Sequence[Any]) -> Host:
    """Convert a list, whose items may be lists too, to a host value."""
    if not values:
        return np.array([], object)
    types = set(map(type, values))
    if types <= {int, float}:  # a faster way for most lists
        dtype = np.float64 if float in types else object
        return np.array(values, dtype)
    arrays = [host(value) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise InvalidOperation("the lists in this array have different lengths")
    if arrays[0].ndim >= _DEEPEST:
        raise InvalidOperation(f"lists are nested more than {_DEEPEST} deep")
    has_reals = any(array.dtype.kind == "f" for array in arrays)
    if has_reals:
        arrays = [to_float(array) for array in arrays]
    return np.stack(arrays)


def is_integer(value: Host) -> bool:
    """Tell whether a host value holds integers."""
    return value.dtype.kind == "O"


def integers(value: Host) -> list[int]:
    """Return the items of a host value as a flat list of integers, in order.

    NaN becomes UNKNOWN. Raises InvalidOperation for a number with a fraction, or an infinite
    number.
    """
    if is_integer(value):
        return list(value.ravel())
    items: list[int] = []
    for item in value.ravel().tolist():
        if isinstance(item, float) and math.isnan(item):
            items.append(UNKNOWN)
            continue
        is_whole = math.isfinite(item) and int(item) == item
        if not is_whole:
            raise InvalidOperation(f"a whole number is due, this is {item}")
        items.append(int(item))
    return items


def integer_array(items: Sequence[int], shape: Sequence[int] = (-1,)) -> Host:
    """Return a list of integers as a host value with a shape."""
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


def is_plain(items: Iterable[object]) -> bool:
    """Tell whether no item is an open or symbolic extent."""
    return not any(item is UNKNOWN or is_symbolic(item) for item in items)


def is_open(items: Iterable[object]) -> bool:
    """Tell whether one of the items is UNKNOWN."""
    return any(item is UNKNOWN for item in items)


def weight(value: object) -> int:
    """Return the number of items in a host value or in a nested list.

    In a string, every `LETTERS_PER_STEP` letters count as one item.
    """
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, str):
        return len(value) // LETTERS_PER_STEP
    if not isinstance(value, list | tuple):
        return 0
    return len(value) + sum([weight(x) for x in value if type(x) in COSTLY_TYPES])


def to_float(value: Host) -> Host:
    """Convert a host value to real numbers. Integers and bool become float64.

    UNKNOWN becomes NaN. Raises NotFolded for a symbolic extent.
    """
    if not is_integer(value):
        return value if value.dtype.kind == "f" else value.astype(np.float64)
    if any(map(is_symbolic, value.ravel())):
        raise NotFolded
    reals = [math.nan if item is UNKNOWN else float(item) for item in value.ravel()]
    return np.array(reals, np.float64).reshape(value.shape)


def to_integer(value: Host) -> Host:
    """Convert a host value to integers.

    Real numbers are truncated towards 0, and NaN becomes UNKNOWN.
    """
    if is_integer(value):
        return value
    largest = 2.0**63  # larger numbers, and infinity, become this number
    items: list[int] = []
    for item in value.ravel().tolist():
        if math.isnan(item):
            items.append(UNKNOWN)
        else:
            clipped = max(-largest, min(item, largest))
            items.append(int(clipped))
    return integer_array(items, value.shape)


def cast(value: Host, kind: str) -> Host:
    """Convert a host value to the NNEF type `kind`, which is "integer", "scalar" or "logical"."""
    if kind == "integer":
        return to_integer(value)
    if kind == "scalar":
        return to_float(value)
    if is_integer(value) and is_open(value.ravel()):
        # The truth of an UNKNOWN item is UNKNOWN. The result therefore holds 0, 1 and UNKNOWN, not
        # bool.
        truths = [x if x is UNKNOWN else int(x != 0) for x in value.ravel()]
        return integer_array(truths, value.shape)
    return value.astype(bool)
