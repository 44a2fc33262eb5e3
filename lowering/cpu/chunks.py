"""Compute a large batch a few items at a time: all of one then fits the caches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from lowering.batches import Axes, NotSeparableError, batch_axes, resized
from lowering.contexts import runs
from lowering.jaxprs import CONVOLUTION, PRODUCT, primitive, variables
from lowering.program import Computed, Program, replaced
from lowering.targets.target import Target

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


def run(program: Program, target: Target) -> Program:
    """Make loops over parts of the batch, if all inputs have one and its items never meet.

    What a stage hands on stays in memory for as many items as the last of them takes at a time:
    the stages before are loops in its loop.
    """
    inputs = program.arguments[program.parameters :]
    if program.role != "value" or not program.is_alone or not _is_batch(inputs):
        return program
    try:
        axes = batch_axes(program, dict.fromkeys(inputs, 0))
    except NotSeparableError:
        return program
    batch = inputs[0].aval.shape[0]
    found = _stages([e for e in program.equations if _varies(program, e)], axes, batch)
    if len(found) > 1 and found[-1][0] < batch:
        found = [(found[-1][0], [e for _, equations in found for e in equations])]
    loops = [_loop(program, target, axes, x, n) for n, x in found if n < batch]
    return replaced(program, loops) if loops else program


def _is_batch(inputs: Sequence[Any]) -> bool:
    """Tell whether all inputs have the same extent, two or more, along their first axis."""
    extents = {x.aval.shape[0] if x.aval.shape else 1 for x in inputs}
    return len(extents) == 1 and min(extents) > 1


def _varies(program: Program, equation: Any) -> bool:
    return any(v not in program.known for v in equation.outvars)


def _loop(
    program: Program, target: Target, axes: Axes, equations: Sequence[Any], size: int
) -> Computed:
    """Return the loop that computes equations for so many items at a time."""
    made = {v for e in equations for v in e.outvars}
    inside = {id(e) for e in equations}
    outside = [e for e in program.equations if id(e) not in inside and _varies(program, e)]
    read = dict.fromkeys(variables(v for e in equations for v in e.invars))
    reads = [v for v in read if v not in program.known and v not in made]
    asked = variables([*(v for e in outside for v in e.invars), *program.results])
    results = [v for v in dict.fromkeys(asked) if v in made]
    known = program.arguments[: program.parameters]
    # What is known is in the loop too: broadcasts of it are as large as a part of the batch.
    body = run(resized(program.part([*known, *reads], results), (axes, size)), target)

    def function(*operands: Any) -> list[Array]:
        own, items = operands[: len(known)], operands[len(known) :]
        parts = [_divided(x, axes[v], size) for v, x in zip(reads, items, strict=True)]
        found = jax.lax.map(lambda parts: body(*own, *parts), parts)
        return [_joined(x, axes[v]) for v, x in zip(results, found, strict=True)]

    return Computed(function, [*known, *reads], results, at=equations[-1])


def _divided(x: Array, axis: int, size: int) -> Array:
    """Stack parts of so many items along a new axis 0."""
    return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :]), axis, 0)


def _joined(x: Array, axis: int) -> Array:
    """Reverse `_divided`."""
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def _stages(equations: Sequence[Any], axes: Axes, batch: int) -> list[tuple[int, Sequence[Any]]]:
    """Divide equations into groups, each with the number of items to compute at a time.

    A group takes as many items as its equations and all later ones allow.
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
