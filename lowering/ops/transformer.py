"""Attention, masked softmax and rotary embedding. Shapes broadcast from the right, as in torch."""

from __future__ import annotations

import math
from typing import Literal

import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, differ, show, volume
from lowering.graph import ABSENT, TensorType, is_float
from lowering.kernels.broadcast import broadcast_shapes
from lowering.kernels.precision import widened
from lowering.ops import require, rules
from lowering.tracing import Context


def _require_trailing(name: str, shape: Shape, target: Shape, what: str) -> None:
    """Raise InvalidShape if a shape does not broadcast to a target shape from the last axis on.

    `name` is the name of the operand with the shape. `what` stands for the target in the error.
    """
    is_longer = len(shape) > len(target)
    # A shorter shape is preceded by 1s.
    pairs = zip(reversed(shape), reversed(target), strict=False)
    if is_longer or any(extent != 1 and differ(extent, expected) for extent, expected in pairs):
        raise InvalidShape(
            f"'{name}' of shape {show(shape)} must broadcast to {what} {show(target)}",
            hint="shapes are matched from the right here, a shorter one is preceded by 1s",
        )


def _require_mask(mask: TensorType, scores: Shape) -> None:
    """Refuse a mask that has neither logical nor real values, or does not broadcast to `scores`."""
    if mask.dtype != "bool" and not is_float(mask.dtype):
        raise InvalidOperation(
            f"'mask' must hold logical or real values, it holds {mask.dtype}",
            hint="true keeps a score, a real number is added to it",
        )
    _require_trailing("mask", mask.shape, scores, "the scores")


def _preceded(x: Array, rank: int) -> Array:
    """Add leading axes of extent 1 to x until it has `rank` axes."""
    array = jnp.asarray(x)
    return jnp.expand_dims(array, range(rank - array.ndim))


def _masked(scores: Array, mask: Array) -> Array:
    """Return the scores with a mask applied.

    A floating-point mask is added to the scores. Where a logical mask is false, the score
    becomes -inf.
    """
    mask = _preceded(mask, scores.ndim)
    if mask.dtype == jnp.bool_:
        return jnp.where(mask, scores, -jnp.inf)
    return scores + mask.astype(scores.dtype)


def _exponentials(scores: Array) -> tuple[Array, Array]:
    """Return exp(scores - maximum), and the sum of these exponentials along the last axis.

    The maximum is along the last axis too. The sum keeps this axis with extent 1. Both results have
    float32 or a wider dtype. If all scores along the axis are -inf, all exponentials and their
    derivatives are 0, and the sum is 1.
    """
    wide = widened(scores)
    largest = jnp.max(wide, axis=-1, keepdims=True, initial=-jnp.inf)
    # Without this selection, a row of -inf would give exp(-inf + inf), which is NaN.
    largest = lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0.0))
    exponentials = jnp.exp(wide - largest)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    return exponentials, jnp.where(total == 0, 1.0, total)


def _attention_type(
    query: TensorType, key: TensorType, value: TensorType, mask: TensorType
) -> TensorType:
    """Check the arguments of `attention`, and return the type of its result."""
    require.same_dtype(require.floating, query=query, key=key, value=value)
    shapes = f"query {show(query.shape)}, key {show(key.shape)}, value {show(value.shape)}"
    rank = len(query.shape)
    if rank < 3 or len(key.shape) != rank or len(value.shape) != rank:
        raise InvalidShape(
            f"'query', 'key' and 'value' must be [batch...,heads,time,items], not {shapes}"
        )
    *query_batch, heads, query_times, items = query.shape
    *key_batch, key_heads, key_times, key_items = key.shape
    *value_batch, value_heads, value_times, value_items = value.shape
    if differ(key_items, items):
        raise InvalidShape(f"'query' and 'key' must have as many items: {shapes}")
    if differ(key_times, value_times) or differ(key_heads, value_heads):
        raise InvalidShape(f"'key' and 'value' must have as many heads and times: {shapes}")
    if differ(heads % key_heads, 0):
        raise InvalidShape(f"the heads of 'query' must be a multiple of those of 'key': {shapes}")
    batch = broadcast_shapes(tuple(query_batch), tuple(key_batch), tuple(value_batch))
    if mask != ABSENT:
        _require_mask(mask, (*batch, heads, query_times, key_times))
    return TensorType((*batch, heads, query_times, value_items), query.dtype)


def _attention_work(result: TensorType, key: TensorType, value: TensorType) -> int:
    """Return the multiply-adds of the two products, with the keys and with the values."""
    *_, key_times, key_items = key.shape
    *_, value_times, value_items = value.shape
    query_count = volume(result.shape[:-1])
    # A comparison with UNKNOWN is false, so `max` returns the first extent.
    key_count = value_times if key_times is UNKNOWN else max(key_times, value_times)
    return query_count * key_count * (key_items + value_items)


