"""Correlations against sums over the cells of windows in numpy."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np

from lowering.kernels.correlation import (
    Slide,
    bordered,
    by_cells,
    conv,
    correlate,
    deconv,
    spread,
    transposed_filter,
)
from lowering.kernels.windows import basic_windows, reverse_windows

RNG = np.random.default_rng(2)


def integers(*shape: int) -> np.ndarray:
    return RNG.integers(-9, 10, shape).astype(np.int32)


def test_places_and_items() -> None:
    slide = Slide((2, 1), ((0, 0), (1, 0)), (1, 1), (3, 2))
    assert slide.places((9, 6), (2, 3)) == (3, 2)
    x = np.arange(9)
    np.testing.assert_array_equal(x[slide.items((1, 0), (3, 2))[0]], [3, 5, 7])


def test_spread_items() -> None:
    slide = Slide((1,), ((1, -1),), (2,), (1,))
    np.testing.assert_array_equal(slide.spread_out(integers(1, 1, 3) * 0 + 1), [[[0, 1, 0, 1, 0]]])
    x = integers(1, 1, 3)
    assert Slide((1,), ((0, 0),), (1,), (1,)).spread_out(x) is x


def test_correlations_of_groups() -> None:
    x, filter = integers(2, 4, 7), integers(6, 2, 3)
    slide = Slide((2,), ((1, 0),), (2,), (2,), groups=2)
    made = np.zeros((2, 4, 14))  # one zero before the items, and between them
    made[:, :, 1::2] = x
    places = (14 - 5) // 2 + 1
    wanted = np.zeros((2, 6, places))
    for b, o, n, c, k in itertools.product(*map(range, (2, 6, places, 2, 3))):
        wanted[b, o, n] += made[b, o // 3 * 2 + c, 2 * n + 2 * k] * filter[o, c, k]
    np.testing.assert_array_equal(by_cells(x, filter, slide, np.int32), wanted)
    real = correlate(x.astype(np.float32), filter.astype(np.float32), slide, "highest")
    np.testing.assert_array_equal(real, wanted)


def test_borders() -> None:
    x = np.arange(1, 4, dtype=np.int32)[None, None]
    for border, wanted in (("constant", [3, 6, 5]), ("replicate", [4, 6, 8])):
        windows = basic_windows((3,), (3,), border, (), (), ())
        made = conv(x, np.ones((1, 1, 3), np.int32), windows, 1, None, np.int32)
        np.testing.assert_array_equal(made, [[wanted]])
    extended, padding = bordered(x, basic_windows((3,), (3,), "replicate", (), (), ()))
    assert extended.shape == (1, 1, 5) and padding == ((0, 0),)


def test_a_reverse_is_the_transpose() -> None:
    """<conv(x), y> = <x, deconv(y)>, for strides, dilations and groups."""
    given = {"border": "constant", "padding": ((1, 2),), "stride": (2,), "dilation": (2,)}
    x, filter = integers(1, 4, 9), integers(6, 2, 3)
    down = basic_windows((9,), (3,), **given)
    y = integers(1, 6, *down.downscaled)
    up = reverse_windows(down.downscaled, (9,), (3,), **given)
    x, y, filter = (jnp.asarray(a, jnp.float32) for a in (x, y, filter))
    forth = conv(x, filter, down, 2, "highest", jnp.float32)
    back = deconv(y, transposed_filter(filter, 2), up, 2, "highest", jnp.float32)
    assert back.shape == x.shape
    np.testing.assert_array_equal(jnp.vdot(forth, y), jnp.vdot(x, back))


def test_what_reverse_windows_read() -> None:
    """Windows of 3 a stride 2 apart, the first cell cut: place i has cell 2 n + k - 1 = i."""
    given = {"border": "constant", "padding": ((1, 1),), "stride": (2,), "dilation": (1,)}
    x, padding = spread(integers(2), reverse_windows((2,), (), (3,), **given))
    assert x.shape == (2,) and padding == ((1, 1),)
    assert spread(x, reverse_windows((2,), (4,), (3,), **given))[1] == ((1, 2),)
    wide = spread(x, reverse_windows((2,), (4,), (3,), **(given | {"border": "replicate"})))
    assert wide[0].shape == (3,) and wide[1] == ((1, 0),)
