"""Checks arguments of analyses: models, numbers, bounds, keys and arrays."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from lowering.extents import Shape, show
from nnef_jax.calls.arguments import is_key
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.options import require, shown


def require_model(model: object) -> None:
    """Raise TypeError unless the value is a model."""
    require("model", model, Model, "a nnef_jax.Model")


def require_real(name: str, value: Any, *, least: float | None = 0) -> float:
    """Return a value as a float, after checking that it is a finite number.

    `least` is the smallest allowed number, or None for no limit. `name` is the name of the argument
    in error messages. Raises TypeError if the value is not a number, and ValueError if the value is
    too small or not finite.
    """
    require(name, value, float | int | np.floating | np.integer, "a number")
    is_too_small = least is not None and value < least
    is_finite = np.isfinite(value)
    if is_too_small or not is_finite:
        condition = "finite" if least is None else f"at least {least:g} and finite"
        raise ValueError(f"{name} must be {condition}, it is {value}")
    return float(value)


def require_count(name: str, value: Any) -> int:
    """Return a value, after checking that it is a positive integer.

    Raises TypeError if the value is not an integer, and ValueError if the integer is not positive.
    """
    require(name, value, int | np.integer, "an integer")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, it is {value}")
    return int(value)


def require_bounds(bounds: Any) -> tuple[float, float]:
    """Return a pair of bounds, after checking that they are two finite numbers in rising order.

    Raises TypeError or ValueError for any other value.
    """
    is_pair = isinstance(bounds, tuple | list) and len(bounds) == 2  # pyright: ignore[reportUnknownArgumentType]
    if not is_pair:
        raise TypeError(f"bounds must be a pair of numbers, it is {shown(bounds)}")
    low = require_real("a bound", bounds[0], least=None)
    high = require_real("a bound", bounds[1], least=None)
    if low >= high:
        raise ValueError(f"bounds must rise, they are {low:g} and {high:g}")
    return low, high


def require_key(key: object) -> None:
    """Raise TypeError unless the value is a single key of `jax.random`."""
    if key is None or not is_key(key):
        raise TypeError(f"key must be one of jax.random.key(seed), it is {shown(key)}")


def array_from(name: str, returned: object) -> Array:
    """Return the result of a user's function as an array.

    `name` is the argument by which the user passed the function. Raises TypeError if the result is
    neither an array nor a number.
    """
    if not isinstance(returned, Array | np.ndarray | np.generic | float | int):
        raise TypeError(f"{name} must return an array, it returns {shown(returned)}")
    return jnp.asarray(returned)


def broadcast(argument: str, array: Array, tensor: str, shape: Shape) -> Array:
    """Broadcast an array to a shape.

    Raises InputError if the array does not broadcast to the shape.

    Args:
        argument: the name of the argument that is the array, for errors.
        array: the array.
        tensor: the name of the tensor that has the shape, for errors.
        shape: the shape.
    """
    try:
        return jnp.broadcast_to(array, [int(extent) for extent in shape])
    except ValueError:
        message = f"{argument} is {show(array.shape)}, '{tensor}' is {show(shape)}"
        raise InputError(message, hint="give a number, or an array that broadcasts") from None
