"""Affine equations of jax's primitives, and the terms in their sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from jax import Array

from lowering import jaxprs
from lowering.facts import facts
from lowering.jaxprs import Equation, primitive
from nnef_jax.analysis.intervals import Bounded, Interval, epsilon, size, value_of, varies

_MORE_THAN_OPERANDS = 99  # No equation has so many operands.
SUMS = {"reduce_sum", "cumsum", "reduce_window_sum", "scatter-add"}
PRODUCTS = {jaxprs.PRODUCT, jaxprs.CONVOLUTION}


def is_affine(equation: Equation, operands: Sequence[Bounded]) -> bool:
    """Tell whether an equation is affine in the operands that are intervals.

    The result is False if the equation's result, or one of these operands, is not floating-point.
    """
    name = primitive(equation)
    varying = varying_operands(operands)
    are_floats = epsilon(equation.outvars[0].aval) and all(epsilon(x.low) for x in varying.values())
    if not are_floats:
        return False
    if name == "mul" or name in PRODUCTS:
        return len(varying) == 1
    if name == "div":
        return list(varying) == [0]
    if has_indices(equation, varying):
        return False
    is_elementwise_sum = name in ("add", "add_any", "sub", "neg", "levels")
    is_sum = is_elementwise_sum or name in SUMS
    return is_sum or facts(equation).moves


def varying_operands(operands: Sequence[Bounded]) -> dict[int, Interval]:
    """Return the operands that are intervals, by their positions among all operands."""
    return {position: x for position, x in enumerate(operands) if varies(x)}


def _indices(name: str) -> range:
    """Return the positions of a primitive's operands that select or index, such as 1 for "gather".

    The rules for bounds require that the operands at these positions are arrays.
    """
    positions = {
        "gather": range(1, 2),
        "scatter": range(1, 2),
        "scatter-add": range(1, 2),
        "select_n": range(1),
        "dynamic_slice": range(1, _MORE_THAN_OPERANDS),
        "dynamic_update_slice": range(2, _MORE_THAN_OPERANDS),
    }
    return positions.get(name, range(0))


def has_indices(equation: Equation, varying: Iterable[int]) -> bool:
    """Tell whether one of an equation's operands at the positions `varying` selects or indexes."""
    index_positions = _indices(primitive(equation))
    return any(position in index_positions for position in varying)


def term_counts(equation: Equation) -> tuple[int, int]:
    """Return the numbers of terms in the sums of an affine equation and of its transpose.

    An item of the result is a sum of as many terms as the first number. An item of the transpose is
    a sum of as many terms as the second number. For a product of [2, 3] and [3, 5] they are 3 and
    5. The rounding error of a sum is proportional to its number of terms.
    """
    name = primitive(equation)
    params = equation.params
    sizes = [math.prod(variable.aval.shape) for variable in equation.invars]
    first_size = max(1, sizes[0])
    if name == jaxprs.PRODUCT:
        (summed_axes, _), (batch_axes, _) = params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        count = math.prod(shape[axis] for axis in summed_axes)
        # The transpose sums over the axes that only one of the two operands has. There are
        # `shared_size` items along the axes that both operands have.
        shared_size = math.prod(shape[axis] for axis in batch_axes) * count
        size_x, size_y = sizes
        transpose_count = max(size_x, size_y) // max(1, shared_size)
        return count, transpose_count
    if name == jaxprs.CONVOLUTION:
        out_axis, in_axis, *_ = params["dimension_numbers"].rhs_spec
        _input, filter = equation.invars
        filter_shape = filter.aval.shape
        filter_size = math.prod(filter_shape)
        # The sum runs over all axes of the filter but the axis of output channels. The sum of the
        # transpose runs over all axes but the axis of input channels.
        count = filter_size // max(1, filter_shape[out_axis])
        transpose_count = filter_size // max(1, filter_shape[in_axis])
        return count, transpose_count
    if name in ("reduce_window_sum", "reduce_sum", "cumsum", "scatter-add"):
        window = params.get("window_dimensions")
        # Without a window, a sum may have all items of the operand as terms, or all items that a
        # scatter adds.
        count = math.prod(window) if window else max(first_size, sizes[-1])
        return count, count
    result_size = max(1, math.prod(equation.outvars[0].aval.shape))
    if name in ("gather", "tile"):
        # An item may be copied to all items of the result, which the transpose adds up.
        return 1, result_size
    # The first operand may be broadcast. The transpose adds up the copies of an item.
    return 1, max(1, result_size // first_size)


def magnitude(equation: Equation, operands: Sequence[Bounded]) -> Array:
    """Return the sum of the magnitudes of the terms, for each item of an affine result."""
    name = primitive(equation)
    index_positions = _indices(name)
    sizes: list[Any] = []
    for position, x in enumerate(operands):
        sizes.append(x if position in index_positions else size(x))
    if name in ("add", "add_any", "sub"):
        return sizes[0] + sizes[1]
    if name == "neg":
        return sizes[0]
    return value_of(equation, *sizes)
