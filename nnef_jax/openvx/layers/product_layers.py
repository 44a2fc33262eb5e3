"""The layers that sum products: vxConvolutionLayer, vxDeconvolutionLayer, vxFullyConnectedLayer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from jax import Array

from lowering import correlation
from nnef_jax.openvx import layer_checks as checks
from nnef_jax.openvx import shapes
from nnef_jax.openvx.layers.accumulation import (
    Arithmetic,
    ends,
    multiply_accumulate,
    prepared,
    require_fitting,
)
from nnef_jax.openvx.tensor import StaticWeights, Tensor, require_one_of
from nnef_jax.openvx.vx_errors import wrong_dimension, wrong_parameter

SIZE_ROUNDING = ("floor", "ceiling")


@checks.layer
def convolution_layer(
    inputs: Tensor,
    weights: Tensor | StaticWeights,
    biases: Tensor | None = None,
    *,
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (0, 0),
    overflow_policy: str = "saturate",
    rounding_policy: str = "to_zero",
    down_scale_size_rounding: str = "floor",
    output_shape: tuple[int, ...] | None = None,
    skip: tuple[int, int] | None = None,
    groups: int = 1,
    semantics: str = "spec",
    strict: bool = True,
    output_position: int | None = None,
    report_overflow: bool = False,
) -> Tensor | tuple[Tensor, Array]:
    """Correlate inputs with weights, and add biases (vxConvolutionLayer).

    The result is `saturate(round(sum of inputs * weights + biases))`.

    Args:
        inputs: ([batch,] input channels, height, width).
        weights: (output channels, input channels / groups, window height, window width).
        biases: (output channels,), or a bias for each item of an output (output channels, height,
            width).
        padding: the number of zeros (x, y) at each end of an axis.
        dilation: the number of zeros (x, y) between weights.
        overflow_policy: 'saturate' or 'wrap'.
        rounding_policy: 'to_zero' or 'nearest_even'.
        down_scale_size_rounding: 'floor' or 'ceiling'.
        output_shape: ([batch,] output channels, height, width), from which the skip is inferred.
        skip: the strides (x, y). By default they are the smallest strides that lead to
            `output_shape`, or 1 if there is no `output_shape`.
        groups: the number of groups of channels. In OpenVX each group is a separate layer on a
            view.
        semantics: 'spec' sums without bounds and rounds once. 'khronos' computes the same bits as
            the released C routines.
        strict: False allows tensors of any fixed-point position.
        output_position: the fixed-point position of the output, by default that of the inputs.
        report_overflow: whether to return also a bool array of the output's shape, which is true
            for sums that overflowed.

    Raises TypeError, or `VxError` for arguments that the extension does not allow.
    """
    arithmetic = Arithmetic(overflow_policy, rounding_policy, semantics, strict, output_position)
    rounding = down_scale_size_rounding
    require_one_of("down_scale_size_rounding", rounding, SIZE_ROUNDING)
    x = checks.tensor("inputs", inputs)
    prepared_weights = prepared(weights, 4)
    if len(x.shape) < 3:
        wrong_dimension(f"inputs must have 3 dimensions and any of batches, they have {x.dims}")
    require_fitting(x, prepared_weights.tensor, groups)
    extents = x.shape[-2:]
    size = prepared_weights.tensor.shape[2:]
    # The pairs of OpenVX are (x, y). They are reversed where they meet `extents` and `size`, which
    # are (rows, columns).
    padding = checks.pair("padding", padding)
    dilation = checks.pair("dilation", dilation)
    leading = (*x.shape[:-3], prepared_weights.tensor.shape[0])
    infer = partial(shapes.infer_skip, rounding=rounding)
    skip = checks.stride(
        "skip",
        skip,
        output_shape,
        leading,
        infer,
        extents,
        size,
        padding[::-1],
        dilation[::-1],
    )
    shape = shapes.convolution_output_shape(
        x.shape, prepared_weights.tensor.shape, padding, dilation, skip, rounding
    )
    checks.bounded_padding(x, padding, shape)
    # The C routines begin `dilation` items later (OpenVX-cts, issue 5).
    delay_x, delay_y = dilation if semantics == "khronos" else (0, 0)
    padding_before = (padding[0] - delay_x, padding[1] - delay_y)
    slide = _convolution_slide(extents, size, shape[-2:], padding_before, dilation, skip, groups)
    return multiply_accumulate(
        x, prepared_weights, biases, slide, shape, arithmetic, report_overflow
    )


def _convolution_slide(
    extents: Sequence[int],
    size: Sequence[int],
    output: Sequence[int],
    padding_before: shapes.Pair,
    dilation: shapes.Pair,
    skip: shapes.Pair,
    groups: int,
) -> correlation.Slide:
    """Return the positions of the windows of a convolution.

    `extents`, `size` and `output` are the extents of the input, the windows and the output, for the
    rows and the columns. The pairs are (x, y). `padding_before` is the padding before each axis.
    """
    spans: list[int] = []  # the number of items from the first to the last cell of a window
    for window_extent, zeros_between in zip(size, dilation[::-1], strict=True):
        spans.append(window_extent + (window_extent - 1) * zeros_between)
    # `pads` has a pair (before, after) for the rows, then a pair for the columns.
    pads = tuple(map(ends, extents, padding_before[::-1], spans, output, skip[::-1]))
    # The extension's dilation is the number of zeros between two weights. The dilation of `Slide`
    # is the distance between two weights, which is larger by 1.
    dilation_x, dilation_y = dilation
    return correlation.Slide(
        stride=skip[::-1],
        padding=pads,
        spread=(1, 1),
        dilation=(dilation_y + 1, dilation_x + 1),
        groups=groups,
    )


@checks.layer
def deconvolution_layer(
    inputs: Tensor,
    weights: Tensor | StaticWeights,
    biases: Tensor | None = None,
    *,
    padding: tuple[int, int] = (0, 0),
    a: tuple[int, int] = (0, 0),
    overflow_policy: str = "saturate",
    rounding_policy: str = "to_zero",
    output_shape: tuple[int, ...] | None = None,
    upscale: tuple[int, int] | None = None,
    groups: int = 1,
    semantics: str = "spec",
    strict: bool = True,
    output_position: int | None = None,
    report_overflow: bool = False,
) -> Tensor | tuple[Tensor, Array]:
    """Spread the inputs apart, and correlate them with weights (vxDeconvolutionLayer).

    The inputs are spread to a distance of `upscale`. Along an axis the output has (extent - 1) *
    upscale - 2 * padding + size + a items. NNEF flips the filter of a deconvolution, but OpenVX
    does not flip the weights. The first axis of the weights counts the output channels.

    Args:
        inputs: ([batch,] input channels, height, width).
        weights: (output channels, input channels / groups, window height, window width).
        padding: the number of items (x, y) that are cut off at each end of an axis.
        a: the number of items (x, y) that are added at the end. It must be below `upscale`.
        upscale: the distance (x, y) between neighbouring inputs once they are spread. By default it
            follows from `output_shape`; without an `output_shape` it is 1.

    The other parameters, and the errors, are those of `convolution_layer`.
    """
    arithmetic = Arithmetic(overflow_policy, rounding_policy, semantics, strict, output_position)
    x = checks.tensor("inputs", inputs, 3, 4)
    prepared_weights = prepared(weights, 4)
    require_fitting(x, prepared_weights.tensor, groups)
    extents = x.shape[-2:]
    size = prepared_weights.tensor.shape[2:]
    # The pairs of OpenVX are (x, y). They are reversed where they meet `extents` and `size`, which
    # are (rows, columns).
    padding = checks.pair("padding", padding)
    a = checks.pair("a", a)
    for axis, window_extent, pad in zip("xy", size[::-1], padding, strict=True):
        if pad >= window_extent:
            wrong_parameter(
                f"padding along {axis} is {pad}, "
                f"weights of size {window_extent} allow up to {window_extent - 1}"
            )
    leading = (*x.shape[:-3], prepared_weights.tensor.shape[0])
    upscale = checks.stride(
        "upscale",
        upscale,
        output_shape,
        leading,
        shapes.infer_upscale,
        extents,
        size,
        padding[::-1],
        a[::-1],
    )
    for axis, added, up in zip("xy", a, upscale, strict=True):
        if added >= up:
            wrong_parameter(f"a along {axis} is {added}, it must be below the upscale, {up}")
    shape = shapes.deconvolution_output_shape(
        x.shape, prepared_weights.tensor.shape, padding, a, upscale
    )
    checks.bounded("the output", shape)
    if semantics == "khronos":
        # The C routines read only the first items, since they compare indices of the spread input
        # with the extent of the input before it is spread (OpenVX-cts, issue 9).
        upscale_x, upscale_y = upscale
        rows = math.ceil(extents[0] / upscale_y)
        columns = math.ceil(extents[1] / upscale_x)
        x = Tensor(x.data[..., :rows, :columns], x.fixed_point_position)
    slide = _deconvolution_slide(x.shape[-2:], size, shape[-2:], padding, upscale, groups)
    return multiply_accumulate(
        x, prepared_weights, biases, slide, shape, arithmetic, report_overflow
    )


def _deconvolution_slide(
    extents: Sequence[int],
    size: Sequence[int],
    output: Sequence[int],
    padding: shapes.Pair,
    upscale: shapes.Pair,
    groups: int,
) -> correlation.Slide:
    """Return the positions of a deconvolution's windows.

    The windows slide over the input after `upscale` - 1 zeros are put between neighbouring items.
    `extents`, `size` and `output` are the extents of the input, the windows and the output, for the
    rows and the columns. The pairs are (x, y).
    """
    # Without padding, only the last cell of the first window lies on the input. Therefore (size of
    # the window - 1) zeros stand before the input. The padding removes some of these zeros: windows
    # of 3 cells and a padding of 1 leave one zero.
    before: list[int] = []
    for window_extent, pad in zip(size, padding[::-1], strict=True):
        before.append(window_extent - 1 - pad)
    # `pads` has the zeros (before, after) of the rows, then those of the columns.
    no_skip = (1, 1)
    pads = tuple(map(ends, extents, before, size, output, no_skip, upscale[::-1]))
    return correlation.Slide(
        stride=no_skip, padding=pads, spread=upscale[::-1], dilation=(1, 1), groups=groups
    )


@checks.layer
def fully_connected_layer(
    inputs: Tensor,
    weights: Tensor | StaticWeights,
    biases: Tensor | None = None,
    *,
    overflow_policy: str = "saturate",
    rounding_policy: str = "to_zero",
    output_shape: tuple[int, ...] | None = None,
    semantics: str = "spec",
    strict: bool = True,
    output_position: int | None = None,
    report_overflow: bool = False,
) -> Tensor | tuple[Tensor, Array]:
    """Multiply inputs by a matrix of weights, and add biases (vxFullyConnectedLayer).

    The result is `saturate(round(sum of inputs * weights + biases))`, of the shape ([batch...,]
    outputs). The inputs are ([batch...,] channels) or ([batch...,] channels, height, width). The
    weights are (outputs, products) or (outputs, channels, height, width).

    Weights (outputs, products) multiply the last axis of the inputs, or the last three axes. The
    number of items along these axes must be `products`. If both choices fit, `output_shape`
    decides. Without `output_shape`, the weights multiply the last axis. The other parameters, and
    the errors, are those of `convolution_layer`.
    """
    arithmetic = Arithmetic(overflow_policy, rounding_policy, semantics, strict, output_position)
    x = checks.tensor("inputs", inputs)
    if isinstance(weights, Tensor) and len(weights.shape) == 4:
        if x.shape[-3:] != weights.shape[1:]:
            wrong_dimension(f"weights with the dims {weights.dims} do not fit inputs with {x.dims}")
        flat = weights.data.reshape(weights.shape[0], -1)
        weights = Tensor(flat, weights.fixed_point_position)
    prepared_weights = prepared(weights, 2)
    count, depth = prepared_weights.tensor.shape
    # The last axis, or the last three axes, of the inputs may have as many items as a row of the
    # weights.
    axis_counts: list[int] = []
    for n in (1, 3):
        if n <= len(x.shape) and math.prod(x.shape[-n:]) == depth:
            axis_counts.append(n)
    if output_shape is not None:
        output_shape = checks.shape("output_shape", output_shape)
        axis_counts = [n for n in axis_counts if output_shape == (*x.shape[:-n], count)]
    if not axis_counts:
        message = (
            f"weights with the dims {prepared_weights.tensor.dims} do not fit inputs with {x.dims}"
        )
        if output_shape is not None:
            message += f" and an output_shape of {output_shape}"
        wrong_dimension(message)
    axis_count, *_ = axis_counts
    shape = (*x.shape[:-axis_count], count)
    flat = Tensor(x.data.reshape(math.prod(shape[:-1]), depth), x.fixed_point_position)
    return multiply_accumulate(
        flat, prepared_weights, biases, correlation.Slide(), shape, arithmetic, report_overflow
    )