@rules.rule("attention", _attention_type, work=_attention_work)
def attention(
    ctx: Context,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | Literal[False],
    scale: float,
    is_causal: bool,
    from_first: bool = False,
) -> Array:
    """Return scaled dot product attention. Operands have the shape (batch..., heads, time, items).

    If there are g times as many heads of queries as of keys and values, each head of keys and
    values serves g consecutive heads of queries. A logical mask keeps the scores where it is
    true. A floating-point mask is added to the scores. A query that sees no key yields zeros. A
    `scale` of 0 means 1 / sqrt(items).

    If `is_causal` is true, query t of T queries sees key s of S keys only if s <= t + S - T. If
    `from_first` is true too, the condition is s <= t instead, as in torch.
    """
    query_array = jnp.asarray(query)
    keys = jnp.asarray(key)
    values = jnp.asarray(value)
    *batch, heads, times, items = query_array.shape
    key_heads = keys.shape[-3]
    # The heads of queries are split into two axes, so that heads of keys and values broadcast.
    groups = (key_heads, heads // key_heads)
    queries = query_array.reshape(*batch, *groups, times, items)
    factor = scale or 1 / math.sqrt(items)
    # The letters are: h for heads of keys, g for the heads of queries that a head of keys serves, t
    # for queries, s for keys, and d for items.
    scores = jnp.einsum("...hgtd,...hsd->...hgts", queries, keys, precision=ctx.precision) * factor
    if mask is not False:
        scores = _masked(scores, _grouped(mask, scores.ndim, groups))
    if is_causal:
        diagonal = 0 if from_first else scores.shape[-1] - times
        visible = jnp.tril(jnp.ones(scores.shape[-2:], jnp.bool_), diagonal)
        scores = _masked(scores, visible)
    weights, total = _exponentials(scores)
    # If the scores have 32 bits or more, the result is divided by the sums at the end. Otherwise
    # the weights are divided first: in 16 bits the product with undivided weights would overflow.
    divides_last = weights.dtype == scores.dtype
    if not divides_last:
        weights = (weights / total).astype(scores.dtype)
    result = jnp.einsum("...hgts,...hsd->...hgtd", weights, values, precision=ctx.precision)
    if divides_last:
        result = result / total
    return result.reshape(*result.shape[:-4], heads, *result.shape[-2:])


def _grouped(mask: Array, rank: int, groups: tuple[int, int]) -> Array:
    """Return the mask with its axis of heads split into the two axes `groups`.

    `groups` is (heads of keys, heads of queries for each head of keys), and `rank` is the rank of
    the scores, (batch..., *groups, queries, keys). A mask of lower rank is preceded by axes of
    extent 1.
    """
    mask = _preceded(mask, rank - 1)
    *batch, heads, times, keys = mask.shape
    mask_groups = groups if heads > 1 else (1, 1)  # with 1 head, all heads share it
    return mask.reshape(*batch, *mask_groups, times, keys)


def _masked_softmax_type(input: TensorType, mask: TensorType) -> TensorType:
    """Check the arguments of `masked_softmax`, and return the type of its result."""
    require.floating(input=input)
    if not input.shape:
        raise InvalidShape("'input' must have an axis to take the softmax over")
    _require_mask(mask, input.shape)
    return input


@rules.rule("masked_softmax", _masked_softmax_type)
def masked_softmax(input: Array, mask: Array, scale: float) -> Array:
    """Return softmax(input * scale + mask) over the last axis.

    If the mask is logical, items where the mask is false become -inf instead.
    """
    x = jnp.asarray(input)
    scores = _masked(widened(x) * scale, mask)
    exponentials, total = _exponentials(scores)
    return (exponentials / total).astype(x.dtype)


def _rotary_type(input: TensorType, cos: TensorType, sin: TensorType) -> TensorType:
    """Check the arguments of `rotary_embedding`, and return the type of its result."""
    require.same_dtype(require.floating, input=input, cos=cos, sin=sin)
    if not input.shape or differ(input.shape[-1] % 2, 0):
        raise InvalidShape(
            f"the last axis of 'input' {show(input.shape)} must have an even number of items"
        )
    for name, operand in (("cos", cos), ("sin", sin)):
        _require_trailing(name, operand.shape, input.shape, "'input'")
    return input


@rules.rule("rotary_embedding", _rotary_type)
def rotary_embedding(input: Array, cos: Array, sin: Array) -> Array:
    """Rotate the halves (a, b) of the last axis: (a, b) cos + (-b, a) sin (Su et al. 2021).

    `cos` and `sin` broadcast to the input from the last axis on.
    """
    x = jnp.asarray(input)
    first, second = jnp.split(x, 2, axis=-1)
    quarter_turned = jnp.concatenate([-second, first], axis=-1)
    return x * _preceded(cos, x.ndim) + quarter_turned * _preceded(sin, x.ndim)
