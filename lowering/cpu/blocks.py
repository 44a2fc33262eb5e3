"""Compute attention at once or by blocks of heads and queries, without keys that no query sees."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from lowering.batches import Axes, NotSeparableError, batch_axes, resized
from lowering.cpu.attention import FEW
from lowering.cpu.key_masks import Hidden, hidden_keys
from lowering.cpu.pending_view import View, full_array
from lowering.jaxpr_types import Variable
from lowering.program import Program

# Numbers of quarters of the keys that may be read, a branch for each. With few queries, as in a
# GPT's step, each branch is compiled for each layer, 0.1 s; in a loop over blocks it is once.
_OF_FEW = (1, 2, 4)
_OF_BLOCK = (1, 2, 3, 4)

# Bytes of scores that are computed at once, and bytes of a block if there are more. Milliseconds of
# 12 heads of 64 items at 512, 1024, 2048 and 4096 tokens: 7.1 (6.5 in blocks), 29, 112 and 426; as
# written 8.5, 68, 275 and 1030.
_WHOLE = 16 << 20
_BLOCK = 9 << 20
_QUERIES = 256  # of a block; 12 heads at 1024 tokens take 24 ms, 44 with 512 queries

Evaluate = Callable[[Program, Sequence[View]], list[View]]


class _Loop(NamedTuple):
    """A loop over an axis of the scores, by blocks of `size` items."""

    axes: Axes  # by variable
    extent: int
    size: int


def attended(program: Program, views: Sequence[View], evaluate: Evaluate) -> View:
    """Return the result of an attention, given views of queries, keys, values and masks.

    Blocks divide queries. They divide heads too if the program runs on one device: on several heads
    may be sharded.
    """
    loops = _loops(program)
    is_many = program.arguments[0].aval.shape[-2] >= FEW
    hidden = hidden_keys(program) if program.is_alone and (loops or not is_many) else None
    one = _Block(program, loops, hidden, evaluate)
    if not loops:
        return one.computed(views, one.seen(views))

    def views_at(starts: Array | NDArray[np.int32]) -> list[View]:
        pairs = zip(views, program.arguments, strict=True)
        return [_part(view, v, zip(loops, starts, strict=True)) for view, v in pairs]

    firsts = [[*range(0, x.extent - x.size, x.size), x.extent - x.size] for x in loops]
    table = np.array(list(itertools.product(*firsts)), np.int32)
    # If masks depend on parameters alone, so do the counts.
    counts = None if hidden is None else lax.map(lambda starts: one.seen(views_at(starts)), table)
    example = jax.eval_shape(lambda: one.at_once(views_at(table[0])))
    (result,) = program.results
    places = [example.position(loop.axes[result]) for loop in loops]

    def turn(
        array: Array, item: tuple[Array | NDArray[np.int32], Array | None]
    ) -> tuple[Array, None]:
        starts, count = item
        at: list[np.int32 | Array] = [np.int32(0)] * array.ndim
        for place, start in zip(places, starts, strict=True):
            at[place] = start
        block = full_array(one.computed(views_at(starts), count))
        return lax.dynamic_update_slice(array, block, at), None

    shape = tuple(result.aval.shape)
    start = jnp.zeros([shape[axis] for axis in example.order], example.array.dtype)
    array, _ = lax.scan(turn, start, (table, counts))
    return View(array, example.order, shape)


def _loops(program: Program) -> list[_Loop]:
    """Return the loops over blocks; none if all scores fit the caches."""
    queries, keys, values, *_ = program.arguments
    shape, scores = queries.aval.shape, program.equations[0].outvars[0].aval
    if scores.size * scores.dtype.itemsize <= _WHOLE:
        return []
    count = len(keys.aval.shape) - 2 if program.is_alone else 0  # axes that a loop may go over
    beside = math.prod((*shape[count:-2], keys.aval.shape[-2]))
    rows = max(1, _BLOCK // (beside * scores.dtype.itemsize))
    seeds = [({queries: len(shape) - 2}, _QUERIES)]
    for axis in reversed(range(count)):
        seeds.append((dict.fromkeys((queries, keys, values), axis), rows))
    loops: list[_Loop] = []
    for seed, most in seeds:
        extent = shape[seed[queries]]
        parts = -(-extent // min(most, rows, extent))
        try:
            axes = batch_axes(program, seed, follow=program.arguments)
        except NotSeparableError:
            continue
        size = -(-extent // parts)
        rows = max(1, rows // size)
        if parts > 1:
            loops.append(_Loop(axes, extent, size))
    return loops


@dataclass(frozen=True, slots=True)
class _Block:
    """Computes attention for a block of queries and heads, or for all of them."""

    program: Program
    loops: Sequence[_Loop]
    hidden: Hidden | None
    evaluate: Evaluate

    def at_once(self, views: Sequence[View], *more: _Loop) -> View:
        """Return the result of a block, given views of its operands."""
        sizes = ((loop.axes, loop.size) for loop in (*self.loops, *more))
        (view,) = self.evaluate(resized(self.program, *sizes), views)
        return view

    def computed(self, views: Sequence[View], count: Array | None) -> View:
        """Return the result for the first `count` keys, rounded up to quarters of all keys."""
        if self.hidden is None or count is None:
            return self.at_once(views)
        axes = self.hidden.axes
        extent = self.program.arguments[1].aval.shape[-2]
        sizes = [-(-extent * i // 4) for i in (_OF_BLOCK if self.loops else _OF_FEW)]

        def first(size: int) -> Callable[..., View]:
            loop = _Loop(axes, extent, size)

            def run(views: Sequence[View]) -> View:
                pairs = zip(views, self.program.arguments, strict=True)
                return self.at_once([_part(view, v, [(loop, 0)]) for view, v in pairs], loop)

            return run

        index = sum((count > size).astype(np.int32) for size in sizes[:-1])
        return lax.switch(index, list(map(first, sizes)), views)

    def seen(self, views: Sequence[View]) -> Array | None:
        """Return the number of keys up to the last one that a query sees; None without masks."""
        if self.hidden is None:
            return None
        scores, masked, axes = self.hidden.scores, self.hidden.masked, self.hidden.axes
        part = self.program.part([scores, *self.program.arguments], [masked])
        inner = resized(part, *((loop.axes, loop.size) for loop in self.loops))
        shape = inner.arguments[0].aval.shape
        zero = jnp.zeros([1] * len(shape), scores.aval.dtype)
        zeros = View(zero, tuple(range(len(shape))), shape, True)
        (view,) = self.evaluate(inner, [zeros, *views])
        position = view.position(axes[masked])
        visible = view.array != -jnp.inf
        seen = visible.any([axis for axis in range(visible.ndim) if axis != position])
        extent = view.shape[axes[masked]]
        return jnp.max(jnp.where(seen, jnp.arange(1, extent + 1, dtype=np.int32), 0))


def _part(view: View, variable: Variable, places: Iterable[tuple[_Loop, Array | int]]) -> View:
    """Return the view of the items of a block, which starts at these places along its loops."""
    array, shape = view.array, list(view.shape)
    for loop, start in places:
        axis = loop.axes.get(variable)
        if axis is not None:
            shape[axis], position = loop.size, view.position(axis)
            if array.shape[position] > 1:
                array = lax.dynamic_slice_in_dim(array, start, loop.size, position)
    return View(array, view.order, tuple(shape), view.is_early)
