"""Mixtures of experts."""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show, volume
from lowering.graph import ABSENT, TensorType
from lowering.kernels.precision import wide_dtype
from lowering.ops import require, rules
from lowering.ops.activation import clamped_swiglu, gelu
from lowering.tracing import Context

_ACTIVATIONS = {
    "silu": jax.nn.silu,
    "swiglu": jax.nn.silu,
    "gelu": partial(gelu, approximation="tanh"),
    "relu": jax.nn.relu,
}
GATES = ("softmax_topk", "softmax_all", "sigmoid", "raw")


def _experts_type(
    input: TensorType,
    k: int,
    activation: str,
    gate: str,
    alpha: float,
    limit: float,
    **weights: TensorType,
) -> TensorType:
    """Check the arguments of `mixture_of_experts`, and return the type of its result."""
    require.one_of("activation", activation, tuple(_ACTIVATIONS))
    require.one_of("gate", gate, GATES)
    router_shape = weights["router"].shape
    w1_shape = weights["w1"].shape
    if not input.shape or len(router_shape) != 2 or len(w1_shape) != 3:
        raise InvalidShape(
            f"'input' {show(input.shape)} must be [tokens...,items], 'router' {show(router_shape)} "
            f"[experts,items], and 'w1' {show(w1_shape)} have an expert's matrix for each expert"
        )
    experts, _ = router_shape
    _, _, hidden = w1_shape
    items = input.shape[-1]
    shapes = {
        "router": (experts, items),
        "w1": (experts, items, hidden),
        "w2": (experts, hidden, items),
        "w3": (experts, items, hidden),
        "router_bias": (experts,),
        "w1_bias": (experts, hidden),
        "w3_bias": (experts, hidden),
        "w2_bias": (experts, items),
    }
    present = {name: weights[name] for name in shapes if weights[name] != ABSENT}
    require.floating(input=input, **present)
    if "w2" not in present:
        raise InvalidOperation("'w2' must be given")
    why = f"there are {experts} experts that take {items} items to {hidden} and back"
    for name, operand in present.items():
        require.shape(name, operand, shapes[name], why)
    needs_w3 = activation == "swiglu" or limit != 0 or "w3_bias" in present
    if needs_w3 and "w3" not in present:
        raise InvalidOperation("'swiglu', 'limit' and 'w3_bias' need the weights 'w3'")
    if k < 1 or k > experts:
        raise InvalidOperation(f"'k' must lie in [1,{experts}], the number of experts, it is {k}")
    if limit < 0:
        raise InvalidOperation(f"'limit' must be positive, or 0 for none, it is {limit}")
    return input


def _experts_work(input: TensorType, w1: TensorType, w3: TensorType, w2_bias: TensorType) -> int:
    """Return the number of multiply-adds. All experts compute all tokens."""
    experts = w1.shape[0]
    items = input.shape[-1]
    tokens = volume(input.shape[:-1])
    # w1, w2 and w3 have equal numbers of items. A token needs one multiply-add for each item.
    product_count = 2 if w3 == ABSENT else 3
    # `router` and `w2_bias` have `experts` * `items` items. A token needs one multiply-add for each
    # of them.
    small_product_count = 1 if w2_bias == ABSENT else 2
    work_of_token = product_count * volume(w1.shape) + small_product_count * experts * items
    return tokens * work_of_token


@rules.rule("mixture_of_experts", _experts_type, work=_experts_work)
def mixture_of_experts(
    ctx: Context,
    input: Array,
    router: Array,
    w1: Array,
    w2: Array,
    w3: Array | Literal[False],
    router_bias: Array | Literal[False],
    w1_bias: Array | Literal[False],
    w3_bias: Array | Literal[False],
    w2_bias: Array | Literal[False],
    k: int,
    activation: str,
    gate: str,
    alpha: float,
    limit: float,
) -> Array:
    """Return, for each token, the weighted sum of the `k` experts with the largest logits.

    The input has the shape (tokens..., items), `router` has the shape (experts, items), w1 and
    w3 have the shape (experts, items, hidden), and w2 has the shape (experts, hidden, items).
    For a token x, the logits of the experts are x `router`^T. Of equal logits the first wins.

    For a token x, an expert computes (f(x w1) * (x w3)) w2, or f(x w1) w2 if w3 is False. The
    biases are added to the products: `router_bias` to the logits, and `w1_bias`, `w2_bias` and
    `w3_bias` to the products with w1, w2 and w3. `activation` is the name of the function f:

    - "silu" or "relu"
    - "gelu": `gelu` with the approximation "tanh"
    - "swiglu": silu, but w3 is needed

    If `limit` is positive, an expert computes `clamped_swiglu(x w1, x w3, alpha, limit) w2`.

    The weight of an expert depends on `gate`:

    - "softmax_topk": the softmax of the k largest logits
    - "softmax_all": the softmax of all logits
    - "sigmoid": the sigmoid of the expert's logit
    - "raw": the expert's logit

    All experts compute all tokens, in float32 or a wider dtype. The result has the input's
    dtype.
    """
    x = jnp.asarray(input)
    operands = (router, w1, w2, w3, router_bias, w1_bias, w3_bias, w2_bias)
    present = [operand for operand in operands if operand is not False]
    dtype = wide_dtype(x, *present)
    tokens = x.astype(dtype).reshape(-1, x.shape[-1])

    def product(
        expr: str, left: Array, right: Array, bias: Array | Literal[False] = False
    ) -> Array:
        """Return the product that `expr` describes, plus a bias for each token.

        In `expr`, t stands for tokens, e for experts, d for items, and h for hidden items.
        """
        result = jnp.einsum(expr, left, jnp.asarray(right, dtype), precision=ctx.precision)
        return result if bias is False else result + jnp.asarray(bias, dtype)[None]

    logits = product("td,ed->te", tokens, router, router_bias)
    weights = _gates(logits, k, gate)
    inner = product("td,edh->teh", tokens, w1, w1_bias)
    if w3 is False:
        inner = _ACTIVATIONS[activation](inner)
    else:
        factor = product("td,edh->teh", tokens, w3, w3_bias)
        if limit:
            inner = clamped_swiglu(inner, factor, alpha, limit)
        else:
            inner = _ACTIVATIONS[activation](inner) * factor
    # The weights are applied first, since the product with w2 also adds up the experts.
    result = product("teh,ehd->td", inner * weights[..., None], w2)
    if w2_bias is not False:
        result += product("te,ed->td", weights, w2_bias)
    return result.reshape(x.shape).astype(x.dtype)


def _gates(logits: Array, k: int, gate: str) -> Array:
    """Return the weights (tokens, experts) of experts from logits of the same shape.

    The weights of a token are 0 except for the `k` experts with the largest logits. `gate` decides
    the weights of these experts, as in `mixture_of_experts`.
    """
    largest, chosen = lax.top_k(logits, k)
    match gate:
        case "softmax_topk":
            weights = jax.nn.softmax(largest, axis=-1)
        case "softmax_all":
            weights = jnp.take_along_axis(jax.nn.softmax(logits, axis=-1), chosen, axis=-1)
        case "sigmoid":
            weights = jax.nn.sigmoid(largest)
        case _:
            weights = largest
    is_chosen = jax.nn.one_hot(chosen, logits.shape[-1], dtype=logits.dtype)
    # The products have the shape (tokens, k, experts). In each column at most one of k items is not
    # 0, so that the sum moves each weight to the index of its expert.
    return jnp.sum(weights[..., None] * is_chosen, axis=-2)
