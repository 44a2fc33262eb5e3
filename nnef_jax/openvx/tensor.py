"""Tensors of fixed-point numbers (section 1.6 of the extension; vxCreateTensor of OpenVX 1.2)."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import GetAttrKey, register_pytree_with_keys
from numpy.typing import ArrayLike, DTypeLike, NDArray

from nnef_jax.openvx.exact_sums import Factors, factors
from nnef_jax.openvx.profiles import ROUNDING
from nnef_jax.openvx.vx_errors import unsupported, wrong_dimension, wrong_format, wrong_parameter
from nnef_jax.wording.similar import did_you_mean, listed

# The number of fractional bits that the profiles have for each dtype.
POSITIONS = {"uint8": 0, "int8": 0, "int16": 8}
_LARGEST_POSITION = 32  # the largest magnitude of a position


class Tensor:
    """A tensor of the numbers `data / 2**fixed_point_position`: a pytree with the leaf `data`.

    Args:
        data: a jax or numpy array of uint8, int8 or int16 in C order: [batch,] channels, height,
            width.
        fixed_point_position: the number of fractional bits. The default is the position of the
            profile: 0 for 8 bits, and 8 for 16 bits (Q7.8).

    Raises `VxError` for other types or positions, and TypeError for other objects.
    """

    __slots__ = ("data", "fixed_point_position")
    data: Array
    fixed_point_position: int

    def __init__(self, data: Array | NDArray[Any], fixed_point_position: int | None = None) -> None:
        if not hasattr(data, "dtype") or not hasattr(data, "shape"):
            raise TypeError(
                f"data must be an array of {listed(POSITIONS)}, not {type(data).__name__}: "
                "Tensor.quantize makes one from real numbers"
            )
        if str(data.dtype) not in POSITIONS:
            wrong_format(
                f"a tensor must have the type {listed(POSITIONS)}, not {data.dtype}",
                "Tensor.quantize makes one from real numbers",
            )
        if 0 in data.shape:
            wrong_dimension(f"a tensor must have items along each axis: {data.shape[::-1]}")
        if fixed_point_position is None:
            fixed_point_position = POSITIONS[str(data.dtype)]
        self.data = data  # pyright: ignore[reportAttributeAccessIssue]  # numpy arrays are allowed
        self.fixed_point_position = checked_position(fixed_point_position)

    @classmethod
    def quantize(
        cls,
        values: ArrayLike,
        dtype: DTypeLike = "int16",
        fixed_point_position: int | None = None,
        rounding_policy: str = "nearest_even",
    ) -> Tensor:
        """Convert numbers to fixed point: they are rounded and then saturated. A NaN becomes 0."""
        dtype_name = str(np.dtype(dtype))
        if dtype_name not in POSITIONS:
            wrong_format(f"a tensor must have the type {listed(POSITIONS)}, not {dtype_name}")
        require_one_of("rounding_policy", rounding_policy, ROUNDING)
        position = POSITIONS[dtype_name] if fixed_point_position is None else fixed_point_position
        scale = np.float32(2.0 ** checked_position(position))
        reals = jnp.asarray(values, np.float32)
        return cls(_as_integers(reals, scale, dtype_name, rounding_policy), position)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the extents of `data`, in C order."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of `data`, which is uint8, int8 or int16."""
        return np.dtype(self.data.dtype)

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the extents in OpenVX's order: width, height, channels, batch."""
        return self.shape[::-1]

    def to_float(self) -> Array:
        """Return the numbers in float32, which holds them exactly."""
        scale = np.float32(2.0**-self.fixed_point_position)
        return _scaled(self.data, scale)

    def view(self, start: Sequence[int], end: Sequence[int]) -> Tensor:
        """Return the region from `start` to before `end` (vxCreateTensorFromView).

        `start` and `end` are in OpenVX's order. They may have fewer entries than the tensor has
        dimensions. The view then has only the first dimensions, at index 0 of all other dimensions.
        """
        return Tensor(self.data[self._indices(start, end)], self.fixed_point_position)

    def with_view(self, start: Sequence[int], end: Sequence[int], part: Tensor) -> Tensor:
        """Return a copy in which `part` replaces the region from `start` to `end`.

        This is a write to a view: `start` and `end` are as in `view`.
        """
        indices = self._indices(start, end)
        require_tensor("part", part)
        # `eval_shape` finds the shape of the view without making the array of zeros.
        shape = jax.eval_shape(lambda: jnp.zeros(self.shape, bool)[indices]).shape
        if part.shape != shape:
            wrong_dimension(f"the view has the dims {shape[::-1]}, the part {part.dims}")
        has_same_position = part.fixed_point_position == self.fixed_point_position
        if part.dtype != self.dtype or not has_same_position:
            wrong_format(f"the part {part} must have the type and position of {self}")
        return Tensor(jnp.asarray(self.data).at[indices].set(part.data), self.fixed_point_position)

    def _indices(self, start: Sequence[int], end: Sequence[int]) -> tuple[int | slice, ...]:
        """Return the index into `data` for a view. `start` and `end` are as in `view`.

        Raises TypeError if `start` or `end` is not of integers, and VxError if they do not bound a
        view.
        """
        try:
            starts = tuple(map(operator.index, start))
            ends = tuple(map(operator.index, end))
        except TypeError:
            message = f"start and end must be integers in OpenVX's order, not {start!r} and {end!r}"
            raise TypeError(message) from None
        count = len(starts)
        has_valid_count = 1 <= count <= len(self.dims)
        if not has_valid_count or len(ends) != count:
            wrong_dimension(
                f"a view of {len(self.dims)} dimensions must have as many starts and ends, "
                f"or fewer, not {count} and {len(ends)}"
            )
        # The lengths may differ, since a view may have fewer dimensions than the tensor.
        for axis, (first, end_item, extent) in enumerate(
            zip(starts, ends, self.dims, strict=False)
        ):
            if not 0 <= first < end_item <= extent:
                wrong_parameter(
                    f"a view from {first} to {end_item} is empty or outside dimension {axis}, "
                    f"which has {extent} items"
                )
        # `data` has the dimensions in reverse order. For example, the view (x0, y0) to (x1, y1) of
        # a tensor of 3 dimensions has the index (0, slice(y0, y1), slice(x0, x1)).
        zeros = (0,) * (len(self.dims) - count)
        return (*zeros, *map(slice, starts[::-1], ends[::-1]))

    def __repr__(self) -> str:
        return f"Tensor({self.dtype}, dims {self.dims}, position {self.fixed_point_position})"


