"""Which array of a call is which input of the graph, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering.extents import shapes_differ, show
from lowering.graph import Value
from nnef_jax.errors import InputError, NnefError, raise_all
from nnef_jax.network import Network
from nnef_jax.storage.arrays import aligned


def bind_inputs(
    network: Network, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, leading: int = 0
) -> list[Any]:
    """The inputs in graph order as arrays of the declared dtypes: those of jax as they are, of
    others a copy in numpy.

    Arrays of another width of the same kind are converted (float64 to float32); another kind is an
    error. `leading` axes (of time) come before the declared shapes.

    Raises InputError for wrong numbers, names, shapes and dtypes, for all inputs at once.
    """
    inputs = network.graph.inputs
    # Most calls give just what is declared; the checks below take as long as a small network.
    if not kwargs and not leading and len(args) == len(inputs):
        pairs = zip(args, inputs, strict=True)
        if all(isinstance(x, np.ndarray | jax.Array) and _is_of(x, value) for x, value in pairs):
            return [_copied(x) if isinstance(x, np.ndarray) else x for x in args]
    names = [value.name for value in inputs]
    if len(args) > len(inputs):
        raise InputError(
            f"{len(args)} inputs are given, the graph takes {len(inputs)}: {', '.join(names)}"
        )
    given = dict(zip(names, args, strict=False))
    for name, array in kwargs.items():
        if name not in names:
            raise InputError(f"the graph has no input '{name}', its inputs are {', '.join(names)}")
        if name in given:
            raise InputError(f"input '{name}' is given by position and by name")
        given[name] = array
    missing = [name for name in names if name not in given]
    if missing:
        raise InputError(
            f"input {', '.join(map(repr, missing))} is missing, the graph takes {', '.join(names)}",
            span=network.span_of(missing[0]),
        )
    errors: list[NnefError] = []
    arrays: list[Any] = []
    for value in inputs:
        try:
            arrays.append(_as_input(given[value.name], value, leading))
        except InputError as error:
            error.span = network.span_of(value.name)
            errors.append(error)
    raise_all(errors)
    return arrays


def _is_of(array: np.ndarray[Any, Any] | jax.Array, value: Value) -> bool:
    return array.shape == value.type.shape and array.dtype == value.type.dtype


def _as_input(array: Any, value: Value, leading: int) -> Any:
    dtype = jnp.dtype(value.type.dtype)
    if not hasattr(array, "dtype") or not hasattr(array, "shape"):
        array = _from_python(array, value, dtype)
    if len(array.shape) < leading or shapes_differ(array.shape[leading:], value.type.shape):
        after = " after the axis of time" if leading else ""
        permuted = sorted(array.shape[leading:]) == sorted(value.type.shape)
        raise InputError(
            f"input '{value.name}' has shape {show(array.shape)}, the graph declares "
            f"{show(value.type.shape)}{after}",
            hint="its axes are in another order: transpose it, networks mostly take [N,C,H,W]"
            if permuted
            else "load(..., input_shapes=...) declares another; jax.vmap adds a batch axis",
        )
    if array.dtype == dtype:
        return array if isinstance(array, jax.Array) else _copied(np.asarray(array))
    if _kind(array.dtype) != _kind(dtype):
        raise InputError(
            f"input '{value.name}' has dtype {array.dtype}, the graph declares {dtype}",
            hint=f"convert it: x.astype('{dtype}')",
        )
    if dtype.kind == "i" and isinstance(array, np.ndarray):
        _require_range(array, value, dtype)
    if isinstance(array, jax.Array):
        return array.astype(dtype)
    return _copied(np.asarray(array, dtype))


# Bytes from which a device takes an aligned array faster than it copies another.
_LARGE = 64 << 10


def _copied(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Apart from the caller's array, which may change while it is read.

    What is compiled takes it as it is: by `jnp.array` a call of a network that takes 25 us would
    take 100, and the first one 0.1 s more, in which that compiles the copy.
    """
    if array.nbytes < _LARGE:
        return array.copy()
    copy = aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


def _from_python(array: Any, value: Value, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Numbers and lists as an array; whole numbers may stand for scalars there."""
    try:
        result = np.asarray(array)
    except ValueError:
        raise InputError(f"input '{value.name}' is not an array") from None
    if result.dtype.kind == "i" and _kind(dtype) == "f":
        result = result.astype(np.float32)
    return result


def _kind(dtype: Any) -> str:
    """ "f" for real numbers, "i" for integers, "b" for logical values, else numpy's letter."""
    if jnp.issubdtype(dtype, jnp.floating):
        return "f"
    return "i" if jnp.issubdtype(dtype, jnp.integer) else jnp.dtype(dtype).kind


def _require_range(array: np.ndarray[Any, Any], value: Value, dtype: np.dtype[Any]) -> None:
    bounds = np.iinfo(dtype)
    if array.size and (array.min() < bounds.min or array.max() > bounds.max):
        raise InputError(
            f"input '{value.name}' holds values from {array.min()} to {array.max()}, "
            f"which do not fit {dtype}"
        )
