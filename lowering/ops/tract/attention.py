"""Attention and what belongs to it (registry tract_transformers).

Masks, cosines and sines match the tensor they apply to from the right, as in torch: a shape that is
too short is preceded by 1s.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Shape, differ, show, volume
from lowering.graph import TensorType
from lowering.kernels.broadcast import broadcast_shapes
from lowering.kernels.precision import widened
from lowering.ops import rules
from lowering.ops.tract.typing import ABSENT
from lowering.ops.typing import is_float, require_real, require_same_dtype
from lowering.trace import Context


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
    """The array with 1s added before its shape up to a rank."""
    array = jnp.asarray(x)
    return jnp.expand_dims(array, range(rank - array.ndim))


def _masked(scores: Array, mask: Any) -> Array:
    """The scores, -inf where a logical mask is false; a mask of real numbers is added."""
    mask = _preceded(mask, scores.ndim)
    if mask.dtype == jnp.bool_:
        return jnp.where(mask, scores, -jnp.inf)
    return scores + mask.astype(scores.dtype)


def _softmax(scores: Array) -> Array:
    """Softmax over the last axis; zeros, and zero derivatives, where all scores are -inf.

    It is computed in 32 bits at least.
    """
    wide = widened(scores)
    largest = jnp.max(wide, axis=-1, keepdims=True, initial=-jnp.inf)
    largest = lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0.0))
    powers = jnp.exp(wide - largest)
    total = jnp.sum(powers, axis=-1, keepdims=True)
    return (powers / jnp.where(total == 0, 1.0, total)).astype(scores.dtype)


def _sdpa_type(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    mask: TensorType,
    scale: float,
    datum_type: str,
    acc_datum_type: str,
    is_causal: bool,
) -> TensorType:
    require_real(q=q, k=k, v=v)
    require_same_dtype(q=q, k=k, v=v)
    if acc_datum_type and not is_float(acc_datum_type):
        raise InvalidOperation(
            f"'acc_datum_type' must be a type of real numbers, it is {acc_datum_type}"
        )
    shapes = f"q {show(q.shape)}, k {show(k.shape)}, v {show(v.shape)}"
    rank = len(q.shape)
    if rank < 3 or len(k.shape) != rank or len(v.shape) != rank:
        raise InvalidShape(f"'q', 'k' and 'v' must be [batch...,heads,time,items], not {shapes}")
    *batch, heads, queries, items = q.shape
    if differ(k.shape[-1], items):
        raise InvalidShape(f"'q' and 'k' must have as many items: {shapes}")
    if differ(k.shape[-2], v.shape[-2]) or differ(k.shape[-3], v.shape[-3]):
        raise InvalidShape(f"'k' and 'v' must have as many heads and times: {shapes}")
    if differ(heads % k.shape[-3], 0):
        raise InvalidShape(f"the heads of 'q' must be a multiple of those of 'k': {shapes}")
    batch = broadcast_shapes(tuple(batch), k.shape[:-3], v.shape[:-3])
    if mask != ABSENT:
        _require_mask(mask, (*batch, heads, queries, k.shape[-2]))
    return TensorType((*batch, heads, queries, v.shape[-1]), q.dtype)


def _sdpa_work(result: TensorType, k: TensorType, v: TensorType) -> int:
    # A query meets all keys and values, also those that a mask hides.
    items = k.shape[-1] + v.shape[-1]
    return volume(result.shape[:-1]) * max(k.shape[-2], v.shape[-2]) * items


@rules.rule("tract_transformers_sdpa", _sdpa_type, work=_sdpa_work)
def sdpa(
    ctx: Context,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    scale: float,
    datum_type: str,
    acc_datum_type: str,
    is_causal: bool,
) -> Array:
    """Scaled dot product attention of q [batch...,heads,time,items] to k and v, any axes of batch.

    Where q has more heads than k and v, each of theirs serves as many consecutive ones of q. A
    logical mask keeps scores where it is true, one of real numbers is added. With `is_causal` a
    query sees the keys up to its own time where the last query and the last key have one time
    (torch aligns the first ones, which differs where there are more keys than queries). A query
    that sees no key yields zeros. `scale` 0 stands for one over the root of the items. Computed in
    `acc_datum_type`; the result has the dtype of the operands, which `datum_type` repeats.
    """
    q = jnp.asarray(q)
    dtype = acc_datum_type or q.dtype
    scale = scale or 1 / math.sqrt(q.shape[-1])
    keys, values = jnp.asarray(k, dtype), jnp.asarray(v, dtype)
    *batch, heads, times, items = q.shape
    groups = (keys.shape[-3], heads // keys.shape[-3])
    queries = q.astype(dtype).reshape(*batch, *groups, times, items)
    scores = jnp.einsum("...hgtd,...hsd->...hgts", queries, keys, precision=ctx.precision) * scale
    grouped = scores.shape
    scores = scores.reshape(*grouped[:-4], heads, *grouped[-2:])
    if mask is not False:
        scores = _masked(scores, mask)
    if is_causal:
        seen = jnp.tril(jnp.ones(grouped[-2:], jnp.bool_), grouped[-1] - times)
        scores = _masked(scores, seen)
    weights = _softmax(scores)
    weights = weights.reshape(*weights.shape[:-3], *groups, *grouped[-2:])
    result = jnp.einsum("...hgts,...hsd->...hgtd", weights, values, precision=ctx.precision)
    return result.reshape(*result.shape[:-4], heads, *result.shape[-2:]).astype(q.dtype)


def _masked_softmax_type(
    input: TensorType, mask: TensorType, scale: float, post_softmax_mask: bool
) -> TensorType:
    require_real(input=input)
    if not input.shape:
        raise InvalidShape("'input' must have an axis to take the softmax over")
    _require_mask(mask, input.shape)
    if post_softmax_mask and mask.dtype != "bool":
        raise InvalidOperation(
            f"'post_softmax_mask' takes a mask of logical values, this one holds {mask.dtype}"
        )
    return input


@rules.rule("tract_transformers_scaled_masked_softmax", _masked_softmax_type)
def scaled_masked_softmax(input: Any, mask: Any, scale: float, post_softmax_mask: bool) -> Array:
    """Softmax over the last axis of the input times `scale`, masked.

    True in a logical mask keeps an item, others are 0, also where none is kept: what
    `post_softmax_mask` asks for is always so. A mask of real numbers is added.
    """
    input = jnp.asarray(input)
    return _softmax(_masked(widened(input) * scale, mask)).astype(input.dtype)


def _rope_type(input: TensorType, cos: TensorType, sin: TensorType) -> TensorType:
    require_real(input=input, cos=cos, sin=sin)
    require_same_dtype(input=input, cos=cos, sin=sin)
    if not input.shape or differ(input.shape[-1] % 2, 0):
        raise InvalidShape(
            f"the last axis of 'input' {show(input.shape)} must have an even number of items"
        )
    for name, operand in (("cos", cos), ("sin", sin)):
        _require_trailing(name, operand.shape, input.shape, "'input'")
    return input


@rules.rule("tract_transformers_apply_rope", _rope_type)
def apply_rope(input: Any, cos: Any, sin: Any) -> Array:
    """Rotary position embedding: each item of the first half turns with its fellow of the second.

    Along the last axis (a, b) becomes (a, b) cos + (-b, a) sin (RoFormer, Su et al. 2021).
    """
    x = jnp.asarray(input)
    first, second = jnp.split(x, 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
    return x * _preceded(cos, x.ndim) + turned * _preceded(sin, x.ndim)
