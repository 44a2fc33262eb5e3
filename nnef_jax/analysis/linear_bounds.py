"""Computes bounds of a traced function: forwards by intervals, backwards by lines (CROWN).

The backward pass bounds sum(coefficients * tensor) from below, and follows the coefficients back to
the input (Zhang et al. 2018, arXiv:1811.00866; Xu et al. 2020, arXiv:2002.12920). The pass goes
through an affine equation by the transpose, and through a nonlinear equation by the lines of
`relaxations`. At an equation without lines, the pass ends with the interval of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering import jaxpr_evaluation, jaxprs
from lowering.facts import facts
from lowering.jaxprs import Atom, ClosedJaxpr, Equation, Variable, is_literal, primitive
from nnef_jax.analysis.affine_equations import affine_step, is_affine
from nnef_jax.analysis.interval_rules import bounded
from nnef_jax.analysis.intervals import (
    Bounded,
    Interval,
    NoBounds,
    apply,
    ends,
    epsilon,
    interval,
    varies,
)
from nnef_jax.analysis.relaxations import BackwardStep, ThresholdSelection, lines_of
from nnef_jax.analysis.softmax_bounds import reduction_steps, related_bounds

_PASSES = 512  # This many backward passes are computed together.
# `Walk.at` follows at most 12 equations from the variable that a `select` compares to a case.
_MOST_EQUATIONS_OF_CASE = 12
# A softmax subtracts the maximum of x from x, and divides exponentials by their sum. The keys are
# these two primitives. The value is the reduction that computes the second operand.
_RELATED = {"sub": "reduce_max", "div": "reduce_sum"}
# The keys are comparisons of x with a limit. The value is True if the comparison holds for x below
# the limit.
_COMPARISONS = {"lt": True, "le": True, "gt": False, "ge": False}
Read = Callable[[Atom], Bounded]


class Walk:
    """The evaluation of a traced function on arrays and intervals, with bounds of its results.

    Attributes:
        makers: for each computed variable, the equation that computes it.
        results: the results of the function, as arrays or intervals.

    Args:
        closed: the function.
        arguments: an array or an interval for each argument of the function.
        linear: whether the backward pass also bounds the results of the function.
        sharp: whether the backward pass also bounds the operands of nonlinear equations.
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
        self._values = jaxpr_evaluation.values_of(closed, arguments)
        self._steps: list[tuple[Equation, BackwardStep]] = []
        self._sharpened: set[Atom] = set()
        for equation in jaxprs.equations(closed):
            try:
                # Tighter operands give tighter bounds of a nonlinear equation.
                if sharp and self._is_nonlinear(equation):
                    for operand in equation.invars:
                        self._sharpen(operand)
                results = self.evaluated(equation, self.read)
            except NoBounds as error:
                # The error may come from an equation inside this one. The new error has this
                # equation, because the outermost equation has the name of the operation.
                raise NoBounds(equation) from error
            for variable, result in zip(equation.outvars, results, strict=True):
                self._values[variable] = result
                self.makers[variable] = equation
            if linear and any(map(varies, results)):
                step = self._step(equation, list(map(interval, results)))
                self._steps.append((equation, step))
        if linear:
            for result_variable in closed.jaxpr.outvars:
                self._sharpen(result_variable)
        self.results: list[Any] = list(map(self.read, closed.jaxpr.outvars))

    def _is_nonlinear(self, equation: Equation) -> bool:
        """Tell whether an equation has an interval as an operand, but is not affine."""
        operands = list(map(self.read, equation.invars))
        return any(map(varies, operands)) and not is_affine(equation, operands)

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
        function = _called_function(equation)
        if function is not None:
            return Walk(function, operands).results
        results = bounded(equation, operands)
        if name in _RELATED:
            first, second = equation.invars
            reduction = reduction_steps(_RELATED[name], first, second, self.makers)
            if reduction:
                x = interval(operands[0])
                # `related_bounds` needs exactly the interval that the reduction computes from x.
                # The stored interval of `second` may be tighter, and is therefore not used.
                y: Bounded = x
                for step in reduction:
                    step_operands = [self.read(v) if is_literal(v) else y for v in step.invars]
                    (y,) = bounded(step, step_operands)
                return [related_bounds(reduction[0], x, interval(y), *results)]
        return results

    def at(
        self, variable: Atom, values: Mapping[Atom, Bounded], depth: int = _MOST_EQUATIONS_OF_CASE
    ) -> Bounded:
        """Return the value of `variable` after other variables get the values in `values`.

        Elementwise equations between `values` and `variable` are evaluated again, up to `depth`
        equations in a row. A variable behind more equations, or behind an equation that is not
        elementwise, keeps the value that the walk computed.
        """
        if is_literal(variable):
            return self.read(variable)
        if variable in values:
            return values[variable]
        computed_value = self.read(variable)
        if depth == 0 or not varies(computed_value):
            return computed_value
        equation = self.makers.get(variable)
        if equation is None or not facts(equation).by_item:
            return computed_value
        (value,) = self.evaluated(equation, lambda operand: self.at(operand, values, depth - 1))
        return value

    def compared(self, equation: Equation) -> ThresholdSelection | None:
        """Return the parts of a selection `select_n(x < threshold, case_0, case_1)`.

        The parts are x, the threshold, and the index of the case that is selected below the
        threshold. The condition must compare each item of a variable x with a threshold. The
        threshold must be known exactly, as an array and not as an `Interval`. For any other
        condition the result is None.
        """
        condition, *cases = equation.invars
        comparison = self.makers.get(condition)
        if comparison is None or len(cases) != 2:
            return None
        name = primitive(comparison)
        if name not in _COMPARISONS:
            return None
        variable, limit = comparison.invars
        selects_second_below = _COMPARISONS[name]
        is_reversed = is_literal(variable) or varies(self.read(limit))
        if is_reversed:
            # The threshold is the left operand, as in `threshold > x`.
            variable, limit = limit, variable
            selects_second_below = not selects_second_below
        threshold = self.read(limit)
        if is_literal(variable) or isinstance(threshold, Interval):
            return None
        if variable.aval.shape != equation.outvars[0].aval.shape:
            return None
        # Where its condition is True, `select_n` selects case 1, which is the second case.
        return ThresholdSelection(variable, threshold, case_below=int(selects_second_below))

    def is_affine_in(self, variable: Atom, x: Atom) -> bool:
        """Tell whether a variable is an elementwise affine function of `x` and of constants.

        Variables that are not intervals are constants.
        """
        if is_literal(variable) or variable is x:
            return True
        is_constant = not varies(self.read(variable))
        if is_constant:
            return True
        equation = self.makers.get(variable)
        if equation is None or not facts(equation).by_item:
            return False
        operands = list(map(self.read, equation.invars))
        if not is_affine(equation, operands):
            return False
        return all(self.is_affine_in(operand, x) for operand in equation.invars)

    def _selection_bounds(self, equation: Equation, read: Read) -> Interval:
        """Bound the result of a selection, in which a condition selects one of two cases.

        If the condition is `x < threshold`, one case is bounded for x up to the threshold, and the
        other case is bounded for x from the threshold on.
        """
        selector, *case_variables = equation.invars
        condition = interval(read(selector))
        if condition.low.dtype != bool:
            raise NoBounds
        cases = [interval(read(variable)) for variable in case_variables]
        comparison = self.compared(equation)
        if comparison is not None:
            compared, threshold, case_below = comparison
            x = interval(read(compared))
            below = Interval(x.low, jnp.minimum(x.high, threshold))
            above = Interval(jnp.maximum(x.low, threshold), x.high)
            for index, variable in enumerate(case_variables):
                # `part` has the values of x at which this case is selected.
                part = below if index == case_below else above
                case_on_part = interval(self.at(variable, {compared: part}))
                cases[index] = cases[index].within(case_on_part)
            condition = interval(self.at(selector, {compared: x}))
        if_false, if_true = cases
        return _selected(condition, if_false, if_true)

    def _step(self, equation: Equation, results: Sequence[Interval]) -> BackwardStep:
        """Return affine functions that bound an equation's results, for the backward pass.

        `results` are the intervals of the results. If there is no rule for affine functions, the
        step has the ends of the intervals as constants.
        """
        operands = list(map(self.read, equation.invars))
        if is_affine(equation, operands):
            return affine_step(equation, operands, results)
        step = None
        if len(results) == 1:
            step = lines_of(self, equation, operands, results[0])
        if step is not None:
            return step
        dtype = results[0].low.dtype
        lows = [result.low.astype(dtype) for result in results]
        highs = [result.high.astype(dtype) for result in results]
        return BackwardStep(variables=(), pulls=(), low=lows, high=highs)

    def _sharpen(self, variable: Atom) -> None:
        """Tighten the interval of a variable by the backward pass, item by item.

        The new interval is the intersection of the old interval and the bounds from the backward
        pass. A variable of integers, and a variable that was tightened before, stays as it is.
        """
        if is_literal(variable) or variable in self._sharpened:
            return
        x = self.read(variable)
        if not varies(x):
            return
        self._sharpened.add(variable)
        count = x.low.size
        shape = x.low.shape
        has_float_items = epsilon(x.low) > 0 and count > 0
        if not has_float_items or self._is_exact(variable):
            return

        def bound(pass_index: Array) -> Array:
            """Return a lower bound of an item, or of minus an item. The bound has the shape [].

            For example, if there are 3 items, pass 1 is for item 1, and pass 4 is for minus item 1.
            """
            sign = jnp.where(pass_index < count, 1, -1).astype(x.low.dtype)
            is_item = jnp.arange(count) == pass_index % count
            coefficients = jnp.where(is_item, sign, 0).reshape(shape)
            return self._lower_bound(variable, coefficients)

        pass_indices = jnp.arange(2 * count)
        if 2 * count <= _PASSES:
            # `lax.map` would make a loop with a single iteration, which is a longer program.
            lower_bounds = jax.vmap(bound)(pass_indices)
        else:
            lower_bounds = lax.map(bound, pass_indices, batch_size=_PASSES)
        low = lower_bounds[:count].reshape(shape)
        high = -lower_bounds[count:].reshape(shape)  # x <= -b, where b is a lower bound of -x.
        self._values[variable] = x.within(Interval(low, high))

    def _is_exact(self, variable: Variable) -> bool:
        """Tell whether the backward pass cannot improve the interval of a variable.

        The backward pass cannot improve the interval of an argument, or of the result of a
        nonlinear equation. Equations such as a reshape only move items. If all items of a variable
        are moved from such arguments and results, its interval cannot be improved either.
        """
        equation = self.makers.get(variable)
        if equation is None:
            return True
        if not is_affine(equation, list(map(self.read, equation.invars))):
            return True
        if not facts(equation).moves:
            return False
        operands = jaxprs.variables(equation.invars)
        varying_operands = [operand for operand in operands if varies(self.read(operand))]
        return all(map(self._is_exact, varying_operands))

    def _lower_bound(self, variable: Variable, coefficients: Array) -> Array:
        """Return a lower bound of the number sum(coefficients * variable), by the backward pass.

        After every backward step, the number is at least the sum of

        - all arrays in `least_terms`, and
        - factors * x, for each variable x and its factors in `factors_of`.

        Each backward step replaces the results of its equation by the operands, until only
        arguments are left.
        """
        dtype = coefficients.dtype
        factors_of: dict[Atom, Array] = {variable: coefficients}
        least_terms: list[Array] = []
        for equation, step in reversed(self._steps):
            results = equation.outvars
            if not any(result in factors_of for result in results):
                continue
            factors_of_results: list[Array] = []
            for result, low, high in zip(results, step.low, step.high, strict=True):
                zeros = jnp.zeros(result.aval.shape, dtype)
                factors = factors_of.pop(result, zeros)
                factors_of_results.append(factors)
                least_terms.append(_least_terms(factors, low, high))
            for parts in _pulled(step, factors_of_results):
                for operand, part in zip(step.variables, parts, strict=True):
                    earlier = factors_of.get(operand)
                    factors_of[operand] = part if earlier is None else earlier + part
        for argument, factors in factors_of.items():
            low, high = ends(self.read(argument))
            least_terms.append(_least_terms(factors, low, high))
        bound = jnp.zeros((), dtype)
        rounding_error = bound
        for terms in least_terms:
            bound += terms.sum()
            # Rounding changes a sum of n terms by at most n / 2 * epsilon * sum(|terms|). Each
            # backward step is included as one more term.
            term_count = terms.size + len(self._steps) + 2
            rounding_error += term_count / 2 * epsilon(terms) * jnp.abs(terms).sum()
        safe_bound = bound - rounding_error
        return jnp.where(jnp.isnan(safe_bound), -jnp.inf, safe_bound)


