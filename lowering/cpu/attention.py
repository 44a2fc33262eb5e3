"""Make attention one equation: from the product that gives scores to the one that weighs values.

In it queries are the last axis of the scores' array, so that maxima and sums of softmax go over
rows, and the division by these sums comes after the second product. Derivatives read whole scores:
they have none of this.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering import jaxprs
from lowering.cpu.key_masks import hidden_keys
from lowering.jaxprs import PRODUCT, is_literal, primitive, variables
from lowering.passes.siblings import kind_of
from lowering.program import Computed, Program, in_loops, replaced
from lowering.targets.target import Target

# It holds a function of queries (..., time, size), keys (..., key, size), values (..., key, size)
# and masks, whose first equation gives scores.
ATTENTION = jaxprs.region("attention")

# Fewer queries or keys are no vectors.
FEW = 32

# Bytes of keys, of at most so many an item, from which on those that masks hide from few queries
# are not read. A step of GPT-2 at place 128 of 1024 takes 18.2 ms in bfloat16
# instead of 21.6, at place 900 21.6 in both; in float32 24.9 and 24.7, 26.6 and 24.8.
_MANY = 1 << 20
_NARROW = 2


@in_loops
def run(program: Program, target: Target) -> Program:
    """Find softmax over keys between two products, whose values nothing else reads."""
    equations = program.equations
    places = [i for i, e in enumerate(equations) if _is_batched(e)]
    if program.role != "value" or len(places) < 2:
        return program
    divisions = (e for e in equations if primitive(e) == "div")
    after = {e.invars[0]: e for e in divisions if not any(map(is_literal, e.invars))}
    found: list[Computed] = []
    taken = -1  # the last product of the attention before
    for start, stop in pairwise(places):
        between = equations[start : stop + 1]
        one = None if start == taken else _attention(program, between, after)
        if one is not None:
            found.append(one)
            taken = stop
    return replaced(program, found) if found else program


def _is_batched(equation: Any) -> bool:
    """Tell whether it is a product of batches of rows with batches of matrices."""
    if primitive(equation) != PRODUCT:
        return False
    ((left, _), (batch, right_batch)) = equation.params["dimension_numbers"]
    count = len(batch)
    ranks = [len(v.aval.shape) for v in equation.invars]
    in_front = batch == right_batch == tuple(range(count))
    return count > 0 and in_front and len(left) == 1 and ranks[0] >= ranks[1] == count + 2


def _attention(
    program: Program, equations: Sequence[Any], after: Mapping[Any, Any]
) -> Computed | None:
    """Return the attention from the first to the last of the equations, or a division `after`."""
    first, *inner, last = equations
    (scores,), (weights, values), (result,) = first.outvars, last.invars, last.outvars
    (((left,), (right,)), _) = first.params["dimension_numbers"]
    (((summed,), (along,)), _) = last.params["dimension_numbers"]
    made = {scores}
    between: list[Any] = []
    for equation in inner:
        if not made.isdisjoint(variables(equation.invars)):
            between.append(equation)
            made.update(equation.outvars)
    if (
        scores in program.early
        or scores.aval.shape[-1] < FEW
        or is_literal(weights)
        or summed != len(weights.aval.shape) - 1
        or weights not in made
        or values in made
        or not any(primitive(e) == "reduce_max" for e in between)
    ):
        return None
    end = after.get(result)
    if end is None or end.invars[1] not in made or program.uses[result] != 1:
        end = last
    else:
        made.add(result)
        between.append(end)
    own = Counter(variables([weights, *(v for e in between for v in e.invars)]))
    if any(own[v] != program.uses[v] for v in made):
        return None
    masks = [v for v in own if v not in made]
    operands = [*first.invars, values, *masks]

    def laid_out(queries: Array, keys: Array, values: Array, *masks: Array) -> list[Array]:
        ends = jnp.moveaxis(queries, left, -1), jnp.moveaxis(keys, right, -1)
        return [*ends, jnp.moveaxis(values, along, -2), *masks]

    part = program.part([*dict.fromkeys(operands)], end.outvars)
    run = _function(part, masks, first, last, *_division(program, last, made))
    types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in operands]
    closed = jaxprs.inlined(jaxprs.make_jaxpr(run, *jax.eval_shape(laid_out, *types)))
    attended, keys = part.with_closed(closed).pruned(), first.invars[1].aval
    is_large = math.prod(keys.shape) * keys.dtype.itemsize >= _MANY
    is_narrow = keys.dtype.itemsize <= _NARROW
    if scores.aval.shape[-2] < FEW and not (is_large and is_narrow and hidden_keys(attended)):
        return None

    def function(*operands: Array) -> list[Array]:
        return ATTENTION.bind(*laid_out(*operands), jaxpr=attended.closed)

    return Computed(function, operands, end.outvars, at=end)


def _function(
    part: Program, masks: Sequence[Any], first: Any, last: Any, division: Any, repeated: Any
) -> Callable[..., list[Array]]:
    """Return the function of queries, keys, values and masks, its axes in order.

    A division of weights by what is repeated for all keys is done at its end.
    """

    def run(queries: Array, keys: Array, values: Array, *given: Array) -> list[Array]:
        sums: list[Array] = []

        def compute(equation: Any, operands: list[Array]) -> Sequence[Array]:
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

        known = dict(zip(masks, given, strict=True))
        return part.evaluated([known.get(v) for v in part.arguments], compute)

    return run


def _product(equation: Any, left: Array, right: Array, along: int) -> Array:
    """Multiply along the last axis of the left; many rows of it come last in memory."""
    count, kind = right.ndim - 2, kind_of(equation)
    batch = tuple(range(count)), tuple(range(count))
    last, other = (left.ndim - 1,), (right.ndim + along,)
    if max(left.shape[count:-1]) < FEW:
        return lax.dot_general(left, right, ((last, other), batch), **kind)
    return jnp.moveaxis(lax.dot_general(right, left, ((other, last), batch), **kind), count, -1)


def _division(program: Program, last: Any, made: set[Any]) -> tuple[Any, Any]:
    """Return the division of weights by what is repeated for all keys, and what repeats it."""
    weights, makers = last.invars[0], program.makers
    while primitive(makers[weights]) == "convert_element_type" and program.uses[weights] == 1:
        (weights,) = makers[weights].invars
    division = makers[weights]
    if primitive(division) != "div" or any(map(is_literal, division.invars)):
        return None, None
    divisor = division.invars[1]
    repeated = makers[divisor] if divisor in made and program.uses[weights] == 1 else None
    if repeated is None or primitive(repeated) != "broadcast_in_dim":
        return None, None
    axes = repeated.params["broadcast_dimensions"]
    extents = dict(zip(axes, repeated.invars[0].aval.shape, strict=True))
    is_same = extents.get(len(divisor.aval.shape) - 1, 1) == 1
    is_wide = last.outvars[0].aval.dtype.itemsize >= 4
    return (division, repeated) if is_same and is_wide else (None, None)
