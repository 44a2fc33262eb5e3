"""Tensors of fixed-point numbers (the extension, 1.6; vxCreateTensor of OpenVX 1.2)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import GetAttrKey, register_pytree_with_keys
from numpy.typing import ArrayLike, DTypeLike, NDArray

from nnef_jax.openvx.exact_sums import Factors, factors
from nnef_jax.openvx.profiles import ROUNDING
from nnef_jax.openvx.vx_errors import unsupported, wrong_dimension, wrong_format, wrong_parameter
from nnef_jax.similar import did_you_mean, listed

POSITIONS = {"uint8": 0, "int8": 0, "int16": 8}  # of the 8-bit and the 16-bit extension
_FURTHEST = 32  # of a position from 0


class Tensor:
    """A tensor whose numbers are `data / 2**fixed_point_position`: a pytree of its data.

    `data` is uint8, int8 or int16, a jax or numpy array in C order, that is [batch,] channels,
    height, width. `dims` has the extents as OpenVX gives them, the fastest first. The position is
    that of the extension unless given: 0 in 8 bits, 8 in 16 (Q7.8).

    Raises `VxError` for other types or positions, TypeError where these are no array and integer.
    """

    __slots__ = ("data", "fixed_point_position")
    data: Array
    fixed_point_position: int

    def __init__(self, data: Array | NDArray[Any], fixed_point_position: int | None = None) -> None:
        if not hasattr(data, "dtype") or not hasattr(data, "shape"):
            raise TypeError(
                f"data must be an array of {listed(POSITIONS)}, not {type(data).__name__}: "
                "Tensor.quantize makes one of real numbers"
            )
        if str(data.dtype) not in POSITIONS:
            wrong_format(
                f"a tensor is of {listed(POSITIONS)}, not of {data.dtype}",
                "Tensor.quantize makes one of real numbers",
            )
        if 0 in data.shape:
            wrong_dimension(f"a tensor has 1 item at least along an axis: {data.shape[::-1]}")
        if fixed_point_position is None:
            fixed_point_position = POSITIONS[str(data.dtype)]
        self.data = data  # pyright: ignore[reportAttributeAccessIssue]  # numpy's will do
        self.fixed_point_position = checked_position(fixed_point_position)

    @classmethod
    def quantize(
        cls,
        values: ArrayLike,
        dtype: DTypeLike = "int16",
        fixed_point_position: int | None = None,
        rounding_policy: str = "nearest_even",
    ) -> Tensor:
        """Return real numbers as the nearest tensor: rounded, then saturated; 0 for a NaN."""
        name = str(np.dtype(dtype))
        if name not in POSITIONS:
            wrong_format(f"a tensor is of {listed(POSITIONS)}, not of {name}")
        require_one_of("rounding_policy", rounding_policy, ROUNDING)
        position = POSITIONS[name] if fixed_point_position is None else fixed_point_position
        scale = np.float32(2.0 ** checked_position(position))
        reals = jnp.asarray(values, np.float32)
        return cls(_nearest(reals, scale, name, rounding_policy), position)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the extents in C order, as of `data`."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return uint8, int8 or int16."""
        return np.dtype(self.data.dtype)

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the extents in OpenVX's order: width, height, channels, batch."""
        return self.shape[::-1]

    def to_float(self) -> Array:
        """Return the numbers in float32, which holds each exactly."""
        scale = np.float32(2.0**-self.fixed_point_position)
        return _scaled(self.data, scale)

    def view(self, start: Sequence[int], end: Sequence[int]) -> Tensor:
        """Return the part from `start` up to but without `end`, both in OpenVX's order.

        vxCreateTensorFromView: fewer entries than dimensions name the fastest ones, and the view
        has these alone, at the start of the others.
        """
        return Tensor(self.data[self._places(start, end)], self.fixed_point_position)

    def with_view(self, start: Sequence[int], end: Sequence[int], part: Tensor) -> Tensor:
        """Return the tensor with another one where a view of it is: what writing to that does."""
        places = self._places(start, end)
        require_tensor("part", part)
        shape = jax.eval_shape(lambda: jnp.zeros(self.shape, bool)[places]).shape
        if part.shape != shape:
            wrong_dimension(f"the view has the dims {shape[::-1]}, the part {part.dims}")
        same = (part.dtype, part.fixed_point_position) == (self.dtype, self.fixed_point_position)
        if not same:
            wrong_format(f"the view is of {self}, the part of {part}")
        return Tensor(jnp.asarray(self.data).at[places].set(part.data), self.fixed_point_position)

    def _places(self, start: Sequence[int], end: Sequence[int]) -> tuple[Any, ...]:
        try:
            starts, ends = tuple(map(operator.index, start)), tuple(map(operator.index, end))
        except TypeError:
            message = f"start and end must be integers in OpenVX's order, not {start!r} and {end!r}"
            raise TypeError(message) from None
        given = len(starts)
        if not 0 < given == len(ends) <= len(self.dims):
            wrong_dimension(
                f"a view of {len(self.dims)} dimensions has as many starts and ends, "
                f"or fewer, not {given} and {len(ends)}"
            )
        for axis, (first, last, extent) in enumerate(zip(starts, ends, self.dims, strict=False)):
            if not 0 <= first < last <= extent:
                wrong_parameter(
                    f"a view from {first} to {last} is empty or outside of dimension {axis}, "
                    f"which has {extent}"
                )
        others = (0,) * (len(self.dims) - given)
        return (*others, *map(slice, starts[::-1], ends[::-1]))

    def __repr__(self) -> str:
        return f"Tensor({self.dtype}, dims {self.dims}, position {self.fixed_point_position})"


