"""Arithmetic of windows by the formulas of the standard (spec 4.3), borders by `numpy.pad`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN
from lowering.kernels.windows import (
    PAD_MODES,
    basic_windows,
    extend,
    lowest,
    positions,
    require_attributes,
    require_basic,
    require_reverse,
    reverse_windows,
    spans,
    valid_counts,
    window_max_and_index,
)


def test_basic_windows() -> None:
    """Extents are ceil(X / s) with automatic padding, else (P + X + Q - F) / s + 1."""
    automatic = basic_windows((7, 5), (3, 2), "constant", (), (2, 1), (1, 2))
    assert automatic.downscaled == (4, 5)
    assert automatic.padding == ((1, 1), (1, 1)) and automatic.dilated == (3, 3)
    assert basic_windows((6,), (3,), "constant", (), (2,), ()).padding == ((0, 1),)
    given = basic_windows((7, 5), (3, 2), "constant", ((0, 0), (1, 2)), (2, 1), ())
    assert given.downscaled == (3, 7) and given.volume == 6
    assert basic_windows((UNKNOWN, 5), (3, 2), "constant", (), (), ()).downscaled == (UNKNOWN, 5)
    assert spans((1, 3), (5, 2)) == (1, 5)


def test_reverse_windows() -> None:
    """Extents are X s with automatic padding, else (X - 1) s + F - P - Q."""
    sliding = {"border": "constant", "stride": (2,), "dilation": (2,)}
    assert reverse_windows((4,), (), (3,), padding=(), **sliding).upscaled == (8,)
    windows = reverse_windows((4,), (), (3,), padding=((1, 0),), **sliding)
    assert windows.upscaled == (10,) and windows.downscaled == (4,)
    require_reverse(windows, ((1, 0),))
    assert reverse_windows((4,), (11,), (3,), padding=((1, 0),), **sliding).upscaled == (11,)
    with pytest.raises(InvalidShape, match="windows have 5 positions"):
        require_reverse(reverse_windows((4,), (12,), (3,), padding=((1, 0),), **sliding), ((1, 0),))


@pytest.mark.parametrize("border", [*PAD_MODES, "constant"])
@pytest.mark.parametrize("pads", [((0, 0), (1, 2)), ((1, 0), (7, 9))])
def test_borders(border: str, pads) -> None:
    """Those of more than the extent too, which are turned from edge to edge."""
    x = np.arange(8, dtype=np.int32).reshape(2, 4)
    wanted = np.pad(x, pads, mode=PAD_MODES.get(border, "constant"))
    np.testing.assert_array_equal(extend(jnp.asarray(x), pads, border), wanted)


def test_counts_of_cells() -> None:
    windows = basic_windows((4, 2), (3, 1), "ignore", ((1, 3), (0, 0)), (2, 1), ())
    told: list[int] = []  # they begin at -1, 1 and 3 of four items
    np.testing.assert_array_equal(valid_counts(windows, told.append), [[2], [3], [1]])
    assert len(told) == 1


def test_maxima_and_indices() -> None:
    """The first of equal ones, in row-major order; NaN is the greatest, nothing the least."""
    x = jnp.float32([[1, 5, 5], [5, 0, jnp.nan]])
    windows = basic_windows((2, 3), (2, 2), "ignore", ((0, 0), (0, 1)), (), ())
    maximum, index = window_max_and_index(x, windows, "ignore")
    np.testing.assert_array_equal(maximum, [[5, np.nan, np.nan]])
    np.testing.assert_array_equal(index, [[1, 3, 2]])
    rows, columns = positions(index, windows)
    np.testing.assert_array_equal(rows, [[0, 1, 1]])
    np.testing.assert_array_equal(columns, [[1, 2, 2]])
    assert lowest(np.int8) == -128 and lowest(np.float32) == -np.inf


def test_many_cells_are_a_loop() -> None:
    x = jnp.asarray(np.sin(np.arange(100, dtype=np.float32)))
    windows = basic_windows((100,), (70,), "ignore", ((0, 0),), (10,), ())
    maximum, index = window_max_and_index(x, windows, "ignore")
    rows = np.lib.stride_tricks.sliding_window_view(np.asarray(x), 70)[::10]
    np.testing.assert_array_equal(maximum, rows.max(1))
    np.testing.assert_array_equal(index, rows.argmax(1))


@pytest.mark.parametrize(
    ("attributes", "what"),
    [
        ({"size": (1, 2), "padding": ()}, "'size' has 2 items"),
        ({"stride": (0,), "padding": ()}, "'stride' must be at least 1"),
        ({"padding": ((0, 0), (0, 0))}, "'padding' has 2 items"),
        ({"padding": ((-1, 0),)}, "must not be negative"),
    ],
)
def test_wrong_attributes(attributes, what: str) -> None:
    with pytest.raises(InvalidOperation, match=what):
        require_attributes(1, attributes)


@pytest.mark.parametrize(
    ("shape", "size", "border", "padding", "what"),
    [
        ((2,), (3,), "constant", ((0, 0),), "spans 3 items at axis 0"),
        ((1,), (3,), "reflect", ((1, 1),), "two items to reflect"),
        ((4,), (3,), "constant", ((1 << 31, 0),), "at most 2147483647 places"),
    ],
)
def test_windows_that_do_not_fit(shape, size, border, padding, what: str) -> None:
    with pytest.raises(InvalidShape, match=what):
        require_basic(basic_windows(shape, size, border, padding, (), ()))
