"""Bounds of a traced function: forwards by intervals, backwards by lines (CROWN).

A lower bound of a sum of a tensor's items with coefficients is followed back to the input (Zhang et
al. 2018, arXiv:1811.00866; Xu et al. 2020, arXiv:2002.12920): through what is affine by its
transpose, through the rest by lines that bound it, or else by its interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering import jaxprs
from lowering.facts import facts
from lowering.jaxprs import is_literal, primitive
from nnef_jax.analysis.intervals import (
    Interval,
    NoBounds,
    apply,
    bounded,
    ends,
    epsilon,
    interval,
    is_affine,
    magnitude,
    related,
    size,
    terms,
    varies,
)
from nnef_jax.analysis.relaxations import BackwardStep, lines_of

_ROWS = 512  # of coefficients that are followed back at a time
_DEPTH = 12  # operations within the branches of a selection
# What an operand less its own maximum is, or divided by its own sum.
_RELATED = {"sub": "reduce_max", "div": "reduce_sum"}
_COMPARISONS = {"lt": True, "le": True, "gt": False, "ge": False}
Read = Callable[[Any], Any]


class Walk:
    """Holds an array or an interval for each variable of a traced function.

    Args:
        closed: the function.
        arguments: arrays, and intervals.
        linear: whether bounds are followed back.
        sharp: whether those of tensors inside are, too, where lines are drawn.
    """

    def __init__(
        self, closed: Any, arguments: Sequence[Any], *, linear: bool = False, sharp: bool = False
    ) -> None:
        self.makers: dict[Any, Any] = {}
        self._values = jaxprs.values_of(closed, arguments)
        self._steps: list[tuple[Any, BackwardStep]] = []
        self._sharp: set[Any] = set()
        for equation in jaxprs.equations(closed):
            operands = [*map(self.read, equation.invars)]
            try:
                if sharp and any(map(varies, operands)) and not is_affine(equation, operands):
                    for v in equation.invars:
                        self._sharpen(v)
                results = self.evaluated(equation, self.read)
            except NoBounds as error:
                raise NoBounds(equation) from error  # the outermost, whose name is the operation's
            self._values.update(zip(equation.outvars, results, strict=True))
            self.makers.update((v, equation) for v in equation.outvars)
            if linear and any(map(varies, results)):
                self._steps.append((equation, self._step(equation, results)))
        self.results = [*map(self.read, closed.jaxpr.outvars)]
        if linear:
            for v in closed.jaxpr.outvars:
                self._sharpen(v)
            self.results = [*map(self.read, closed.jaxpr.outvars)]

    def read(self, v: Any) -> Any:
        """Return the array or interval of a variable or a literal."""
        return jnp.asarray(v.val, v.aval.dtype) if is_literal(v) else self._values[v]

    def evaluated(self, equation: Any, read: Read) -> list[Any]:
        """Return the results of an equation; `read` gives its operands."""
        operands, name = [*map(read, equation.invars)], primitive(equation)
        if not any(map(varies, operands)):
            return apply(equation, operands)
        if name == "select_n" and varies(operands[0]):
            return [self._selected(equation, read)]
        if name == jaxprs.SCAN:
            return _scanned(equation, operands)
        if name == "cond":
            return _branched(equation, operands)
        again = jaxprs.recomputed(equation)
        held = jaxprs.inner(equation) if again is None else [again]
        if len(held) == 1 and len(held[0].in_avals) == len(operands) and name != "while":
            return Walk(held[0], operands).results
        results = bounded(equation, operands)
        if name in _RELATED and self._source(equation.invars[1]) == (
            _RELATED[name],
            equation.invars[0],
        ):
            return [related(equation, *operands, *results)]
        return results

    def _source(self, v: Any) -> tuple[str, Any]:
        """Follow a variable back through moves. Return the primitive there, and its operand."""
        equation = None if is_literal(v) else self.makers.get(v)
        if equation is None:
            return "", None
        name, first = primitive(equation), equation.invars[0]
        if name == "max" and is_literal(first) and first.val == -jnp.inf:
            return self._source(equation.invars[1])
        return self._source(first) if facts(equation).moves else (name, first)

    def at(self, v: Any, given: Mapping[Any, Any], depth: int = _DEPTH) -> Any:
        """Return a variable's value at given values of others, item by item."""
        if not is_literal(v) and v in given:
            return given[v]
        equation = None if is_literal(v) or not varies(self.read(v)) else self.makers.get(v)
        if equation is None or not facts(equation).by_item or not depth:
            return self.read(v)
        return self.evaluated(equation, lambda v: self.at(v, given, depth - 1))[0]

    def compared(self, equation: Any) -> tuple[Any, Any, int] | None:
        """Return a selection's variable, the known threshold, and the case below it."""
        maker, shape = self.makers.get(equation.invars[0]), equation.outvars[0].aval.shape
        if maker is None or primitive(maker) not in _COMPARISONS or len(equation.invars) != 3:
            return None
        (x, known), below = maker.invars, _COMPARISONS[primitive(maker)]
        if is_literal(x) or varies(self.read(known)):
            x, known, below = known, x, not below
        if is_literal(x) or varies(self.read(known)) or x.aval.shape != shape:
            return None
        return x, self.read(known), int(below)

    def is_affine_in(self, v: Any, x: Any) -> bool:
        """Tell whether a variable is affine in another, item by item, and in nothing else."""
        if is_literal(v) or v is x or not varies(self.read(v)):
            return True
        equation = self.makers.get(v)
        if equation is None or not facts(equation).by_item:
            return False
        operands = [*map(self.read, equation.invars)]
        return is_affine(equation, operands) and all(
            self.is_affine_in(w, x) for w in equation.invars
        )

    def _selected(self, equation: Any, read: Read) -> Interval:
        """Bound a selection: what is compared is on its side of the limit in each case."""
        which, found = read(equation.invars[0]), self.compared(equation)
        cases = [interval(read(v)) for v in equation.invars[1:]]
        if which.low.dtype != bool:
            raise NoBounds
        if found is not None:
            x, known, below = found
            here = interval(read(x))
            under = Interval(here.low, jnp.minimum(here.high, known))
            sides = [Interval(jnp.maximum(here.low, known), here.high), under]
            sides = sides if below else sides[::-1]
            inside = [self.at(v, {x: s}) for v, s in zip(equation.invars[1:], sides, strict=True)]
            cases = [a.within(interval(b)) for a, b in zip(cases, inside, strict=True)]
            which = interval(self.at(equation.invars[0], {x: here}))
        no, yes = cases
        low, high = jnp.minimum(no.low, yes.low), jnp.maximum(no.high, yes.high)
        return Interval(
            jnp.where(which.low, yes.low, jnp.where(which.high, low, no.low)),
            jnp.where(which.low, yes.high, jnp.where(which.high, high, no.high)),
        )

    def _step(self, equation: Any, results: Sequence[Interval]) -> BackwardStep:
        """Return how a bound is followed back through an equation."""
        operands = [*map(self.read, equation.invars)]
        if not is_affine(equation, operands):
            step = lines_of(self, equation, operands, results[0]) if len(results) == 1 else None
            dtype = results[0].low.dtype
            lows, highs = ([end.astype(dtype) for end in x] for x in _sides(results))
            return step or BackwardStep((), (), lows, highs)
        places = [i for i, x in enumerate(operands) if varies(x)]
        zeros = [jnp.zeros_like(operands[i].low) for i in places]

        def function(*varying: Array) -> list[Array]:
            given = {**dict(enumerate(operands)), **dict(zip(places, varying, strict=True))}
            return apply(equation, [*given.values()])

        constants, pull = jax.vjp(function, *zeros)
        share = (sum(terms(equation)) + 2) / 2 * epsilon(constants[0])
        sizes = [magnitude(equation, operands)] if len(results) == 1 else [*map(size, results)]
        slack = [share * m for m in sizes]  # of the sums of the network and of the transpose
        low = [x - s for x, s in zip(constants, slack, strict=True)]
        high = [x + s for x, s in zip(constants, slack, strict=True)]
        variables = tuple(equation.invars[i] for i in places)
        return BackwardStep(variables, (pull,), low, high)

    def _sharpen(self, v: Any) -> None:
        """Bound a variable by following each of its items back, unless its interval is as good."""
        if is_literal(v) or v in self._sharp or not varies(x := self.read(v)):
            return
        self._sharp.add(v)
        if not epsilon(x.low) or not x.low.size or self._is_image(v):
            return
        count, shape = x.low.size, x.low.shape

        def least(row: Array) -> Array:
            sign = jnp.where(row < count, 1, -1).astype(x.low.dtype)
            unit = jnp.where(jnp.arange(count) == row % count, sign, 0).reshape(shape)
            return self._lowest(v, unit)

        rows = jnp.arange(2 * count)
        if 2 * count <= _ROWS:  # a loop of one step is a longer program
            found = jax.vmap(least)(rows)
        else:
            found = lax.map(least, rows, batch_size=_ROWS)
        low, high = found[:count].reshape(shape), -found[count:].reshape(shape)
        self._values[v] = x.within(Interval(low, high))

    def _is_image(self, v: Any) -> bool:
        """Tell whether a variable is an argument, or what is not affine makes of its operands."""
        equation = self.makers.get(v)
        if equation is None or not is_affine(equation, [*map(self.read, equation.invars)]):
            return True
        moved = [w for w in jaxprs.variables(equation.invars) if varies(self.read(w))]
        return facts(equation).moves and all(map(self._is_image, moved))

    def _lowest(self, v: Any, coefficients: Array) -> Array:
        """Return a lower bound of the sum of a variable's items with coefficients."""
        found, low = {v: coefficients}, jnp.zeros((), coefficients.dtype)
        error = low

        def add(above: Array, below: Array, lows: Array, highs: Array) -> None:
            nonlocal low, error
            parts = _times(above, lows) + _times(below, highs)
            low += parts.sum()
            terms = parts.size + len(self._steps) + 2
            error += terms / 2 * epsilon(parts) * jnp.abs(parts).sum()

        for equation, step in reversed(self._steps):
            if not any(w in found for w in equation.outvars):
                continue
            given = [found.pop(w, jnp.zeros(w.aval.shape, low.dtype)) for w in equation.outvars]
            above, below = ([limit(a, 0) for a in given] for limit in (jnp.maximum, jnp.minimum))
            for each in zip(above, below, step.low, step.high, strict=True):
                add(*each)
            pulled = [step.pulls[0](given)] if len(step.pulls) == 1 else []
            if len(step.pulls) == 2:
                pulled = [pull(side) for pull, side in zip(step.pulls, (above, below), strict=True)]
            for parts in pulled:
                for w, part in zip(step.variables, parts, strict=True):
                    found[w] = found[w] + part if w in found else part
        for w, a in found.items():  # arguments
            add(jnp.maximum(a, 0), jnp.minimum(a, 0), *ends(self.read(w)))
        low = low - error
        return jnp.where(jnp.isnan(low), -jnp.inf, low)


