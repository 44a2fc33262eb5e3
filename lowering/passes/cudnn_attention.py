"""Computes attention in 16 bits by cuDNN, which keeps the scores out of the memory of the GPU.

The pass replaces a product of queries and keys, the softmax over the keys, and the product with the
values by `jax.nn.dot_product_attention`. cuDNN takes tensors of bfloat16 or float16, and needs a
GPU of compute capability 8.0 or later. If cuDNN is not installed, programs stay unchanged.

By the compiler for an H100, the instructions of an attention in bfloat16 access the following MB.
The batch is 8, and there are 16 heads of 64 items:

    queries, keys    as products    by cuDNN
    1, 1024                  36          34
    16, 16                  3.4         1.1
    128, 128                 42         8.4
    512, 512                369          34
    2048, 2048            4,698         134

With a mask for each item of the batch, cuDNN accesses 268 MB for 2,048 queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.jaxpr_types import Atom, Equation
from lowering.jaxprs import PRODUCT, is_literal, primitive
from lowering.kernels.precision import widened
from lowering.program import Program
from lowering.rewriting import Computed, Matcher, in_loops, rewritten
from lowering.targets.target import Target

_LEAST_CAPABILITY = 8.0
_FEWEST_QUERIES = 16  # for fewer, cuDNN accesses nearly as much memory
_DTYPES = tuple(map(np.dtype, (jnp.bfloat16, jnp.float16)))
_FLOATS = (*_DTYPES, np.dtype(jnp.float32))
# For lower biases, cuDNN may compute NaN. A score to which this bias is added has the weight 0.
_LEAST_BIAS = -(2.0**41)
_IMPLEMENTATION: Any = "cudnn"


@in_loops
def run(program: Program, target: Target) -> Program:
    """Replace each attention in 16 bits by cuDNN's attention.

    Forward and backward passes of derivatives stay unchanged, since the backward pass reads the
    weights of the forward pass.
    """
    capability = target.compute_capability
    # Over several devices, jax's function cannot be lowered unless the devices are attached.
    is_supported = capability is not None and capability >= _LEAST_CAPABILITY and program.is_alone
    if not is_supported or program.role != "value" or not program.has_items:
        return program
    return rewritten(program, {PRODUCT: _attention})


class _Scores(NamedTuple):
    """The operand of a softmax: a product of queries and keys, times numbers, plus a bias.

    Args:
        product: the product of queries and keys.
        scale: the product of the numbers that are known.
        factors: other arrays of one item, each with the primitive "mul" or "div".
        bias: the array that is added, or None.
    """

    product: Equation
    scale: float
    factors: Sequence[tuple[Any, Atom]]
    bias: Atom | None = None


def _attention(matcher: Matcher, last: Equation) -> Computed | None:
    """Return cuDNN's attention for the product of weights and values in `last`, or None."""
    weights, values = last.invars
    operand = _softmax_operand(matcher, weights)
    scores = None if operand is None else _scores(matcher, operand)
    if scores is None or not _is_attention(scores, last):
        return None
    biases = [] if scores.bias is None else [scores.bias]
    operands = [*scores.product.invars, values, *biases, *(x for _, x in scores.factors)]
    types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in operands]
    attend = partial(_attend, scores, last)
    try:
        jax.eval_shape(attend, *types)
    except RuntimeError:  # which includes NotImplementedError
        return None  # cuDNN is not installed, or does not take these shapes
    return Computed(attend, operands)


def _is_attention(scores: _Scores, last: Equation) -> bool:
    """Tell whether jax's function computes the product of weights and values in `last`."""
    first = scores.product
    queries, keys = first.invars
    weights, values = last.invars
    ((query_sums, _), (batch, _)), ((weight_sums, _), (weight_batch, _)) = (
        equation.params["dimension_numbers"] for equation in (first, last)
    )
    shape = first.outvars[0].aval.shape  # of the scores
    batch_rank, rank = len(batch), len(shape)
    biases = [] if scores.bias is None else [scores.bias]
    # Groups of queries may share the keys of one head. Then the scores have one more axis.
    has_axes_of_attention = (
        batch_rank in (1, 2)
        and rank in (batch_rank + 2, batch_rank + 3)
        and len(query_sums) == 1
        and keys.aval.ndim == values.aval.ndim == batch_rank + 2
        and all(v.aval.ndim == rank for v in (queries, *biases))
        and weights.aval.shape == shape
        and tuple(weight_batch) == tuple(range(batch_rank))
        and tuple(weight_sums) == (rank - 1,)
    )
    if not has_axes_of_attention or shape[-2] < _FEWEST_QUERIES:
        return False
    dtypes = {v.aval.dtype for v in (queries, keys, weights, values, *biases)}
    if len(dtypes) > 1 or dtypes.isdisjoint(_DTYPES):
        return False
    # Biases and factors may exceed the range of float16.
    has_range = queries.aval.dtype != np.float16 or not (biases or scores.factors)
    has_one_size = last.outvars[0].aval.shape[-1] == queries.aval.shape[query_sums[0]]
    return has_range and has_one_size and math.isfinite(scores.scale)


