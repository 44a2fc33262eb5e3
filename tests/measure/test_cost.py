"""What XLA counts, of products whose work is known."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import nnef_jax
from nnef_jax import InputError
from tests.helpers import model_of

PRODUCT = """version 1.0;
graph product(x) -> (y) {
    x = external<scalar>(shape = [0,64]);
    w = variable<scalar>(shape = [64,48], label = 'w');
    y = matmul(x, w);
}
"""
M, K, N = 16, 64, 48  # weights that are too large to be a constant


@pytest.fixture(scope="module")
def product():
    return model_of(PRODUCT, data={"w": np.ones((K, N), np.float32)})


@pytest.fixture(scope="module")
def x():
    return jax.ShapeDtypeStruct((M, K), np.float32)


def test_a_product(product, x):
    found = nnef_jax.cost(product, x)
    assert found.flops == 2 * M * N * K
    assert found.multiply_adds == M * N * K
    assert (found.argument_bytes, found.output_bytes) == (4 * (M * K + K * N), 4 * M * N)
    assert found.bytes_accessed == 4 * (M * K + K * N + M * N)
    assert found.intensity == pytest.approx(2 * M * N * K / (4 * (M * K + K * N + M * N)))
    assert (found.platform, found.compiled, found.loops) == ("cpu", True, 0)
    data = found.to_dict()
    assert data["flops"] == found.flops and data["intensity"] == found.intensity
    assert "1.00 of 2 a multiply-add" in str(found)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_another_platform(product, x, platform):
    found = nnef_jax.cost(product, x, platform=platform)
    assert found.flops == 2 * M * N * K
    assert (found.platform, found.compiled, found.temporary_bytes) == (platform, False, None)
    assert "before fusion" in str(found)


def test_a_device_of_a_mesh(product, x):
    mesh = jax.make_mesh((2,), ("data",), (jax.sharding.AxisType.Auto,))
    found = nnef_jax.cost(product.shard(mesh, batch="data"), x)
    assert found.flops == M * N * K
    assert found.multiply_adds == M * N * K


def test_wrong_arguments(product, x):
    with pytest.raises(ValueError, match="platform must be"):
        nnef_jax.cost(product, x, platform="gpu")
    with pytest.raises(InputError, match="input 'x' is not known"):
        nnef_jax.cost(product)
    with pytest.raises(InputError, match="input 'x'"):
        nnef_jax.cost(product, jax.ShapeDtypeStruct((M, K + 1), np.float32))
