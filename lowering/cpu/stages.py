"""Choose how many items of a batch equations are computed for at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from lowering.ablation import runs
from lowering.cpu.batch import Axes
from lowering.jaxprs import CONVOLUTION, PRODUCT, primitive, variables

# Bytes that one operation may read and write: with 32 MB 8 items of a U-Net take 5 to 10 % longer,
# with 16 MB those of ResNet-50 4 %.
_MEMORY = 24 << 20

# The same for more items than the heaviest operation allows. Products gain by more rows, but with
# 24 MB here a stage hands on so much that each call takes memory anew. Batches of 8 take, in ms, in
# one stage and in up to three: ResNet-18 222 and 196, MobileNetV2 76 and 61.
_LIGHT = 5 << 20
_NEAR = 16  # equations within which a border is put where the least is handed on

# What makes a stage of its own worth the copies at its borders.
_PRODUCTS = (CONVOLUTION, PRODUCT)


def stages(equations: Sequence[Any], axes: Axes, batch: int) -> list[tuple[int, Sequence[Any]]]:
    """Group neighbours by the number of items that they are computed for at a time.

    It is as many as each of them and all later ones allow.
    """
    sizes = [n for n in range(1, batch + 1) if batch % n == 0]
    traffic = [_traffic(equation, axes) for equation in equations]

    def most(volume: int, limit: int) -> int:
        return max((n for n in sizes if n * volume <= limit * batch), default=1)

    least = most(max(traffic, default=0), _MEMORY)
    if not runs("stages"):
        return [(least, equations)]
    allowed = [max(least, most(volume, _LIGHT)) for volume in traffic]
    allowed = list(itertools.accumulate(reversed(allowed), min))[::-1]
    groups: list[tuple[int, Sequence[Any]]] = []
    start = 0
    while start < len(equations):
        stop = next((i for i, n in enumerate(allowed) if n > allowed[start]), len(equations))
        stop = _narrowest(equations, stop)
        group = equations[start:stop]
        if groups and not any(primitive(e) in _PRODUCTS for e in group):
            size, before = groups.pop()
            groups.append((size, [*before, *group]))
        else:
            groups.append((allowed[start], group))
        start = stop
    return groups


def _narrowest(equations: Sequence[Any], start: int) -> int:
    """Return the index, near the start, before which the fewest bytes are handed on."""
    last = {v: index for index, e in enumerate(equations) for v in variables(e.invars)}
    made = {v: index for index, e in enumerate(equations) for v in e.outvars}

    def handed_on(index: int) -> int:
        return sum(_bytes(v) for v, i in made.items() if i < index <= last.get(v, index))

    return min(range(start, min(start + _NEAR, len(equations)) + 1), key=handed_on)


def _traffic(equation: Any, axes: Axes) -> int:
    read_and_made = variables([*equation.invars, *equation.outvars])
    return sum(_bytes(v) for v in read_and_made if v in axes)


def _bytes(variable: Any) -> int:
    return math.prod(variable.aval.shape) * variable.aval.dtype.itemsize
