"""Attention for one query at a time, and experts for one token at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .activation import clamped_swiglu, gelu_approx, silu


def _softmax(scores, mask=0.0):
    """Softmax of a row. A logical mask keeps items, another is added. Zeros if none are kept."""
    mask = np.asarray(mask)
    scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if np.all(scores == -np.inf):
        return np.zeros_like(scores)
    powers = np.exp(scores - np.max(scores))
    return powers / np.sum(powers)


def attention(query, key, value, mask=False, scale=0.0, is_causal=False):
    if query.ndim == 3:
        return attention(query[None], key[None], value[None], mask, scale, is_causal)[0]
    if query.ndim > 4:
        rows = zip(query, key, value, strict=True)
        return np.stack([attention(*row, mask, scale, is_causal) for row in rows])
    batch = max(x.shape[0] for x in (query, key, value))
    _, heads, queries, items = query.shape
    keys = key.shape[2]
    q, k, v = (np.broadcast_to(x, (batch, *x.shape[1:])) for x in (query, key, value))
    mask = np.broadcast_to(0.0 if mask is False else mask, (batch, heads, queries, keys))
    output = np.zeros((batch, heads, queries, v.shape[3]))
    for n, h, t in np.ndindex(batch, heads, queries):
        own = h // (heads // k.shape[1])
        scores = k[n, own] @ q[n, h, t] * (scale or 1 / np.sqrt(items))
        if is_causal:
            seen = [s <= t + keys - queries for s in range(keys)]
            scores = np.where(seen, scores, -np.inf)
        output[n, h, t] = _softmax(scores, mask[n, h, t]) @ v[n, own]
    return output


def masked_softmax(input, mask, scale):
    mask = np.broadcast_to(mask, input.shape)
    output = np.zeros(input.shape)
    for row in np.ndindex(*input.shape[:-1]):
        output[row] = _softmax(input[row] * scale, mask[row])
    return output


def scaled_masked_softmax(input, mask, scale, post_softmax_mask):
    return masked_softmax(input, mask, scale)


def rotary_embedding(input, cos, sin):
    half = input.shape[-1] // 2
    turned = np.concatenate([-input[..., half:], input[..., :half]], axis=-1)
    return input * cos + turned * sin


_ACTIVATIONS = {
    "silu": silu,
    "swiglu": silu,
    "gelu": gelu_approx,
    "relu": lambda x: np.maximum(x, 0),
}


def moe_ffn(x, wg, w1, w2, w3, expert_layout, **others):
    """Apply experts, whose matrices are transposed."""
    assert expert_layout == "linear"
    w1, w2, w3 = (np.swapaxes(w, 1, 2) for w in (w1, w2, w3))
    others = {name.replace("wg_", "router_"): value for name, value in others.items()}
    return mixture_of_experts(x, wg, w1, w2, w3, **others)


def mixture_of_experts(
    input,
    router,
    w1,
    w2,
    w3=False,
    router_bias=False,
    w1_bias=False,
    w3_bias=False,
    w2_bias=False,
    k=1,
    activation="silu",
    gate="softmax_topk",
    alpha=1.0,
    limit=0.0,
):
    x, experts = input, len(router)
    biases = [[0] * experts if b is False else b for b in (w1_bias, w3_bias, w2_bias)]
    output = np.zeros(x.shape)
    for token in np.ndindex(*x.shape[:-1]):
        logits = router @ x[token] + (0 if router_bias is False else router_bias)
        chosen = sorted(range(experts), key=lambda e: -logits[e])[:k]
        parts = {
            "softmax_topk": _softmax(logits[chosen]),
            "softmax_all": _softmax(logits)[chosen],
            "sigmoid": 1 / (1 + np.exp(-logits[chosen])),
            "raw": logits[chosen],
        }[gate]
        for e, part in zip(chosen, parts, strict=True):
            inner = x[token] @ w1[e] + biases[0][e]
            factor = 1.0 if w3 is False else x[token] @ w3[e] + biases[1][e]
            if limit:
                inner = clamped_swiglu(inner, factor, alpha, limit)
            else:
                inner = _ACTIVATIONS[activation](inner) * factor
            output[token] += part * (inner @ w2[e] + biases[2][e])
    return output


OPERATIONS: dict[str, Callable[..., Any]] = {
    "attention": attention,
    "masked_softmax": masked_softmax,
    "rotary_embedding": rotary_embedding,
    "mixture_of_experts": mixture_of_experts,
    "tract_transformers_sdpa": lambda q, k, v, datum_type, acc_datum_type: attention(q, k, v),
    "tract_transformers_scaled_masked_softmax": scaled_masked_softmax,
    "tract_moe_ffn": moe_ffn,
}
