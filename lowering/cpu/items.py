"""Read items of a loop's stacks by kernels of their own, where others could not be vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering import jaxprs
from lowering.ablation import runs
from lowering.cpu.memory import uninlined
from lowering.facts import facts
from lowering.jaxprs import primitive
from lowering.program import Program

Step = Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]]


def parted(body: Program, count: int) -> list[bool]:
    """Tell of each of the last `count` arguments whether parts of it, or its sums, are read.

    XLA makes a function of a value whose parts are read. It reads the number of the step for each
    number of an item there, and LLVM makes no vectors of that. In 128 steps of an LSTM of 256 with
    one stack for its gates, 8 rows take 79 us a step so, 36 where the item is read before.
    """
    if not count or not runs("items"):
        return [False] * count
    arguments = body.arguments[len(body.arguments) - count :]
    reached = {variable: {variable} for variable in arguments}
    found: set[Any] = set()
    for equation in body.equations:
        origins = {v for x in jaxprs.variables(equation.invars) for v in reached.get(x, ())}
        if primitive(equation) in _PARTS:
            found |= origins
        elif facts(equation).by_item or facts(equation).shapes:
            reached.update((variable, origins) for variable in equation.outvars)
    return [variable in found for variable in arguments]


_PARTS = ("slice", "split")


def scanned(
    step: Step, first: list[Any], stacks: Sequence[Any], apart: Sequence[bool], **options: Any
) -> tuple[list[Any], list[Any]]:
    """Do as `lax.scan`, which has these options; read the items that are `apart` first."""
    if not (any(apart) and options["length"]):
        return lax.scan(step, first, list(stacks), **options)
    joined = [None if alone else x for x, alone in zip(stacks, apart, strict=True)]

    def turn(carry: list[Any], given: tuple[Array, list[Any]]) -> tuple[list[Any], list[Any]]:
        index, items = given
        items = [
            _item(stack, index) if item is None else item
            for stack, item in zip(stacks, items, strict=True)
        ]
        return step(carry, items)

    return lax.scan(turn, first, (jnp.arange(options["length"]), joined), **options)


@uninlined
def _item(stack: Array, index: Array) -> Array:
    starts = (index, *(jnp.zeros_like(index) for _ in stack.shape[1:]))
    return lax.dynamic_slice(stack, starts, (1, *stack.shape[1:])).reshape(stack.shape[1:])
