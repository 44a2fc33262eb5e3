"""The layers against Python's integers: types, policies and semantics, under jit and vmap."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from nnef_jax import openvx
from nnef_jax.openvx import Tensor
from tests.openvx import reference
from tests.openvx.reference import POLICIES, Ints

BATCH = 3
SPREADS = (1.0, 0.1, 0.01)  # of numbers around 0: what overflows always, at times and never

# Layer, shapes of inputs, weights, biases and outputs, parameters, those of the reference alone.
Row = tuple[str, tuple[int, ...], tuple[int, ...], Any, tuple[int, ...], dict[str, Any], Any]
PRODUCTS: dict[str, Row] = {
    "dilated": (
        *("convolution", (2, 4, 7), (2, 2, 2, 3), (2, 3, 3), (2, 3, 3)),
        {"padding": (1, 1), "dilation": (1, 2), "output_shape": (2, 3, 3)},
        {"padding": (1, 1), "dilation": (1, 2), "skip": (2, 1)},
    ),
    "ceiling": (
        *("convolution", (2, 5, 8), (1, 2, 5, 7), None, (1, 2, 2)),
        {"padding": (0, 1), "skip": (3, 2), "down_scale_size_rounding": "ceiling"},
        {"padding": (0, 1), "skip": (3, 2)},
    ),
    "upscaled": (
        *("deconvolution", (2, 2, 3), (2, 2, 3, 3), (2,), (2, 5, 6)),
        {"padding": (1, 0), "a": (1, 0), "output_shape": (2, 5, 6)},
        {"padding": (1, 0), "upscale": (2, 2)},
    ),
    "matrix": ("fully_connected", (9,), (5, 9), (5,), (5,), {}, {}),
    "planes": ("fully_connected", (2, 3, 2), (4, 12), None, (4,), {}, {}),
}


def ints(seed: Any, shape: tuple[int, ...], dtype: str, spread: float = 1.0) -> Ints:
    """Numbers of a type, of all of it or a part around 0."""
    limits = np.iinfo(dtype)
    drawn = np.random.default_rng(seed).uniform(limits.min * spread, limits.max * spread, shape)
    return np.round(drawn).astype(dtype)


Way = tuple[tuple[str, str], bool]  # policies, and whether as the C routines
WAYS: list[Way] = [(policies, khronos) for policies in POLICIES for khronos in (False, True)]
HALF = [WAYS[i] for i in (0, 3, 5, 6)]  # each policy by both semantics


@cache
def compiled(name: str, ways: tuple[Way, ...]) -> Callable[..., Any]:
    """Policies and semantics of a layer at once, over a batch of inputs, weights and biases."""
    layer, _, _, _, _, given, _ = PRODUCTS[name]

    def run(*arrays: Any) -> Any:
        tensors = [Tensor(x) for x in arrays]
        function = getattr(openvx, f"{layer}_layer")
        return [
            function(
                *tensors,
                **given,
                overflow_policy=overflow,
                rounding_policy=rounding,
                semantics="khronos" if khronos else "spec",
            )
            for (overflow, rounding), khronos in ways
        ]

    return jax.jit(jax.vmap(run))


@pytest.mark.parametrize(
    ("name", "dtype", "ways"),
    [
        *(("dilated", "int16", WAYS), ("planes", "int8", HALF), ("ceiling", "uint8", HALF)),
        *((name, "int16", HALF) for name in PRODUCTS if name != "dilated"),
        *(pytest.param(name, "int16", WAYS, marks=pytest.mark.slow) for name in PRODUCTS),
    ],
)
@settings(max_examples=3)
@given(seed=st.integers(0, 1 << 20), spreads=st.tuples(*[st.sampled_from(SPREADS)] * 2))
def test_sums_of_products(
    name: str, dtype: str, ways: list[Way], seed: int, spreads: tuple[float, float]
) -> None:
    layer, x, weights, biases, shape, _, known = PRODUCTS[name]
    shapes = [x, weights] + ([biases] if biases else [])
    arrays = [ints((seed, k), (BATCH, *s), dtype, [*spreads, 1.0][k]) for k, s in enumerate(shapes)]
    made = compiled(name, tuple(ways))(*arrays)
    compute = partial(getattr(reference, layer), **known)
    if layer == "fully_connected":
        arrays[0] = arrays[0].reshape(BATCH, -1)
    else:
        compute = partial(compute, shape=shape)
    arrays += [] if biases else [[None] * BATCH]
    for (policies, khronos), result in zip(ways, made, strict=True):
        wanted = [
            compute(*row, policies=policies, khronos=khronos) for row in zip(*arrays, strict=True)
        ]
        assert result.dtype == dtype and result.shape == (BATCH, *shape)
        np.testing.assert_array_equal(result.data, np.stack(wanted), f"{policies} {khronos}")


@pytest.mark.parametrize("spread", SPREADS)
def test_known_weights_are_exact_in_fewer_digits(spread: float) -> None:
    """Concrete weights are written for their values, with traced ones the worst case is taken."""
    x, weights = ints(1, (9, 4, 4), "int16"), ints(2, (2, 9, 3, 3), "int16", spread)
    prepared = openvx.static_weights(Tensor(weights))
    policies = ("saturate", "nearest_even")
    made = openvx.convolution_layer(Tensor(x), prepared, rounding_policy="nearest_even")
    wanted = reference.convolution(x, weights, None, (2, 2, 2), policies)
    np.testing.assert_array_equal(made.data, wanted)
    assert len(prepared.factors.digits) == (2 if spread == 1 else 1)


def test_groups_are_layers_on_views_of_channels() -> None:
    x, weights = ints(1, (2, 4, 3, 3), "int16", 0.1), ints(2, (6, 2, 2, 2), "int16", 0.01)

    @jax.jit
    def run(whole: Tensor, weights: Tensor) -> Any:
        results: list[Any] = []
        for semantics in ("spec", "khronos"):
            layer = partial(openvx.convolution_layer, semantics=semantics)
            views = whole.view((0, 0, 0, 0), (3, 3, 2, 2)), whole.view((0, 0, 2, 0), (3, 3, 4, 2))
            filters = weights.view((0,) * 4, (2, 2, 2, 3)), weights.view((0, 0, 0, 3), (2, 2, 2, 6))
            parts = [layer(*each).data for each in zip(views, filters, strict=True)]
            results.append((layer(whole, weights, groups=2).data, jnp.concatenate(parts, 1)))
        return results

    for made, wanted in run(Tensor(x), Tensor(weights)):
        np.testing.assert_array_equal(made, wanted)


def test_overflow_is_reported_where_it_is() -> None:
    x, weights = ints(1, (9, 40), "int16", 0.1), ints(2, (5, 40), "int16", 0.02)
    made: dict[tuple[str, str], Any] = {}
    for semantics in ("spec", "khronos"):
        for policy in ("saturate", "wrap"):
            tensor, overflowed = openvx.fully_connected_layer(
                Tensor(x),
                Tensor(weights),
                overflow_policy=policy,
                semantics=semantics,
                report_overflow=True,
            )
            made[semantics, policy] = np.asarray(tensor.data), np.asarray(overflowed)
            assert 0 < overflowed.sum() < overflowed.size
        (saturated, some), (wrapped, others) = made[semantics, "saturate"], made[semantics, "wrap"]
        np.testing.assert_array_equal(saturated[~(some | others)], wrapped[~(some | others)])
    exact = x.astype(np.int64) @ weights.T.astype(np.int64)
    beyond = (exact >= 1 << 23) | (exact <= -(1 << 23) - 256)
    np.testing.assert_array_equal(made["spec", "saturate"][1], beyond)
    np.testing.assert_array_equal(made["spec", "wrap"][1], beyond)


@pytest.mark.parametrize("number", [-20000, 20000, -16385, -16384, 16383, 16384])
def test_overflow_by_a_left_shift_is_reported(number: int) -> None:
    """The result has one bit less behind the point than the input, so it is twice the number."""
    x, weights = np.array([[number]], np.int16), np.array([[1]], np.int16)
    _, overflowed = openvx.fully_connected_layer(
        Tensor(x, 0), Tensor(weights, 0), strict=False, output_position=1, report_overflow=True
    )
    assert overflowed.item() == (not -(1 << 15) <= 2 * number < 1 << 15)


@pytest.mark.parametrize("axis", [AxisType.Auto, AxisType.Explicit])
def test_a_batch_may_be_sharded(axis: AxisType) -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(axis,))
    x, weights = ints(1, (2, 2, 3, 3), "int16", 0.1), ints(2, (2, 2, 2, 2), "int16", 0.01)

    def run(x: Any) -> Any:
        ways = ("spec", "khronos")
        return [
            openvx.convolution_layer(Tensor(x), Tensor(weights), semantics=way).data for way in ways
        ]

    with jax.set_mesh(mesh):
        made = jax.jit(run)(jax.device_put(x, NamedSharding(mesh, PartitionSpec("data"))))
    for result, khronos in zip(made, (False, True), strict=True):
        assert result.sharding.spec[0] == "data"
        policies = ("saturate", "to_zero")
        for row, inputs in zip(result, x, strict=True):
            wanted = reference.convolution(inputs, weights, None, (2, 2, 2), policies, khronos)
            np.testing.assert_array_equal(row, wanted)


def test_positions_of_tensors_are_free_where_they_need_not_be_the_profiles() -> None:
    rng = np.random.default_rng(3)
    x, weights, biases = (rng.integers(-300, 300, s).astype(np.int16) for s in ((2, 7), (3, 7), 3))
    exact = x.astype(np.int64) @ weights.T.astype(np.int64)
    for output in (-2, 0, 9, 14, 20):
        tensors = (Tensor(x, 5), Tensor(weights, 9), Tensor(biases, 12))
        made = openvx.fully_connected_layer(
            *tensors, strict=False, output_position=output, rounding_policy="nearest_even"
        )
        wanted = [
            [
                round(
                    reference.Fraction(int(t) + 4 * int(b), 2**14) * reference.Fraction(2) ** output
                )
                for t, b in zip(row, biases, strict=True)
            ]
            for row in exact
        ]
        np.testing.assert_array_equal(made.data, np.clip(wanted, -32768, 32767))
        assert made.fixed_point_position == output


POOLS = [
    ("max", (3, 2), (1, 1), (2, 2), "ceiling"),
    ("avg", (2, 3), (1, 0), (3, 1), "floor"),
    ("max", (1, 1), (2, 2), (1, 2), "floor"),
]


@pytest.mark.parametrize(("kind", "size", "padding", "skip", "rounding"), POOLS)
@pytest.mark.parametrize("khronos", [False, True])
def test_pooling(
    kind: str, size: Any, padding: Any, skip: Any, rounding: str, khronos: bool
) -> None:
    x = ints(4, (2, 2, 5, 6), "int8")
    made = openvx.pooling_layer(
        Tensor(x),
        pooling_type=kind,
        pooling_size=size,
        pooling_padding=padding,
        skip=skip,
        rounding=rounding,
        semantics="khronos" if khronos else "spec",
    )
    for batch in range(2):
        wanted = reference.pooling(x[batch], made.shape[1:], kind, size, padding, skip, khronos)
        np.testing.assert_array_equal(made.data[batch], wanted)


@pytest.mark.parametrize("semantics", ["spec", "khronos"])
def test_what_is_beyond_the_padding_is_no_maximum(semantics: str) -> None:
    """Sizes that are rounded up have windows that reach beyond the zeros that are asked for."""
    x = Tensor(np.arange(-100, -75, dtype=np.int8).reshape(1, 5, 5))
    made = openvx.pooling_layer(
        x, pooling_size=(2, 2), output_shape=(1, 3, 4), rounding="ceiling", semantics=semantics
    )
    assert np.array_equal(
        made.data[0], [[-94, -93, -92, -91], [-84, -83, -82, -81], [-79, -78, -77, -76]]
    )


@pytest.mark.parametrize("khronos", [False, True])
def test_roi_pooling(khronos: bool) -> None:
    x = ints(5, (2, 3, 6, 7), "int16")
    rois = np.random.default_rng(6).integers(-4, 12, (2, 8, 4)).astype(np.int16)
    rois[0, 0], rois[0, 1] = (0, 0, 6, 5), (5, 4, 1, 2)
    semantics = "khronos" if khronos else "spec"
    shape = (2, 8, 3, 3, 2)
    made = openvx.roi_pooling_layer(
        Tensor(x), Tensor(rois), output_shape=shape, semantics=semantics
    )
    for batch in range(2):
        wanted = reference.roi_pooling(x[batch], rois[batch], shape[1:], khronos)
        np.testing.assert_array_equal(made.data[batch], wanted)


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "logistic": lambda x: 1 / (1 + math.exp(-x)),
    "hyperbolic_tan": lambda x: 0.75 * math.tanh(1.5 * x),
    "relu": lambda x: max(0, x),
    "brelu": lambda x: min(0.75, max(0, x)),
    "softrelu": lambda x: math.log1p(math.exp(x)) if x < 50 else x,
    "abs": abs,
    "square": lambda x: x * x,
    "sqrt": lambda x: math.sqrt(max(x, 0)),
    "linear": lambda x: 0.75 * x + 1.5,
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_activations_are_exact_for_all_numbers(function: str) -> None:
    """Of Q7.8 a few hundred with both ends, of int8 all."""
    few = np.concatenate([np.arange(-32768, 32767, 211), [32767]]).astype(np.int16)
    for x in (few, np.arange(-128, 128).astype(np.int8)):
        made = openvx.activation_layer(Tensor(x), function=function, a=0.75, b=1.5)
        wanted = reference.activation(x, FUNCTIONS[function], made.fixed_point_position)
        np.testing.assert_array_equal(made.data, wanted)


@pytest.mark.parametrize("shape", [(9,), (2, 9), (9, 2, 2), (2, 9, 2, 2)])
def test_softmax(shape: tuple[int, ...]) -> None:
    x = ints(7, shape, "int16")
    axis = -1 if len(shape) < 3 else -3
    made = openvx.softmax_layer(Tensor(x))
    values = np.exp(x / 256.0 - np.max(x / 256.0, axis, keepdims=True))
    wanted = np.trunc(values / values.sum(axis, keepdims=True) * 256)
    assert np.abs(np.asarray(made.data) - wanted).max() <= 1


@pytest.mark.parametrize(("type", "size"), [("across_maps", 5), ("same_map", 3)])
def test_normalization(type: str, size: int) -> None:
    x = ints(8, (6, 4, 5), "int16", 0.3)
    numbers = {"alpha": 0.02, "beta": 0.75, "bias": 1.5}
    made = openvx.normalization_layer(Tensor(x), type=type, normalization_size=size, **numbers)
    values, half = x / 256.0, size // 2
    window = (half, 0, 0) if type == "across_maps" else (0, half, half)
    padded = np.pad(values**2, [(n, n) for n in window])
    sums = sum(
        padded[tuple(slice(i, i + n) for i, n in zip(cell, x.shape, strict=True))]
        for cell in np.ndindex(*(2 * n + 1 for n in window))
    )
    count = size if type == "across_maps" else size * size
    wanted = np.trunc(values / (1.5 + 0.02 / count * sums) ** 0.75 * 256)
    assert np.abs(np.asarray(made.data) - wanted).max() <= 1


def test_layers_are_exported_for_other_platforms() -> None:
    def layer(x: Any, weights: Any) -> Any:
        tensors = openvx.Tensor(x), openvx.Tensor(weights)
        results = [openvx.convolution_layer(*tensors, semantics=s) for s in ("spec", "khronos")]
        return [result.data for result in results]

    shapes = [jax.ShapeDtypeStruct(s, np.int16) for s in ((2, 4, 4), (3, 2, 2, 2))]
    exported = jax.export.export(jax.jit(layer), platforms=["cuda", "tpu"])(*shapes)
    assert [made.shape for made in exported.out_avals] == [(3, 3, 3)] * 2
    assert "stablehlo.convolution" not in exported.mlir_module()
