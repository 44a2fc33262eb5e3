"""Calls at many lengths: what they read of parameters is there once, executables are limited."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from nnef_jax.execution.runnable import execution_of
from tests.helpers import model_of

WIDE = 2048  # items of a row: matrices that are read from memory
NET = """version 1.0;
graph net(x) -> (y)
{
    x = external(shape = [4,256]);
    v = variable(shape = [2048,256], label = 'v');
    w = variable(shape = [2048,256], label = 'w');
    scale = variable(shape = [1,256], label = 'scale');
    h = relu(linear(x, v));
    m = matmul(h, w);
    e = exp(scale);
    y = mul(m, e);
}
"""
LENGTHS = (33, 1, 3, 8, 100, 160, 161, 300)


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed).standard_normal
    shapes = {"v": (WIDE, 256), "w": (WIDE, 256), "scale": (1, 256)}
    return {label: np.float32(draw(shape) / 32) for label, shape in shapes.items()}


def model(**options: Any) -> Any:
    return model_of(NET, data=arrays(), input_shapes={"x": (None, 256)}, **options)


def rows(length: int) -> np.ndarray:
    return np.random.default_rng(length).standard_normal((length, 256)).astype(np.float32)


def expected(x: np.ndarray, data: dict[str, np.ndarray]) -> np.ndarray:
    return np.maximum(x @ data["v"].T, 0) @ data["w"] * np.exp(data["scale"])


class Held:
    """The bytes of arrays that come after it; those of other tests are kept meanwhile."""

    def __init__(self) -> None:
        self._others = {id(x): x for x in jax.live_arrays()}

    def bytes(self) -> int:
        gc.collect()
        return sum(x.nbytes for x in jax.live_arrays() if id(x) not in self._others)


@pytest.fixture
def held() -> Iterator[Held]:
    """Let the collector skip the objects of other tests: to go through them takes a second."""
    gc.freeze()
    yield Held()
    gc.unfreeze()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimize", [True, False])
def test_lengths_share_what_is_prepared(held: Held, dtype: str, optimize: bool) -> None:
    sizes = list[int]()
    net = model(dtype=dtype, optimize=optimize)
    for length in LENGTHS:
        x = rows(length)
        found = np.array(net(x), np.float32)  # a copy, which is no array of jax
        tolerance = 1e-4 if dtype == "float32" else 0.05
        np.testing.assert_allclose(found, expected(x, arrays()), rtol=tolerance, atol=tolerance)
        sizes.append(held.bytes())
    assert len({*sizes}) == 1


def test_entries_share_it_and_other_parameters_have_their_own(held: Held) -> None:
    x = rows(2)
    net = model()
    net(x)
    before = held.bytes()
    jax.block_until_ready(net.step({}, x))
    assert held.bytes() == before
    data = arrays(1)
    other = net.with_params(data)
    np.testing.assert_allclose(other(x), expected(x, data), rtol=1e-4, atol=1e-4)
    assert held.bytes() > before
    del other
    assert held.bytes() == before


def test_other_options_share_it(held: Held) -> None:
    x = rows(2)
    net = model()
    net(x)
    before = held.bytes()
    jax.block_until_ready(net.with_options(donate_state=True).step({}, x))
    assert held.bytes() == before


def test_executables_are_limited() -> None:
    net = model(max_executables=2)
    for length in (1, 2, 3, 1, 2):
        x = rows(length)
        np.testing.assert_allclose(net(x), expected(x, arrays()), rtol=1e-4, atol=1e-4)
    assert execution_of(net).executable_for((rows(2),)) is not None
    assert execution_of(net).executable_for((rows(3),)) is None


@pytest.mark.parametrize(
    ("limit", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (None, TypeError)]
)
def test_limits_that_are_none(limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_executables"):
        model(max_executables=limit)
