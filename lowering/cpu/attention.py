"""Make each attention one equation, from the product that gives scores to the product with values.

In this equation the queries are the last axis of the scores in memory, so that XLA computes the
maxima and sums of softmax by loops over rows. The division by the sums comes after the second
product. Forward and backward passes of derivatives stay unchanged, since the backward pass reads
the scores of the forward pass.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise

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

# An attention has few queries, or few keys, if their number is below this one. Few queries or keys
# do not fill vectors.
FEW = 32

# If an attention has few queries, it skips the keys that masks hide only under two conditions: all
# keys together have at least _FEWEST_KEY_BYTES bytes, and an item of a key has at most
# _MOST_ITEM_BYTES bytes. The table has the milliseconds of a step of GPT-2 with 1024 positions. A
# step was measured with all keys and with only the visible keys:
#   dtype     position  all keys  visible keys
#   bfloat16       128      21.6          18.2
#   bfloat16       900      21.6          21.6
#   float32        128      24.7          24.9
#   float32        900      24.8          26.6
_FEWEST_KEY_BYTES = 1 << 20
_MOST_ITEM_BYTES = 2


@in_loops
def run(program: Program, target: Target) -> Program:
    """Replace two products with a softmax over keys between them by one attention equation.

    The products stay unchanged if another equation reads a value that is computed between them.
    """
    equations = program.equations
    products = [i for i, equation in enumerate(equations) if _is_batched(equation)]
    if program.role != "value" or len(products) < 2:
        return program
    # Maps each variable to the equation that divides it by another variable.
    division_of: dict[Atom, Equation] = {}
    for equation in equations:
        if primitive(equation) == "div" and not any(map(is_literal, equation.invars)):
            dividend, _ = equation.invars
            division_of[dividend] = equation
    attentions: list[Computed] = []
    previous_end = -1
    for start, end in pairwise(products):
        if start == previous_end:
            continue  # this product is the end of the previous attention
        attention = _attention(program, equations[start : end + 1], division_of)
        if attention is not None:
            attentions.append(attention)
            previous_end = end
    return replaced(program, attentions) if attentions else program


def _is_batched(equation: Equation) -> bool:
    """Tell whether an equation multiplies each item of a batch by a matrix of its own."""
    if primitive(equation) != PRODUCT:
        return False
    (left_sums, _), (left_batch, right_batch) = equation.params["dimension_numbers"]
    batch_rank = len(left_batch)
    left_rank, right_rank = (len(v.aval.shape) for v in equation.invars)
    is_batch_first = left_batch == right_batch == tuple(range(batch_rank))
    has_matrices = right_rank == batch_rank + 2 and left_rank >= right_rank
    return batch_rank > 0 and is_batch_first and has_matrices and len(left_sums) == 1


def _attention(
    program: Program, equations: Sequence[Equation], division_of: Mapping[Atom, Equation]
) -> Computed | None:
    """Return the attention that some equations compute, or None if they compute no attention.

    The first and the last of the `equations` are products. `division_of` maps variables to the
    equations that divide them. If the result of the last product is divided by a value of the
    attention, this division is the end of the attention.
    """
    first, *inner, last = equations
    (scores,) = first.outvars
    weights, values = last.invars
    (result,) = last.outvars
    ((query_size_axis,), (key_size_axis,)), _ = first.params["dimension_numbers"]
    ((weight_keys_axis,), (value_keys_axis,)), _ = last.params["dimension_numbers"]
    if scores in program.early or scores.aval.shape[-1] < FEW:
        return None
    between, dependent = _dependent_on(scores, inner)
    depends_by_weights = not is_literal(weights) and weights in dependent
    if not depends_by_weights or values in dependent:
        return None
    sums_last_axis = weight_keys_axis == len(weights.aval.shape) - 1
    has_softmax = any(primitive(equation) == "reduce_max" for equation in between)
    if not sums_last_axis or not has_softmax:
        return None
    end = last
    division = division_of.get(result)
    if division is not None and division.invars[1] in dependent and program.uses[result] == 1:
        end = division
        dependent.add(result)
        between.append(end)
    reads_inside = Counter(variables([weights]))
    for equation in between:
        reads_inside.update(variables(equation.invars))
    if any(reads_inside[v] != program.uses[v] for v in dependent):
        return None  # an equation outside of the attention reads a dependent variable
    masks = [v for v in reads_inside if v not in dependent]
    operands = [*first.invars, values, *masks]

    def laid_out(queries: Array, keys: Array, values: Array, *masks: Array) -> list[Array]:
        """Return the operands with their axes in the order that `ATTENTION` takes.

        Queries and keys end in (time, size), and values end in (keys, size).
        """
        queries = jnp.moveaxis(queries, query_size_axis, -1)
        keys = jnp.moveaxis(keys, key_size_axis, -1)
        values = jnp.moveaxis(values, value_keys_axis, -2)
        return [queries, keys, values, *masks]

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
    has_few_queries = scores.aval.shape[-2] < FEW
    if has_few_queries and not _skips_keys(attended):
        return None  # an attention with few queries gains only if it skips keys

    def attend(*operands: Array) -> list[Array]:
        return ATTENTION.bind(*laid_out(*operands), jaxpr=attended.closed)

    return Computed(attend, operands, end.outvars, at=end)


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
    """Return the equations that depend on `scores`, and the variables that depend on it.

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
    """Return the function of queries, keys, values and masks that computes an attention.

    `part` is the attention as a program, and `first` and `last` are its products. If the
    equation `division` divides the weights, by a divisor that the equation `broadcast`
    broadcasts to all keys, the function divides the result instead of the weights.
    """

    def evaluate(
        queries: Array, keys: Array, values: Array, *arrays_of_masks: Array
    ) -> list[Array]:
        # The equation `broadcast` appends the divisor of the result. Without this equation the list
        # stays empty.
        divisors: list[Array] = []

        def compute(equation: Equation, operands: list[Array]) -> Sequence[Array]:
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
                # The result needs one divisor for each query, so that an axis of extent 1 replaces
                # the keys.
                shape = (*equation.params["shape"][:-1], 1)
                axes = equation.params["broadcast_dimensions"]
                divisors.append(lax.broadcast_in_dim(operands[0], shape, axes))
            return jaxpr_evaluation.bind(equation, operands)

        arrays = dict(zip(masks, arrays_of_masks, strict=True))
        return part.evaluated([arrays.get(v) for v in part.arguments], compute)

    return evaluate


