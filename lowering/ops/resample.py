"""Resampling of the spatial dimensions by whole factors (spec 4.3.4).

`factor` has an item for each spatial dimension. Missing items are 1. Multilinear up-sampling treats
one dimension after another. For an input extent x and a factor f, output i lies at an input
position that depends on the method:

    'asymmetric'   i / f
    'symmetric'    (i - (f - 1) / 2) / f
    'aligned'      i (x - 1) / (x f - 1)

The border mode provides the neighbours outside of the input. 'aligned' needs no such neighbours. If
the extent is 1, 'aligned' repeats the item.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Shape, differ, show, volume, with_extent
from lowering.graph import TensorType
from lowering.kernels.precision import widened
from lowering.kernels.resampling import upsample_aligned, upsample_linear
from lowering.kernels.windows import BORDERS, require_positive, require_reflection
from lowering.ops import require, rules
from lowering.tracing import Context

METHODS = ("symmetric", "asymmetric", "aligned")


def _area_type(input: TensorType, factor: Shape) -> TensorType:
    require.floating(input=input)
    return _down_type(input, factor)


def _down_type(input: TensorType, factor: Shape) -> TensorType:
    """Check the arguments of `nearest_downsample`, and return the type of its result."""
    _require_factor(input, factor)
    for axis, divisor in enumerate(factor, 2):
        if differ(input.shape[axis] % divisor, 0):
            raise InvalidShape(
                f"'factor' {list(factor)} does not divide the spatial extents of "
                f"'input' {show(input.shape)}: {input.shape[axis]} at axis {axis}",
                hint="cut or pad the input to a multiple of the factor",
            )
    divisors = _of_all_axes(factor, len(input.shape))
    pairs = zip(input.shape, divisors, strict=True)
    return TensorType(tuple(extent // divisor for extent, divisor in pairs), input.dtype)


def _up_type(input: TensorType, factor: Shape) -> TensorType:
    _require_factor(input, factor)
    factors = _of_all_axes(factor, len(input.shape))
    pairs = zip(input.shape, factors, strict=True)
    return TensorType(tuple(extent * times for extent, times in pairs), input.dtype)


@rules.rule("nearest_downsample", _down_type)
def nearest_downsample(input: Array, factor: Shape) -> Array:
    """Return the first item of each block of items. A block has the extents `factor`.

    `factor` has an item for each spatial axis. Missing items are 1.
    """
    strides = _of_all_axes(factor, input.ndim)
    return lax.slice(input, (0,) * input.ndim, input.shape, strides)


@rules.rule("area_downsample", _area_type)
def area_downsample(input: Array, factor: Shape) -> Array:
    """Return the mean of each block of items. A block has the extents `factor`.

    `factor` has an item for each spatial axis. Missing items are 1.
    """
    for axis, block_extent in enumerate(factor, 2):
        if block_extent > 1:
            block_count = input.shape[axis] // block_extent
            blocks = with_extent(input.shape, axis, block_count, block_extent)
            input = jnp.mean(input.reshape(blocks), axis=axis + 1)
    return input


@rules.rule("nearest_upsample", _up_type)
def nearest_upsample(input: Array, factor: Shape) -> Array:
    """Repeat each item `factor[i]` times along spatial axis i. Missing factors are 1."""
    for axis, times in enumerate(factor, 2):
        if times > 1:
            input = jnp.repeat(input, times, axis)
    return input


def _multilinear_type(input: TensorType, factor: Shape, method: str, border: str) -> TensorType:
    """Check the arguments of `multilinear_upsample`, and return the type of its result."""
    require.floating(input=input)
    require.one_of("method", method, METHODS)
    require.one_of("border", border, BORDERS)
    output = _up_type(input, factor)
    if method != "aligned":
        spatial = input.shape[2 : 2 + len(factor)]
        # An axis with the factor 1 needs no items beyond its end.
        padding = tuple((0, times - 1) for times in factor)
        require_reflection(spatial, padding, border, first_axis=2)
    return output


def _multilinear_work(input: TensorType, factor: Shape) -> int:
    """Return the number of multiply-adds.

    One axis after another is enlarged. Each step has two multiply-adds for each resulting item.
    """
    total = 0
    item_count = volume(input.shape)
    for times in factor:
        item_count *= times
        if times > 1:
            total += 2 * item_count
    return total


@rules.rule("multilinear_upsample", _multilinear_type, work=_multilinear_work)
def multilinear_upsample(
    ctx: Context, input: Array, factor: Shape, method: str, border: str
) -> Array:
    """Enlarge each spatial axis i `factor[i]` times by linear interpolation.

    The result is computed in float32 or a wider dtype, and has the input's dtype. The module's
    docstring has the position of each output for the methods 'symmetric', 'asymmetric' and
    'aligned'. `border` provides the neighbours of the edges.
    """
    x = widened(input)
    for axis, times in enumerate(factor, 2):
        if times == 1:
            continue
        if method == "aligned":
            x = upsample_aligned(x, axis, times, ctx.fold)
        else:
            x = upsample_linear(x, axis, times, shift=method == "symmetric", border=border)
    return x.astype(input.dtype)


def _require_factor(input: TensorType, factor: Shape) -> None:
    """Refuse factors below 1, and more factors than the input has spatial axes."""
    require_positive("factor", factor)
    spatial_rank = max(len(input.shape) - 2, 0)
    if len(factor) > spatial_rank:
        raise InvalidOperation(
            f"'factor' {list(factor)} has more items than 'input' {show(input.shape)} "
            "has spatial dimensions"
        )


def _of_all_axes(factor: Shape, rank: int) -> Shape:
    """Return the factors of all `rank` axes, from the factors of the first spatial axes.

    The factor of batch, channels and other spatial axes is 1. For the factors (2, 3) and the rank 5
    the result is (1, 1, 2, 3, 1).
    """
    missing = rank - 2 - len(factor)
    return (1,) * min(2, rank) + factor + (1,) * missing
