"""Tensors of more than 32 axes, of which numpy's iterators know nothing, up to its own 64."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

import nnef_jax

pytest.importorskip("onnx")

from tests.onnx.models import model, node, tensor

X = np.float32([3, -5])
RANKS = (33, 64)


def wide(x: Any, rank: int) -> Any:
    """Return an array with axes of one item before its own."""
    return np.asarray(x)[(None,) * (rank - np.ndim(x))]


def uses(rank: int) -> dict[str, tuple[Any, dict[str, Any], Any]]:
    """Return nodes that compute y from w, their other inputs, and y without its first axes."""
    one, last = wide(np.float32(3), rank), [0] * (rank - 1)
    scales = np.float32([1] * (rank - 1) + [2])
    return {
        "sum": (node("Add", "w c"), {"c": one}, X + 3),
        "sum with a number": (node("Add", "w c"), {"c": np.float32(3)}, X + 3),
        "power": (node("Pow", "w c"), {"c": np.float32(2)}, X * X),
        "broadcast": (node("Expand", "w c"), {"c": np.int64([2] + [1] * (rank - 1))}, X),
        "filled": (node("ConstantOfShape", "c"), {"c": np.int64([1] * (rank - 1) + [2])}, [0, 0]),
        "resized": (node("Resize", "w _ c", mode="nearest"), {"c": scales}, np.repeat(X, 2)),
        "edge": (
            node("Pad", "w c", mode="edge"), {"c": np.int64([*last, 0, *last, 1])}, [3, -5, -5],
        ),
        "transposed convolution": (node("ConvTranspose", "w c"), {"c": one}, X * 3),
        "scattered": (
            node("ScatterElements", "w i c", axis=rank - 1),
            {"i": wide(np.int64([1]), rank), "c": wide(np.float32([7]), rank)}, [3, 7],
        ),
    }  # fmt: skip


@pytest.mark.parametrize("rank", RANKS)
def test_values(rank: int) -> None:
    """All are computed from an input, and when the network is read from a constant."""
    nodes: list[Any] = []
    weights: dict[str, Any] = {"constant": wide(X, rank)}
    due: dict[str, Any] = {}
    for name, (made, more, wanted) in uses(rank).items():
        weights |= {f"{name} {x}": array for x, array in more.items()}
        for w in ("input", "constant"):
            one = deepcopy(made)
            one.input[:] = [w if x == "w" else x and f"{name} {x}" for x in made.input]
            one.output[:] = [f"{name} of {w}"]
            nodes.append(one)
            due[one.output[0]] = wanted
    x = wide(X, rank)
    made = model(nodes, [tensor("input", x.shape)], [tensor(n, None) for n in due], weights)
    for name, found, wanted in zip(due, nnef_jax.load(made)(x), due.values(), strict=True):
        first = np.asarray(found)[(0,) * (rank - 1)]
        np.testing.assert_allclose(first, wanted, rtol=1e-6, err_msg=name)


def test_more_axes_than_arrays_have() -> None:
    made = model([node("Unsqueeze", "x a")], [tensor("x", (1,) * 64)], weights={"a": np.int64([0])})
    with pytest.raises(nnef_jax.UnsupportedError, match="65 axes, arrays have at most 64"):
        nnef_jax.load(made)