def _sides(xs: Sequence[Interval]) -> tuple[list[Array], list[Array]]:
    """Return the lower ends, and the upper ones."""
    return [x.low for x in xs], [x.high for x in xs]


def _times(coefficients: Array, x: Array) -> Array:
    """Multiply; nothing of what may be infinite is 0."""
    return jnp.where(coefficients != 0, coefficients * x, 0)


def _branched(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Bound the results of a choice between functions: of the chosen one, or of all."""
    index, *given = operands
    branches = equation.params["branches"]
    results = [[*map(interval, Walk(closed, given).results)] for closed in branches]
    if not varies(index):
        return list(lax.switch(index, [lambda _, r=r: tuple(r) for r in results], 0))
    pairs = [_sides(each) for each in zip(*results, strict=True)]
    return [Interval(jnp.stack(a).min(0), jnp.stack(b).max(0)) for a, b in pairs]


def _scanned(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Bound a loop: what of its carry varies in any step is an interval in all."""
    closed = equation.params["jaxpr"]
    constants, start, stacks = jaxprs.scan_parts(equation, operands)
    moved = [varies(x) for x in operands]
    first, last = len(constants), len(constants) + len(start)
    for _ in start:
        depends = jaxprs.depending(closed, moved)[: len(start)]
        moved[first:last] = [a or b for a, b in zip(moved[first:last], depends, strict=True)]
    start = [interval(x) if m else x for x, m in zip(start, moved[first:last], strict=True)]
    depends = jaxprs.depending(closed, moved)

    def step(*given: Any) -> list[Any]:
        results = Walk(closed, given).results
        return [interval(x) if m else x for x, m in zip(results, depends, strict=True)]

    return jaxprs.scanned(equation, step, constants, start, stacks)