def _called_function(equation: Equation) -> ClosedJaxpr | None:
    """Return the function that an equation calls with its operands, or None.

    For a loop the result is None, because the function of a loop takes other values than the
    operands.
    """
    checkpoint = jaxprs.recomputed(equation)
    functions = jaxprs.function_params(equation) if checkpoint is None else [checkpoint]
    if len(functions) != 1 or primitive(equation) == "while":
        return None
    (function,) = functions
    takes_operands = len(function.in_avals) == len(equation.invars)
    return function if takes_operands else None


def _selected(condition: Interval, if_false: Interval, if_true: Interval) -> Interval:
    """Return the interval of `if_true` where a condition holds, and `if_false` elsewhere.

    The ends of the condition are bool. The low end is True where the condition is certainly True.
    The high end is True where the condition can be True.
    """
    is_certainly_true = condition.low
    can_be_true = condition.high
    low_of_both = jnp.minimum(if_false.low, if_true.low)
    high_of_both = jnp.maximum(if_false.high, if_true.high)
    low = jnp.where(can_be_true, low_of_both, if_false.low)
    high = jnp.where(can_be_true, high_of_both, if_false.high)
    low = jnp.where(is_certainly_true, if_true.low, low)
    high = jnp.where(is_certainly_true, if_true.high, high)
    return Interval(low, high)


