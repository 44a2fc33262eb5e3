"""Converts an argument of a call to an array of a declared type, after checks of the argument."""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from typing import Any, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpy.typing import NDArray

from lowering import aligned, rounding
from lowering.extents import UNKNOWN, Shape, shapes_differ, show
from lowering.graph import TensorType, Value
from nnef_jax.errors import InputError
from nnef_jax.options import numpy_of, shown

_T = TypeVar("_T")
_Array = jax.Array | NDArray[Any]


@cache
def _dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype with a name.

    The result is cached, since numpy looks a name up each time that it is compared with a dtype.
    """
    return jnp.dtype(name)


def is_array(x: object) -> TypeGuard[_Array]:
    """Tell whether an object is an array of numpy or jax."""
    return type(x) is np.ndarray or isinstance(x, jax.Array)


def is_of(array: _Array, value: Value) -> bool:
    """Tell whether an array has the shape and the dtype of a value of a graph."""
    return array.shape == value.type.shape and array.dtype == _dtype(value.type.dtype)


def as_array(shown_name: str, array: object, type: TensorType) -> _Array:
    """Convert an argument, such as a list of numbers, to an array. An array is returned unchanged.

    Integers become float32 if `type`, the declared type, has a floating-point dtype. Raises
    InputError if the argument cannot be converted. The error calls the argument `shown_name`.
    """
    if is_array(array):
        return array
    converted = numpy_of(array, InputError, f"{shown_name} is not an array")
    # The kinds are boolean, integer, unsigned, float, complex, and the dtypes of ml_dtypes.
    if converted.dtype.kind not in "biufcV":
        raise InputError(f"{shown_name} must be an array, it is {shown(array)}")
    # jax has subclasses of `int` with a dtype. An integer of such a class is no literal.
    is_literal = isinstance(array, int | list | tuple) and not hasattr(array, "dtype")
    is_of_integers = is_literal and converted.dtype.kind in "iu"
    if is_of_integers and _kind(_dtype(type.dtype)) == "f":
        return converted.astype(np.float32)
    return converted


def _require_shape(
    shown_name: str,
    array: _Array | jax.ShapeDtypeStruct,
    type: TensorType,
    leading: int,
    declared: str,
) -> None:
    """Raise InputError if an array does not have the shape of `type` after its `leading` axes.

    The error calls the array `shown_name`, and has the text `declared` for the declared shape.
    """
    shape = array.shape[leading:]
    has_leading_axes = len(array.shape) >= leading
    if has_leading_axes and not shapes_differ(shape, type.shape):
        return
    after = " after the axis of time" if leading else ""
    message = f"{shown_name} has shape {show(array.shape)}, the graph declares {declared}{after}"
    raise InputError(message, hint=_hint_for_shape(shown_name, shape, type.shape))


def _hint_for_shape(shown_name: str, shape: tuple[int, ...], declared: Shape) -> str:
    """Return a hint for an array of `shape`, which is not the declared shape.

    `shown_name` is the array's name in errors, such as "input 'x'".
    """
    if not shown_name.startswith("input"):
        source = "init_state()" if shown_name.startswith("state") else "params"
        return f"give an array of the shape that model.{source} has"

    known_extents = Counter[Any](extent for extent in declared if extent is not UNKNOWN)
    absent_extents = known_extents - Counter(shape)
    has_all_extents = not absent_extents
    if has_all_extents and len(shape) == len(declared):
        return "its axes are in another order: transpose it, networks mostly take [N,C,H,W]"

    if len(shape) + 1 == len(declared):
        return (
            "an axis is missing, mostly the batch: model(x[None]). jax.vmap removes it: call the "
            "model on the batch without vmap, or on x[None] within it"
        )
    return (
        "load(..., input_shapes=...), or --shape of a command, declares another; jax.vmap adds a "
        "batch axis"
    )


def converted_to_type(
    shown_name: str, array: Any, type: TensorType, leading: int = 0, declared: str = ""
) -> Any:
    """Convert an array, or the type of an array, to the dtype of `type`.

    Raises InputError if the shape differs, or if the dtype is of another kind.

    Args:
        shown_name: the array's name in errors, such as "input 'x'".
        array: an array, or a `jax.ShapeDtypeStruct`.
        type: the declared type.
        leading: the number of axes of the array before the axes of the declared shape.
        declared: the text for the declared shape in errors, with the names of open extents.
    """
    _require_shape(shown_name, array, type, leading, declared or show(type.shape))
    dtype = _dtype(type.dtype)
    if array.dtype == dtype:
        return array
    kind = _kind(dtype)
    if _kind(array.dtype) != kind:
        message = f"{shown_name} has dtype {array.dtype}, the graph declares {dtype}"
        raise InputError(message, hint=f"convert it: x.astype('{dtype}')")
    if kind == "i":
        _require_range(shown_name, array, dtype)
    # Both dtypes are of one kind, such as floating point, but differ in width.
    if isinstance(array, jax.ShapeDtypeStruct):
        return array.update(dtype=dtype)
    if isinstance(array, np.ndarray):
        return rounding.saturated(array, dtype)
    return _narrowed(array, dtype)


@partial(jax.jit, static_argnums=1)
def _narrowed(x: jax.Array, dtype: np.dtype[Any]) -> jax.Array:
    """Convert a jax array to another dtype of its kind. Finite numbers stay finite.

    A number that is too large for the dtype becomes the dtype's largest finite number.
    `rounding.saturated` does the same for a numpy array.
    """
    converted = x.astype(dtype)
    if _kind(dtype) != "f":
        return converted
    largest = jnp.finfo(dtype).max
    overflows = jnp.isinf(converted) & jnp.isfinite(x)
    nearest_finite = jnp.where(x < 0, -largest, largest)
    return jnp.where(overflows, nearest_finite, converted)


_LARGE = 64 << 10  # an array of at least this many bytes is copied to aligned memory


def copied(array: _T) -> _T:
    """Copy a numpy array, since the caller may change the array later.

    Other values are returned unchanged. A copy by `jnp.array` would be slower: a call of 25 us
    would take 100 us, and the first call would compile for 0.1 s.
    """
    if not isinstance(array, np.ndarray):
        return array
    if array.nbytes < _LARGE:
        return array.copy()
    # A device uses the memory of a large aligned array, without a second copy.
    copy: Any = aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


def _kind(dtype: np.dtype[Any]) -> str:
    """Return the kind of a dtype: "f" for floating point, "i" for integers, else numpy's letter."""
    if jnp.issubdtype(dtype, jnp.floating):
        return "f"
    if jnp.issubdtype(dtype, jnp.integer):
        return "i"
    return getattr(dtype, "kind", "V")


def _require_range(
    shown_name: str, array: _Array | jax.ShapeDtypeStruct, dtype: np.dtype[np.generic]
) -> None:
    """Raise InputError if integers do not fit a dtype.

    The values of a traced array are not known. A traced array is refused if its dtype has values
    that do not fit `dtype`.
    """
    bounds = jnp.iinfo(dtype)
    array_bounds = jnp.iinfo(array.dtype)
    all_values_fit = bounds.min <= array_bounds.min and array_bounds.max <= bounds.max
    if all_values_fit:
        return
    if isinstance(array, Tracer | jax.ShapeDtypeStruct):
        message = (
            f"{shown_name} is traced with dtype {array.dtype}, whose values may not fit {dtype}"
        )
        raise InputError(message, hint=f"if they do fit, convert it: x.astype('{dtype}')")
    items = np.asarray(array)
    if not items.size:
        return
    low = items.min()
    high = items.max()
    fits = bounds.min <= low and high <= bounds.max
    if not fits:
        raise InputError(
            f"{shown_name} holds values from {low} to {high}, which do not fit {dtype}"
        )
