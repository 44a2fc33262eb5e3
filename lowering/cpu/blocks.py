"""Compute attention at once or by blocks of heads and queries, of the keys that some query sees."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lowering.batches import Axes, NotSeparableError, batch_axes, resized
from lowering.cpu.attention import FEW
from lowering.cpu.key_masks import Hidden, hidden_keys
from lowering.cpu.pending_view import View, whole
from lowering.program import Program

# Quarters of the keys that are read, each by a branch of its own. In a GPT's step each is compiled
# for each layer, 0.1 s; in a loop over blocks once.
_OF_FEW = (1, 2, 4)
_OF_BLOCK = (1, 2, 3, 4)

# Bytes of scores that are computed at once, and those of a block where there are more. 12 heads of
# 64 items, in ms at 512, 1024, 2048 and 4096 tokens: 7.1, 29, 112 and 426; 6.5 in blocks at 512.
# As written 8.5, 68, 275 and 1030.
_WHOLE = 16 << 20
_BLOCK = 9 << 20
_QUERIES = 256  # of a block: 12 heads at 1024 tokens take 24 ms with them, 44 with 512

Evaluate = Callable[[Program, Sequence[View]], list[View]]


class _Loop(NamedTuple):
    """A loop over an axis of the scores, by blocks of so many items."""

    axes: Axes  # of variables
    extent: int
    size: int


def attended(program: Program, views: Sequence[View], evaluate: Evaluate) -> View:
    """Return the result of an attention, given views of queries, keys, values and masks.

    Blocks are of queries, and of heads if that runs alone on a device: else they may be sharded.
    """
    loops = _loops(program)
    is_many = program.arguments[0].aval.shape[-2] >= FEW
    hidden = hidden_keys(program) if program.is_alone and (loops or not is_many) else None
    one = _Block(program, loops, hidden, evaluate)
    if not loops:
        return one.computed(views, one.seen(views))

    def views_at(starts: Any) -> list[View]:
        pairs = zip(views, program.arguments, strict=True)
        return [_part(view, v, zip(loops, starts, strict=True)) for view, v in pairs]

    firsts = [[*range(0, x.extent - x.size, x.size), x.extent - x.size] for x in loops]
    table = np.array(list(itertools.product(*firsts)), np.int32)
    # Masks may be known: then this is, too.
    counts = None if hidden is None else lax.map(lambda starts: one.seen(views_at(starts)), table)
    example = jax.eval_shape(lambda: one.at_once(views_at(table[0])))
    (result,) = program.results
    places = [example.position(loop.axes[result]) for loop in loops]

    def turn(array: Any, item: Any) -> tuple[Any, None]:
        starts, count = item
        at = [np.int32(0)] * array.ndim
        for place, start in zip(places, starts, strict=True):
            at[place] = start
        block = whole(one.computed(views_at(starts), count))
        return lax.dynamic_update_slice(array, block, at), None

    shape = tuple(result.aval.shape)
    start = jnp.zeros([shape[axis] for axis in example.order], example.array.dtype)
    array, _ = lax.scan(turn, start, (table, counts))
    return View(array, example.order, shape)


def _loops(program: Program) -> list[_Loop]:
    """Choose axes and sizes of blocks; none where all scores fit the caches."""
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
    for known, most in seeds:
        extent = shape[known[queries]]
        parts = -(-extent // min(most, rows, extent))
        try:
            axes = batch_axes(program, known, follow=program.arguments)
        except NotSeparableError:
            continue
        size = -(-extent // parts)
        rows = max(1, rows // size)
        if parts > 1:
            loops.append(_Loop(axes, extent, size))
    return loops


@dataclass(frozen=True, slots=True)
class _Block:
    """Computes attention for a block of queries and heads, or all of them."""

    program: Program
    loops: Sequence[_Loop]
    hidden: Hidden | None
    evaluate: Evaluate

    def at_once(self, views: Sequence[View], *more: _Loop) -> View:
        """Return the result, given views of a block."""
        sizes = ((loop.axes, loop.size) for loop in (*self.loops, *more))
        (view,) = self.evaluate(resized(self.program, *sizes), views)
        return view

    def computed(self, views: Sequence[View], count: Any) -> View:
        """Return the result of the first keys: so many, rounded up to a part of all."""
        if self.hidden is None:
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

    def seen(self, views: Sequence[View]) -> Any:
        """Return the number of keys up to the last that masks leave to some query."""
        if self.hidden is None:
            return None
        scores, masked, axes = self.hidden.scores, self.hidden.masked, self.hidden.axes
        part = self.program.part([scores, *self.program.arguments], [masked])
        inner = resized(part, *((loop.axes, loop.size) for loop in self.loops))
        shape = inner.arguments[0].aval.shape
        zero = jnp.zeros([1] * len(shape), scores.aval.dtype)
        zeros = View(zero, tuple(range(len(shape))), shape, True)
        (view,) = self.evaluate(inner, [zeros, *views])
        own = view.position(axes[masked])
        found = view.array != -jnp.inf
        seen = found.any([axis for axis in range(found.ndim) if axis != own])
        extent = view.shape[axes[masked]]
        return jnp.max(jnp.where(seen, jnp.arange(1, extent + 1, dtype=np.int32), 0))


def _part(view: View, variable: Any, places: Iterable[tuple[_Loop, Any]]) -> View:
    """Slice the items of a block out of a view."""
    array, shape = view.array, list(view.shape)
    for loop, start in places:
        axis = loop.axes.get(variable)
        if axis is not None:
            shape[axis], position = loop.size, view.position(axis)
            if array.shape[position] > 1:
                array = lax.dynamic_slice_in_dim(array, start, loop.size, position)
    return View(array, view.order, tuple(shape), view.known)