def _least_terms(factors: Array, lows: Array, highs: Array) -> Array:
    """Return the terms factors * x of the least sum, where lows <= x <= highs.

    A positive factor is multiplied by the low end, and a negative factor by the high end.
    """
    at_lows = _times(jnp.maximum(factors, 0), lows)
    at_highs = _times(jnp.minimum(factors, 0), highs)
    return at_lows + at_highs


def _pulled(step: BackwardStep, factors: Sequence[Array]) -> list[Sequence[Array]]:
    """Return factors of a step's operands, computed from the factors of its results.

    The factors belong to a lower bound of the sum of factors * results. In the sum, the lower
    function replaces a result with a positive factor, and the upper function replaces a result
    with a negative factor. The list has up to two parts, which the caller adds up.
    """
    if len(step.pulls) == 2:
        pull_below, pull_above = step.pulls
        positive = [jnp.maximum(factor, 0) for factor in factors]
        negative = [jnp.minimum(factor, 0) for factor in factors]
        return [pull_below(positive), pull_above(negative)]
    # If both functions have the same linear part, there is one pull. If both functions are
    # constant, there is none.
    return [pull(factors) for pull in step.pulls]


def _times(coefficients: Array, x: Array) -> Array:
    """Multiply coefficients and an array; the product of 0 and infinity is 0."""
    return jnp.where(coefficients != 0, coefficients * x, 0)


