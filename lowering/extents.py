"""Defines extents that may be unknown, and functions of extents and shapes.

An extent is the number of items along an axis: an int or `UNKNOWN`. Integer arithmetic with
`UNKNOWN` gives `UNKNOWN`. Comparisons with `UNKNOWN` by < and > are False, so that a check such as
`if padded < window: raise` passes. `UNKNOWN` equals only itself. `differ` tells whether two extents
are certainly different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Final

Shape = tuple[int, ...]
Ints = tuple[int, ...]  # integers that are not extents, such as axes and strides


class _Unknown(int):
    """The class of UNKNOWN."""

    __slots__ = ()

    def _absorb(self, *_: object) -> _Unknown:
        """Return UNKNOWN, the result of any arithmetic with UNKNOWN."""
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _absorb
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __neg__ = _absorb

    def _never(self, _: object) -> bool:
        """Return False, the result of any comparison of sizes with UNKNOWN."""
        return False

    __lt__ = __le__ = __gt__ = __ge__ = _never

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(_Unknown)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return "?"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format("?", spec)

    def __reduce__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final[int] = _Unknown()

MAX_RANK = 64  # the most axes of a numpy array
MAX_EXTENT = (1 << 31) - 1  # the most items along an axis, since indices have 32 bits


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a list, as a text such as `2*n0 + 1` in an attribute of a graph.

    `n0` is a symbol of the graph: a number of items that a run counts. A trace computes with a
    symbolic dimension of `jax.export` in place of an `Extent`. A symbolic dimension belongs to one
    trace, and cannot be pickled. A graph outlives its traces, so it holds the text.
    """

    text: str

    def __str__(self) -> str:
        return self.text

    def __add__(self, number: int) -> Extent:
        return Extent(f"{self} + {number}")

    def __sub__(self, number: int) -> Extent:
        return Extent(f"{self} - {number}")

    def __floordiv__(self, number: int) -> Extent:
        return Extent(f"floordiv({self}, {number})")


def is_symbolic(extent: object) -> bool:
    """Tell whether an extent is a symbolic dimension of `jax.export`.

    Types of tensors have UNKNOWN in place of symbolic dimensions.
    """
    return hasattr(extent, "scope")


def largest_of(extents: Iterable[Any]) -> Any:
    """Return the largest of extents: a number, or an `Extent` if one of them is symbolic.

    The result is not a symbolic dimension of jax. jax assumes that each symbol is at least 1, and
    would return n0 as the larger one of n0 and 1. But n0 is 0 for a list without items.
    """
    return reduce(partial(_extreme, "max", max), extents)


def smallest_of(extents: Iterable[Any]) -> Any:
    """Return the smallest of extents: a number, or an `Extent` if one of them is symbolic."""
    return reduce(partial(_extreme, "min", min), extents)


def _extreme(name: str, function: Callable[[int, int], int], x: Any, y: Any) -> Any:
    """Return the larger or smaller one of two extents. `name` is the name of `function`."""
    if isinstance(x, int) and isinstance(y, int):
        return function(x, y)
    return x if str(x) == str(y) else Extent(f"{name}({x}, {y})")


def has_symbols(attribute: object) -> bool:
    """Tell whether an attribute is a symbolic extent, or a list or tuple with symbolic extents."""
    if isinstance(attribute, list | tuple):
        return any(map(has_symbols, attribute))  # pyright: ignore[reportUnknownArgumentType]
    return is_symbolic(attribute)


def at_least(size: int, other: int) -> bool:
    """Tell whether `size >= other` is certain, whatever the symbolic extents in both are.

    Passes compare sizes by this function, and change nothing if the answer is False.
    """
    try:
        return bool(size >= other)
    except Exception:
        # jax raises InconclusiveDimensionOperation. This module does not import jax.
        return False


def is_known(shape: Iterable[int]) -> bool:
    """Tell whether no extent of a shape is UNKNOWN."""
    return all([extent is not UNKNOWN for extent in shape])


def differ(a: int, b: int) -> bool:
    """Tell whether two extents are certainly different.

    This holds if neither of them is UNKNOWN, and they are not equal.
    """
    return a is not UNKNOWN and b is not UNKNOWN and a != b


def shapes_differ(a: Sequence[int], b: Sequence[int]) -> bool:
    """Tell whether two shapes differ in rank, or in an extent that is known in both."""
    return len(a) != len(b) or any(map(differ, a, b))


