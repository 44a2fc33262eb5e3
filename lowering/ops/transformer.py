"""Attention, masked softmax, rotary embedding; shapes match from the right, as in torch."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Shape, differ, show, volume
from lowering.graph import ABSENT, TensorType, is_float
from lowering.kernels.broadcast import broadcast_shapes
from lowering.kernels.precision import widened
from lowering.ops import require, rules
from lowering.tracing import Context


def _require_trailing(name: str, found: Shape, whole: Shape, what: str) -> None:
    pairs = zip(reversed(found), reversed(whole), strict=False)
    if len(found) > len(whole) or any(a != 1 and differ(a, b) for a, b in pairs):
        raise InvalidShape(
            f"'{name}' of shape {show(found)} must broadcast to {what} {show(whole)}",
            hint="shapes are matched from the right here, a shorter one is preceded by 1s",
        )


def _require_mask(mask: TensorType, scores: Shape) -> None:
    if mask.dtype != "bool" and not is_float(mask.dtype):
        raise InvalidOperation(
            f"'mask' must hold logical or real values, it holds {mask.dtype}",
            hint="true keeps a score, a real number is added to it",
        )
    _require_trailing("mask", mask.shape, scores, "the scores")


def _preceded(x: Any, rank: int) -> Array:
    array = jnp.asarray(x)
    return jnp.expand_dims(array, range(rank - array.ndim))


def _masked(scores: Array, mask: Any) -> Array:
    """Add a mask of real numbers; put -inf where a logical one is false."""
    mask = _preceded(mask, scores.ndim)
    if mask.dtype == jnp.bool_:
        return jnp.where(mask, scores, -jnp.inf)
    return scores + mask.astype(scores.dtype)


def _powers(scores: Array) -> tuple[Array, Array]:
    """Return the powers of softmax over the last axis, in 32 bits at least, and their sums.

    Where all scores are -inf powers are 0, with zero derivatives, and the sum is 1.
    """
    wide = widened(scores)
    largest = jnp.max(wide, axis=-1, keepdims=True, initial=-jnp.inf)
    largest = lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0.0))
    powers = jnp.exp(wide - largest)
    total = jnp.sum(powers, axis=-1, keepdims=True)
    return powers, jnp.where(total == 0, 1.0, total)


def _attention_type(
    query: TensorType, key: TensorType, value: TensorType, mask: TensorType
) -> TensorType:
    require.same_dtype(require.real, query=query, key=key, value=value)
    shapes = f"query {show(query.shape)}, key {show(key.shape)}, value {show(value.shape)}"
    rank = len(query.shape)
    if rank < 3 or len(key.shape) != rank or len(value.shape) != rank:
        raise InvalidShape(
            f"'query', 'key' and 'value' must be [batch...,heads,time,items], not {shapes}"
        )
    *batch, heads, queries, items = query.shape
    if differ(key.shape[-1], items):
        raise InvalidShape(f"'query' and 'key' must have as many items: {shapes}")
    if differ(key.shape[-2], value.shape[-2]) or differ(key.shape[-3], value.shape[-3]):
        raise InvalidShape(f"'key' and 'value' must have as many heads and times: {shapes}")
    if differ(heads % key.shape[-3], 0):
        raise InvalidShape(f"the heads of 'query' must be a multiple of those of 'key': {shapes}")
    batch = broadcast_shapes(tuple(batch), key.shape[:-3], value.shape[:-3])
    if mask != ABSENT:
        _require_mask(mask, (*batch, heads, queries, key.shape[-2]))
    return TensorType((*batch, heads, queries, value.shape[-1]), query.dtype)


def _attention_work(result: TensorType, key: TensorType, value: TensorType) -> int:
    items = key.shape[-1] + value.shape[-1]
    return volume(result.shape[:-1]) * max(key.shape[-2], value.shape[-2]) * items


@rules.rule("attention", _attention_type, work=_attention_work)
def attention(
    ctx: Context,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    scale: float,
    is_causal: bool,
    from_first: bool = False,
) -> Array:
    """Return scaled dot product attention; operands are [batch...,heads,time,items].

    Each head of keys and values serves as many consecutive heads of queries as there are to one. A
    logical mask keeps scores where it is true; one of real numbers is added. With `is_causal` a
    query sees keys up to its own time, counted from the last ones, or `from_first` as in torch. A
    query that sees no key yields zeros. `scale` 0 means 1 / sqrt(items).
    """
    query, keys, values = (jnp.asarray(x) for x in (query, key, value))
    scale = scale or 1 / math.sqrt(query.shape[-1])
    *batch, heads, times, items = query.shape
    groups = (keys.shape[-3], heads // keys.shape[-3])
    queries = query.reshape(*batch, *groups, times, items)
    scores = jnp.einsum("...hgtd,...hsd->...hgts", queries, keys, precision=ctx.precision) * scale
    if mask is not False:
        scores = _masked(scores, _grouped(mask, scores.ndim, groups))
    if is_causal:
        later = 0 if from_first else scores.shape[-1] - times
        seen = jnp.tril(jnp.ones(scores.shape[-2:], jnp.bool_), later)
        scores = _masked(scores, seen)
    powers, total = _powers(scores)
    comes_last = powers.dtype == scores.dtype  # numbers of 16 bits would overflow
    weights = powers if comes_last else (powers / total).astype(scores.dtype)
    result = jnp.einsum("...hgts,...hsd->...hgtd", weights, values, precision=ctx.precision)
    result = result / total if comes_last else result
    return result.reshape(*result.shape[:-4], heads, *result.shape[-2:])


def _grouped(mask: Any, rank: int, groups: tuple[int, int]) -> Array:
    """Return a mask of all heads for scores of groups of them."""
    whole = _preceded(mask, rank - 1)
    *batch, heads, times, keys = whole.shape
    return whole.reshape(*batch, *(groups if heads > 1 else (1, 1)), times, keys)


def _masked_softmax_type(input: TensorType, mask: TensorType) -> TensorType:
    require.real(input=input)
    if not input.shape:
        raise InvalidShape("'input' must have an axis to take the softmax over")
    _require_mask(mask, input.shape)
    return input


@rules.rule("masked_softmax", _masked_softmax_type)
def masked_softmax(input: Any, mask: Any, scale: float) -> Array:
    """Return softmax over the last axis of input * scale + mask, or where a logical one is true."""
    input = jnp.asarray(input)
    powers, total = _powers(_masked(widened(input) * scale, mask))
    return (powers / total).astype(input.dtype)


def _rotary_type(input: TensorType, cos: TensorType, sin: TensorType) -> TensorType:
    require.same_dtype(require.real, input=input, cos=cos, sin=sin)
    if not input.shape or differ(input.shape[-1] % 2, 0):
        raise InvalidShape(
            f"the last axis of 'input' {show(input.shape)} must have an even number of items"
        )
    for name, operand in (("cos", cos), ("sin", sin)):
        _require_trailing(name, operand.shape, input.shape, "'input'")
    return input


@rules.rule("rotary_embedding", _rotary_type)
def rotary_embedding(input: Any, cos: Any, sin: Any) -> Array:
    """Rotate halves (a, b) of the last axis: (a, b) cos + (-b, a) sin (Su et al. 2021)."""
    x = jnp.asarray(input)
    first, second = jnp.split(x, 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
    return x * _preceded(cos, x.ndim) + turned * _preceded(sin, x.ndim)
