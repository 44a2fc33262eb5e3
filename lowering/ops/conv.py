"""Convolution and deconvolution (spec 4.3.1).

`conv` maps an input (batch, channels, *extents) to (batch, outputs, *positions). The filter has the
shape (outputs, channels / groups, *size), and the bias is a scalar or has the shape (1, outputs).

`deconv` maps an input (batch, channels, *positions) to (batch, outputs, *extents). The filter has
the shape (channels, outputs / groups, *size), and the bias is a scalar or has the shape (1,
outputs).

Padding, stride and dilation have an item for each spatial axis. If `groups` is 0, each channel is a
group. Half precision is summed in float32 and rounded once. Integers are summed in int32, which is
the dtype of the result.
"""

from __future__ import annotations

from typing import Unpack

import jax.numpy as jnp
from jax import Array

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Shape, differ, is_zero, shapes_differ, show, volume
from lowering.graph import TensorType, is_integer
from lowering.kernels import correlation
from lowering.kernels.broadcast import expand
from lowering.kernels.precision import accumulator
from lowering.kernels.windows import (
    BORDERS,
    Sliding,
    basic_windows,
    require_attributes,
    require_basic,
    require_positive,
    require_reverse,
    reverse_windows,
)
from lowering.ops import require, rules
from lowering.tracing import Context


def _conv_type(
    input: TensorType, filter: TensorType, bias: TensorType, groups: int, **window: Unpack[Sliding]
) -> TensorType:
    require.same_dtype(require.ordered, input=input, filter=filter, bias=bias)
    shape = conv_shape(input.shape, filter.shape, bias.shape, groups, **window)
    return TensorType(shape, _result_dtype(input.dtype))


def conv_shape(
    input: Shape, filter: Shape, bias: Shape, groups: int, **window: Unpack[Sliding]
) -> Shape:
    """Return the shape (batch, outputs, *positions) of a convolution's result.

    `input` has the shape (batch, channels, *extents), and `filter` has the shape (outputs,
    channels / groups, *size). If `groups` is 0, each channel is a group. `window` has the
    border, padding, stride and dilation. Raises InvalidShape or InvalidOperation if operands or
    attributes do not agree.
    """
    _require_operands(input, filter, groups, window)
    groups = groups or input[1]
    if differ(filter[1] * groups, input[1]):
        raise InvalidShape(
            f"'filter' {show(filter)} takes {filter[1] * groups} channels "
            f"in {groups} group(s), 'input' {show(input)} has {input[1]}",
            hint="the filter has the shape [output channels, input channels / groups, ...]",
        )
    _require_divisor(groups, filter)
    _require_bias(bias, filter[0], len(input))
    windows = basic_windows(input[2:], filter[2:], **window)
    require_basic(windows, first_axis=2)
    return (input[0], filter[0], *windows.downscaled)


def _result_dtype(dtype: str) -> str:
    """Return the dtype of a convolution's result: int32 for integers, or the input's dtype."""
    return str(accumulator(dtype)) if is_integer(dtype) else dtype


def conv_work(result: TensorType, filter: TensorType) -> int:
    """Return the number of multiply-adds of a convolution.

    An item of the result needs one multiply-add for each item of an output channel of the filter.
    """
    return volume(result.shape) * volume(filter.shape[1:])


@rules.rule("conv", _conv_type, work=conv_work)
def conv(
    ctx: Context, input: Array, filter: Array, bias: Array, groups: int, **window: Unpack[Sliding]
) -> Array:
    """Correlate the input with a filter, and add a bias.

    `input` has the shape (batch, channels, *extents), `filter` has the shape (outputs, channels
    / groups, *size), and the result has the shape (batch, outputs, *positions). If `groups` is
    0, each channel is a group. `window` has the border, padding, stride and dilation.
    """
    windows = basic_windows(input.shape[2:], filter.shape[2:], **window)
    groups = groups or input.shape[1]
    sum_dtype = accumulator(input.dtype)
    if is_integer(str(sum_dtype)):
        # Integers are multiplied separately for each cell of the filter. This call may raise an
        # error for too many cells.
        ctx.unroll(windows.volume)
    output = correlation.conv(
        input, filter, windows, groups=groups, precision=ctx.precision, wide=sum_dtype
    )
    return _add_bias(output, bias).astype(_result_dtype(str(input.dtype)))