@partial(jax.jit, static_argnames=("dtype", "rounding_policy"), inline=True)
def _nearest(values: Array, scale: Any, dtype: str, rounding_policy: str) -> Array:
    limits, scaled = jnp.iinfo(dtype), values * scale
    whole = jnp.round(scaled) if rounding_policy == "nearest_even" else jnp.trunc(scaled)
    clipped = jnp.clip(whole, limits.min, limits.max)
    return jnp.where(jnp.isnan(whole), 0, clipped).astype(dtype)


@partial(jax.jit, inline=True)
def _scaled(integers: Array, scale: Any) -> Array:
    return integers.astype(np.float32) * scale


class StaticWeights:
    """The weights (O,I,h,w) or (O,I) of layers, prepared for them: a pytree.

    OpenVX marks weights [static]: an implementation may cache and convert them before it runs.
    Prepared once, where their values are known, they take half the arithmetic of weights that are
    traced. Every layer takes them instead of the tensor.
    """

    __slots__ = ("factors", "tensor")
    tensor: Tensor
    factors: Factors

    def __init__(self, tensor: Tensor) -> None:
        require_tensor("weights", tensor)
        if len(tensor.dims) not in (2, 4):
            wrong_dimension(f"weights have 2 or 4 dimensions, not {len(tensor.dims)}")
        made = factors(tensor.data)
        if made is None:
            unsupported(f"weights of the dims {tensor.dims} sum too many products")
        self.tensor, self.factors = tensor, made


def static_weights(weights: Tensor) -> StaticWeights:
    """Prepare weights of layers for their values; see `StaticWeights`."""
    return StaticWeights(weights)


def checked_position(position: Any) -> int:
    """Return a fixed-point position; raise TypeError or VxError for none."""
    try:
        position = operator.index(position)
    except TypeError:
        found = type(position).__name__
        raise TypeError(f"a fixed_point_position must be an integer, not {found}") from None
    if abs(position) > _FURTHEST:
        wrong_format(f"a fixed_point_position is -{_FURTHEST} to {_FURTHEST}, not {position}")
    return position


def require_tensor(name: str, x: Any) -> Tensor:
    """Return a tensor; raise TypeError for anything else."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a Tensor, not {type(x).__name__}: Tensor(array) makes one")
    return x


def require_one_of(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Raise VxError unless a parameter has one of its names."""
    if value not in allowed:
        hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
        wrong_parameter(f"{name} is one of {listed(allowed)}, not {value!r}", hint)


def _register(kind: type, leaf: tuple[str, ...], static: tuple[str, ...]) -> None:
    """Register a pytree whose unflattening checks nothing: jax puts anything into its leaves."""

    def keyed(x: Any) -> tuple[Any, Any]:
        leaves = [(GetAttrKey(name), getattr(x, name)) for name in leaf]
        return leaves, tuple(getattr(x, name) for name in static)

    def flat(x: Any) -> tuple[Any, Any]:
        leaves, aux = keyed(x)
        return [value for _, value in leaves], aux

    def made(aux: Any, leaves: Any) -> Any:
        x = object.__new__(kind)
        for name, value in zip((*leaf, *static), (*leaves, *aux), strict=True):
            setattr(x, name, value)
        return x

    register_pytree_with_keys(kind, keyed, made, flat)


_register(Tensor, ("data",), ("fixed_point_position",))
_register(StaticWeights, ("tensor", "factors"), ())
