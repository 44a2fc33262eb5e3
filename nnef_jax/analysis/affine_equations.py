"""Affine equations of jax's primitives, and the terms in their sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from lowering import jaxprs
from lowering.facts import facts
from lowering.jaxprs import Equation, primitive
from nnef_jax.analysis.intervals import (
    Bounded,
    Interval,
    apply,
    epsilon,
    largest_magnitude,
    value_of,
    varies,
)
from nnef_jax.analysis.relaxations import BackwardStep

_MORE_THAN_OPERANDS = 99  # Every equation has fewer than 99 operands.
SUMS = {"reduce_sum", "cumsum", "reduce_window_sum", "scatter-add"}
PRODUCTS = {jaxprs.PRODUCT, jaxprs.CONVOLUTION}


def is_affine(equation: Equation, operands: Sequence[Bounded]) -> bool:
    """Tell whether an equation is affine in the operands that are intervals.

    Return False if the equation's result, or one of these operands, is not floating-point.
    """
    name = primitive(equation)
    varying = varying_operands(operands)
    # `epsilon` is 0 for a dtype that is not floating-point.
    has_float_result = epsilon(equation.outvars[0].aval) > 0
    has_float_operands = all(epsilon(x.low) > 0 for x in varying.values())
    if not (has_float_result and has_float_operands):
        return False
    if name == "mul" or name in PRODUCTS:
        return len(varying) == 1
    if name == "div":
        is_dividend_alone = list(varying) == [0]
        return is_dividend_alone
    if has_varying_index(equation, varying):
        return False
    # The primitive "levels" returns its operand. It is only a mark.
    is_elementwise_sum = name in ("add", "add_any", "sub", "neg", "levels")
    is_sum = is_elementwise_sum or name in SUMS
    return is_sum or facts(equation).moves


def varying_operands(operands: Sequence[Bounded]) -> dict[int, Interval]:
    """Return a dict from positions to operands. It has only the operands that are intervals."""
    return {position: x for position, x in enumerate(operands) if varies(x)}


def _index_positions(name: str) -> range:
    """Return the positions of those operands of a primitive that are indices or conditions.

    For example, operand 1 of "gather" has the indices, and operand 0 of "select_n" is the
    condition. The rules for bounds require that the operands at these positions are arrays.
    """
    positions = {
        "gather": range(1, 2),
        "scatter": range(1, 2),
        "scatter-add": range(1, 2),
        "select_n": range(0, 1),
        "dynamic_slice": range(1, _MORE_THAN_OPERANDS),
        "dynamic_update_slice": range(2, _MORE_THAN_OPERANDS),
    }
    return positions.get(name, range(0))


def has_varying_index(equation: Equation, varying: Iterable[int]) -> bool:
    """Tell whether an index or a condition of an equation is an interval.

    `varying` are the positions of the operands that are intervals.
    """
    index_positions = _index_positions(primitive(equation))
    return any(position in index_positions for position in varying)


def term_counts(equation: Equation) -> tuple[int, int]:
    """Return the largest number of terms in a sum, for an affine equation and for its transpose.

    For a product of [2, 3] and [3, 5] the numbers are 3 and 5. The first number counts the terms of
    an element of the result. The second number counts the terms of an element of the transpose. The
    rounding error of a sum is proportional to its number of terms.
    """
    name = primitive(equation)
    if name == jaxprs.PRODUCT:
        return _term_counts_of_product(equation)
    if name == jaxprs.CONVOLUTION:
        return _term_counts_of_convolution(equation)
    sizes = [math.prod(variable.aval.shape) for variable in equation.invars]
    first_size = max(1, sizes[0])
    if name in SUMS:
        window = equation.params.get("window_dimensions")
        # Without a window, all items of the operand may be terms of one sum. In a scatter, the last
        # operand has the items that are added.
        count = math.prod(window) if window else max(first_size, sizes[-1])
        return count, count
    result_size = max(1, math.prod(equation.outvars[0].aval.shape))
    if name in ("gather", "tile"):
        # One item may be copied to all positions of the result. The transpose adds up the copies.
        return 1, result_size
    # The first operand may be broadcast. The transpose adds up the copies of an item.
    copies = max(1, result_size // first_size)
    return 1, copies


def _term_counts_of_product(equation: Equation) -> tuple[int, int]:
    """Return the number of terms in a sum, for a matrix product and for its transpose.

    For operands of [2, 3] and [3, 5] the numbers are 3 and 5. The summed axis has the extent 3. The
    larger operand has 15 items, which are 15 / 3 = 5 items for each index of the summed axis.
    """
    (summed_axes, _), (batch_axes, _) = equation.params["dimension_numbers"]
    x, y = equation.invars
    shape = x.aval.shape
    count = math.prod(shape[axis] for axis in summed_axes)
    batch_size = math.prod(shape[axis] for axis in batch_axes)
    # The transpose for one operand sums over the axes that only the other operand has.
    common_size = batch_size * count
    larger_size = max(math.prod(x.aval.shape), math.prod(y.aval.shape))
    transpose_count = larger_size // max(1, common_size)
    return count, transpose_count


def _term_counts_of_convolution(equation: Equation) -> tuple[int, int]:
    """Return the number of terms in a sum, for a convolution and for its transpose.

    A sum of the convolution runs over all axes of the filter except the output channels. A sum of
    the transpose runs over all axes except the input channels. A filter [8, 3, 5, 5] with 8 output
    channels gives 3 * 5 * 5 = 75 and 8 * 5 * 5 = 200.
    """
    out_axis, in_axis, *_ = equation.params["dimension_numbers"].rhs_spec
    _input, filter = equation.invars
    filter_shape = filter.aval.shape
    filter_size = math.prod(filter_shape)
    count = filter_size // max(1, filter_shape[out_axis])
    transpose_count = filter_size // max(1, filter_shape[in_axis])
    return count, transpose_count


def magnitude(equation: Equation, operands: Sequence[Bounded]) -> Array:
    """Return the sum of the magnitudes of an affine equation's terms, item by item.

    The sum for x - y is |x| + |y|.
    """
    name = primitive(equation)
    index_positions = _index_positions(name)
    magnitudes: list[Any] = []
    for position, x in enumerate(operands):
        # An index or a condition is not a term, and stays as it is.
        magnitudes.append(x if position in index_positions else largest_magnitude(x))
    if name in ("add", "add_any", "sub"):
        return magnitudes[0] + magnitudes[1]
    if name == "neg":
        return magnitudes[0]
    return value_of(equation, *magnitudes)


def affine_step(
    equation: Equation, operands: Sequence[Bounded], results: Sequence[Interval]
) -> BackwardStep:
    """Return the step of the backward pass for an affine equation.

    The results are a linear function of the operands that are intervals, plus constants. For a
    lower bound, the rounding error is subtracted from the constants. For an upper bound, it is
    added. `results` are the intervals of the results.
    """
    varying = varying_operands(operands)
    zeros = [jnp.zeros_like(x.low) for x in varying.values()]

    def affine_function(*arrays: Array) -> list[Array]:
        """Return the results of the equation. `arrays` replace the operands that are intervals."""
        values: list[Any] = [*operands]
        for position, array in zip(varying, arrays, strict=True):
            values[position] = array
        return apply(equation, values)

    constants, transpose = jax.vjp(affine_function, *zeros)
    term_count, transpose_term_count = term_counts(equation)
    relative_error = (term_count + transpose_term_count + 2) / 2 * epsilon(constants[0])
    if len(results) == 1:
        magnitudes = [magnitude(equation, operands)]
    else:
        magnitudes = list(map(largest_magnitude, results))
    lows: list[Array] = []
    highs: list[Array] = []
    for constant, sum_of_magnitudes in zip(constants, magnitudes, strict=True):
        # The error covers the rounding of the sums in the equation, and in its transpose.
        error = relative_error * sum_of_magnitudes
        lows.append(constant - error)
        highs.append(constant + error)
    variables = [equation.invars[position] for position in varying]
    return BackwardStep(variables, pulls=(transpose,), low=lows, high=highs)