def _deconv_type(
    input: TensorType,
    filter: TensorType,
    bias: TensorType,
    output_shape: Shape,
    groups: int,
    **window: Unpack[Sliding],
) -> TensorType:
    """Check the arguments of `deconv`, and return the type of its result."""
    require.same_dtype(require.floating, input=input, filter=filter, bias=bias)
    _require_operands(input.shape, filter.shape, groups, window)
    if differ(filter.shape[0], input.shape[1]):
        raise InvalidShape(
            f"'filter' {show(filter.shape)} takes {filter.shape[0]} channels, "
            f"'input' {show(input.shape)} has {input.shape[1]}",
            hint="its filter has the shape [input channels, output channels / groups, ...]",
        )
    if output_shape:
        if len(output_shape) != len(input.shape):
            raise InvalidOperation(
                f"'output_shape' {list(output_shape)} must have {len(input.shape)} items"
            )
        # The batch extent of `output_shape` is ignored. The batch extent of the input may be 0.
        require_positive("output_shape", (input.shape[0] or 1, *output_shape[1:]))
    groups = _deconv_groups(input.shape, filter.shape, output_shape, groups)
    channels = filter.shape[1] * groups
    if output_shape and differ(output_shape[1], channels):
        raise InvalidShape(
            f"'output_shape' {list(output_shape)} has {output_shape[1]} channels, "
            f"'filter' {show(filter.shape)} gives {channels} in {groups} group(s)"
        )
    _require_divisor(groups, filter.shape)
    _require_bias(bias.shape, channels, len(input.shape))
    windows = reverse_windows(input.shape[2:], output_shape[2:], filter.shape[2:], **window)
    require_reverse(windows, window["padding"], first_axis=2)
    return TensorType((input.shape[0], channels, *windows.upscaled), input.dtype)


# A deconvolution reverses a convolution, so the deconvolution's input is the `result` of
# `conv_work`.
@rules.rule("deconv", _deconv_type, work=lambda input, filter: conv_work(input, filter))
def deconv(
    ctx: Context,
    input: Array,
    filter: Array,
    bias: Array,
    output_shape: Shape,
    groups: int,
    **window: Unpack[Sliding],
) -> Array:
    """Return the transposed convolution of the input with a filter, plus a bias.

    `input` has the shape (batch, channels, *positions), `filter` has the shape (channels,
    outputs / groups, *size), and the result has the shape (batch, outputs, *extents). The batch
    extent of `output_shape` is ignored. If `output_shape` is empty, the extents are computed
    from the input and the windows. `window` has the border, padding, stride and dilation.
    """
    windows = reverse_windows(input.shape[2:], output_shape[2:], filter.shape[2:], **window)
    groups = _deconv_groups(input.shape, filter.shape, output_shape, groups)
    flipped = correlation.transposed_filter(filter, groups)
    sum_dtype = accumulator(input.dtype)
    output = correlation.deconv(
        input, flipped, windows, groups=groups, precision=ctx.precision, wide=sum_dtype
    )
    return _add_bias(output, bias).astype(input.dtype)


def _deconv_groups(input: Shape, filter: Shape, output_shape: Shape, groups: int) -> int:
    """Return the number of groups of a deconvolution. `groups` is the attribute, which may be 0.

    For 0, the number of groups is the number of output channels divided by filter[1], the output
    channels of a group. This is for the reverse of a `conv` with `groups` 0, in which each channel
    of the `conv`'s input is a group. Without `output_shape`, each input channel is a group.
    """
    if groups:
        return groups
    if output_shape:
        return output_shape[1] // filter[1]
    return input[1]


def _add_bias(output: Array, bias: Array) -> Array:
    """Add a bias in the dtype of the output. Axis i of the bias is added along axis i."""
    if is_zero(bias):
        return output
    bias = jnp.asarray(bias).astype(output.dtype)
    return output + expand(bias, output.ndim)


def _require_operands(input: Shape, filter: Shape, groups: int, window: Sliding) -> None:
    """Refuse an input and a filter of different ranks, and attributes that are out of range."""
    require.one_of("border", window["border"], BORDERS)
    rank = len(input)
    if rank < 2 or len(filter) != rank:
        raise InvalidShape(
            f"'input' {show(input)} and 'filter' {show(filter)} must have one rank, "
            "two and the number of spatial dimensions"
        )
    require_attributes(rank - 2, window)
    if groups < 0:
        raise InvalidOperation(f"'groups' must be positive, or 0 for plane-wise, it is {groups}")


def _require_divisor(groups: int, filter: Shape) -> None:
    """Raise InvalidShape if the number of groups does not divide the filter's first extent."""
    if differ(filter[0] % groups, 0):
        raise InvalidShape(
            f"'groups' {groups} does not divide the first extent of 'filter' {show(filter)}"
        )


def _require_bias(bias: Shape, channels: int, rank: int) -> None:
    """Raise InvalidShape unless a bias has one item, or one item for each of the channels.

    `bias` is the shape of the bias, and `rank` is the rank of the output.
    """
    # All extents must be 1, except that axis 1 may have the channels.
    expected = [1] * len(bias)
    if len(bias) > 1 and differ(bias[1], 1):
        expected[1] = channels
    if len(bias) > rank or shapes_differ(bias, expected):
        raise InvalidShape(
            f"'bias' {show(bias)} does not fit {channels} output channels",
            hint=f"it must be a scalar or have the shape {show((1, channels))}",
        )
