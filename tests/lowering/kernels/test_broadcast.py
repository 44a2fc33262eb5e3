"""Shapes that broadcast from the left, and extremes with a number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering.errors import InvalidShape
from lowering.extents import UNKNOWN
from lowering.kernels.broadcast import align, broadcast_shapes, clamped, maximum, minimum


def test_shapes() -> None:
    assert broadcast_shapes() == ()
    assert broadcast_shapes((2, 3), (2, 3)) == (2, 3)
    assert broadcast_shapes((2, 3), (2,), (1, 1, 4)) == (2, 3, 4)
    assert broadcast_shapes((UNKNOWN, 1), (5, UNKNOWN)) == (5, UNKNOWN)
    assert broadcast_shapes((1,), (UNKNOWN,)) == (UNKNOWN,)


def test_shapes_that_do_not() -> None:
    with pytest.raises(InvalidShape, match="extents 2 and 3 at axis 0") as found:
        broadcast_shapes((2, 3), (3,))
    assert "from the left" in found.value.hint
    with pytest.raises(InvalidShape, match="extents 4 and 3 at axis 1") as found:
        broadcast_shapes((UNKNOWN, 4), (1, 3))
    assert found.value.hint == "along each axis extents must be equal, or 1"


def test_axes_are_added_at_the_end() -> None:
    x, y, z = align(np.ones((2, 3)), np.ones(2), 4)
    assert (x.shape, y.shape, z) == ((2, 3), (2, 1), 4)


@pytest.mark.parametrize(
    ("function", "values", "slopes"),
    [
        (lambda x: maximum(x, 1.0), [1, 1, 2, np.inf], [0, 0.5, 1, 1]),
        (lambda x: minimum(1.0, x), [-np.inf, 1, 1, 1], [1, 0.5, 0, 0]),
        (lambda x: clamped(x, 1.0, 2.0), [1, 1, 2, 2], [0, 0.5, 0.5, 0]),
        (lambda x: clamped(x, 2.0, 1.0), [2, 2, 2, 2], [0, 0, 0, 0]),
    ],
)
def test_derivatives_at_numbers(function, values, slopes) -> None:
    """Half of it is on each side of a tie, with an infinite x too; the lower bound wins."""
    x = jnp.float32([-np.inf, 1, 2, np.inf])
    made, pull = jax.vjp(function, x)
    np.testing.assert_array_equal(made, np.float32(values))
    np.testing.assert_array_equal(pull(jnp.ones_like(x))[0], np.float32(slopes))


def test_nan_stays() -> None:
    x = np.float32([np.nan])
    assert np.isnan(clamped(jnp.asarray(x), 0.0, 1.0)).all()