def _attend(
    scores: _Scores,
    last: Equation,
    queries: Array,
    keys: Array,
    values: Array,
    *bias_and_factors: Array,
) -> Array:
    """Compute an attention by jax's function.

    Args:
        scores: how the scores are computed.
        last: the product of weights and values.
        queries, keys, values: the operands of the products, in the axes of the products.
        bias_and_factors: the bias, if there is one, and then the factors.
    """
    ((query_sums, key_sums), (query_batch, key_batch)) = scores.product.params["dimension_numbers"]
    ((_, value_sums), (_, value_batch)) = last.params["dimension_numbers"]
    dtype = queries.dtype
    numbers = bias_and_factors[0 if scores.bias is None else 1 :]
    for (factor, _), number in zip(scores.factors, numbers, strict=True):
        scalar = jnp.reshape(number, ()).astype(jnp.float32)
        queries = factor.bind(widened(queries), jnp.broadcast_to(scalar, queries.shape))
    queries = _batch_first(queries.astype(dtype), query_batch, last=query_sums)
    keys = _batch_first(keys, key_batch, last=key_sums)
    values = jnp.swapaxes(_batch_first(values, value_batch, last=value_sums), -1, -2)
    # jax's function takes the axes (items of the batch, queries or keys, heads, size of a head).
    q, k, v = (jnp.swapaxes(_with_heads(x), 1, 2) for x in (queries, keys, values))
    bias = None
    if scores.bias is not None:
        bias = jnp.maximum(bias_and_factors[0], jnp.asarray(_LEAST_BIAS, dtype))
        items, *heads = bias.shape[:-2]
        if math.prod(heads) > 1:
            heads = queries.shape[1:-2]
        bias = _with_heads(jnp.broadcast_to(bias, (items, *heads, q.shape[1], k.shape[1])))
    with jax.numpy_dtype_promotion("standard"):  # jax's function needs it
        attended = jax.nn.dot_product_attention(
            q, k, v, bias, scale=scores.scale, implementation=_IMPLEMENTATION
        )
    result = jnp.swapaxes(attended, 1, 2).reshape(queries.shape)
    return result.astype(last.outvars[0].aval.dtype)


def _with_heads(x: Array) -> Array:
    """Reshape an array of the shape (items, *heads, n, m), so that there is one axis of heads."""
    items, *heads = x.shape[:-2]
    return x.reshape(items, math.prod(heads), *x.shape[-2:])


def _batch_first(x: Array, batch: Sequence[int], last: Sequence[int]) -> Array:
    """Transpose an array: the axes `batch` first, the axis `last` last, other axes between."""
    between = [axis for axis in range(x.ndim) if axis not in (*batch, *last)]
    return lax.transpose(x, (*batch, *between, *last))


def _maker(matcher: Matcher, operand: Atom, *names: str, reads: int = 1) -> Equation | None:
    """Return the equation that computes an operand.

    Conversions between the dtypes `_FLOATS` are passed over. None is returned if the primitive of
    the equation is not one of `names`, or if the operand does not have `reads` readers.
    """
    while not is_literal(operand) and matcher.program.uses[operand] == reads:
        maker = matcher.maker(operand, "convert_element_type", *names)
        if maker is None or primitive(maker) in names:
            return maker
        (operand,) = maker.invars
        if operand.aval.dtype not in _FLOATS:
            return None
        reads = 1
    return None


def _softmax_operand(matcher: Matcher, weights: Atom) -> Atom | None:
    """Return the operand of the softmax over the last axis that computes `weights`, or None."""
    division = _maker(matcher, weights, "div")
    if division is None:
        return None
    powers, sums = division.invars
    exponential = _maker(matcher, powers, "exp", reads=2)
    difference = exponential and _maker(matcher, exponential.invars[0], "sub")
    if difference is None:
        return None
    x, maximum = difference.invars
    is_softmax = _is_over_rows(matcher, sums, "reduce_sum", powers) and _is_over_rows(
        matcher, maximum, "reduce_max", x
    )
    return x if is_softmax else None


def _is_over_rows(matcher: Matcher, operand: Atom, name: str, x: Atom) -> bool:
    """Tell whether an operand has the sums or maxima of x over the last axis, broadcast to x."""
    while (maker := matcher.maker(operand)) is not None and primitive(maker) != name:
        operands = maker.invars
        match primitive(maker):
            case "max":
                operands = [v for v in operands if matcher.number(v) != -np.inf]
            case "broadcast_in_dim":
                axes = maker.params["broadcast_dimensions"]
                if tuple(axes) != tuple(range(len(axes))):
                    return False
            case "stop_gradient":
                pass
            case _:
                return False
        if len(operands) != 1:
            return False
        (operand,) = operands
    if maker is None or maker.invars[0] is not x:
        return False
    return tuple(maker.params["axes"]) == (x.aval.ndim - 1,)


def _scores(matcher: Matcher, x: Atom) -> _Scores | None:
    """Return how the operand of a softmax is computed, or None if it is no product of a batch."""
    addition = _maker(matcher, x, "add", reads=2)
    if addition is None:
        return _scaled_product(matcher, x, reads=2)
    for scores, bias in (addition.invars, addition.invars[::-1]):
        scaled = _scaled_product(matcher, scores)
        if scaled is not None:
            return scaled._replace(bias=bias)
    return None


def _scaled_product(matcher: Matcher, x: Atom, reads: int = 1) -> _Scores | None:
    """Return a product, and the numbers that its result is multiplied with or divided by."""
    scale, factors = 1.0, list[tuple[Any, Atom]]()
    while True:
        maker = _maker(matcher, x, PRODUCT, "mul", "div", reads=reads)
        if maker is None:
            return None
        if primitive(maker) == PRODUCT:
            return _Scores(maker, scale, factors[::-1])
        x, factor = maker.invars
        if primitive(maker) == "mul" and x.aval.size == 1:
            x, factor = factor, x
        if factor.aval.size != 1:
            return None
        number = matcher.number(factor)
        if number is None:
            factors.append((maker.primitive, factor))
        elif primitive(maker) == "mul":
            scale *= number
        else:
            scale /= number or math.nan
        reads = 1
