"""Compute a large batch a few items at a time: all of one then fits the caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from lowering.cpu.batch import Axes, NotSeparableError, batch_axes, resized
from lowering.cpu.stages import stages
from lowering.jaxprs import variables
from lowering.program import Computed, Program, replaced
from lowering.targets.target import Target


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
    found = stages([e for e in program.equations if _varies(program, e)], axes, batch)
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
