"""Resizing along an axis, by the formulas of ONNX Resize worked out by hand."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from lowering.kernels.resampling import (
    Method,
    bilinear,
    cubic_kernel,
    host_work,
    merged,
    multiply_adds,
    places,
    resample,
    resized_length,
    upsample_aligned,
    upsample_linear,
)


def test_lengths() -> None:
    scale = float(np.float32(1.7))
    assert resized_length(10, scale) == 17 and resized_length(17, 1 / scale) == 10
    assert resized_length(3, 1.5) == 4.5


@pytest.mark.parametrize(
    ("coordinates", "wanted"),
    [
        ("half_pixel", [-0.25, 0.25, 0.75, 1.25, 1.75, 2.25]),
        ("tf_half_pixel_for_nn", [0.25, 0.75, 1.25, 1.75, 2.25, 2.75]),
        ("asymmetric", [0, 0.5, 1, 1.5, 2, 2.5]),
        ("align_corners", [0, 0.4, 0.8, 1.2, 1.6, 2]),
        ("tf_crop_and_resize", [1, 1.2, 1.4, 1.6, 1.8, 2]),
    ],
)
def test_places(coordinates: str, wanted: list[float]) -> None:
    region = np.float64(0.5), np.float64(1)
    np.testing.assert_allclose(places(3, 6, coordinates, region), wanted)


def test_a_single_place() -> None:
    assert places(5, 1, "pytorch_half_pixel", None) == 0 and places(5, 1, "half_pixel", None) == 2
    assert places(5, 1, "tf_crop_and_resize", (np.float64(0.5), np.float64(1))) == 3
    # 3 of 5 / 2 items, half an item of the input further.
    np.testing.assert_allclose(places(5, 2.5, "half_pixel_symmetric", None), [1, 3])


@pytest.mark.parametrize(
    ("mode", "scale", "wanted"),
    [
        ("floor", 2, [0, 0, 1, 1, 2, 2]),
        ("round_prefer_floor", 2, [0, 0, 1, 1, 2, 2]),
        ("round_prefer_ceil", 2, [0, 1, 1, 2, 2, 2]),
        ("ceil", 1 / 3, [0]),
        ("round_prefer_floor", 4 / 3, [0, 1, 1, 2]),  # at 0, 0.75, 1.5, 2.25
    ],
)
def test_nearest(mode: str, scale: float, wanted: list[int]) -> None:
    x, method = np.int32([[0, 1, 2]]), Method("asymmetric", "nearest", mode)
    where = places(3, resized_length(3, scale), "asymmetric", None)
    np.testing.assert_array_equal(resample(jnp.asarray(x), 1, where, scale, method), [wanted])


def test_linear() -> None:
    x = jnp.float32([0, 4, 8])
    for coordinates, count, wanted in (
        ("half_pixel", 6, [0, 1, 3, 5, 7, 8]),
        ("asymmetric", 6, [0, 2, 4, 6, 8, 8]),
        ("align_corners", 5, [0, 2, 4, 6, 8]),
        ("asymmetric", 2, [0, 6]),
    ):
        method = Method(coordinates, "linear", "floor")
        where = places(3, count, coordinates, None)
        made = resample(x, 0, where, count / 3, method)
        np.testing.assert_allclose(made, wanted, rtol=1e-6)
    halved = Method("half_pixel", "linear", "floor", antialias=True)
    made = resample(jnp.float32([0, 4, 8, 12]), 0, places(4, 2, "half_pixel", None), 0.5, halved)
    # Weights 1, 3, 3, 1 over 8 around each middle; what is outside is the outer item.
    np.testing.assert_allclose(made, [20 / 8, 76 / 8], rtol=1e-6)


def test_cubic() -> None:
    """Weights by Keys' formula: at -0.5 they are -3/32, 19/32, 19/32, -3/32, a parabola is kept."""
    found = cubic_kernel(np.array([0, 0.5, 1, 1.5, 2]), -0.75)
    np.testing.assert_allclose(found, [1, 19 / 32, 0, -3 / 32, 0])
    x = np.arange(6, dtype=np.float32) ** 2
    made = resample(jnp.asarray(x), 0, np.array([2.5]), 1.0, Method("", "cubic", "", -0.5))
    np.testing.assert_allclose(made, [2.5**2], rtol=1e-6)
    edge = Method("", "cubic", "", exclude_outside=True)
    left = resample(jnp.asarray(x), 0, np.array([0.5]), 1.0, edge)
    np.testing.assert_allclose(left, [(19 * 1 - 3 * 4) / (19 + 19 - 3)], rtol=1e-6)


@pytest.mark.parametrize("factor", [2, 40])
@pytest.mark.parametrize("shift", [False, True])
def test_whole_factors(factor: int, shift: bool) -> None:
    x = np.float32([[1, 3, 4]])
    place = (np.arange(3 * factor) - (factor - 1) / 2 * shift) / factor
    made = upsample_linear(jnp.asarray(x), 1, factor, shift, "constant")
    padded, at = np.float32([0, 1, 3, 4, 0]), np.arange(-1, 4)
    np.testing.assert_allclose(made[0], np.interp(place, at, padded), rtol=1e-5)


def test_aligned() -> None:
    told: list[int] = []
    made = upsample_aligned(jnp.float32([1, 3, 4]), 0, 2, told.append)
    np.testing.assert_allclose(made, np.interp(np.arange(6) * 2 / 5, [0, 1, 2], [1, 3, 4]), 1e-6)
    assert len(told) == 1 and told[0] >= 6


def test_points_of_images() -> None:
    x = jnp.asarray(np.arange(12, dtype=np.float32).reshape(2, 1, 2, 3))
    grid = [jnp.float32(v) for v in ([[0.5, 9]], [[-1, 0.25, 2]])]
    made = bilinear(x, jnp.int32([1]), *grid)
    np.testing.assert_allclose(made, [[[[7.5, 7.75, 9.5], [9, 9.25, 11]]]])
    assert merged(x, 1).shape == (2, 2, 3)


def test_counts() -> None:
    linear = Method("half_pixel", "linear", "floor")
    assert multiply_adds((1, 3, 4), (1, 6, 8), linear) == 1 * 6 * 4 * 2 + 1 * 6 * 8 * 2
    assert multiply_adds((1, 3), (1, 6), Method("half_pixel", "nearest", "floor")) == 0
    assert host_work(1000, 10, linear)[1] == 2 and host_work(4, 8, linear)[1] == 1
