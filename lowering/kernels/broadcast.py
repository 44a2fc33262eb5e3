"""Broadcasts from the left: a shape that is too short is continued by 1s (spec 4.2.2)."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np

from lowering.errors import InvalidShape
from lowering.extents import Shape, common, show


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the common shape; raise InvalidShape where two extents differ and neither is 1."""
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    made: list[int] = []
    for axis, extents in enumerate(zip_longest(*shapes, fillvalue=1)):
        made.append(1)
        for extent in extents:
            both = common(made[axis], extent)
            if both is None:
                one_rank = len({len(s) for s in shapes if s}) == 1
                raise InvalidShape(
                    f"shapes {' and '.join(map(show, shapes))} do not broadcast: "
                    f"extents {made[axis]} and {extent} at axis {axis}",
                    hint="along each axis extents must be equal, or 1"
                    if one_rank
                    else "shapes are matched from the left, a shorter one is continued by 1s: "
                    "a value for each channel has shape [1,C]",
                )
            made[axis] = both
    return tuple(made)


def align(*arrays: Any) -> tuple[Any, ...]:
    """Add trailing 1s up to the largest rank, for numpy's rules; Python numbers stay."""
    rank = max((np.ndim(x) for x in arrays), default=0)
    return tuple(expand(x, rank) for x in arrays)


def expand(x: Any, rank: int) -> Any:
    """Add trailing 1s up to this rank."""
    if isinstance(x, (bool, int, float)) or x.ndim == rank:
        return x
    return x.reshape(x.shape + (1,) * (rank - x.ndim))
