"""Convolutions as tract reads them (registry tract_nnef).

`conv` and `deconv` take an input (B,I,X...) and a filter (O,I/groups,f...), the same layout for
both: the filter of a `deconv` does not begin with its input channels, as it does in NNEF.
`groups = 0` is a group for each input channel. The bias is one value, or one for each output
channel on whichever axis. Sums of float16 and bfloat16 are taken in float32 and rounded once, sums
of integers in int32, which is then the type of the result.

Padding, stride and dilation have an item for each spatial axis, or none: strides and dilations are
then 1, and the padding keeps the extent, over the stride (SAME, more after than before). The border
is always 'constant'.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Shape, differ, show, volume
from lowering.graph import TensorType
from lowering.kernels import conv as kernels
from lowering.kernels.accumulation import accumulator
from lowering.kernels.windows import (
    Padding,
    basic,
    require_attributes,
    require_basic,
    require_positive,
    require_reverse,
    reverse,
)
from lowering.ops import rules
from lowering.ops.conv import conv_work
from lowering.ops.tract.typing import require_ordered
from lowering.ops.typing import is_integer, require_length, require_real, require_same_dtype
from lowering.static import is_zero
from lowering.trace import Context


def _conv_type(
    input: TensorType,
    filter: TensorType,
    bias: TensorType,
    border: str,
    padding: Padding,
    stride: Shape,
    dilation: Shape,
    groups: int,
) -> TensorType:
    require_ordered(input=input, filter=filter, bias=bias)
    require_same_dtype(input=input, filter=filter, bias=bias)
    shape = conv_shape(
        input.shape, filter.shape, bias.shape, border, padding, stride, dilation, groups
    )
    return TensorType(shape, _conv_dtype(input.dtype))


def conv_shape(
    input: Shape,
    filter: Shape,
    bias: Shape,
    border: str,
    padding: Padding,
    stride: Shape,
    dilation: Shape,
    groups: int,
) -> Shape:
    """The shape of a convolution, after checks of the operands' shapes and the attributes."""
    _require_filter(input, filter, groups)
    _require_bias(bias, filter[0])
    padding = _spatial_padding(padding, len(input))
    _require_attributes(len(input) - 2, border, padding, stride, dilation)
    windows = basic(input[2:], filter[2:], padding, stride, dilation)
    require_basic(windows, border, first_axis=2)
    return (input[0], filter[0], *windows.downscaled)


@rules.rule("tract.conv", _conv_type, work=conv_work)
def conv(
    ctx: Context,
    input: Any,
    filter: Any,
    bias: Any,
    border: str,
    padding: Padding,
    stride: Shape,
    dilation: Shape,
    groups: int,
) -> Array:
    """Correlation of the input with a filter, plus a bias."""
    output = convolve(input, filter, bias, padding, stride, dilation, groups, ctx.precision)
    return output.astype(_conv_dtype(str(input.dtype)))


def convolve(
    input: Any,
    filter: Any,
    bias: Any,
    padding: Padding,
    stride: Shape,
    dilation: Shape,
    groups: int,
    precision: Any,
) -> Array:
    """`conv` in the type of its sums."""
    padding = _spatial_padding(padding, input.ndim)
    windows = basic(input.shape[2:], filter.shape[2:], padding, stride, dilation)
    groups = _group_count(input.shape, filter.shape, groups)
    wide = accumulator(input.dtype)
    if is_integer(str(wide)):
        output = kernels.integer_conv(input, filter, windows, groups, wide)
    else:
        output = kernels.conv(input, filter, windows, "constant", groups, precision, wide)
    return _add_bias(output, bias)


def _conv_dtype(dtype: str) -> str:
    return str(accumulator(dtype)) if is_integer(dtype) else dtype


def _deconv_type(
    input: TensorType,
    filter: TensorType,
    bias: TensorType,
    border: str,
    padding: Padding,
    stride: Shape,
    dilation: Shape,
    output_shape: Shape,
    groups: int,
) -> TensorType:
    require_real(input=input, filter=filter, bias=bias)
    require_same_dtype(input=input, filter=filter, bias=bias)
    _require_filter(input.shape, filter.shape, groups)
    _require_bias(bias.shape, filter.shape[0])
    rank = len(input.shape)
    padding = _spatial_padding(padding, rank)
    _require_attributes(rank - 2, border, padding, stride, dilation)
    if output_shape and len(output_shape) not in (rank - 2, rank):
        raise InvalidOperation(
            f"'output_shape' {list(output_shape)} must have an item for each of the {rank - 2} "
            f"spatial axes, or for each of all {rank}"
        )
    extents = _spatial_extents(output_shape, rank)
    require_positive("output_shape", extents)
    windows = reverse(input.shape[2:], filter.shape[2:], padding, stride, dilation, extents)
    require_reverse(windows, padding, border, first_axis=2)
    return TensorType((input.shape[0], filter.shape[0], *windows.upscaled), input.dtype)


