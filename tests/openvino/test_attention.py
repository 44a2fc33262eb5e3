"""ScaledDotProductAttention: all its inputs, in one network, against loops."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.openvino.documents import Writer

RNG = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def attended(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Any, scale: float, sink: Any = None
) -> np.ndarray:
    """Attend for each query by itself: the softmax has an item more for a sink."""
    batch = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    q, k, v = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (q, k, v))
    mask = np.broadcast_to(mask, (*batch, q.shape[-2], k.shape[-2]))
    result = np.zeros((*batch, q.shape[-2], v.shape[-1]))
    for at in np.ndindex(result.shape[:-1]):
        scores = [float(q[at] @ row) * scale for row in k[at[:-1]]]
        scores = [s + m for s, m in zip(scores, mask[at], strict=True)]
        if sink is not None:
            scores.append(float(np.broadcast_to(sink, (*batch, 1, 1))[at[:-1]][0, 0]))
        weights = [math.exp(s) for s in scores]
        result[at] = sum(w * row for w, row in zip(weights, v[at[:-1]], strict=False))
        result[at] /= sum(weights)
    return result


def seen(queries: int, keys: int) -> np.ndarray:
    """Return a mask in which a query sees keys up to its own time, counted from the first."""
    later = np.arange(keys) > np.arange(queries)[:, None]
    return np.where(later, -np.inf, 0)


Q, K, V = real(2, 2, 3, 4), real(2, 2, 5, 4), real(2, 2, 5, 6)
LOGICAL = np.array([[1, 0, 1, 0, 1], [0, 1, 0, 0, 0], [1, 1, 1, 1, 1]], bool)
SCALE, SINK, NONE = np.float32(0.3), real(1, 2, 1, 1), np.float32(0)
# The inputs of a layer, whether it is causal, and what of loops is the same.
CASES: dict[str, tuple[list[np.ndarray], bool, list[Any]]] = {
    "plain": ([Q, K, V], False, [Q, K, V, 0, 0.5]),
    "more keys than queries": ([Q, K, V], True, [Q, K, V, seen(3, 5), 0.5]),
    "more queries than keys": ([K, Q, Q], True, [K, Q, Q, seen(5, 3), 0.5]),
    "causal instead of a mask": ([Q, K, V, 9 * real(3, 5)], True, [Q, K, V, seen(3, 5), 0.5]),
    "a logical mask": ([Q, K, V, LOGICAL], False, [Q, K, V, np.where(LOGICAL, 0, -np.inf), 0.5]),
    "one head of keys": ([Q, K[:, :1], V[:, :1]], False, [Q, K[:, :1], V[:, :1], 0, 0.5]),
    "no heads": ([Q[0], K[0], V[0], 0 * Q[0, :, :, :1] + 1], False, [Q[0], K[0], V[0], 1, 0.5]),
    "five axes": ([Q[None], K[None], V[None]], False, [Q[None], K[None], V[None], 0, 0.5]),
    "a sink": ([Q, K, V, NONE, SCALE, SINK], False, [Q, K, V, 0, 0.3, SINK]),
    "a causal sink": ([Q, K, V, NONE, SCALE, SINK], True, [Q, K, V, seen(3, 5), 0.3, SINK]),
    "a masked sink": (
        [Q, K, V, LOGICAL, SCALE, SINK], False,
        [Q, K, V, np.where(LOGICAL, 0, -np.inf), 0.3, SINK],
    ),
}  # fmt: skip


def test_all_its_inputs(tmp_path: Path) -> None:
    net, layers = Writer(), []
    given = {name: operands for name, (operands, *_) in CASES.items()}
    inputs: list[np.ndarray] = []
    for name, operands in given.items():
        ids: list[int] = []
        for x in operands:
            if x.ndim == 0:
                ids.append(net.constant(x))
            else:
                type = "boolean" if x.dtype == np.bool_ else "f32"
                ids.append(net.input(f"input_{len(inputs)}", x.shape, type))
                inputs.append(x)
        layer = net.layer(
            "ScaledDotProductAttention", ids, [(*operands[0].shape[:-1], operands[2].shape[-1])],
            attributes={"causal": str(CASES[name][1]).lower()}, opset="opset13",
        )  # fmt: skip
        layers.append(layer)
    model = net.result(*layers).load(tmp_path)
    results = dict(zip(given, jax.tree.leaves(model(*inputs)), strict=True))
    for name, (_, _, arguments) in CASES.items():
        np.testing.assert_allclose(
            results[name], attended(*arguments), rtol=1e-5, atol=1e-6, err_msg=name
        )
