"""Make equal steps of a function a loop: layers that differ in nothing but their parameters.

Each kernel costs XLA's runtime 0.6 us, and a loop over small steps is one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering.cpu.batch import NotSeparableError, batch_axes, resized
from lowering.cpu.pipeline import runs
from lowering.cpu.products import small_product
from lowering.jaxprs import (
    ELEMENTWISE,
    JOINING,
    PRODUCT,
    SHAPING,
    bind,
    is_literal,
    place,
    primitive,
    read,
    values_of,
)
from lowering.partition import partition

_FEWEST = 8  # steps of a loop
_LONGEST = 64  # equations of a step

# Bytes that an equation of a loop may read and write. 40 dense layers take, in us, for 8 rows of 32
# items 119 in a loop and 181 as they are, for 8 rows of 64 items 318 and 211.
_SMALL = 8 << 10

# XLA hands a call of so many operations to another thread, and counts a step of a loop once. That
# takes longer than the loop: 100 layers of 8 items take 25 us for two times 4 rows, for 8 rows 55
# to 110.
_HANDED = 1000
_PARTS = (2, 4)
_MOVING = frozenset((*SHAPING, *JOINING, "convert_element_type", "copy", "pad", "rev", "slice"))

Defined = Mapping[Any, tuple[int, int]]  # the equation of a variable, and which result it is


class _NoLoopError(Exception):
    """The steps differ in more than the parameters that they read."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Equal steps of a list of equations; the second step is the model of all."""

    start: int
    stop: int
    model: Sequence[Any]
    carried: Mapping[Any, Any]  # what the model reads of the first step: what that reads for it
    passed: Sequence[Any]  # results of the model that the next step reads, in this order
    last: Sequence[Any]  # those of the last step
    stacked: Mapping[Any, Sequence[Any]]  # a parameter that the model reads: what each step reads

    def run(self, values: dict[Any, Any], parts: Parts | None) -> None:
        """Add the results of the last step to the values of variables."""
        model = self.model if parts is None else parts.model

        def step(carry: Sequence[Any], items: Sequence[Any]) -> tuple[list[Any], None]:
            own = values | dict(zip(self.carried, carry, strict=True))
            own.update(zip(self.stacked, items, strict=True))
            for equation in model:
                place(equation, own, _within_loop)
            return [own[variable] for variable in self.passed], None

        def steps(carry: Sequence[Any]) -> Sequence[Any]:
            return jax.lax.scan(step, carry, stacks)[0]

        first = [values[variable] for variable in self.carried.values()]
        stacks = [jnp.stack([values[v] for v in group]) for group in self.stacked.values()]
        results = steps(first) if parts is None else parts.map(steps, first)
        values.update(zip(self.last, results, strict=True))


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of what a loop carries, along an axis whose items no step mixes."""

    model: Sequence[Any]  # a step for one part
    axis: int
    number: int

    def map(self, steps: Callable[[Sequence[Any]], Any], first: Sequence[Any]) -> list[Any]:
        """Return the results of all steps, computed part after part."""
        shapes = [x.shape for x in first]
        divided = [jnp.stack(jnp.split(x, self.number, self.axis)) for x in first]
        results = jax.lax.map(steps, divided)
        return [
            jnp.moveaxis(x, 0, self.axis).reshape(shape)
            for x, shape in zip(results, shapes, strict=True)
        ]


def _within_loop(equation: Any, operands: Sequence[Any]) -> list[Any]:
    if primitive(equation) != PRODUCT:
        return bind(equation, operands)
    left, right = operands
    sums, batch = equation.params["dimension_numbers"]
    (result,) = equation.outvars
    if any(batch) or {left.dtype, right.dtype, result.aval.dtype} != {np.dtype(np.float32)}:
        return bind(equation, operands)
    return [small_product(left, right, sums)]


def looped(closed: Any, count: int) -> Any:
    """Return the function, whose first `count` arguments are parameters, with a loop."""
    if not runs("repeats"):
        return closed
    jaxpr = closed.jaxpr
    early, late, kept = partition(jaxpr, [*jaxpr.invars[:count], *jaxpr.constvars])
    loop = _find(late, jaxpr.outvars, set(kept))
    if loop is None:
        return closed
    step = jaxpr.replace(eqns=list(loop.model), outvars=list(loop.passed))
    parts = _parts(step, loop.carried, [*late[: loop.start], *late[loop.stop :]])

    def run(*arguments: Any) -> list[Any]:
        values = values_of(closed, arguments)
        for equation in (*early, *late[: loop.start]):
            place(equation, values)
        loop.run(values, parts)
        for equation in late[loop.stop :]:
            place(equation, values)
        return [read(v, values) for v in jaxpr.outvars]

    return jax.make_jaxpr(run)(*closed.in_avals)


def _parts(step: Any, carried: Collection[Any], others: Sequence[Any]) -> Parts | None:
    """Find parts for which XLA takes a call of a loop and other equations to be cheap."""
    outside, own = (sum(map(_operations, equations)) for equations in (others, step.eqns))
    numbers = [n for n in _PARTS if outside + own / n < _HANDED <= outside + own]
    for axis in range(min((len(v.aval.shape) for v in carried), default=0) if numbers else 0):
        try:
            axes = batch_axes(step, dict.fromkeys(carried, axis))
        except NotSeparableError:
            continue
        extent, *different = {v.aval.shape[axis] for v in carried}
        number = next((n for n in numbers if extent % n == 0), None)
        if number and not different and all(axes.get(v) == axis for v in step.outvars):
            change = resized(axes, extent // number)
            return Parts([change(e) for e in step.eqns], axis, number)
    return None


def _operations(equation: Any) -> int:
    """Estimate the operations that XLA counts for an equation, `_HANDED` if that is unknown."""
    name = primitive(equation)
    operands, results = (
        [math.prod(v.aval.shape) for v in side] for side in (equation.invars, equation.outvars)
    )
    if name == PRODUCT:
        ((sums, _), _) = equation.params["dimension_numbers"]
        return 2 * sum(results) * math.prod(equation.invars[0].aval.shape[i] for i in sums)
    if name in ELEMENTWISE:
        return sum(results)
    if name in _MOVING:
        return 0
    return sum(operands) if name.startswith("reduce_") else _HANDED


def _find(equations: Sequence[Any], outputs: Sequence[Any], known: Container[Any]) -> Loop | None:
    """Find the longest loop; `known` holds the variables that depend on parameters alone."""
    defined = {
        variable: (index, result)
        for index, equation in enumerate(equations)
        for result, variable in enumerate(equation.outvars)
    }
    for start, length, steps in _candidates(_kinds(equations)):
        try:
            return _loop(equations, outputs, known, defined, start, length, steps)
        except _NoLoopError:
            continue
    return None


def _kinds(equations: Sequence[Any]) -> np.ndarray:
    """Number the equations, equally if they are equal but for their variables."""
    numbers: dict[Any, int] = {}
    unique = count(-1, -1)
    return np.array([_number(equation, numbers, unique) for equation in equations], np.int64)


def _number(equation: Any, numbers: dict[Any, int], unique: Iterator[int]) -> int:
    operands = tuple((v.aval, repr(v.val) if is_literal(v) else None) for v in equation.invars)
    results = tuple(v.aval for v in equation.outvars)
    params = tuple(sorted(equation.params.items()))
    if equation.effects or _traffic(equation) > _SMALL:
        return next(unique)
    try:
        return numbers.setdefault((equation.primitive, params, operands, results), len(numbers))
    except TypeError:  # parameters that cannot be compared
        return next(unique)


def _traffic(equation: Any) -> int:
    return sum(
        math.prod(v.aval.shape) * v.aval.dtype.itemsize
        for v in (*equation.invars, *equation.outvars)
    )


def _candidates(kinds: np.ndarray) -> list[tuple[int, int, int]]:
    """Find where kinds repeat: start, length of a step, and steps; the longest first."""
    found: list[tuple[int, int, int]] = []
    for length in range(1, min(_LONGEST, len(kinds) // _FEWEST) + 1):
        index = 0
        for same, group in groupby(kinds[length:] == kinds[:-length]):
            extent = len(list(group))
            for shift in range(length if same else 0):
                steps = (extent - shift) // length + 1
                # The last step may be read in ways that the others are not.
                found += [(index + shift, length, n) for n in (steps, steps - 1) if n >= _FEWEST]
            index += extent
    return sorted(found, key=lambda candidate: (-candidate[1] * candidate[2], candidate[1]))


def _loop(
    equations: Sequence[Any],
    outputs: Sequence[Any],
    known: Container[Any],
    defined: Defined,
    start: int,
    length: int,
    steps: int,
) -> Loop:
    stop = start + length * steps
    carried: dict[Any, Any] = {}
    stacked: dict[Any, Sequence[Any]] = {}

    def origin(variable: Any) -> int:
        return -1 if is_literal(variable) else defined.get(variable, (-1, 0))[0]

    def distance(variable: Any, index: int) -> tuple[int, int] | None:
        found = None if is_literal(variable) else defined.get(variable)
        return found and (index - found[0], found[1])

    for index in range(start + length, start + 2 * length):
        later = range(index, stop, length)
        for first, *rest in zip(
            *(equations[i].invars for i in (index - length, *later)), strict=True
        ):
            model = rest[0]
            if is_literal(model):
                continue
            if origin(model) >= start:
                distances = {distance(v, i) for v, i in zip(rest, later, strict=True)}
                if origin(model) < start + length:
                    _agree(carried, model, first)
                else:
                    distances.add(distance(first, index - length))
                _require(len(distances) == 1)
            elif any(v is not model for v in (first, *rest)):
                _require(all(v in known for v in (first, *rest)))
                _agree(stacked, model, (first, *rest))
    # XLA makes one kernel of steps without parameters as they are.
    _require(bool(stacked) and all(origin(v) < start for v in carried.values()))

    def same(variable: Any, steps: int) -> Any:
        """Return what a later step computes where the first one computes the variable."""
        index, result = defined[variable]
        return equations[index + steps * length].outvars[result]

    last = [same(v, steps - 1) for v in carried]
    read = [v for e in (*equations[:start], *equations[stop:]) for v in e.invars]
    _require(all(v in last for v in (*read, *outputs) if start <= origin(v) < stop))
    model = equations[start + length : start + 2 * length]
    return Loop(start, stop, model, carried, [same(v, 1) for v in carried], last, stacked)


def _agree(known: dict[Any, Any], variable: Any, value: Any) -> None:
    _require(known.setdefault(variable, value) == value)


def _require(condition: bool) -> None:
    if not condition:
        raise _NoLoopError