def broadcast_extent(a: int, b: int) -> int | None:
    """Return the extent that broadcasting gives for the extents a and b, such as 3 for 1 and 3.

    None is returned if the extents do not broadcast.
    """
    if a == 1:
        return b
    if b == 1:
        return a
    if differ(a, b):
        return None
    return b if a is UNKNOWN else a  # if only one of them is known, the known one


def ceil_div(extent: int, divisor: int) -> int:
    """Return extent / divisor, rounded up."""
    return -(-extent // divisor)


def volume(shape: Iterable[int]) -> int:
    """Return the product of the extents of a shape, which is the number of items of a tensor."""
    result = 1
    for extent in shape:
        result = result * extent
    return result


def padded(shape: Shape, rank: int) -> Shape:
    """Append axes of extent 1 to a shape until it has `rank` axes."""
    return shape + (1,) * (rank - len(shape))


def with_ones(attribute: Any) -> Any:
    """Return a shape or another attribute in which 1 replaces UNKNOWN."""
    if isinstance(attribute, tuple):
        return tuple(map(with_ones, attribute))  # pyright: ignore[reportUnknownArgumentType]
    return 1 if attribute is UNKNOWN else attribute


def along(axis: int, rank: int) -> list[int]:
    """Return the shape that makes `reshape` lay a vector along one axis of a tensor.

    The shape has -1 for this axis and 1 for all other axes. For axis 1 and rank 3 it is
    [1, -1, 1].
    """
    shape = [1] * rank
    shape[axis] = -1
    return shape


def with_extent(shape: Shape, axis: int, *extents: int) -> Shape:
    """Return a shape with `extents` in place of the extent of one axis.

    For (2, 3, 4), axis 1 and the extents 5 and 6 the result is (2, 5, 6, 4).
    """
    before = shape[:axis]
    after = shape[axis + 1 :]
    return (*before, *extents, *after)


def show(shape: Sequence[int | None], names: Sequence[str] = ()) -> str:
    """Return a shape as NNEF writes it: `[1,3,?,?]`.

    `names` has a name, or "", for each of the first axes. An extent that is UNKNOWN or None is
    shown by the name of its axis, if there is one: `[batch,3,?,?]`.
    """
    texts: list[str] = []
    for axis, extent in enumerate(shape):
        if extent is UNKNOWN or extent is None:
            name = names[axis] if axis < len(names) else ""
            texts.append(name or "?")
        else:
            texts.append(str(extent))
    return f"[{','.join(texts)}]"


def is_static(value: object) -> bool:
    """Tell whether a value is a Python number or numpy array, or a tuple or list of such values."""
    import numpy as np  # `import nnef_jax` does not load numpy

    if isinstance(value, tuple | list):
        return all(map(is_static, value))  # pyright: ignore[reportUnknownArgumentType]
    return isinstance(value, bool | int | float | np.ndarray | np.generic)


def is_zero(value: object) -> bool:
    """Tell whether a value is the number 0 of Python or numpy, and not an array with axes."""
    is_number = is_static(value) and getattr(value, "ndim", 0) == 0
    return is_number and bool(value == 0)


def runs_of(
    old: Sequence[int], new: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """Pair runs of consecutive axes before a reshape with the runs of axes after the reshape.

    For a reshape of (6, 4, 5) to (2, 3, 20) the result is [((0,), (0, 1)), ((1, 2), (2,))]:
    axis 0 becomes axes 0 and 1, and axes 1 and 2 become axis 2. None is returned for an empty
    tensor, and if the runs depend on the values of symbolic extents.
    """
    if 0 in old:
        return None
    runs: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    old_end = new_end = 0
    while old_end < len(old) or new_end < len(new):
        old_start, new_start = old_end, new_end
        # Begin both runs with one axis, if axes are left. A run without an axis has the size 1.
        old_end = min(old_end + 1, len(old))
        new_end = min(new_end + 1, len(new))
        old_size = volume(old[old_start:old_end])
        new_size = volume(new[new_start:new_end])
        # Extend the run of the smaller size by its next axis until both runs have the same size.
        while old_size != new_size:
            if old_end < len(old) and at_least(new_size, old_size):
                old_size = old_size * old[old_end]
                old_end += 1
            elif new_end < len(new) and at_least(old_size, new_size):
                new_size = new_size * new[new_end]
                new_end += 1
            else:
                return None
        old_run = tuple(range(old_start, old_end))
        new_run = tuple(range(new_start, new_end))
        runs.append((old_run, new_run))
    return runs