@partial(jax.jit, static_argnames=("dtype", "rounding_policy"), inline=True)
def _as_integers(values: Array, scale: np.float32, dtype: str, rounding_policy: str) -> Array:
    """Multiply numbers by a scale, round and saturate them, and cast them to a dtype."""
    limits = jnp.iinfo(dtype)
    scaled = values * scale
    rounded = jnp.round(scaled) if rounding_policy == "nearest_even" else jnp.trunc(scaled)
    clipped = jnp.clip(rounded, limits.min, limits.max)
    return jnp.where(jnp.isnan(rounded), 0, clipped).astype(dtype)


@partial(jax.jit, inline=True)
def _scaled(integers: Array, scale: np.float32) -> Array:
    """Convert integers to float32, and multiply them by a scale."""
    return integers.astype(np.float32) * scale


class StaticWeights:
    """Prepared weights for the products of layers. The class is a pytree.

    The shape is (outputs, inputs, height, width) or (outputs, inputs). OpenVX marks weights
    [static], which means that an implementation may cache and convert them before a run. Weights
    that are prepared with known values need half the arithmetic of traced weights. Every layer
    accepts `StaticWeights` in place of a tensor of weights.
    """

    __slots__ = ("factors", "tensor")
    tensor: Tensor
    factors: Factors

    def __init__(self, tensor: Tensor) -> None:
        require_tensor("weights", tensor)
        if len(tensor.dims) not in (2, 4):
            wrong_dimension(f"weights must have 2 or 4 dimensions, not {len(tensor.dims)}")
        weight_factors = factors(tensor.data)
        if weight_factors is None:
            unsupported(f"weights with the dims {tensor.dims} sum too many products")
        self.tensor = tensor
        self.factors = weight_factors


def static_weights(weights: Tensor) -> StaticWeights:
    """Prepare weights once for many runs of a layer (see `StaticWeights`)."""
    return StaticWeights(weights)


def checked_position(position: SupportsIndex) -> int:
    """Return a fixed-point position as an int.

    Raises TypeError for an object that is no integer, and VxError for an integer below -32 or above
    32.
    """
    try:
        position = operator.index(position)
    except TypeError:
        kind = type(position).__name__
        raise TypeError(f"a fixed_point_position must be an integer, not {kind}") from None
    if abs(position) > _LARGEST_POSITION:
        bounds = f"-{_LARGEST_POSITION} to {_LARGEST_POSITION}"
        wrong_format(f"a fixed_point_position must be {bounds}, not {position}")
    return position


def require_tensor(name: str, x: object) -> Tensor:
    """Return a value after checking that it is a tensor. Raises TypeError if it is not."""
    if not isinstance(x, Tensor):
        kind = type(x).__name__
        raise TypeError(f"{name} must be a Tensor, not {kind}: Tensor(array) makes one")
    return x


def require_one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise VxError unless a parameter is one of the allowed words."""
    if value not in allowed:
        hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
        wrong_parameter(f"{name} must be one of {listed(allowed)}, not {value!r}", hint)


def _register(kind: type, leaf_names: tuple[str, ...], static_names: tuple[str, ...]) -> None:
    """Register a class as a pytree. The two tuples have the names of the class's fields.

    The fields `leaf_names` are leaves, and the fields `static_names` belong to the structure.
    Unflattening checks nothing, since jax may put any object into the leaves.
    """

    def keyed(x: object) -> tuple[Any, Any]:
        """Return pairs (key, value) of the leaves, and the values of the static fields."""
        leaves = [(GetAttrKey(name), getattr(x, name)) for name in leaf_names]
        return leaves, tuple(getattr(x, name) for name in static_names)

    def flat(x: object) -> tuple[Any, Any]:
        """Return the values of the leaves, and the values of the static fields."""
        leaves, static_values = keyed(x)
        return [value for _, value in leaves], static_values

    def unflattened(static_values: Iterable[object], leaves: Iterable[object]) -> object:
        """Make an instance without a call of `__init__`."""
        x = object.__new__(kind)
        names = (*leaf_names, *static_names)
        for name, value in zip(names, (*leaves, *static_values), strict=True):
            setattr(x, name, value)
        return x

    register_pytree_with_keys(kind, keyed, unflattened, flat)


_register(Tensor, ("data",), ("fixed_point_position",))
_register(StaticWeights, ("tensor", "factors"), ())
