"""Bounds the results of a traced function: forwards by intervals, backwards by lines (CROWN).

The backward pass bounds sum(coefficients * tensor) from below, and follows the coefficients back to
the input (Zhang et al. 2018, arXiv:1811.00866; Xu et al. 2020, arXiv:2002.12920). It passes an
affine equation by its transpose, and a nonlinear equation by the lines of `relaxations`. At an
equation without lines, the pass ends with the interval of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering import jaxprs
from lowering.facts import facts
from lowering.jaxprs import Atom, ClosedJaxpr, Equation, Variable, is_literal, primitive
from nnef_jax.analysis.intervals import (
    Bounded,
    Interval,
    NoBounds,
    apply,
    bounded,
    ends,
    epsilon,
    interval,
    is_affine,
    magnitude,
    related_bounds,
    size,
    term_counts,
    varies,
)
from nnef_jax.analysis.relaxations import BackwardStep, ThresholdSelection, lines_of

_ROWS = 512  # the number of backward passes that are computed together
_DEPTH = 12  # the largest number of operations between the condition of a `select` and its cases
# The reduction that computes the second operand: x minus its maximum, or x divided by its sum.
_RELATED = {"sub": "reduce_max", "div": "reduce_sum"}
_COMPARISONS = {"lt": True, "le": True, "gt": False, "ge": False}  # True means `x < limit`.
Read = Callable[[Atom], Bounded]


class Walk:
    """The evaluation of a traced function on arrays and intervals, with bounds of its results.

    Attributes:
        makers: for each computed variable, the equation that computes it.
        results: the results of the function, as arrays or intervals.

    Args:
        closed: the function.
        arguments: an array or an interval for each argument.
        linear: whether the results of the function are also bounded by the backward pass.
        sharp: whether operands of nonlinear equations are also bounded by the backward pass.
    """

    def __init__(
        self,
        closed: ClosedJaxpr,
        arguments: Sequence[Bounded],
        *,
        linear: bool = False,
        sharp: bool = False,
    ) -> None:
        self.makers: dict[Atom, Equation] = {}
        self._values = jaxprs.values_of(closed, arguments)
        self._steps: list[tuple[Equation, BackwardStep]] = []
        self._sharp: set[Atom] = set()
        for equation in jaxprs.equations(closed):
            operands = [*map(self.read, equation.invars)]
            try:
                is_nonlinear = any(map(varies, operands)) and not is_affine(equation, operands)
                if sharp and is_nonlinear:
                    for operand in equation.invars:
                        self._sharpen(operand)
                results = self.evaluated(equation, self.read)
            except NoBounds as error:
                # The error names the outermost equation, because this equation has the name of the
                # operation.
                raise NoBounds(equation) from error
            self._values.update(zip(equation.outvars, results, strict=True))
            self.makers.update((variable, equation) for variable in equation.outvars)
            if linear and any(map(varies, results)):
                step = self._step(equation, [*map(interval, results)])
                self._steps.append((equation, step))
        self.results: list[Any] = [*map(self.read, closed.jaxpr.outvars)]
        if linear:
            for result in closed.jaxpr.outvars:
                self._sharpen(result)
            self.results = [*map(self.read, closed.jaxpr.outvars)]

    def read(self, variable: Atom) -> Bounded:
        """Return the array or interval of a variable, or the value of a literal."""
        if is_literal(variable):
            return jnp.asarray(variable.val, variable.aval.dtype)
        return self._values[variable]

    def evaluated(self, equation: Equation, read: Read) -> Sequence[Bounded]:
        """Return the results of an equation, as arrays or intervals.

        `read` is a function from a variable to its array or interval.
        """
        operands = [*map(read, equation.invars)]
        name = primitive(equation)
        if not any(map(varies, operands)):
            return apply(equation, operands)
        if name == "select_n" and varies(operands[0]):
            return [self._selection_bounds(equation, read)]
        if name == jaxprs.SCAN:
            return _loop_bounds(equation, operands)
        if name == "cond":
            return _branch_bounds(equation, operands)
        checkpoint = jaxprs.recomputed(equation)
        functions = jaxprs.function_params(equation) if checkpoint is None else [checkpoint]
        if len(functions) == 1 and name != "while":
            (function,) = functions
            is_call = len(function.in_avals) == len(operands)
            if is_call:
                return Walk(function, operands).results
        results = bounded(equation, operands)
        reduction = _RELATED.get(name)
        if reduction and self._source(equation.invars[1]) == (reduction, equation.invars[0]):
            x, y = map(interval, operands)
            return [related_bounds(equation, x, y, *results)]
        return results

    def _source(self, variable: Atom) -> tuple[str, Atom | None]:
        """Return the name and the first operand of the primitive that computes a variable.

        Primitives that only move items, such as a transpose, are skipped. The result is ("", None)
        if no primitive computes the variable.
        """
        equation = None if is_literal(variable) else self.makers.get(variable)
        if equation is None:
            return "", None
        name = primitive(equation)
        operand = equation.invars[0]
        is_identity = name == "max" and is_literal(operand) and operand.val == -jnp.inf
        if is_identity:
            return self._source(equation.invars[1])
        if facts(equation).moves:
            return self._source(operand)
        return name, operand

    def at(self, variable: Atom, values: Mapping[Atom, Bounded], depth: int = _DEPTH) -> Bounded:
        """Return the value of a variable if other variables have the values in `values`.

        Elementwise equations between the variables are evaluated again, up to `depth` equations in
        a row. A variable behind more equations, or behind another kind of equation, keeps the value
        that the walk computed.
        """
        if is_literal(variable):
            return self.read(variable)
        if variable in values:
            return values[variable]
        equation = self.makers.get(variable) if varies(self.read(variable)) else None
        if equation is None or not facts(equation).by_item or not depth:
            return self.read(variable)
        return self.evaluated(equation, lambda operand: self.at(operand, values, depth - 1))[0]

    def compared(self, equation: Equation) -> ThresholdSelection | None:
        """Return the variable and the threshold of a selection `select_n(x < threshold, ...)`.

        The result also tells which case is selected below the threshold. Return None if the
        condition is not a comparison of a variable with a known threshold.
        """
        comparison = self.makers.get(equation.invars[0])
        has_two_cases = len(equation.invars) == 3
        if comparison is None or not has_two_cases:
            return None
        if primitive(comparison) not in _COMPARISONS:
            return None
        x, limit = comparison.invars
        is_below = _COMPARISONS[primitive(comparison)]
        if is_literal(x) or varies(self.read(limit)):
            # The threshold is the left operand.
            x, limit = limit, x
            is_below = not is_below
        threshold = self.read(limit)
        if is_literal(x) or isinstance(threshold, Interval):
            return None
        if x.aval.shape != equation.outvars[0].aval.shape:
            return None
        return ThresholdSelection(x, threshold, int(is_below))

    def is_affine_in(self, variable: Atom, x: Atom) -> bool:
        """Tell whether a variable is an elementwise affine function of only one other variable."""
        if is_literal(variable) or variable is x or not varies(self.read(variable)):
            return True
        equation = self.makers.get(variable)
        if equation is None or not facts(equation).by_item:
            return False
        operands = [*map(self.read, equation.invars)]
        return is_affine(equation, operands) and all(
            self.is_affine_in(operand, x) for operand in equation.invars
        )

    def _selection_bounds(self, equation: Equation, read: Read) -> Interval:
        """Bound the result of a selection between two cases by a condition.

        In a selection by `x < threshold`, each case is bounded only for the values of x at which it
        is selected.
        """
        selector, *case_variables = equation.invars
        condition = interval(read(selector))
        comparison = self.compared(equation)
        cases = [interval(read(variable)) for variable in case_variables]
        if condition.low.dtype != bool:
            raise NoBounds
        if comparison is not None:
            compared, threshold, case_below = comparison
            x = interval(read(compared))
            below = Interval(x.low, jnp.minimum(x.high, threshold))
            above = Interval(jnp.maximum(x.low, threshold), x.high)
            parts = (above, below) if case_below else (below, above)  # that select each case
            for index, (variable, part) in enumerate(zip(case_variables, parts, strict=True)):
                on_part = interval(self.at(variable, {compared: part}))
                cases[index] = cases[index].within(on_part)
            condition = interval(self.at(selector, {compared: x}))
        if_false, if_true = cases
        low = jnp.minimum(if_false.low, if_true.low)
        high = jnp.maximum(if_false.high, if_true.high)
        low_unless_true = jnp.where(condition.high, low, if_false.low)
        high_unless_true = jnp.where(condition.high, high, if_false.high)
        return Interval(
            jnp.where(condition.low, if_true.low, low_unless_true),
            jnp.where(condition.low, if_true.high, high_unless_true),
        )

    def _step(self, equation: Equation, results: Sequence[Interval]) -> BackwardStep:
        """Return affine functions that bound an equation's results, for the backward pass.

        `results` are the intervals of the results. If there is no rule for affine functions, the
        step has the ends of the intervals as constants.
        """
        operands = [*map(self.read, equation.invars)]
        if not is_affine(equation, operands):
            step = lines_of(self, equation, operands, results[0]) if len(results) == 1 else None
            # A step without lines ends the backward pass with the intervals of the results.
            dtype = results[0].low.dtype
            lows = [x.low.astype(dtype) for x in results]
            highs = [x.high.astype(dtype) for x in results]
            return step or BackwardStep((), (), lows, highs)
        varying = {i: x for i, x in enumerate(operands) if varies(x)}
        zeros = [jnp.zeros_like(x.low) for x in varying.values()]

        def function(*arrays: Array) -> list[Array]:
            values: list[Any] = [*operands]
            for position, array in zip(varying, arrays, strict=True):
                values[position] = array
            return apply(equation, values)

        constants, pull = jax.vjp(function, *zeros)
        rounding = (sum(term_counts(equation)) + 2) / 2 * epsilon(constants[0])
        sizes = [magnitude(equation, operands)] if len(results) == 1 else [*map(size, results)]
        lows: list[Array] = []
        highs: list[Array] = []
        for constant, magnitudes in zip(constants, sizes, strict=True):
            # The slack covers the rounding of the sums in the equation, and in its transpose.
            slack = rounding * magnitudes
            lows.append(constant - slack)
            highs.append(constant + slack)
        return BackwardStep([equation.invars[i] for i in varying], (pull,), lows, highs)

    def _sharpen(self, variable: Atom) -> None:
        """Tighten the interval of a variable by the backward pass, item by item.

        The new interval is the intersection of the old interval and the bounds from the backward
        pass.
        """
        if is_literal(variable) or variable in self._sharp:
            return
        x = self.read(variable)
        if not varies(x):
            return
        self._sharp.add(variable)
        is_real = epsilon(x.low) > 0
        if not is_real or not x.low.size or self._is_exact(variable):
            return
        count = x.low.size
        shape = x.low.shape

        def bound(row: Array) -> Array:
            """Return a lower bound of item `row`.

            From `count` on, return a lower bound of minus item `row - count`.
            """
            sign = jnp.where(row < count, 1, -1).astype(x.low.dtype)
            unit = jnp.where(jnp.arange(count) == row % count, sign, 0).reshape(shape)
            return self._lower_bound(variable, unit)

        rows = jnp.arange(2 * count)
        if 2 * count <= _ROWS:  # A loop with a single iteration would be a longer program.
            lows = jax.vmap(bound)(rows)
        else:
            lows = lax.map(bound, rows, batch_size=_ROWS)
        low = lows[:count].reshape(shape)
        high = -lows[count:].reshape(shape)
        self._values[variable] = x.within(Interval(low, high))

    def _is_exact(self, variable: Variable) -> bool:
        """Tell whether the backward pass cannot improve the interval of a variable.

        It cannot improve the interval of an argument, of the result of a nonlinear equation, and of
        a rearrangement of arguments and such results.
        """
        equation = self.makers.get(variable)
        if equation is None or not is_affine(equation, [*map(self.read, equation.invars)]):
            return True
        operands = jaxprs.variables(equation.invars)
        sources = [operand for operand in operands if varies(self.read(operand))]
        return facts(equation).moves and all(map(self._is_exact, sources))

    def _lower_bound(self, variable: Variable, coefficients: Array) -> Array:
        """Return a lower bound of the number sum(coefficients * variable), by the backward pass."""
        remaining: dict[Atom, Array] = {variable: coefficients}
        bound = jnp.zeros((), coefficients.dtype)
        rounding_error = bound

        def add_least_value(positive: Array, negative: Array, lows: Array, highs: Array) -> None:
            """Add the least value of sum((positive + negative) * x) for lows <= x <= highs.

            `positive` has the coefficients above 0, and `negative` has the coefficients below 0.
            All other entries of `positive` and `negative` are 0.
            """
            nonlocal bound, rounding_error
            products = _times(positive, lows) + _times(negative, highs)
            bound += products.sum()
            # Rounding changes a sum of n terms by at most n / 2 * epsilon * sum(|terms|).
            terms = products.size + len(self._steps) + 2
            rounding_error += terms / 2 * epsilon(products) * jnp.abs(products).sum()

        for equation, step in reversed(self._steps):
            results = equation.outvars
            if not any(variable in remaining for variable in results):
                continue
            factors = [
                remaining.pop(variable, jnp.zeros(variable.aval.shape, bound.dtype))
                for variable in results
            ]
            positive = [jnp.maximum(a, 0) for a in factors]
            negative = [jnp.minimum(a, 0) for a in factors]
            for arrays in zip(positive, negative, step.low, step.high, strict=True):
                add_least_value(*arrays)
            pulled: list[Sequence[Array]] = []
            if len(step.pulls) == 1:
                pulled = [step.pulls[0](factors)]
            elif len(step.pulls) == 2:
                pulled = [step.pulls[0](positive), step.pulls[1](negative)]
            for parts in pulled:
                for operand, part in zip(step.variables, parts, strict=True):
                    earlier = remaining.get(operand)
                    remaining[operand] = part if earlier is None else earlier + part
        # Only arguments of the function are left, and their intervals complete the bound.
        for argument, a in remaining.items():
            add_least_value(jnp.maximum(a, 0), jnp.minimum(a, 0), *ends(self.read(argument)))
        safe_bound = bound - rounding_error
        return jnp.where(jnp.isnan(safe_bound), -jnp.inf, safe_bound)


def _times(coefficients: Array, x: Array) -> Array:
    """Multiply coefficients and an array; the product of 0 and infinity is 0."""
    return jnp.where(coefficients != 0, coefficients * x, 0)


def _branch_bounds(equation: Equation, operands: Sequence[Bounded]) -> list[Interval]:
    """Bound the results of jax's primitive "cond", which calls one of several functions by index.

    If the index is an array, the chosen function gives the bounds. If the index is an interval, the
    bounds contain the results of all functions.
    """
    index, *arguments = operands
    branches = equation.params["branches"]
    results = [[*map(interval, Walk(closed, arguments).results)] for closed in branches]
    if not varies(index):
        choices = [lambda _, result=result: tuple(result) for result in results]
        return list(lax.switch(index, choices, 0))
    hulls: list[Interval] = []
    for intervals in zip(*results, strict=True):
        low = jnp.stack([x.low for x in intervals]).min(0)
        high = jnp.stack([x.high for x in intervals]).max(0)
        hulls.append(Interval(low, high))
    return hulls


def _loop_bounds(equation: Equation, operands: Sequence[Bounded]) -> list[Bounded]:
    """Bound the results of a `jax.lax.scan`.

    A carry that is an interval after some iteration is an interval from the start.
    """
    closed = equation.params["jaxpr"]
    constants, start, stacks = jaxprs.scan_parts(equation, operands)
    is_varying: list[bool] = [varies(x) for x in operands]
    carries = slice(len(constants), len(constants) + len(start))
    for _ in start:  # Each iteration may make one more carry vary.
        depends = jaxprs.depending(closed, is_varying)[: len(start)]
        is_varying[carries] = [a or b for a, b in zip(is_varying[carries], depends, strict=True)]
    start = _intervals_where(is_varying[carries], start)
    depends = jaxprs.depending(closed, is_varying)

    def step(*arguments: Any) -> list[Any]:
        return _intervals_where(depends, Walk(closed, arguments).results)

    scanned: Any = jaxprs.scanned  # Its arrays may be pytrees, such as intervals.
    return scanned(equation, step, constants, start, stacks)


def _intervals_where(flags: Sequence[bool], values: Sequence[Bounded]) -> list[Bounded]:
    """Return the values, after converting each value whose flag is True to an interval."""
    results = list(values)
    for index, is_varying in enumerate(flags):
        if is_varying:
            results[index] = interval(values[index])
    return results
