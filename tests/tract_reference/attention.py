"""Attention for one query at a time, and experts for one token at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .activation import clamped_swiglu, gelu_approx, silu


def _softmax(scores, mask=0.0):
    """Of one row; a logical mask keeps, another one is added. Zeros where nothing is left."""
    mask = np.asarray(mask)
    scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if np.all(scores == -np.inf):
        return np.zeros_like(scores)
    powers = np.exp(scores - np.max(scores))
    return powers / np.sum(powers)


def sdpa(q, k, v, mask=False, scale=0.0, datum_type="", acc_datum_type="", is_causal=False):
    if q.ndim == 3:
        return sdpa(q[None], k[None], v[None], mask, scale, is_causal=is_causal)[0]
    if q.ndim > 4:
        rows = zip(q, k, v, strict=True)
        return np.stack([sdpa(*row, mask, scale, is_causal=is_causal) for row in rows])
    batch = max(q.shape[0], k.shape[0], v.shape[0])
    _, heads, queries, items = q.shape
    keys = k.shape[2]
    q, k, v = (np.broadcast_to(x, (batch, *x.shape[1:])) for x in (q, k, v))
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


def scaled_masked_softmax(input, mask, scale, post_softmax_mask=False):
    mask = np.broadcast_to(mask, input.shape)
    output = np.zeros(input.shape)
    for row in np.ndindex(*input.shape[:-1]):
        output[row] = _softmax(input[row] * scale, mask[row])
    return output


def apply_rope(input, cos, sin):
    half = input.shape[-1] // 2
    turned = np.concatenate([-input[..., half:], input[..., :half]], axis=-1)
    return input * cos + turned * sin


_ACTIVATIONS = {
    "silu": silu,
    "swiglu": silu,
    "gelu": gelu_approx,
    "relu": lambda x: np.maximum(x, 0),
}


def moe_ffn(
    x,
    wg,
    w1,
    w2,
    w3=False,
    wg_bias=False,
    w1_bias=False,
    w3_bias=False,
    w2_bias=False,
    k=1,
    activation="silu",
    gate="softmax_topk",
    act_alpha=1.0,
    act_limit=0.0,
    expert_layout="canonical",
):
    wg = wg.reshape(wg.shape[-2:])
    experts = len(wg)
    if expert_layout == "linear":
        w1, w2, w3 = (x if x is False else np.swapaxes(x, 1, 2) for x in (w1, w2, w3))
    biases = [[0] * experts if b is False else b for b in (w1_bias, w3_bias, w2_bias)]
    output = np.zeros(x.shape)
    for token in np.ndindex(*x.shape[:-1]):
        logits = wg @ x[token] + (0 if wg_bias is False else wg_bias)
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
            if act_limit:
                inner = clamped_swiglu(inner, factor, act_alpha, act_limit)
            else:
                inner = _ACTIVATIONS[activation](inner) * factor
            output[token] += part * (inner @ w2[e] + biases[2][e])
    return output


OPERATIONS: dict[str, Callable[..., Any]] = {
    "tract_transformers_sdpa": sdpa,
    "tract_transformers_scaled_masked_softmax": scaled_masked_softmax,
    "tract_transformers_apply_rope": apply_rope,
    "tract_moe_ffn": moe_ffn,
}
