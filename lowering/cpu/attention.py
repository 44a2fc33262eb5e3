"""Scores of attention: from the product that gives them to the product that they weigh.

Queries are the last axis of the scores' array, so that maxima and sums of softmax go over rows, and
the division by these sums comes after the second product. Scores that leave the caches are computed
by blocks of heads and queries. Of many keys those are read that some query sees. Derivatives read
whole scores: they have none of this.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lowering import jaxprs
from lowering.cpu.batch import Axes, NotSeparableError, batch_axes, resized
from lowering.cpu.hidden import Hidden, hidden_keys
from lowering.cpu.view import View, whole
from lowering.jaxprs import PRODUCT, is_literal, primitive, variables

# Fewer queries or keys are no vectors.
_FEW = 32

# Bytes of keys, of at most so many an item, from which on those that masks hide from few queries
# are not read. A step of GPT-2 at place 128 of 1024 takes 18.2 ms in bfloat16
# instead of 21.6, at place 900 21.6 in both; in float32 24.9 and 24.7, 26.6 and 24.8.
_MANY = 1 << 20
_NARROW = 2

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

Evaluate = Callable[[Any, Sequence[View]], View]


@dataclass(frozen=True, slots=True)
class Attention:
    """Equations from the product that gives scores to the one that weighs values by them.

    A division by the sums of softmax may follow, or be moved there: `division`.
    """

    eqns: Sequence[Any]
    reads: Sequence[Any]  # variables of queries, keys, values, masks
    values: Any
    division: Any

    @property
    def outvars(self) -> Sequence[Any]:
        """Return the variable of the result."""
        return self.eqns[-1].outvars


def may_attend(jaxpr: Any) -> bool:
    """Tell whether a function, or one that it calls, has two products of batches."""
    return _count(jaxpr) > 1


def _count(jaxpr: Any) -> int:
    inner = (x.jaxpr for e in jaxpr.eqns for x in jaxprs.inner(e))
    return sum(map(_is_batched, jaxpr.eqns)) + sum(map(_count, inner))


def attentions(jaxpr: Any) -> list[Attention]:
    """Find attentions: softmax over keys between two products, whose values nothing else reads."""
    places = [i for i, e in enumerate(jaxpr.eqns) if _is_batched(e)]
    if len(places) < 2:
        return []
    uses = _uses(jaxpr.eqns) + Counter(variables(jaxpr.outvars))
    divisions = (e for e in jaxpr.eqns if primitive(e) == "div")
    after = {e.invars[0]: e for e in divisions if not any(map(is_literal, e.invars))}
    found: list[Attention] = []
    taken = -1  # the last product of the attention before
    for start, stop in itertools.pairwise(places):
        one = None if start == taken else _attention(jaxpr.eqns[start : stop + 1], after, uses)
        if one is not None:
            found.append(one)
            taken = stop
    return found


def _uses(equations: Sequence[Any]) -> Counter[Any]:
    return Counter(v for e in equations for v in variables(e.invars))


def _is_batched(equation: Any) -> bool:
    """Tell whether it is a product of batches of rows with batches of matrices."""
    if primitive(equation) != PRODUCT:
        return False
    ((left, _), (batch, right_batch)) = equation.params["dimension_numbers"]
    count = len(batch)
    ranks = [len(v.aval.shape) for v in equation.invars]
    in_front = batch == right_batch == tuple(range(count))
    return count > 0 and in_front and len(left) == 1 and ranks[0] >= ranks[1] == count + 2


def _attention(
    equations: Sequence[Any], after: Mapping[Any, Any], uses: Mapping[Any, int]
) -> Attention | None:
    first, *inner, last = equations
    (scores,), (weights, values), (result,) = first.outvars, last.invars, last.outvars
    ((sums, _), _) = last.params["dimension_numbers"]
    made = {scores}
    between: list[Any] = []
    for equation in inner:
        if not made.isdisjoint(variables(equation.invars)):
            between.append(equation)
            made.update(equation.outvars)
    if (
        scores.aval.shape[-1] < _FEW
        or sums != (len(weights.aval.shape) - 1,)
        or is_literal(weights)
        or weights not in made
        or values in made
        or not any(primitive(e) == "reduce_max" for e in between)
    ):
        return None
    found = [first, *between, last]
    end = after.get(result)
    if end is not None and end.invars[1] in made and uses[result] == 1:
        found.append(end)
        made.add(result)
    own = _uses(found)
    if any(own[v] != uses[v] for v in made):
        return None
    reads = dict.fromkeys(v for e in found for v in variables(e.invars) if v not in made)
    attention = Attention(found, list(reads), values, _division(between, last, own))
    if scores.aval.shape[-2] >= _FEW:
        return attention
    keys = first.invars[1].aval
    is_narrow = keys.dtype.itemsize <= _NARROW
    is_large = math.prod(keys.shape) * keys.dtype.itemsize >= _MANY
    return attention if is_narrow and is_large and hidden_keys(attention) is not None else None


def exchanges(equation: Any) -> bool:
    """Tell whether operands of a product of an attention are exchanged: queries are many."""
    ((sums, _), (batch, _)) = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    return max(n for i, n in enumerate(shape) if i not in (*sums, *batch)) >= _FEW


def _division(between: Sequence[Any], last: Any, uses: Mapping[Any, int]) -> Any:
    """Return the division of weights by what is the same for all keys, if nothing else reads it."""
    makers = {v: e for e in between for v in e.outvars}
    weights = last.invars[0]
    maker = makers.get(weights)
    while maker is not None and primitive(maker) == "convert_element_type" and uses[weights] == 1:
        weights = maker.invars[0]
        maker = makers.get(weights)
    if maker is None or primitive(maker) != "div" or uses[weights] != 1:
        return None
    numerator, divisor = maker.invars
    spread = None if is_literal(divisor) or is_literal(numerator) else makers.get(divisor)
    if spread is None or primitive(spread) != "broadcast_in_dim":
        return None
    extents = dict(
        zip(spread.params["broadcast_dimensions"], spread.invars[0].aval.shape, strict=True)
    )
    wide = last.outvars[0].aval.dtype.itemsize >= 4
    return maker if wide and extents.get(len(divisor.aval.shape) - 1, 1) == 1 else None


def computed(
    attention: Attention, views: Sequence[View], evaluate: Evaluate, *, alone: bool
) -> View:
    """Return the result, given views of what is read, at once or by blocks.

    Blocks are of queries, and of heads if that runs `alone` on a device: else they may be sharded.
    """
    loops = _loops(attention, alone=alone)
    is_many = attention.eqns[0].outvars[0].aval.shape[-2] >= _FEW
    hidden = hidden_keys(attention) if alone and (loops or not is_many) else None

    def parts(starts: Any) -> list[View]:
        places = list(zip(loops, starts, strict=True))
        pairs = zip(views, attention.reads, strict=True)
        return [_part(view, variable, places) for view, variable in pairs]

    def seen(starts: Any) -> Any:
        return hidden and _seen(attention, hidden, parts(starts), loops, evaluate)

    def block(starts: Any, count: Any) -> View:
        given = parts(starts)
        if hidden is None:
            return _at_once(attention, given, loops, evaluate)
        return _of_seen(attention, hidden, count, given, loops, evaluate)

    if not loops:
        return block((), seen(()))

    firsts = [[*range(0, x.extent - x.size, x.size), x.extent - x.size] for x in loops]
    table = np.array(list(itertools.product(*firsts)), np.int32)
    # Masks may be known: then this is, too.
    counts = None if hidden is None else lax.map(seen, table)
    example = jax.eval_shape(block, table[0], None if hidden is None else np.int32(0))
    (result,) = attention.outvars
    places = [example.position(loop.axes[result]) for loop in loops]
    shape = tuple(result.aval.shape)

    def turn(array: Any, item: Any) -> tuple[Any, None]:
        starts, count = item
        at = [np.int32(0)] * array.ndim
        for place, start in zip(places, starts, strict=True):
            at[place] = start
        return lax.dynamic_update_slice(array, whole(block(starts, count)), at), None

    start = jnp.zeros([shape[axis] for axis in example.order], example.array.dtype)
    array, _ = lax.scan(turn, start, (table, counts))
    return View(array, example.order, shape, False)


@dataclass(frozen=True, slots=True)
class _Loop:
    """Says that so many items of an axis of the scores are computed at a time."""

    axes: Axes  # of variables
    extent: int
    size: int


def _loops(attention: Attention, *, alone: bool) -> list[_Loop]:
    """Choose axes and sizes of blocks; none where all scores fit the caches."""
    first = attention.eqns[0]
    ((left_sums, _), (batch, _)) = first.params["dimension_numbers"]
    (queries, keys), scores = first.invars, first.outvars[0].aval
    if math.prod(scores.shape) * scores.dtype.itemsize <= _WHOLE:
        return []
    beside = scores.shape[0 if not alone else len(batch) : -2]  # what no loop goes over
    rows = max(1, _BLOCK // (math.prod((*beside, scores.shape[-1])) * scores.dtype.itemsize))
    axis: int = max(i for i in range(len(queries.aval.shape)) if i not in left_sums)
    operands: Any = queries, keys, attention.values
    seeds: list[tuple[dict[Any, Any], int, int]]
    seeds = [({queries: axis}, queries.aval.shape[axis], _QUERIES)]
    for axis in reversed(batch if alone else ()):
        seeds.append((dict.fromkeys(operands, axis), scores.shape[axis], rows))
    loops: list[_Loop] = []
    for known, extent, most in seeds:
        count = -(-extent // min(most, rows, extent))
        try:
            axes = batch_axes(attention, known, follow=attention.reads)
        except NotSeparableError:
            continue
        size = -(-extent // count)
        rows = max(1, rows // size)
        if count > 1:
            loops.append(_Loop(axes, extent, size))
    return loops


def _at_once(
    attention: Attention, views: Sequence[View], loops: Sequence[_Loop], evaluate: Evaluate
) -> View:
    given = dict(zip(attention.reads, views, strict=True))
    return evaluate(_traced(attention.eqns, given, loops, attention.division), views)


def _of_seen(
    attention: Attention,
    hidden: Hidden,
    count: Any,
    views: Sequence[View],
    loops: Sequence[_Loop],
    evaluate: Evaluate,
) -> View:
    """Compute attention over the first keys: those that are seen, rounded up to a part of all."""
    extent = hidden.masked.aval.shape[hidden.axes[hidden.masked]]
    sizes = [-(-extent * i // 4) for i in (_OF_BLOCK if loops else _OF_FEW)]

    def first(size: int) -> Callable[..., View]:
        loop = _Loop(hidden.axes, extent, size)

        def run(views: Sequence[View]) -> View:
            pairs = zip(views, attention.reads, strict=True)
            parts = [_part(view, variable, [(loop, 0)]) for view, variable in pairs]
            return _at_once(attention, parts, [*loops, loop], evaluate)

        return run

    index = sum((count > size).astype(np.int32) for size in sizes[:-1])
    return lax.switch(index, list(map(first, sizes)), views)


def _seen(
    attention: Attention,
    hidden: Hidden,
    views: Sequence[View],
    loops: Sequence[_Loop],
    evaluate: Evaluate,
) -> Any:
    """Return the number of keys up to the last that masks leave to some query."""
    shape, scores = list(hidden.scores.aval.shape), hidden.scores
    for loop in loops:
        if scores in loop.axes:
            shape[loop.axes[scores]] = loop.size
    zero = jnp.zeros([1] * len(shape), scores.aval.dtype)
    pairs = zip(attention.reads, views, strict=True)
    given = {v: view for v, view in pairs if v in hidden.reads}
    given[scores] = View(zero, tuple(range(len(shape))), tuple(shape), True)
    masked = evaluate(_traced(hidden.eqns, given, loops), list(given.values()))
    own = masked.position(hidden.axes[hidden.masked])
    found = masked.array != -jnp.inf
    seen = found.any([axis for axis in range(found.ndim) if axis != own])
    extent = masked.shape[hidden.axes[hidden.masked]]
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


def _traced(
    equations: Sequence[Any],
    given: Mapping[Any, View],
    loops: Sequence[_Loop],
    division: Any = None,
) -> Any:
    """Trace equations for blocks of what is given, to their last result.

    A division among them is done after the last one.
    """
    changes = [resized(loop.axes, loop.size) for loop in loops]

    def run(*tensors: Any) -> Any:
        values = dict(zip(given, tensors, strict=True))
        divisor: Any = None
        for equation in equations:
            if equation is division:
                numerator, divisor = equation.invars
                values[equation.outvars[0]] = values[numerator]
                continue
            for change in changes:
                equation = change(equation)
            jaxprs.place(equation, values)
        result = values[equations[-1].outvars[0]]
        if divisor is None:
            return result
        total = values[divisor]
        return result / lax.slice_in_dim(total, 0, 1, axis=total.ndim - 1).astype(result.dtype)

    types = [jax.ShapeDtypeStruct(view.shape, view.array.dtype) for view in given.values()]
    return jax.make_jaxpr(run)(*types)
