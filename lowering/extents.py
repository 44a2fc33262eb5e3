"""Extents of tensors that may be unknown, and the arithmetic of shapes on them.

An extent is an int, or `UNKNOWN` where a document leaves it open. `UNKNOWN` goes through integer
arithmetic as itself and is never known to be less or greater than anything, so that a check such as
`if padded < window: raise` stays silent until the extent is known. Equality is identity; compare
extents with `differ`, which is true only where both are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

Shape = tuple[int, ...]


class _Unknown(int):
    """The type of `UNKNOWN`, its only instance."""

    __slots__ = ()

    def _absorb(self, *_: Any) -> _Unknown:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _absorb
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __neg__ = _absorb

    def _never(self, _: object) -> bool:
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

    def __copy__(self) -> _Unknown:
        return self

    def __deepcopy__(self, memo: object) -> _Unknown:
        return self

    def __reduce__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final[int] = _Unknown()

MAX_RANK = 64  # of an array of numpy


def is_symbolic(extent: object) -> bool:
    """Whether something is an extent that `jax.export` leaves symbolic: neither number nor array.

    Rules find such extents in the shapes of traced arrays; types have UNKNOWN for them.
    """
    return hasattr(extent, "scope")


def is_known(shape: Iterable[int]) -> bool:
    """Whether no extent of the shape is unknown."""
    return all([extent is not UNKNOWN for extent in shape])


def differ(a: int, b: int) -> bool:
    """Whether two extents are both known and not equal."""
    return a is not UNKNOWN and b is not UNKNOWN and a != b


def shapes_differ(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes differ, in rank or in an extent that both know."""
    return len(a) != len(b) or any(map(differ, a, b))


def volume(shape: Iterable[int]) -> int:
    """The number of items in a tensor of this shape."""
    result = 1
    for extent in shape:
        result = result * extent
    return result


def show(shape: Sequence[int]) -> str:
    """A shape as it is written in NNEF: `[1,3,?,?]`."""
    return "[" + ",".join(str(extent) for extent in shape) + "]"
