"""Make attention one equation: from the product that gives scores to the one that weighs values.

In it queries are the last axis of the scores' array, so that maxima and sums of softmax go over
rows, and the division by these sums comes after the second product. Derivatives read whole scores:
they have none of this.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering import jaxprs
from lowering.cpu.hidden import hidden_keys
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
        if one is not None and (made := one.computed(program)) is not None:
            found.append(made)
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


@dataclass(frozen=True, slots=True)
class _Attention:
    """Two products and what is between them, and where they are divided by sums of softmax."""

    first: Any
    last: Any
    end: Any  # a division of the result, or `last`
    masks: Sequence[Any]  # variables
    division: Any  # of weights, and what repeats its divisor for all keys, or None
    repeated: Any

    def computed(self, program: Program) -> Computed | None:
        """Return it as one equation; None where queries are few, and no keys hidden from them."""
        operands = [*self.first.invars, self.last.invars[1], *self.masks]
        (((left,), (right,)), _) = self.first.params["dimension_numbers"]
        ((_, (along,)), _) = self.last.params["dimension_numbers"]

        def laid_out(queries: Array, keys: Array, values: Array, *masks: Array) -> list[Array]:
            ends = jnp.moveaxis(queries, left, -1), jnp.moveaxis(keys, right, -1)
            return [*ends, jnp.moveaxis(values, along, -2), *masks]

        types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in operands]
        inner = self._inner(program, jax.eval_shape(laid_out, *types))
        keys, queries = self.first.invars[1].aval, self.first.outvars[0].aval.shape[-2]
        is_large = math.prod(keys.shape) * keys.dtype.itemsize >= _MANY
        hides = is_large and keys.dtype.itemsize <= _NARROW
        if queries < FEW and not (hides and hidden_keys(inner)):
            return None

        def function(*operands: Array) -> list[Array]:
            return ATTENTION.bind(*laid_out(*operands), jaxpr=inner.closed)

        return Computed(function, operands, self.end.outvars, at=self.end)

    def _inner(self, program: Program, types: Sequence[Any]) -> Program:
        """Return the program of queries, keys, values and masks."""
        own = dict.fromkeys((*self.first.invars, self.last.invars[1]))
        part = program.part([*(own | dict.fromkeys(self.masks))], self.end.outvars)

        def run(queries: Array, keys: Array, values: Array, *masks: Array) -> list[Array]:
            sums: list[Array] = []

            def compute(equation: Any, operands: list[Array]) -> Sequence[Array]:
                if equation is self.first:
                    return [_product(equation, queries, keys, -1)]
                if equation is self.last:
                    result = _product(equation, operands[0], values, -2)
                    return [result / sums[0].astype(result.dtype) if sums else result]
                if equation is self.division:
                    return operands[:1]
                if equation is self.repeated:
                    shape = (*equation.params["shape"][:-1], 1)
                    axes = equation.params["broadcast_dimensions"]
                    sums.append(lax.broadcast_in_dim(operands[0], shape, axes))
                return jaxprs.bind(equation, operands)

            given = own | dict(zip(self.masks, masks, strict=True))
            return part.evaluated([*given.values()], compute)

        closed = jaxprs.inlined(jax.make_jaxpr(run)(*types))
        return part.with_closed(closed).pruned()


def _product(equation: Any, left: Array, right: Array, along: int) -> Array:
    """Multiply with the last axis of the left, which is the first factor where its rows are few."""
    count, kind = right.ndim - 2, kind_of(equation)
    batch, sums = tuple(range(count)), ((left.ndim - 1,), (right.ndim + along,))
    if max(left.shape[count:-1]) < FEW:
        return lax.dot_general(left, right, (sums, (batch, batch)), **kind)
    product = lax.dot_general(right, left, (sums[::-1], (batch, batch)), **kind)
    return jnp.moveaxis(product, count, -1)


def _attention(
    program: Program, equations: Sequence[Any], after: Mapping[Any, Any]
) -> _Attention | None:
    first, *inner, last = equations
    (scores,), (weights, values), (result,) = first.outvars, last.invars, last.outvars
    ((sums, _), _) = last.params["dimension_numbers"]
    made = {scores}
    between: list[Any] = []
    for equation in inner:
        if not made.isdisjoint(variables(equation.invars)):
            between.append(equation)
            made.update(equation.outvars)
    if (
        scores in program.prepared
        or scores.aval.shape[-1] < FEW
        or sums != (len(weights.aval.shape) - 1,)
        or is_literal(weights)
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
    read = variables([weights, *(v for e in between for v in e.invars)])
    own = Counter(read)
    if any(own[v] != program.uses[v] for v in made):
        return None
    masks = [v for v in own if v not in made]
    return _Attention(first, last, end, masks, *_division(program, last, made))


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
