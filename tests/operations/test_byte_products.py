"""Products of bytes: the sums of integers less zero points, for windows and zero points drawn."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering.builder import GraphBuilder
from lowering.cpu.graphs import products_of_bytes
from lowering.graph import TensorType
from lowering.kernels import byte_products
from lowering.kernels.correlation import Slide


def drawn(random: Any, dtype: Any, shape: Any) -> Any:
    ends = np.iinfo(dtype)
    return random.integers(ends.min, ends.max + 1, shape).astype(dtype)


def summed(x: Any, filter: Any, slide: Slide) -> Any:
    """Sum products of integers of 64 bits, place by place."""
    x = np.pad(x, ((0, 0), (0, 0), *slide.padding))
    size, groups = filter.shape[2:], slide.groups
    places = slide.places(x.shape[2:], size)
    total = np.zeros((len(x), len(filter), *places), np.int64)
    for place in itertools.product(*map(range, places)):
        axes = zip(place, slide.stride, size, slide.dilation, strict=True)
        cells = x[:, :, *(slice(i * s, i * s + (n - 1) * d + 1, d) for i, s, n, d in axes)]
        for part, (mine, yours) in enumerate(
            zip(np.split(cells, groups, 1), np.split(filter, groups), strict=True)
        ):
            rows = slice(part * len(yours), (part + 1) * len(yours))
            total[:, rows, *place] = mine.reshape(len(x), -1) @ yours.reshape(len(yours), -1).T
    return total


# Windows of about a hundred places and more compile for seconds.
@pytest.mark.parametrize(
    "seed", [pytest.param(x, marks=pytest.mark.slow) if x in (4, 5, 7) else x for x in range(8)]
)
def test_windows(seed: int) -> None:
    random: Any = np.random.default_rng(seed)
    rank, groups, depth = random.integers(1, [4, 3, 5])
    size, stride, dilation = random.integers(1, [[8], [3], [3]], (3, rank))
    padding = tuple(map(tuple, random.integers(0, 3, (rank, 2)).tolist()))
    slide = Slide(tuple(stride.tolist()), padding, (), tuple(dilation.tolist()), int(groups))
    types = random.choice([np.uint8, np.int8], 2)
    extents = (size - 1) * dilation + random.integers(1, 4, rank)
    x = drawn(random, types[0], (2, groups * depth, *extents))
    filter = drawn(random, types[1], (3 * groups, depth, *size))
    zero = np.int32(drawn(random, types[0], ()))
    zeros = np.int32(drawn(random, types[1], random.choice([1, len(filter)])))
    zeros = zeros.reshape(-1, *[1] * (rank + 1))
    found = jax.jit(byte_products.correlate, static_argnums=3)(x, filter, (zero, zeros), slide)
    want = summed(np.int64(x) - zero, np.int64(filter) - zeros, slide)
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("place", ["all", "rows", "sums"])
@pytest.mark.parametrize("type", [np.uint8, np.int8])
def test_matrices(type: Any, place: str) -> None:
    random: Any = np.random.default_rng(3)
    a, b = drawn(random, type, (2, 5, 300)), drawn(random, np.int8, (300, 7))
    shapes = {"all": ((), ()), "rows": ((1, 5, 1), (1, 7)), "sums": ((1, 1, 300), (300, 1))}
    zeros = [np.int32(drawn(random, np.int8, shape)) for shape in shapes[place]]
    wide: Any = [np.int64(x) - zero for x, zero in zip((a, b), zeros, strict=True)]
    contract = jax.jit(byte_products.contract, static_argnums=(2, 3))
    found = contract((a, b), zeros, ("abk", "kn"), "abn")
    np.testing.assert_array_equal(found, wide[0] @ wide[1])


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_windows_of_single_planes_are_no_products(depth: int) -> None:
    """The compiler is told of those whose filters sum several channels alone."""
    builder = GraphBuilder()
    x = builder.input("x", TensorType((1, 4, 5, 5), "uint8"))
    filter = builder.input("f", TensorType((4, depth, 3, 3), "int8"))
    levels = {"zero_point": 0, "scale": 1.0}
    sides = ("input", "filter", "output")
    scalars = {f"{side}_{name}": value for side in sides for name, value in levels.items()}
    window = {"border": "constant", "padding": (), "stride": (), "dilation": ()}
    (y,) = builder.operation(
        "quantized_conv",
        {"input": x, "filter": filter, "bias": 0, **scalars},
        {"groups": 4 // depth, "dtype": "int8", **window},
        ["y"],
    )
    assert products_of_bytes(builder.graph("g", [y], ["y"])) == ({"y"} if depth > 1 else set())
