"""Compute a large batch a few items at a time: all of one then fits the caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from lowering.cpu.batch import Axes, NotSeparableError, batch_axes, resized
from lowering.cpu.stages import Stage, stages, united
from lowering.cpu.view import View, plain, tensor, whole
from lowering.jaxprs import inlined, is_literal, place
from lowering.prepare import split
from lowering.program import Program

# Evaluates a traced function, so many of whose arguments are parameters, on views.
Evaluate = Callable[[Any, int, Sequence[View]], list[View]]


def in_chunks(
    closed: Any, known: Sequence[Any], free: Sequence[Any], evaluate: Evaluate
) -> list[Any] | None:
    """Return the results for inputs that hold a batch; None unless it can be divided and pays."""
    if not _is_batch(free):
        return None
    flat = inlined(closed)
    inputs = flat.jaxpr.invars[len(known) :]
    try:
        axes = batch_axes(flat.jaxpr, dict.fromkeys(inputs, 0))
    except NotSeparableError:
        return None
    size = len(free[0])
    found = stages(flat.jaxpr, inputs, axes, size)
    if all(stage.size == size for stage in found):
        return None
    # What stages hand on stays in memory for as many items as the last of them takes at a time.
    own = [stage for stage in found if stage.reads]
    nested = len(own) > 1 and own[-1].size < size
    if nested:
        found = [united(own, flat.jaxpr.outvars), *found[len(own) :]]
    given = dict(zip(flat.jaxpr.constvars, flat.consts, strict=True))
    given.update(zip(flat.jaxpr.invars, known, strict=False))
    batch = _Batch(size, axes, given, evaluate)
    values = {v: plain(x, False) for v, x in zip(inputs, free, strict=True)}
    for stage in found:
        views = [values[v] for v in stage.reads]
        results = batch.compute(stage, views, has_stages=nested and bool(stage.reads))
        values.update(zip(stage.results, results, strict=True))
    return [v.val if is_literal(v) else tensor(values[v]) for v in flat.jaxpr.outvars]


def _is_batch(inputs: Sequence[Any]) -> bool:
    """Tell whether all inputs have the same extent, two or more, along their first axis."""
    extents = {x.shape[0] if x.shape else 1 for x in inputs}
    return len(extents) == 1 and min(extents) > 1


@dataclass(frozen=True, slots=True)
class _Batch:
    """Computes stages, which hand on views of the whole batch."""

    size: int
    axes: Axes
    given: Mapping[Any, Any]  # values of the variables for parameters and constants
    evaluate: Evaluate

    def compute(self, stage: Stage, views: Sequence[View], *, has_stages: bool) -> list[View]:
        known = list(self.given.values())
        if stage.size == self.size:
            return self._items(stage, known, views)

        def run(known: Sequence[Any], views: Sequence[View]) -> list[View]:
            results = self._items(stage, known, views, has_stages=has_stages)
            return [View(whole(view), view.order, view.shape, False) for view in results]

        parts = [
            _divided(view, self.axes[variable], stage.size)
            for variable, view in zip(stage.reads, views, strict=True)
        ]
        part = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), parts)
        closed, shapes = jax.make_jaxpr(run, return_shape=True)(known, part)
        body = split(Program(closed, len(known)))
        prepared, tree = body.prepare(known), jax.tree.structure(shapes)

        def turn(part: Any) -> list[View]:
            return jax.tree.unflatten(tree, body.run(prepared, jax.tree.leaves(part)))

        results = jax.lax.map(turn, parts)
        return [
            _joined(view, self.axes[variable], self.size)
            for variable, view in zip(stage.results, results, strict=True)
        ]

    def _items(
        self, stage: Stage, known: Sequence[Any], views: Sequence[View], *, has_stages: bool = False
    ) -> list[View]:
        closed = self._traced(stage, known, views)
        if has_stages:
            results = in_chunks(closed, known, [tensor(view) for view in views], self.evaluate)
            if results is not None:
                return [plain(x, False) for x in results]
        arguments = [*(plain(x, True) for x in known), *views]
        return self.evaluate(closed, len(known), arguments)

    def _traced(self, stage: Stage, known: Sequence[Any], views: Sequence[View]) -> Any:
        change = resized(self.axes, stage.size)

        def run(known: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
            values = dict(zip(self.given, known, strict=True))
            values.update(zip(stage.reads, tensors, strict=True))
            for equation in stage.equations:
                place(change(equation), values)
            return [values[v] for v in stage.results]

        tensors = [jax.ShapeDtypeStruct(view.shape, view.array.dtype) for view in views]
        return jax.make_jaxpr(run)(known, tensors)


def _divided(view: View, axis: int, size: int) -> View:
    """Return the view of a part of `size` items; its array stacks all parts along a new axis 0."""
    array, position = whole(view), view.position(axis)
    extents = array.shape
    array = array.reshape(*extents[:position], -1, size, *extents[position + 1 :])
    shape = (*view.shape[:axis], size, *view.shape[axis + 1 :])
    return View(jnp.moveaxis(array, position, 0), view.order, shape, False)


def _joined(view: View, axis: int, size: int) -> View:
    """Reverse `_divided`."""
    position = view.position(axis)
    array = jnp.moveaxis(view.array, 0, position)
    extents = array.shape
    array = array.reshape(*extents[:position], size, *extents[position + 2 :])
    shape = (*view.shape[:axis], size, *view.shape[axis + 1 :])
    return View(array, view.order, shape, False)