def _deconv_work(input: TensorType, filter: TensorType, groups: int) -> int:
    groups = _group_count(input.shape, filter.shape, groups)
    return volume(input.shape) * filter.shape[0] // groups * volume(filter.shape[2:])


@rules.rule("tract.deconv", _deconv_type, work=_deconv_work)
def deconv(
    ctx: Context,
    input: Any,
    filter: Any,
    bias: Any,
    border: str,
    padding: Padding,
    stride: Shape,
    dilation: Shape,
    output_shape: Shape,
    groups: int,
) -> Array:
    """The transposed convolution; its spatial extents are those of `output_shape` where given."""
    extents = _spatial_extents(output_shape, input.ndim)
    padding = _spatial_padding(padding, input.ndim)
    windows = reverse(input.shape[2:], filter.shape[2:], padding, stride, dilation, extents)
    groups = _group_count(input.shape, filter.shape, groups)
    flipped = lax.rev(jnp.asarray(filter), tuple(range(2, filter.ndim)))
    wide = accumulator(input.dtype)
    output = kernels.deconv(input, flipped, windows, border, groups, ctx.precision, wide)
    return _add_bias(output, bias).astype(input.dtype)


def _spatial_padding(padding: Padding, rank: int) -> Padding:
    """The pairs of the spatial axes, also where older writers give them for all axes."""
    if len(padding) == rank and tuple(map(tuple, padding[:2])) == ((0, 0), (0, 0)):
        return padding[2:]
    return padding


def _spatial_extents(output_shape: Shape, rank: int) -> Shape:
    return output_shape[2:] if len(output_shape) == rank else output_shape


def _group_count(input: Shape, filter: Shape, groups: int) -> int:
    return groups or input[1] // filter[1]


def _add_bias(output: Array, bias: Any) -> Array:
    if is_zero(bias):
        return output
    bias = jnp.asarray(bias).astype(output.dtype)
    return output + bias.reshape(1, -1, *(1,) * (output.ndim - 2))


def _require_filter(input: Shape, filter: Shape, groups: int) -> None:
    if len(input) < 3 or len(filter) != len(input):
        raise InvalidShape(
            f"'input' {show(input)} and 'filter' {show(filter)} must have one rank: batch, "
            "channels and at least one spatial axis",
            hint="`unsqueeze` an input that has no batch axis",
        )
    if groups < 0:
        raise InvalidOperation(
            f"'groups' must be positive, or 0 for a group for each channel, it is {groups}"
        )
    count = _group_count(input, filter, groups)
    if differ(filter[1] * count, input[1]):
        raise InvalidShape(
            f"'filter' {show(filter)} takes {filter[1] * count} channels in {count} group(s), "
            f"'input' {show(input)} has {input[1]}",
            hint="the filter has the shape [output channels, input channels / groups, ...], "
            "for deconv too",
        )
    if differ(filter[0] % count, 0):
        raise InvalidShape(
            f"'groups' {count} does not divide the first extent of 'filter' {show(filter)}"
        )


def _require_bias(bias: Shape, channels: int) -> None:
    kept = [extent for extent in bias if differ(extent, 1)]
    if len(kept) > 1 or any(differ(extent, channels) for extent in kept):
        raise InvalidShape(
            f"'bias' {show(bias)} does not fit {channels} output channels",
            hint=f"it must have one item, or {channels} along one axis, as in "
            f"{show((channels,))} and {show((1, channels))}",
        )


def _require_attributes(
    rank: int, border: str, padding: Padding, stride: Shape, dilation: Shape
) -> None:
    if border != "constant":
        raise InvalidOperation(
            f"'border' must be 'constant', it is '{border}'",
            hint="`pad` the input first, with that border, and give padding (0,0) here",
        )
    for name, items in (("padding", padding), ("stride", stride), ("dilation", dilation)):
        if items:
            require_length(name, items, rank, "spatial axes")
    require_attributes(rank, padding, stride, dilation)
