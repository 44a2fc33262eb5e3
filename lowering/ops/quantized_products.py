"""Products of quantised tensors, with zero points and scales as operands.

An integer q stands for the real number (q - zero point) * scale. Products are summed exactly in
int32. The bias is added to the sum, in units of the product of both scales. The result is

    saturated(round(sum * left_scale * right_scale / output_scale) + output_zero_point)

with the scales of the left and the right operand. Halves are rounded to even integers. The factor
of the sum is applied in float32. A result of 8 or 16 bits is exact, except if the real number is
very close to the middle between two integers, within a relative distance of 2**-21. In this case
the result may be the other integer. With a factor of 1 the int32 sum is not rounded. Zero points
and scales have one item, or an item for each channel where the operation allows it.
"""

from __future__ import annotations

from typing import Unpack

import jax.numpy as jnp
from jax import Array

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Shape, differ, show
from lowering.graph import TensorType, is_integer
from lowering.kernels import byte_products, contraction
from lowering.kernels.correlation import Slide
from lowering.kernels.windows import Padding, Sliding, basic_windows
from lowering.ops import require, rules
from lowering.ops.conv import conv, conv_shape, conv_work
from lowering.tracing import Context

_INTEGERS = "its operands are integers"
_PARAMETERS = (
    "bias",
    "a_zero_point",
    "a_scale",
    "b_zero_point",
    "b_scale",
    "output_zero_point",
    "output_scale",
)


def _einsum_type(
    a: TensorType, b: TensorType, expr: str, dtype: str, **parameters: TensorType
) -> TensorType:
    """Check the arguments of `quantized_einsum`, and return the type of its result."""
    terms, result = contraction.parse(expr, [len(a.shape), len(b.shape)])
    if len(terms) not in (2, 2 + len(_PARAMETERS)):
        raise InvalidOperation(
            f"'expr' names the axes of {len(terms)} tensor(s)",
            hint=f"there must be two, or also those of {', '.join(_PARAMETERS)}",
        )
    left, right, *parameter_terms = terms
    _require_types(a=a, b=b, **parameters)
    shape = contraction.contracted_shape([a.shape, b.shape], [left, right], result)
    # A zero point of an operand has the channels of the operand. The other parameters have the
    # channels of the result.
    operands_of_zero_points = {"a_zero_point": (left, a.shape), "b_zero_point": (right, b.shape)}
    letters = parameter_terms or [""] * len(_PARAMETERS)
    for name, letter in zip(_PARAMETERS, letters, strict=True):
        term, extents = operands_of_zero_points.get(name, (result, shape))
        _require_channels(name, parameters[name].shape, letter, term, extents)
    return _result_type(shape, dtype)


def _einsum_work(a: TensorType, b: TensorType, expr: str) -> int:
    terms, result = contraction.parse(expr, [len(a.shape), len(b.shape)])
    return contraction.multiply_adds((a.shape, b.shape), terms[:2], result)