def _branch_bounds(equation: Equation, operands: Sequence[Bounded]) -> list[Interval]:
    """Bound the results of jax's primitive "cond", which calls one of several functions by index.

    If the index is an array, the chosen function gives the bounds. If the index is an interval, the
    bounds contain the results of all functions.
    """
    index, *arguments = operands
    results_of_branches: list[list[Interval]] = []
    for closed in equation.params["branches"]:
        results = Walk(closed, arguments).results
        results_of_branches.append(list(map(interval, results)))
    if not varies(index):
        # The default argument binds `results` now. Otherwise all lambdas would read the last
        # `results` of the loop.
        choices = [lambda _, results=results: tuple(results) for results in results_of_branches]
        unused_operand = 0
        return list(lax.switch(index, choices, unused_operand))
    hulls: list[Interval] = []
    for intervals in zip(*results_of_branches, strict=True):
        low = jnp.stack([x.low for x in intervals]).min(0)
        high = jnp.stack([x.high for x in intervals]).max(0)
        hulls.append(Interval(low, high))
    return hulls


def _loop_bounds(equation: Equation, operands: Sequence[Bounded]) -> list[Bounded]:
    """Bound the results of a `jax.lax.scan`.

    A carry is either an array in all iterations, or an interval in all iterations. If a carry would
    become an interval after some iteration, the first value of the carry is converted to one.
    """
    closed = equation.params["jaxpr"]
    constants, start, stacks = jaxprs.scan_parts(equation, operands)
    is_varying: list[bool] = [varies(x) for x in operands]
    carry_offset = len(constants)
    carry_count = len(start)
    # A carry may depend on another carry that becomes an interval in a later iteration. Each round
    # finds at least one such carry, unless none is left. For n carries, n rounds are enough.
    for _round in start:
        # The first results of the function are the carries after an iteration.
        carry_depends = jaxprs.depending(closed, is_varying)[:carry_count]
        for index, depends in enumerate(carry_depends):
            if depends:
                is_varying[carry_offset + index] = True
    is_varying_carry = is_varying[carry_offset : carry_offset + carry_count]
    start = _intervals_where(is_varying_carry, start)
    is_varying_result = jaxprs.depending(closed, is_varying)

    def step(*arguments: Any) -> list[Any]:
        return _intervals_where(is_varying_result, Walk(closed, arguments).results)

    # The type hints of `scanned` allow only arrays. The function also takes pytrees of arrays, such
    # as intervals.
    scanned: Any = jaxpr_evaluation.scanned
    return scanned(equation, step, constants, start, stacks)


def _intervals_where(flags: Sequence[bool], values: Sequence[Bounded]) -> list[Bounded]:
    """Return the values, after converting each value whose flag is True to an interval."""
    results: list[Bounded] = []
    for index, value in enumerate(values):
        results.append(interval(value) if flags[index] else value)
    return results
