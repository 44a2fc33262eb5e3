"""Tensors of fixed-point numbers."""

from __future__ import annotations

import pickle

import jax
import numpy as np

from nnef_jax.openvx import Tensor, static_weights


def test_quantize_rounds_and_saturates() -> None:
    values = [0.5 / 256, 1.5 / 256, -1.5 / 256, 200.0, -200.0, float("nan"), 1.99 / 256]
    made = Tensor.quantize(values)
    assert np.asarray(made.data).tolist() == [0, 2, -2, 32767, -32768, 0, 2]
    truncated = Tensor.quantize(values, rounding_policy="to_zero")
    assert np.asarray(truncated.data).tolist() == [0, 1, -1, 32767, -32768, 0, 1]
    assert np.asarray(Tensor.quantize([-1.0, 2.5, 300], "uint8").data).tolist() == [0, 2, 255]
    assert np.asarray(Tensor.quantize([0.75], "int8", 2).to_float()).tolist() == [0.75]


def test_numbers_survive_real_ones() -> None:
    whole = Tensor(np.arange(-32768, 32768, dtype=np.int16), 5)
    again = Tensor.quantize(whole.to_float(), "int16", 5)
    np.testing.assert_array_equal(again.data, whole.data)


def test_views() -> None:
    x = Tensor(np.arange(24, dtype=np.int16).reshape(2, 3, 4))
    assert x.dims == (4, 3, 2)
    part = x.view((1, 0, 1), (3, 2, 2))
    np.testing.assert_array_equal(part.data, x.data[1:2, 0:2, 1:3])
    np.testing.assert_array_equal(x.view((2,), (4,)).data, [2, 3])
    written = x.with_view((1, 0, 1), (3, 2, 2), part.view((0, 0, 0), (2, 2, 1)))
    np.testing.assert_array_equal(written.data, x.data)
    other = Tensor(np.full((1, 2, 2), -1, np.int16))
    written = x.with_view((1, 0, 1), (3, 2, 2), other)
    assert (np.asarray(written.data) == -1).sum() == 4
    assert (np.asarray(written.data)[1, :2, 1:3] == -1).all()


def test_a_tensor_is_a_tree() -> None:
    x = Tensor(np.arange(3, dtype=np.int8))
    doubled = jax.jit(lambda t: jax.tree.map(lambda y: y + y, t))(x)
    assert isinstance(doubled, Tensor) and np.asarray(doubled.data).tolist() == [0, 2, 4]
    assert jax.tree.map(lambda _: None, x).data is None
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(x)] == [".data"]
    assert pickle.loads(pickle.dumps(x)).fixed_point_position == 0
    weights = static_weights(Tensor(np.ones((2, 3), np.int16)))
    assert len(jax.tree.leaves(weights)) == 2