@rules.rule("quantized_einsum", _einsum_type, work=_einsum_work, not_differentiable=_INTEGERS)
def quantized_einsum(
    a: Array,
    b: Array,
    bias: Array,
    a_zero_point: Array,
    a_scale: Array,
    b_zero_point: Array,
    b_scale: Array,
    output_zero_point: Array,
    output_scale: Array,
    expr: str,
    dtype: str,
) -> Array:
    """Return the `einsum` of two quantised tensors, in `dtype`.

    `expr` has terms for a, b and the result, as in `mk,kn->mn`. It may also have terms for the
    bias, the zero points and the scales, in the order of the parameters, as in
    `mk,kn,m,,m,,,,->mn`. Such a term is the letter of the axis along which the parameter has an
    item for each channel, or is empty if the parameter has a single item. For `a_zero_point`
    the axis is an axis of a, for `b_zero_point` an axis of b, and for the other parameters an
    axis of the result.
    """
    terms, result = contraction.parse(expr, [len(a.shape), len(b.shape)])
    left, right, *parameter_terms = terms
    letters = dict.fromkeys(_PARAMETERS, "")
    if parameter_terms:
        letters = dict(zip(_PARAMETERS, parameter_terms, strict=True))
    a_zero = _along(_wide(a_zero_point), letters["a_zero_point"], left)
    b_zero = _along(_wide(b_zero_point), letters["b_zero_point"], right)
    if byte_products.is_byte(a, b):
        total = byte_products.contract((a, b), (a_zero, b_zero), (left, right), result)
    else:
        centred = (_wide(a) - a_zero, _wide(b) - b_zero)
        sum_dtype = jnp.dtype("int32")
        total = contraction.contract(centred, (left, right), result, sum_dtype, precision=None)
    return _requantised(
        total + _along(_wide(bias), letters["bias"], result),
        left=_along(a_scale, letters["a_scale"], result),
        right=_along(b_scale, letters["b_scale"], result),
        output=_along(output_scale, letters["output_scale"], result),
        zero_point=_along(_wide(output_zero_point), letters["output_zero_point"], result),
        dtype=dtype,
    )


def _conv_type(
    input: TensorType, filter: TensorType, bias: TensorType, groups: int, dtype: str, border: str,
    padding: Padding, stride: Shape, dilation: Shape, **parameters: TensorType,
) -> TensorType:  # fmt: skip
    """Check the arguments of `quantized_conv`, and return the type of its result."""
    _require_types(input=input, filter=filter, bias=bias, **parameters)
    window = Sliding(border=border, padding=padding, stride=stride, dilation=dilation)
    shape = conv_shape(input.shape, filter.shape, bias.shape, groups, **window)
    filter_names = ("filter_zero_point", "filter_scale")
    filter_types = {name: parameters.pop(name) for name in filter_names}
    require.one(**parameters)  # the remaining parameters have one item
    for name, type in filter_types.items():
        # The operand has one item, or an item for each output channel. The channels are axis 1 of
        # the result.
        _require_channels(name, type.shape, letter="c", term="c", shape=shape[1:2])
    return _result_type(shape, dtype)


@rules.rule("quantized_conv", _conv_type, work=conv_work, not_differentiable=_INTEGERS)
def quantized_conv(
    ctx: Context,
    input: Array,
    filter: Array,
    bias: Array,
    input_zero_point: Array,
    input_scale: Array,
    filter_zero_point: Array,
    filter_scale: Array,
    output_zero_point: Array,
    output_scale: Array,
    groups: int,
    dtype: str,
    **window: Unpack[Sliding],
) -> Array:
    """Return the `conv` of quantised tensors, in `dtype`. The padding stands for the real number 0.

    `filter_zero_point` and `filter_scale` may have an item for each output channel. The other
    zero points and scales have one item.
    """
    rank = input.ndim
    # A letter stands for each axis: c for the output channels, b for the batch, and x for others.
    filter_axes = "c" + "x" * (rank - 1)
    result_axes = "bc" + "x" * (rank - 2)
    input_zero = _scalar(_wide(input_zero_point))
    filter_zeros = _along(_wide(filter_zero_point), "c", filter_axes)
    windows = basic_windows(input.shape[2:], filter.shape[2:], **window)
    has_several_channels = filter.shape[1] > 1
    # `byte_products.correlate` pads only with the zero point, which stands for the real number 0.
    is_padded_with_zeros = windows.border in ("constant", "ignore")
    if byte_products.is_byte(input, filter) and has_several_channels and is_padded_with_zeros:
        # The operations of each cell are traced. This call may raise an error for too many cells.
        ctx.unroll(windows.volume)
        slide = Slide(
            stride=windows.stride,
            padding=windows.padding,
            dilation=windows.dilation,
            groups=groups,
        )
        total = byte_products.correlate(input, filter, (input_zero, filter_zeros), slide)
        total += _along(_wide(bias), "c", result_axes)
    else:
        centred_input = _wide(input) - input_zero
        centred_filter = _wide(filter) - filter_zeros
        total = conv(ctx, centred_input, centred_filter, _wide(bias), groups, **window)
    return _requantised(
        total,
        left=_along(filter_scale, "c", result_axes),
        right=_scalar(input_scale),
        output=_scalar(output_scale),
        zero_point=_scalar(_wide(output_zero_point)),
        dtype=dtype,
    )


