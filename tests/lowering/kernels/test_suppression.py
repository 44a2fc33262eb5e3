"""Overlaps of boxes worked out by hand, and which of them stay."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from lowering.kernels.suppression import (
    filled_first,
    overlap,
    rotated_overlap,
    softened,
    suppressed,
)

# Of the first with the others: itself, a third, the side, nothing.
BOXES = np.float32([[0, 0, 2, 2], [1, 0, 3, 2], [2, 0, 4, 2], [5, 5, 6, 6]])
SCORES = np.float32([0.9, 0.8, 0.9, 0.1])
ALL = np.ones(4, bool)


def test_overlaps() -> None:
    np.testing.assert_allclose(overlap(BOXES[:1].T, BOXES.T), [1, 1 / 3, -np.inf, -np.inf])
    # Extents of 3 items; the one that is a pixel apart shares a column.
    pixels = overlap(BOXES[:1].T, BOXES.T, offset=1.0)
    np.testing.assert_allclose(pixels, [1, 6 / 12, 3 / 15, -np.inf])
    apart = np.float32([[2.5, 0, 4.5, 2]])
    np.testing.assert_allclose(overlap(BOXES[:1].T, apart.T, offset=1.0), [1.5 / 16.5], rtol=1e-6)
    assert overlap(BOXES[:1].T, apart.T, offset=1.0, touches=False).item() == -np.inf


def test_rotated_overlaps() -> None:
    square = jnp.float32([[1, 1, 2, 2, 0]])
    quarter, eighth = np.pi / 2, np.pi / 4
    others = [[1, 1, 2, 2, quarter], [2, 1, 2, 2, 0], [1, 1, 2, 2, eighth], [9, 9, 1, 1, 1]]
    # A square and itself turned by an eighth share a regular octagon, 8 (sqrt(2) - 1) of 4.
    octagon = 8 * (np.sqrt(2) - 1)
    wanted = [1, 1 / 3, octagon / (8 - octagon), -np.inf]
    np.testing.assert_allclose(rotated_overlap(square.T, jnp.float32(others).T), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("most", "threshold", "eligible", "wanted"),
    [
        (4, 0.3, ALL, [0, 2, 3, -1]),  # of equal scores the first; 1 shares a third
        (4, 0.4, ALL, [0, 2, 1, 3]),
        (2, 0.4, ALL, [0, 2]),
        (3, 0.3, np.arange(4) > 0, [2, 3, -1]),
        (0, 0.3, ALL, []),
    ],
)
def test_suppression(most, threshold, eligible, wanted) -> None:
    made = suppressed(*map(jnp.asarray, (BOXES, SCORES, eligible)), most, threshold)
    np.testing.assert_array_equal(made, np.int32(wanted))


def test_nothing_to_suppress() -> None:
    made = suppressed(*(jnp.asarray(x[:0]) for x in (BOXES, SCORES, ALL)), 2, 0.5)
    np.testing.assert_array_equal(made, np.int32([-1, -1]))


def test_a_threshold_that_falls() -> None:
    """0.6, then 0.6 * 0.5 for the second box: a third is above that."""
    given = (jnp.asarray(x) for x in (BOXES[[3, 0, 1]], np.float32([0.9, 0.8, 0.7]), ALL[:3]))
    made = suppressed(*given, 3, 0.6, decay=0.5)
    np.testing.assert_array_equal(made, np.int32([0, 1, -1]))


def test_softened_scores() -> None:
    given = [jnp.asarray(x[:2]) for x in (BOXES, SCORES, ALL)]
    chosen, values = softened(*given, 3, 0.1, sigma=0.5)
    np.testing.assert_array_equal(chosen, np.int32([0, 1, -1]))
    np.testing.assert_allclose(values, [0.9, 0.8 * np.exp(-1 / 9), -np.inf], rtol=1e-6)
    chosen, _ = softened(*given, 3, 0.75, sigma=0.5)
    np.testing.assert_array_equal(chosen, np.int32([0, -1, -1]))


def test_rows_that_are_filled_come_first() -> None:
    rows, filled = filled_first(jnp.arange(4), jnp.array([False, True, False, True]))
    np.testing.assert_array_equal(rows, [1, 3, 0, 2])
    np.testing.assert_array_equal(filled, [True, True, False, False])
