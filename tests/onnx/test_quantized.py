"""Levels, blocks of them, exact sums of integers; attention and cells that are refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import NnefError

pytest.importorskip("onnx")

from onnx import helper

from tests.onnx.models import model, node, tensor
from tests.onnx.runtime_cases import MICROSOFT, Case, given, real


def loaded(nodes: Any, inputs: dict[str, Any], version: int = 21, **weights: Any) -> Any:
    ports = [
        tensor(name, x.shape, helper.np_dtype_to_tensor_dtype(x.dtype))
        for name, x in inputs.items()
    ]
    return nnef_jax.load(model([nodes], ports, weights=weights, version=version))


def test_halves_go_to_even_levels_of_true_quotients() -> None:
    # -2.5 is less than 127.5 of these steps, and is not when multiplied by 1 / step.
    x, step = np.float32([-2.5, 2.5, 0.5, 1.5]), np.float32(5) / np.float32(255)
    network = loaded(node("QuantizeLinear", "x s z"), {"x": x, "s": step}, z=np.int8(0))
    assert np.rint(x * (1 / step))[0] == -128
    np.testing.assert_array_equal(network(x, step), np.rint(x / step))
    network = loaded(node("QuantizeLinear", "x s"), {"x": x}, s=np.float32(1))
    np.testing.assert_array_equal(network(x), [0, 2, 0, 2])


def test_numbers_beyond_the_levels_are_the_last_ones() -> None:
    x = np.float32([-1e9, -5, 5, 1e9, np.inf])
    network = loaded(node("QuantizeLinear", "x s z"), {"x": x}, s=np.float32(0.5), z=np.int8(-3))
    np.testing.assert_array_equal(network(x), [-128, -13, 7, 127, 127])


def test_a_block_of_items_has_a_scale() -> None:
    x = np.arange(-10, 10, dtype=np.int8).reshape(2, 10)
    scale = np.float32([[1, 2, 3], [4, 5, 6]])
    zero = np.int8([[0, 1, 2], [3, 4, 5]])
    network = loaded(
        node("DequantizeLinear", "x s z", axis=1, block_size=4), {"x": x}, s=scale, z=zero
    )
    s, z = (np.repeat(v, 4, axis=1)[:, :10].astype(np.float32) for v in (scale, zero))
    np.testing.assert_array_equal(network(x), (x - z) * s)
    with pytest.raises(NnefError, match="10 items do not fit 3 blocks of 5"):
        loaded(node("DequantizeLinear", "x s", axis=1, block_size=5), {"x": x}, s=scale)


def test_products_of_integers_are_summed_exactly() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(200, 256, (2, 3, 400)).astype(np.uint8)  # sums lie beyond 2**24
    b = rng.integers(-128, -100, (400, 5)).astype(np.int8)
    wide = [x.astype(np.int64) for x in (a, b)]
    columns = np.arange(5, dtype=np.int8)
    network = loaded(node("MatMulInteger", "a b _ z"), {"a": a, "b": b}, z=columns)
    np.testing.assert_array_equal(network(a, b), wide[0] @ (wide[1] - columns))
    rows = rng.integers(0, 256, (2, 3, 1)).astype(np.uint8)
    network = loaded(node("MatMulInteger", "a b z"), {"a": a, "b": b, "z": rows})
    np.testing.assert_array_equal(network(a, b, rows), (wide[0] - rows) @ wide[1])


def test_attention_has_derivatives_and_batches() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    nodes = node("Attention", "x x x", q_num_heads=2, kv_num_heads=2, softcap=2.0, is_causal=1)
    network = loaded(nodes, {"x": x}, 23)
    slope = jax.grad(lambda x: jnp.sum(network(x) ** 2))
    step = 1e-2 * np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)
    moved = (jnp.sum(network(x + step) ** 2) - jnp.sum(network(x - step) ** 2)) / 2
    np.testing.assert_allclose(np.sum(slope(x) * step), moved, rtol=2e-2)
    both = jax.vmap(network)(np.stack([x, 2 * x]))
    np.testing.assert_allclose(both[1], network(2 * x), rtol=1e-5, atol=1e-6)


_CELL = (real(5, 2, 3), real(1, 4, 3), real(1, 4, 4))
_X = (real(2, 4, 6), real(6, 24))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            Case("a", "RNN", _CELL, {"activations": ["Cosine"]}, domain=""),
            "the activation 'cosine' is not supported",
        ),
        (
            Case("b", "RNN", _CELL, {"activations": ["ScaledTanh"]}, domain=""),
            "'scaledtanh' needs an alpha",
        ),
        (Case("c", "RNN", _CELL, {"hidden_size": 9}, domain=""), "'hidden_size' must be 4"),
        (
            Case("d", "RNN", _CELL, {"direction": "bidirectional"}, domain=""),
            "it has 2 directions",
        ),
        (
            Case("e", "Attention", _X, {"num_heads": 2, "do_rotary": 1}),
            "attribute 'do_rotary' must be 0, it is 1",
        ),
        (Case("f", "Attention", _X, {"num_heads": 3}), "cannot be divided into 3 equal heads"),
        (
            Case("g", "MultiHeadAttention", (*(real(2, 4, 8),) * 3, *(None,) * 5,
                 given(3, "int32")), {"num_heads": 2}),
            "input 8 is not supported",
        ),
        (
            Case("h", "FusedConv", (real(1, 2, 5), real(2, 2, 3)), {"activation": "Swoosh"}),
            "the activation 'swoosh' is not supported",
        ),
        (
            Case("i", "MatMulNBits", (real(3, 16), given([[[0] * 8]], "uint8"), real(1, 1)),
                 {"K": 16, "N": 1, "bits": 3, "block_size": 16}, (1, 2)),
            "blocks of 16 weights of 3 bits",
        ),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_refused(case: Case, message: str) -> None:
    assert case.domain in ("", MICROSOFT)
    with pytest.raises(NnefError, match=message):
        nnef_jax.load(case.model().SerializeToString())
