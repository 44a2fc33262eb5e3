"""Divide the equations of a batch into stages, by how many items each computes at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Stage:
    """Equations that are computed for `size` items of the batch at a time."""

    size: int
    equations: Sequence[Any]
    reads: Sequence[Any]  # variables of the inputs and of stages before
    results: Sequence[Any]  # variables that later stages read or the function returns


def stages(jaxpr: Any, inputs: Sequence[Any], axes: Axes, batch: int) -> list[Stage]:
    """Divide equations into stages of as many items as each and all later ones allow."""
    dependent = set(inputs)
    makers: dict[Any, Any] = {}  # of what is the same for all items
    own: list[Any] = []
    for equation in jaxpr.eqns:
        if not dependent.isdisjoint(variables(equation.invars)):
            own.append(equation)
            dependent.update(equation.outvars)
        else:
            makers.update((variable, equation) for variable in equation.outvars)
    groups = _groups(own, axes, batch)
    wanted = variables(jaxpr.outvars)
    found: list[Stage] = []
    for index, (size, equations) in enumerate(groups):
        made = {v for e in equations for v in e.outvars}
        later = [v for _, group in groups[index + 1 :] for e in group for v in e.invars]
        results = [v for v in _unique([*later, *wanted]) if v in made]
        read = _unique(v for e in equations for v in e.invars)
        reads = [v for v in read if v in dependent and v not in made]
        found.append(Stage(size, [*_makers_of(read, makers, jaxpr), *equations], reads, results))
    same = [v for v in _unique(wanted) if v not in dependent]
    return [*found, Stage(batch, _makers_of(same, makers, jaxpr), [], same)] if same else found


def united(stages: Sequence[Stage], outputs: Sequence[Any]) -> Stage:
    """Unite stages, from the first one, to one of as many items as the last of them takes."""
    equations = {id(e): e for stage in stages for e in stage.equations}.values()
    made = {v for e in equations for v in e.outvars}
    reads = [v for v in _unique(v for stage in stages for v in stage.reads) if v not in made]
    results = {v for stage in stages for v in stage.results}
    return Stage(
        stages[-1].size, list(equations), reads, [v for v in _unique(outputs) if v in results]
    )


def _groups(equations: Sequence[Any], axes: Axes, batch: int) -> list[tuple[int, Sequence[Any]]]:
    """Group neighbours by the number of items that they are computed for at a time."""
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
    last = {v: index for index, e in enumerate(equations) for v in _unique(e.invars)}
    made = {v: index for index, e in enumerate(equations) for v in e.outvars}

    def handed_on(index: int) -> int:
        return sum(_bytes(v) for v, i in made.items() if i < index <= last.get(v, index))

    return min(range(start, min(start + _NEAR, len(equations)) + 1), key=handed_on)


def _unique(operands: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(variables(operands)))


def _makers_of(read: Iterable[Any], makers: Mapping[Any, Any], jaxpr: Any) -> list[Any]:
    """Return the equations that compute variables which are the same for all items."""
    pending = list(read)
    needed: set[int] = set()
    while pending:
        equation = makers.get(pending.pop())
        if equation is not None and id(equation) not in needed:
            needed.add(id(equation))
            pending += _unique(equation.invars)
    return [equation for equation in jaxpr.eqns if id(equation) in needed]


def _traffic(equation: Any, axes: Axes) -> int:
    read_and_made = variables([*equation.invars, *equation.outvars])
    return sum(_bytes(v) for v in read_and_made if v in axes)


def _bytes(variable: Any) -> int:
    return math.prod(variable.aval.shape) * variable.aval.dtype.itemsize
