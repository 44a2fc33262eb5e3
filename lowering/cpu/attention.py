"""Make each attention one equation, from the product that gives scores to the product with values.

In this equation the queries are the last axis of the scores in memory, so that XLA computes the
maxima and sums of softmax by loops over rows. The division by the sums comes after the second
product. Forward and backward passes of derivatives stay unchanged, since the backward pass reads
the scores of the forward pass.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering import jaxprs
from lowering.cpu.key_masks import hidden_keys
from lowering.jaxpr_types import Atom, Equation, Variable
from lowering.jaxprs import PRODUCT, is_literal, primitive, variables
from lowering.passes.siblings import kind_of
from lowering.program import Computed, Program, in_loops, replaced
from lowering.targets.target import Target

# The primitive holds a function of queries (..., queries, size), keys (..., keys, size), values
# (..., keys, size) and masks. The first equation of the function computes the scores.
ATTENTION = jaxprs.call_primitive("attention")

FEW = 32  # fewer queries or keys than this do not fill vectors

# With few queries, keys that masks hide are skipped only if the keys have at least _MANY bytes in
# all, and each item has at most _NARROW bytes. The table has the milliseconds of a step of GPT-2
# with 1024 positions, measured with all keys and with only the visible keys:
#   dtype     position  all keys  visible keys
#   bfloat16       128      21.6          18.2
#   bfloat16       900      21.6          21.6
#   float32        128      24.7          24.9
#   float32        900      24.8          26.6
_MANY = 1 << 20
_NARROW = 2


@in_loops
def run(program: Program, target: Target) -> Program:
    """Replace two products with a softmax over keys between them by one attention equation.

    The products stay unchanged if another equation reads a value that is computed between them.
    """
    equations = program.equations
    products = [i for i, e in enumerate(equations) if _is_batched(e)]
    if program.role != "value" or len(products) < 2:
        return program
    divisions = [e for e in equations if primitive(e) == "div"]
    # Maps each variable to the equation that divides it by another variable.
    division_of: dict[Atom, Equation] = {
        e.invars[0]: e for e in divisions if not any(map(is_literal, e.invars))
    }
    attentions: list[Computed] = []
    previous_end = -1
    for start, stop in pairwise(products):
        if start == previous_end:
            continue
        attention = _attention(program, equations[start : stop + 1], division_of)
        if attention is not None:
            attentions.append(attention)
            previous_end = stop
    return replaced(program, attentions) if attentions else program


def _is_batched(equation: Equation) -> bool:
    """Tell whether an equation multiplies each item of a batch by a matrix of its own."""
    if primitive(equation) != PRODUCT:
        return False
    (left_sums, _), (batch, right_batch) = equation.params["dimension_numbers"]
    count = len(batch)
    left_rank, right_rank = (len(v.aval.shape) for v in equation.invars)
    is_in_front = batch == right_batch == tuple(range(count))
    has_matrices = len(left_sums) == 1 and right_rank == count + 2 and left_rank >= right_rank
    return count > 0 and is_in_front and has_matrices


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
    ((query_size,), (key_size,)), _ = first.params["dimension_numbers"]
    ((weight_keys,), (value_keys,)), _ = last.params["dimension_numbers"]
    if scores in program.early or scores.aval.shape[-1] < FEW:
        return None
    dependent = {scores}  # the variables that depend on the scores
    between: list[Equation] = []
    for equation in inner:
        if not dependent.isdisjoint(variables(equation.invars)):
            between.append(equation)
            dependent.update(equation.outvars)
    depends_by_weights = not is_literal(weights) and weights in dependent
    if not depends_by_weights or values in dependent:
        return None
    sums_last_axis = weight_keys == len(weights.aval.shape) - 1
    has_softmax = any(primitive(e) == "reduce_max" for e in between)
    if not sums_last_axis or not has_softmax:
        return None
    end = last
    division = division_of.get(result)
    if division is not None and division.invars[1] in dependent and program.uses[result] == 1:
        end = division
        dependent.add(result)
        between.append(end)
    reads = Counter(variables([weights]))
    for equation in between:
        reads.update(variables(equation.invars))
    if any(reads[v] != program.uses[v] for v in dependent):
        return None  # an equation outside of the attention reads one of them
    masks = [v for v in reads if v not in dependent]
    operands = [*first.invars, values, *masks]

    def laid_out(queries: Array, keys: Array, values: Array, *masks: Array) -> list[Array]:
        """Return the operands with their axes in the order that `ATTENTION` takes.

        Queries and keys end in (time, size), and values end in (keys, size).
        """
        queries = jnp.moveaxis(queries, query_size, -1)
        keys = jnp.moveaxis(keys, key_size, -1)
        values = jnp.moveaxis(values, value_keys, -2)
        return [queries, keys, values, *masks]

    part = program.part([*dict.fromkeys(operands)], end.outvars)
    evaluate = _function(part, masks, first, last, *_division(program, last, dependent))
    types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in operands]
    closed = jaxprs.inlined(jaxprs.make_jaxpr(evaluate, *jax.eval_shape(laid_out, *types)))
    attended = part.with_closed(closed).pruned()
    has_few_queries = scores.aval.shape[-2] < FEW
    if has_few_queries:
        keys = first.invars[1].aval
        is_large = math.prod(keys.shape) * keys.dtype.itemsize >= _MANY
        is_narrow = keys.dtype.itemsize <= _NARROW
        skips_keys = is_large and is_narrow and hidden_keys(attended) is not None
        if not skips_keys:
            return None

    def attend(*operands: Array) -> list[Array]:
        return ATTENTION.bind(*laid_out(*operands), jaxpr=attended.closed)

    return Computed(attend, operands, end.outvars, at=end)


def _function(
    part: Program,
    masks: Sequence[Variable],
    first: Equation,
    last: Equation,
    division: Equation | None,
    repeated: Equation | None,
) -> Callable[..., list[Array]]:
    """Return the function of queries, keys, values and masks that computes an attention.

    `part` is the attention as a program, and `first` and `last` are its products. If the
    equation `division` divides the weights, by a divisor that the equation `repeated`
    broadcasts to all keys, the function divides the result instead of the weights.
    """

    def evaluate(
        queries: Array, keys: Array, values: Array, *arrays_of_masks: Array
    ) -> list[Array]:
        sums: list[Array] = []  # the divisor, after the equation `repeated`

        def compute(equation: Equation, operands: list[Array]) -> Sequence[Array]:
            if equation is first:
                return [_product(equation, queries, keys, -1)]
            if equation is last:
                result = _product(equation, operands[0], values, -2)
                return [result / sums[0].astype(result.dtype) if sums else result]
            if equation is division:
                return operands[:1]
            if equation is repeated:
                shape = (*equation.params["shape"][:-1], 1)
                axes = equation.params["broadcast_dimensions"]
                sums.append(lax.broadcast_in_dim(operands[0], shape, axes))
            return jaxprs.bind(equation, operands)

        arrays = dict(zip(masks, arrays_of_masks, strict=True))
        return part.evaluated([arrays.get(v) for v in part.arguments], compute)

    return evaluate


def _product(equation: Equation, left: Array, right: Array, along: int) -> Array:
    """Multiply, and sum over the last axis of `left` and the axis `along` of `right`.

    `along` is -1 or -2. If `left` has many rows, the rows are the last axis of the result in
    memory.
    """
    count = right.ndim - 2
    kind = kind_of(equation)
    batch = tuple(range(count)), tuple(range(count))
    left_sums = (left.ndim - 1,)
    right_sums = (right.ndim + along,)
    if max(left.shape[count:-1]) < FEW:
        return lax.dot_general(left, right, ((left_sums, right_sums), batch), **kind)
    transposed = lax.dot_general(right, left, ((right_sums, left_sums), batch), **kind)
    return jnp.moveaxis(transposed, count, -1)


def _division(
    program: Program, last: Equation, dependent: Collection[Atom]
) -> tuple[Equation, Equation] | tuple[None, None]:
    """Return the equation that divides the weights, and the equation that broadcasts its divisor.

    The divisor is broadcast to all keys. Both results are None if there is no such division, or
    if the result cannot be divided instead of the weights.
    """
    weights = last.invars[0]
    makers = program.makers
    while primitive(makers[weights]) == "convert_element_type" and program.uses[weights] == 1:
        (weights,) = makers[weights].invars
    division = makers[weights]
    if primitive(division) != "div" or any(map(is_literal, division.invars)):
        return None, None
    divisor = division.invars[1]
    if divisor not in dependent or program.uses[weights] != 1:
        return None, None
    repeated = makers[divisor]
    if primitive(repeated) != "broadcast_in_dim":
        return None, None
    axes = repeated.params["broadcast_dimensions"]
    extents = dict(zip(axes, repeated.invars[0].aval.shape, strict=True))
    is_same_for_keys = extents.get(len(divisor.aval.shape) - 1, 1) == 1
    is_wide = last.outvars[0].aval.dtype.itemsize >= 4  # 32 bits or more
    if is_same_for_keys and is_wide:
        return division, repeated
    return None, None