def _product(equation: Equation, left: Array, right: Array, *, right_axis: int) -> Array:
    """Multiply, and sum over the last axis of `left` and the axis `right_axis` of `right`.

    `right_axis` is -1 or -2. If `left` has many rows, the rows are the last axis of the result in
    memory.
    """
    batch_rank = right.ndim - 2
    kind = kind_of(equation)
    batch = tuple(range(batch_rank)), tuple(range(batch_rank))
    left_sums = (left.ndim - 1,)
    right_sums = (right.ndim + right_axis,)
    has_few_rows = max(left.shape[batch_rank:-1]) < FEW
    if has_few_rows:
        return lax.dot_general(left, right, ((left_sums, right_sums), batch), **kind)
    # The exchanged operands give a result whose last axis are the rows of `left`.
    transposed = lax.dot_general(right, left, ((right_sums, left_sums), batch), **kind)
    return jnp.moveaxis(transposed, batch_rank, -1)


def _division(
    program: Program, last: Equation, dependent: Collection[Atom]
) -> tuple[Equation, Equation] | tuple[None, None]:
    """Return the equation that divides the weights, and the equation that broadcasts its divisor.

    The weights are the first operand of the equation `last`. The divisor is one of the variables
    `dependent`, and is broadcast to all keys. If no equation divides the weights, or if the result
    of `last` cannot be divided instead of the weights, (None, None) is returned.
    """
    weights = last.invars[0]
    makers = program.makers
    # Go back from the weights to the result of the division, before it was converted.
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
    axes = broadcast.params["broadcast_dimensions"]
    extent_by_axis = dict(zip(axes, broadcast.invars[0].aval.shape, strict=True))
    key_axis = len(divisor.aval.shape) - 1
    is_same_for_keys = extent_by_axis.get(key_axis, 1) == 1
    is_wide = last.outvars[0].aval.dtype.itemsize >= 4  # 32 bits or more
    if is_same_for_keys and is_wide:
        return division, broadcast
    return None, None
