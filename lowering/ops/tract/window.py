"""Pools and up-sampling by whole factors as tract reads them (registry tract_nnef).

Pools have items for all axes, batch and channel included; padding never wins a maximum. Those of
sums, `box`, `avg_pool` and `debox`, are NNEF's. The items of `factor` are for the last axes.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from lowering.errors import InvalidOperation
from lowering.extents import Shape, show
from lowering.graph import TensorType
from lowering.kernels import pool as kernels
from lowering.kernels.precision import widened
from lowering.kernels.windows import (
    Padding,
    basic,
    require_attributes,
    require_basic,
    require_border,
    require_positive,
)
from lowering.ops import resample, rules
from lowering.ops.tract.typing import require_ordered
from lowering.ops.typing import require_length, require_real

_BORDERS = ("constant", "ignore")


def _pool_type(
    input: TensorType,
    size: Shape,
    border: str,
    padding: Padding,
    stride: Shape,
    dilation: Shape,
) -> TensorType:
    require_ordered(input=input)
    require_border(border, _BORDERS)
    rank = len(input.shape)
    require_length("size", size, rank, "axes of 'input'")
    for name, items in (("padding", padding), ("stride", stride), ("dilation", dilation)):
        if items:
            require_length(name, items, rank, "axes of 'input'")
    require_attributes(rank, padding, stride, dilation, size)
    windows = basic(input.shape, size, padding, stride, dilation)
    require_basic(windows, "ignore")
    return TensorType(windows.downscaled, input.dtype)


@rules.rule("tract.max_pool", _pool_type)
def max_pool(
    input: Any, size: Shape, border: str, padding: Padding, stride: Shape, dilation: Shape
) -> Array:
    """The maximum of each window, on the input alone: both borders mean the same."""
    windows = basic(input.shape, size, padding, stride, dilation)
    return kernels.window_max(jnp.asarray(input), windows, "ignore")


def _max_and_index_type(
    input: TensorType,
    size: Shape,
    border: str,
    padding: Padding,
    stride: Shape,
    dilation: Shape,
) -> tuple[TensorType, TensorType]:
    output = _pool_type(input, size, border, padding, stride, dilation)
    return output, TensorType(output.shape, "int32")


@rules.rule("tract.max_pool_with_index", _max_and_index_type)
def max_pool_with_index(
    input: Any, size: Shape, border: str, padding: Padding, stride: Shape, dilation: Shape
) -> tuple[Array, Array]:
    """The maximum of each window and where it is first found, as torch and tract count it.

    The index is the row-major place on the plane of one channel, not in the window as in NNEF, and
    not in the whole tensor as in ONNX. The plane is on the axes from 2 on, or from the first one
    that the windows reach along where the input has no batch axis.
    """
    windows = basic(input.shape, size, padding, stride, dilation)
    steps = zip(windows.size, windows.stride, strict=True)
    reached = [axis for axis, step in enumerate(steps) if step != (1, 1)]
    return kernels.window_max_and_place(jnp.asarray(input), windows, min([2, *reached]))


def _nearest_type(input: TensorType, factor: Shape) -> TensorType:
    require_positive("factor", factor)
    rank = len(input.shape)
    if len(factor) > max(rank - 2, 0):
        raise InvalidOperation(
            f"'factor' {list(factor)} has more items than 'input' {show(input.shape)} "
            "has spatial axes"
        )
    factors = (1, 1, *_factors(rank, factor))
    shape = (extent * f for extent, f in zip(input.shape, factors, strict=False))
    return TensorType(tuple(shape), input.dtype)


@rules.rule("tract.nearest_upsample", _nearest_type)
def nearest_upsample(input: Any, factor: Shape) -> Array:
    """Each item repeated `factor` times along the last axes, an item of `factor` for each."""
    return resample.nearest_upsample(jnp.asarray(input), _factors(input.ndim, factor))


def _multilinear_type(input: TensorType, factor: Shape, method: str, border: str) -> TensorType:
    require_real(input=input)
    resample.require_method(method)
    require_border(border, ("replicate",))
    return _nearest_type(input, factor)


@rules.rule("tract.multilinear_upsample", _multilinear_type)
def multilinear_upsample(input: Any, factor: Shape, method: str, border: str) -> Array:
    """Linear interpolation along the last axes, an item of `factor` for each."""
    wide = widened(jnp.asarray(input))
    factor = _factors(input.ndim, factor)
    return resample.multilinear_upsample(wide, factor, method, border).astype(input.dtype)


def _factors(rank: int, factor: Shape) -> Shape:
    """A factor for each spatial axis."""
    return (1,) * (rank - 2 - len(factor)) + tuple(factor)
