"""Compute a large batch a few items at a time: their tensors then fit the caches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from lowering.batches import Axes, NotSeparableError, batch_axes, resized
from lowering.contexts import runs
from lowering.jaxpr_types import Atom, Equation, Variable
from lowering.jaxprs import CONVOLUTION, PRODUCT, primitive, variables
from lowering.program import Computed, Program, replaced
from lowering.targets.target import Target

# The most bytes that one operation reads and writes. With 32 MB 8 items of a U-Net take 5 to 10 %
# longer, with 16 MB 8 items of ResNet-50 4 %.
_MEMORY = 24 << 20

# A stage of light operations takes more items at a time than the heaviest operation of the program
# allows, since products gain from more rows; each operation then reads and writes at most _LIGHT
# bytes. With 24 MB the tensors between stages would be allocated anew in each call. Milliseconds of
# batches of 8 in one stage and in up to three: ResNet-18 222 and 196, MobileNetV2 76 and 61.
_LIGHT = 5 << 20
_NEAR = 16  # equations by which a stage may be longer, to end where it hands on the fewest bytes

# A stage without one of these is not worth the copies at its ends.
_PRODUCTS = (CONVOLUTION, PRODUCT)


def run(program: Program, target: Target) -> Program:
    """Make loops over parts of the batch, if all inputs have the batch and its items stay separate.

    A program is divided into stages, each a loop of its own. If the last stage does not take the
    full batch at once, its loop contains the loops of the earlier stages: the tensors between
    stages then have only the items of one step.
    """
    inputs = program.arguments[program.parameters :]
    if program.role != "value" or not program.is_alone or not _is_batch(inputs):
        return program
    try:
        axes = batch_axes(program, dict.fromkeys(inputs, 0))
    except NotSeparableError:
        return program
    batch = inputs[0].aval.shape[0]
    equations = [e for e in program.equations if _varies(program, e)]
    stages = _stages(equations, axes, batch)
    if len(stages) > 1:
        last_size, _ = stages[-1]
        if last_size < batch:
            stages = [(last_size, equations)]
    loops = [_loop(program, target, axes, part, n) for n, part in stages if n < batch]
    return replaced(program, loops) if loops else program


def _is_batch(inputs: Sequence[Variable]) -> bool:
    """Tell whether all inputs have the same extent, two or more, along their first axis."""
    shapes = [x.aval.shape for x in inputs]
    extents = {shape[0] for shape in shapes if shape}
    return all(shapes) and len(extents) == 1 and min(extents) > 1


def _varies(program: Program, equation: Equation) -> bool:
    """Tell whether an equation depends on inputs."""
    return any(v not in program.known for v in equation.outvars)


def _loop(
    program: Program, target: Target, axes: Axes, equations: Sequence[Equation], size: int
) -> Computed:
    """Return the loop that computes the equations for `size` items at a time."""
    computed = {v for e in equations for v in e.outvars}
    inside = {id(e) for e in equations}
    outside = [e for e in program.equations if id(e) not in inside and _varies(program, e)]
    read = dict.fromkeys(variables(v for e in equations for v in e.invars))
    reads = [v for v in read if v not in program.known and v not in computed]
    later_reads = variables([*(v for e in outside for v in e.invars), *program.results])
    results = [v for v in dict.fromkeys(later_reads) if v in computed]
    parameters = program.arguments[: program.parameters]
    # Equations of parameters are in the loop too: their broadcasts are as large as a batch.
    body = run(resized(program.part([*parameters, *reads], results), (axes, size)), target)

    def function(*operands: Array) -> list[Array]:
        prepared = operands[: len(parameters)]
        items = operands[len(parameters) :]

        def of_part(part: Sequence[Array]) -> list[Array]:
            return body(*prepared, *part)

        parts = [_divided(x, axes[v], size) for v, x in zip(reads, items, strict=True)]
        arrays = jax.lax.map(of_part, parts)
        return [_joined(x, axes[v]) for v, x in zip(results, arrays, strict=True)]

    return Computed(function, [*parameters, *reads], results, at=equations[-1])


def _divided(x: Array, axis: int, size: int) -> Array:
    """Stack parts of `size` items along a new axis 0."""
    return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :]), axis, 0)


def _joined(x: Array, axis: int) -> Array:
    """Reverse `_divided`."""
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def _stages(
    equations: Sequence[Equation], axes: Axes, batch: int
) -> list[tuple[int, Sequence[Equation]]]:
    """Divide equations into groups, each with the number of items to compute at a time.

    A group takes as many items as its equations and all later equations allow.
    """
    sizes = [n for n in range(1, batch + 1) if batch % n == 0]
    traffic = [_traffic(equation, axes) for equation in equations]

    def most(nbytes: int, limit: int) -> int:
        """Return the most items for which an operation with `nbytes` for the batch fits a limit."""
        return max((n for n in sizes if n * nbytes <= limit * batch), default=1)

    least = most(max(traffic, default=0), _MEMORY)
    if not runs("stages"):
        return [(least, equations)]
    allowed = [max(least, most(nbytes, _LIGHT)) for nbytes in traffic]
    # An equation takes no more items than any later equation.
    allowed = list(itertools.accumulate(reversed(allowed), min))
    allowed.reverse()
    groups: list[tuple[int, Sequence[Equation]]] = []
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


def _narrowest(equations: Sequence[Equation], start: int) -> int:
    """Return the end of a stage, from `start` to `start + _NEAR`, that the fewest bytes cross."""
    last_read = {v: index for index, e in enumerate(equations) for v in variables(e.invars)}
    computed = {v: index for index, e in enumerate(equations) for v in e.outvars}

    def handed_on(index: int) -> int:
        return sum(_bytes(v) for v, i in computed.items() if i < index <= last_read.get(v, index))

    return min(range(start, min(start + _NEAR, len(equations)) + 1), key=handed_on)


def _traffic(equation: Equation, axes: Axes) -> int:
    """Return the bytes that an equation reads and writes, of variables with the batch."""
    operands_and_results = variables([*equation.invars, *equation.outvars])
    return sum(_bytes(v) for v in operands_and_results if v in axes)


def _bytes(variable: Atom) -> int:
    return math.prod(variable.aval.shape) * variable.aval.dtype.itemsize
