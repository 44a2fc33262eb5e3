"""Extents of tensors that may be unknown, and the arithmetic of shapes on them; known values.

An extent is an int, or `UNKNOWN`, which survives integer arithmetic and is neither less nor greater
than anything: `if padded < window: raise` stays silent. `differ` compares; equality is identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

Shape = tuple[int, ...]
Ints = tuple[int, ...]  # other numbers: axes, strides


class _Unknown(int):
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

    def __reduce__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final[int] = _Unknown()

MAX_RANK = 64  # of an array of numpy
MAX_EXTENT = (1 << 31) - 1  # of an axis: indices have 32 bits


def is_symbolic(extent: object) -> bool:
    """Tell an extent that `jax.export` keeps symbolic; types have UNKNOWN for it."""
    return hasattr(extent, "scope")


def at_least(size: int, other: int) -> bool:
    """Tell whether a size is known to be no smaller than another: open ones may be of any size.

    Passes compare sizes by it, and leave as written what they do not know.
    """
    try:
        return bool(size >= other)
    except Exception:  # InconclusiveDimensionOperation of jax, which nothing here imports
        return False


def is_known(shape: Iterable[int]) -> bool:
    """Tell whether all extents are known."""
    return all([extent is not UNKNOWN for extent in shape])


def differ(a: int, b: int) -> bool:
    """Tell whether two extents are known and not equal."""
    return a is not UNKNOWN and b is not UNKNOWN and a != b


def shapes_differ(a: Sequence[int], b: Sequence[int]) -> bool:
    """Tell whether two shapes differ, in rank or in an extent that both know."""
    return len(a) != len(b) or any(map(differ, a, b))


def common(a: int, b: int) -> int | None:
    """Return the extent that two broadcast to, None where they differ and neither is 1."""
    if a == 1 or (a is UNKNOWN and b != 1):
        return b
    return None if b != 1 and differ(a, b) else a


def volume(shape: Iterable[int]) -> int:
    """Return the number of items in a tensor of this shape."""
    result = 1
    for extent in shape:
        result = result * extent
    return result


def padded(shape: Shape, rank: int) -> Shape:
    """Return the shape continued by 1s up to a rank."""
    return shape + (1,) * (rank - len(shape))


def known(attribute: Any) -> Any:
    """Replace unknown extents by 1, in a shape or another attribute."""
    if isinstance(attribute, tuple):
        return tuple(map(known, attribute))  # pyright: ignore[reportUnknownArgumentType]
    return 1 if attribute is UNKNOWN else attribute


def along(axis: int, rank: int) -> list[int]:
    """Return the shape, for `reshape`, of a vector along an axis."""
    return [-1 if a == axis else 1 for a in range(rank)]


def with_extent(shape: Shape, axis: int, *extents: int) -> Shape:
    """Return the shape with other extents for that of an axis."""
    return (*shape[:axis], *extents, *shape[axis + 1 :])


def show(shape: Sequence[int | None], names: Sequence[str] = ()) -> str:
    """Return a shape as NNEF writes it: `[1,3,?,?]`.

    An open extent, which may be None too, is shown by its name if it has one: `[batch,3,?,?]`.
    """
    said = [*names, *[""] * (len(shape) - len(names))]
    pairs = zip(shape, said, strict=False)
    shown = (name or "?" if n is UNKNOWN or n is None else str(n) for n, name in pairs)
    return f"[{','.join(shown)}]"


def is_static(value: Any) -> bool:
    """Tell whether a value, or every item of an array of values, is known on the host."""
    import numpy as np  # which `import nnef_jax` does not load

    if isinstance(value, tuple | list):
        return all(map(is_static, value))  # pyright: ignore[reportUnknownArgumentType]
    return isinstance(value, bool | int | float | np.ndarray | np.generic)


def is_zero(value: Any) -> bool:
    """Tell whether a value is the number 0, known on the host. An array of zeros is not."""
    return is_static(value) and getattr(value, "ndim", 0) == 0 and bool(value == 0)


def runs_of(
    old: Sequence[Any], new: Sequence[Any]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """Pair runs of axes with those that a reshape makes of them.

    Return None for an empty tensor, and where open extents do not tell.
    """
    if 0 in old:
        return None
    runs: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        first, other = i, j
        left, i = (old[i], i + 1) if i < len(old) else (1, i)
        right, j = (new[j], j + 1) if j < len(new) else (1, j)
        while left != right:
            if i < len(old) and at_least(right, left):
                left, i = left * old[i], i + 1
            elif j < len(new) and at_least(left, right):
                right, j = right * new[j], j + 1
            else:
                return None
        runs.append((tuple(range(first, i)), tuple(range(other, j))))
    return runs