def _require_types(**operands: TensorType) -> None:
    """Refuse scales that are not floating-point, and other operands that are not integers.

    A scale is an operand whose name ends in "scale".
    """
    scales = {name: type for name, type in operands.items() if name.endswith("scale")}
    require.integer(**{name: type for name, type in operands.items() if name not in scales})
    require.floating(**scales)


def _require_channels(name: str, extents: Shape, letter: str, term: str, shape: Shape) -> None:
    """Refuse a parameter unless it has one item, or an item for each index along one axis.

    `name` and `extents` are the name and the shape of the parameter. The axis is an axis of a
    tensor with the shape `shape`. `term` has a letter for each axis of this tensor, and `letter`
    is the letter of the axis, or "" if the parameter must have one item.
    """
    long_extents = [extent for extent in extents if differ(extent, 1)]
    if not long_extents:
        return  # the parameter has one item
    has_channels = len(letter) == 1 and term.count(letter) == 1
    channels = shape[term.index(letter)] if has_channels else 1
    if len(long_extents) > 1 or differ(long_extents[0], channels):
        message = f"'{name}' {show(extents)} must have one item"
        if channels != 1:
            message += f", or {channels} for as many channels"
        raise InvalidShape(message)


def _result_type(shape: Shape, dtype: str) -> TensorType:
    """Return the type of a result. Raises InvalidOperation if `dtype` is no integer dtype."""
    if not is_integer(dtype):
        raise InvalidOperation(
            f"the result must be of integers, it is of {dtype}",
            hint="`cast` converts a result of type int32 to real numbers",
        )
    return TensorType(shape, dtype)


def _wide(x: Array) -> Array:
    """Return integers as int32."""
    return jnp.asarray(x).astype(jnp.int32)


def _scalar(x: Array) -> Array:
    """Return a parameter with one item as a scalar."""
    return jnp.asarray(x).reshape(())


def _along(x: Array, letter: str, term: str) -> Array:
    """Reshape a parameter so that it lies along one axis of a tensor and broadcasts to the others.

    `term` has a letter for each axis of the tensor, and `letter` is the axis: for the letter "n"
    and the term "mnk" a parameter (5,) gets the shape (1, 5, 1). A parameter with one item becomes
    a scalar.
    """
    x = jnp.asarray(x)
    if x.size == 1:
        return _scalar(x)
    return x.reshape([-1 if name == letter else 1 for name in term])


def _requantised(
    total: Array, *, left: Array, right: Array, output: Array, zero_point: Array, dtype: str
) -> Array:
    """Return saturated(round(total * left * right / output) + zero_point) as integers.

    `total` has int32 sums of products. `left`, `right` and `output` are the scales of the two
    operands and of the result, and `zero_point` is the result's zero point.
    """
    left_scale = left.astype(jnp.float32)
    right_scale = right.astype(jnp.float32)
    factor = left_scale * right_scale / output.astype(jnp.float32)
    scaled = jnp.round(total.astype(jnp.float32) * factor).astype(jnp.int32)
    # float32 cannot hold all int32 sums. With the factor 1 the sum stays as it is.
    scaled = jnp.where(factor == 1, total, scaled)
    limits = jnp.iinfo(dtype)
    if limits.bits < 32:  # limits - zero_point fit int32
        scaled = jnp.clip(scaled, limits.min - zero_point, limits.max - zero_point)
    return (scaled + zero_point).astype(dtype)
