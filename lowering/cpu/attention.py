"""Replace the equations of each attention by one equation.

The equation begins with the product that gives the scores, and ends with the product with the
values. In memory the queries are the last axis of the scores, so that XLA computes the maxima and
sums of softmax by loops over rows. The division by the sums comes after the second product.

Forward and backward passes of derivatives stay unchanged, since the backward pass reads the scores
of the forward pass.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering import jaxpr_evaluation, jaxprs, primitives
from lowering.cpu.key_masks import hidden_keys
from lowering.jaxpr_types import Atom, Equation, Variable
from lowering.jaxprs import PRODUCT, is_literal, primitive, variables
from lowering.passes.siblings import kind_of
from lowering.program import Program
from lowering.rewriting import Computed, in_loops, replaced
from lowering.targets.target import Target

# The primitive holds a function of queries (..., queries, size), keys (..., keys, size), values
# (..., keys, size) and masks. The first equation of the function computes the scores.
ATTENTION = primitives.call_primitive("attention")

# This is the limit of few queries, and also of few keys. Fewer than FEW queries or keys do not fill
# vectors.
FEW = 32

# Masks hide keys. If an attention has few queries, hidden keys are skipped only under two
# conditions: all keys together have at least _FEWEST_KEY_BYTES bytes, and one number of a key has
# at most _MOST_ITEM_BYTES bytes. The table has the milliseconds of a step of GPT-2 with 1024
# positions. A step was measured with all keys and with only the visible keys:
#   dtype     position  all keys  visible keys
#   bfloat16       128      21.6          18.2
#   bfloat16       900      21.6          21.6
#   float32        128      24.7          24.9
#   float32        900      24.8          26.6
_FEWEST_KEY_BYTES = 1 << 20
_MOST_ITEM_BYTES = 2


@in_loops
def run(program: Program, target: Target) -> Program:
    """Replace a product, a softmax over keys and a second product by one attention equation.

    These equations stay unchanged if another equation reads a value that is computed between the
    two products.
    """
    if program.role != "value":
        return program  # the passes of derivatives stay unchanged
    equations = program.equations
    division_of = _divisions(equations)
    product_indices = [i for i, equation in enumerate(equations) if _is_batched(equation)]
    attentions: list[Computed] = []
    previous_end = -1
    for start, end in pairwise(product_indices):
        if start == previous_end:
            continue  # this product is the end of the previous attention
        attention = _attention(program, equations[start : end + 1], division_of)
        if attention is not None:
            attentions.append(attention)
            previous_end = end
    return replaced(program, attentions) if attentions else program


def _divisions(equations: Iterable[Equation]) -> dict[Atom, Equation]:
    """Map each variable that is divided by another variable to the equation that divides it."""
    division_of: dict[Atom, Equation] = {}
    for equation in equations:
        if primitive(equation) == "div" and not any(map(is_literal, equation.invars)):
            dividend, _ = equation.invars
            division_of[dividend] = equation
    return division_of


def _is_batched(equation: Equation) -> bool:
    """Tell whether an equation multiplies each item of a batch by its own matrix.

    The matrices have the shape (*batch, n, m), and the left operand is (*batch, *rows, m). The
    batch axes must come first. The axes after them may be in any order.
    """
    if primitive(equation) != PRODUCT:
        return False
    (left_sums, _), (left_batch, right_batch) = equation.params["dimension_numbers"]
    batch_rank = len(left_batch)
    left_rank, right_rank = (len(v.aval.shape) for v in equation.invars)
    has_batch_first = batch_rank > 0 and left_batch == right_batch == tuple(range(batch_rank))
    has_matrices = right_rank == batch_rank + 2 and left_rank >= right_rank
    sums_one_axis = len(left_sums) == 1
    return has_batch_first and has_matrices and sums_one_axis


class _Matched(NamedTuple):
    """The equations of an attention, and the variables that these equations compute and read."""

    first: Equation  # the product that computes the scores
    last: Equation  # the product with the values
    end: Equation  # `last`, or a division of the result of `last`
    dependent: Collection[Variable]  # the variables that depend on the scores
    masks: Sequence[Variable]  # other variables that are read between the two products


def _matched(
    program: Program, equations: Sequence[Equation], division_of: Mapping[Atom, Equation]
) -> _Matched | None:
    """Return the parts of the attention in `equations`, or None if there is no attention.

    The first and the last of the `equations` are products. `division_of` maps a variable to the
    equation that divides the variable. If the result of the last product is divided by a value of
    the attention, this division is the end of the attention.
    """
    first, *inner, last = equations
    (scores,) = first.outvars
    weights, values = last.invars
    (result,) = last.outvars
    key_count = scores.aval.shape[-1]
    if scores in program.early or key_count < FEW:
        return None  # the scores are computed only once, or are too few to fill vectors
    dependent_equations, dependent = _dependent_on(scores, inner)
    weights_depend = not is_literal(weights) and weights in dependent
    values_depend = values in dependent
    if not weights_depend or values_depend:
        return None
    ((weight_keys_axis,), _), _ = last.params["dimension_numbers"]
    sums_last_axis = weight_keys_axis == len(weights.aval.shape) - 1
    # Softmax is recognised by its maximum.
    has_softmax = any(primitive(equation) == "reduce_max" for equation in dependent_equations)
    if not sums_last_axis or not has_softmax:
        return None
    end = last
    division = division_of.get(result)
    if division is not None and program.uses[result] == 1:
        _, divisor = division.invars
        if divisor in dependent:
            end = division
            dependent.add(result)
            dependent_equations.append(end)
    reads_inside = Counter(variables([weights]))  # `last` reads the weights
    for equation in dependent_equations:
        reads_inside.update(variables(equation.invars))
    if any(reads_inside[v] != program.uses[v] for v in dependent):
        return None  # an equation outside of the attention reads a dependent variable
    masks = [v for v in reads_inside if v not in dependent]
    return _Matched(first, last, end, dependent, masks)


def _attention(
    program: Program, equations: Sequence[Equation], division_of: Mapping[Atom, Equation]
) -> Computed | None:
    """Return the attention that `equations` compute, or None if there is no attention.

    The first and the last of the `equations` are products. `division_of` maps a variable to the
    equation that divides the variable.
    """
    matched = _matched(program, equations, division_of)
    if matched is None:
        return None
    first, last, end, dependent, masks = matched
    _, values = last.invars
    operands = [*first.invars, values, *masks]
    laid_out = _layout(first, last)
    part = program.part([*dict.fromkeys(operands)], end.outvars)
    division_of_weights, divisor_broadcast = _division(program, last, dependent)
    evaluate = _function(
        part,
        masks,
        first=first,
        last=last,
        division=division_of_weights,
        broadcast=divisor_broadcast,
    )
    types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in operands]
    closed = jaxprs.inlined(
        jaxpr_evaluation.make_jaxpr(evaluate, *jax.eval_shape(laid_out, *types))
    )
    attended = part.with_closed(closed).pruned()
    (scores,) = first.outvars
    has_few_queries = scores.aval.shape[-2] < FEW
    if has_few_queries and not _skips_keys(attended):
        return None  # an attention with few queries gains only if it skips keys

    def attend(*operands: Array) -> list[Array]:
        return ATTENTION.bind(*laid_out(*operands), jaxpr=attended.closed)

    return Computed(attend, operands, end.outvars, at=end)


def _layout(first: Equation, last: Equation) -> Callable[..., list[Array]]:
    """Return a function that puts the axes of operands in the order that `ATTENTION` takes.

    `first` and `last` are the products of an attention.
    """
    ((query_size_axis,), (key_size_axis,)), _ = first.params["dimension_numbers"]
    (_, (value_keys_axis,)), _ = last.params["dimension_numbers"]

    def laid_out(queries: Array, keys: Array, values: Array, *masks: Array) -> list[Array]:
        return [
            jnp.moveaxis(queries, query_size_axis, -1),  # (..., queries, size)
            jnp.moveaxis(keys, key_size_axis, -1),  # (..., keys, size)
            jnp.moveaxis(values, value_keys_axis, -2),  # (..., keys, size)
            *masks,
        ]

    return laid_out


def _skips_keys(attention: Program) -> bool:
    """Tell whether an attention with few queries skips keys that masks hide.

    `attention` has the arguments queries, keys, values and masks.
    """
    _, keys, *_ = attention.arguments
    itemsize = keys.aval.dtype.itemsize
    is_large = math.prod(keys.aval.shape) * itemsize >= _FEWEST_KEY_BYTES
    is_narrow = itemsize <= _MOST_ITEM_BYTES
    return is_large and is_narrow and hidden_keys(attention) is not None


def _dependent_on(
    scores: Variable, equations: Iterable[Equation]
) -> tuple[list[Equation], set[Variable]]:
    """Return the equations that depend on `scores`, and the variables that depend on `scores`.

    The variables include `scores` itself.
    """
    dependent_equations: list[Equation] = []
    dependent_variables = {scores}
    for equation in equations:
        if not dependent_variables.isdisjoint(variables(equation.invars)):
            dependent_equations.append(equation)
            dependent_variables.update(equation.outvars)
    return dependent_equations, dependent_variables


def _function(
    part: Program,
    masks: Sequence[Variable],
    *,
    first: Equation,
    last: Equation,
    division: Equation | None,
    broadcast: Equation | None,
) -> Callable[..., list[Array]]:
    """Return a function that computes an attention from queries, keys, values and masks.

    `part` is the attention as a program, and `first` and `last` are its products. `division` is
    the equation that divides the weights, and `broadcast` is the equation that broadcasts the
    divisor to all keys. The function divides the result instead of the weights.
    """

    def evaluate(
        queries: Array, keys: Array, values: Array, *arrays_of_masks: Array
    ) -> list[Array]:
        # This list gets the divisor of the result. Without the equation `broadcast` it stays empty.
        divisors: list[Array] = []

        def compute(equation: Equation, operands: list[Array]) -> Sequence[Array]:
            """Return the results of an equation of `part`, from arrays of its operands."""
            if equation is first:
                return [_product(equation, queries, keys, right_axis=-1)]
            if equation is last:
                weights, _ = operands
                result = _product(equation, weights, values, right_axis=-2)
                for divisor in divisors:
                    result = result / divisor.astype(result.dtype)
                return [result]
            if equation is division:
                undivided_weights, _ = operands
                return [undivided_weights]
            if equation is broadcast:
                # The result has one divisor for each query: (..., queries, 1).
                (sums,) = operands
                shape = (*equation.params["shape"][:-1], 1)
                axes = equation.params["broadcast_dimensions"]
                divisors.append(lax.broadcast_in_dim(sums, shape, axes))
            return jaxpr_evaluation.bind(equation, operands)

        # Queries, keys and values are None here, since `compute` reads their arrays directly.
        array_of = dict(zip(masks, arrays_of_masks, strict=True))
        return part.evaluated([array_of.get(v) for v in part.arguments], compute)

    return evaluate


def _product(equation: Equation, left: Array, right: Array, *, right_axis: int) -> Array:
    """Multiply two arrays, and sum over the last axis of `left` and axis `right_axis` of `right`.

    `left` has the shape (*batch, *rows, size). `right_axis` is -1 or -2. The result has the shape
    (*batch, *rows, items). If `left` has many rows, the rows are the last axis of the result in
    memory.
    """
    batch_rank = right.ndim - 2
    kind = kind_of(equation)
    batch = tuple(range(batch_rank)), tuple(range(batch_rank))
    left_sums = (left.ndim - 1,)
    right_sums = (right.ndim + right_axis,)
    extents_of_rows = left.shape[batch_rank:-1]
    if max(extents_of_rows) < FEW:
        return lax.dot_general(left, right, ((left_sums, right_sums), batch), **kind)
    transposed = lax.dot_general(right, left, ((right_sums, left_sums), batch), **kind)
    return jnp.moveaxis(transposed, batch_rank, -1)  # from (*batch, items, *rows)


def _division(
    program: Program, last: Equation, dependent: Collection[Atom]
) -> tuple[Equation, Equation] | tuple[None, None]:
    """Return the equation that divides the weights, and the equation that broadcasts the divisor.

    The weights are the first operand of the equation `last`. The divisor must be one of the
    variables `dependent`. (None, None) is returned if no equation divides the weights, or if the
    result of `last` cannot be divided instead of the weights.
    """
    weights = last.invars[0]
    makers = program.makers
    # The weights may be converted to another dtype after the division.
    while primitive(makers[weights]) == "convert_element_type" and program.uses[weights] == 1:
        (weights,) = makers[weights].invars
    division = makers[weights]
    if primitive(division) != "div" or any(map(is_literal, division.invars)):
        return None, None
    _, divisor = division.invars
    if divisor not in dependent or program.uses[weights] != 1:
        return None, None
    broadcast = makers[divisor]
    if primitive(broadcast) != "broadcast_in_dim":
        return None, None
    # The divisor must be equal for all keys.
    axes = broadcast.params["broadcast_dimensions"]
    extent_by_axis = dict(zip(axes, broadcast.invars[0].aval.shape, strict=True))
    key_axis = len(divisor.aval.shape) - 1
    if extent_by_axis.get(key_axis, 1) > 1:
        return None, None
    # With n keys the undivided result may be n times as large, and may not fit 16 bits.
    result_bits = 8 * last.outvars[0].aval.dtype.itemsize
    if result_bits < 32:
        return None, None
    return division, broadcast
