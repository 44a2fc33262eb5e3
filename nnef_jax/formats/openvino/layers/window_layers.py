"""Functions for layers with windows: pools and convolutions.

Convolutions may be transposed, binary or deformable. Operands have shape (batch, channels, ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lowering import windows
from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.along_axes import cropped
from nnef_jax.flattening.operators.attributes import flag, integer, number, text, word
from nnef_jax.flattening.operators.registry import operation
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.spatial_windows import Pairs, halves, pooled
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.document import CONSTANTS
from nnef_jax.formats.openvino.layer_site import LayerSite, stored
from nnef_jax.formats.openvino.layers.registry import Reader, either, legacy, opsets
from nnef_jax.formats.openvino.window_attributes import (
    SAME,
    auto_pad,
    kernel_of,
    pads_of,
    spatial,
    window_of,
)


class _Filter(NamedTuple):
    """A filter of a convolution, with the bias, the groups and the filter's extents.

    `items` has shape (groups * channels, ...). `kernel` has the extents of the window along the
    spatial axes.
    """

    items: Tensor
    bias: Tensor | float
    groups: int
    kernel: Sequence[int]


def _filter(i: int = 1) -> Reader:
    """Return a function that reads input `i` as the filter of a convolution without groups."""

    def read(site: LayerSite) -> _Filter:
        filter = site.tensor(i)
        kernel = filter.type.shape[2:]
        return _Filter(filter, bias=0.0, groups=1, kernel=kernel)

    return read


def _grouped(site: LayerSite) -> _Filter:
    """Return the filter of a grouped convolution (input 1) without the axis of groups.

    Input 1 has shape (groups, outputs, inputs, ...), where `outputs` is the number of output
    channels of a group. The returned filter has shape (groups * outputs, inputs, ...).
    """
    filter = site.tensor(1)
    groups, outputs, *inputs_and_kernel = filter.type.shape
    joined = site.reshaped(filter, (groups * outputs, *inputs_and_kernel))
    kernel = inputs_and_kernel[1:]
    return _Filter(joined, bias=0.0, groups=groups, kernel=kernel)


def _legacy_filter(*, is_transposed: bool = False, may_be_input: bool = False) -> Reader:
    """Return a function that reads the filter and the bias of a layer of versions before 10.

    The layer stores the filter and the bias. If `may_be_input`, the filter may be input 1 instead,
    and the bias input 2. `is_transposed` tells whether the layer is a transposed convolution. The
    filter then has shape (channels, outputs / groups, ...).
    """

    def read(site: LayerSite) -> _Filter:
        channels = site.shape()[1]
        groups = site.int("group", 1)
        divisor = max(groups, 1)  # the attribute may be 0
        outputs = site.int("output")
        kernel = kernel_of(site)
        shape: tuple[int, ...]
        if is_transposed:
            shape = (channels, outputs // divisor, *kernel)
        else:
            shape = (outputs, channels // divisor, *kernel)
        stored_filter = site.blob("weights", shape)
        stored_bias = site.blob("biases", (1, outputs)) or 0.0
        if stored_filter is not None:
            return _Filter(stored_filter, stored_bias, groups, kernel)
        if not may_be_input:
            raise InvalidOperation("it has no weights")
        bias = site.reshaped(site.tensor(2), (1, outputs)) if site.has(2) else 0.0
        filter = site.reshaped(site.tensor(1), shape)
        return _Filter(filter, bias, groups, kernel)

    return read


@legacy("Convolution", filter=_legacy_filter(may_be_input=True))
@opsets("Convolution", filter=_filter())
@opsets("GroupConvolution", filter=_grouped)
def _convolution(site: LayerSite, x: Value, *, filter: _Filter) -> Value:
    """Convolve `x` with `filter`, and add the filter's bias."""
    window = window_of(site, x.type.shape[2:], filter.kernel)
    padding: Pairs = window["padding"]
    padding_by_axis = dict(enumerate(padding, 2))  # the spatial axes begin with axis 2
    # Negative padding crops the input.
    x = cropped(site, x, padding_by_axis)
    window["padding"] = [(max(before, 0), max(after, 0)) for before, after in padding]
    operands = x, filter.items, filter.bias
    return site.last.conv(*operands, groups=filter.groups, border="constant", **window)


def _input_extents(site: LayerSite) -> Sequence[int] | None:
    """Return input 2, the spatial extents of the result. Return None if input 2 is left out."""
    return site.integers(2) if site.has(2) else None


def _declared_extents(site: LayerSite) -> Sequence[int] | None:
    """Return the declared spatial extents of the result if the padding follows from them.

    Otherwise return None.
    """
    return site.declared[2:] if auto_pad(site) in SAME else None


# The attributes of transposed convolutions in operation sets.
_OPSET_ATTRIBUTES: dict[str, Any] = {
    "extents": _input_extents,
    "mode": auto_pad,
    "mode_padding_end": "same_lower",
}


@legacy(
    "Deconvolution", filter=_legacy_filter(is_transposed=True), extents=_declared_extents,
    mode=auto_pad, mode_padding_end="same_upper",
)  # fmt: skip
@opsets("ConvolutionBackpropData", filter=_filter(), **_OPSET_ATTRIBUTES)
@opsets("GroupConvolutionBackpropData", filter=_grouped, **_OPSET_ATTRIBUTES)
def _transposed(
    site: LayerSite, x: Value, *, filter: _Filter, extents: Sequence[int] | None, mode: str,
    mode_padding_end: str,
) -> Value:  # fmt: skip
    """Add a transposed convolution.

    The padding cuts items off the result. If `extents` is not None, it has the spatial extents of
    the result, and the padding follows from these extents. `mode_padding_end` is the name of the
    mode in which odd padding is larger at the end of an axis than at its start: "same_upper" before
    version 10, and "same_lower" since then.
    """
    rank = len(filter.kernel)
    strides = spatial(site, "strides", rank, [1] * rank)
    dilations = spatial(site, "dilations", rank, [1] * rank)
    output_padding = spatial(site, "output_padding", rank, [0] * rank)
    begin = spatial(site, "pads_begin", rank, [0] * rank)
    if extents is not None:
        shape = site.known_shape(x)[2:]
        spans = windows.spans(filter.kernel, dilations)
        full_extents = _extents_without_padding(shape, strides, spans, output_padding)
        padding: Pairs = []
        for full_extent, extent, cut_at_start in zip(full_extents, extents, begin, strict=True):
            excess = full_extent - extent
            padding.append(_cut_off(mode, excess, cut_at_start, mode_padding_end=mode_padding_end))
    elif mode == "valid":
        padding = [(0, 0)] * rank
    else:
        padding = pads_of(site, rank)
    # The padding cuts items off, and the output padding adds items.
    cut_off, zeros = _with_output_padding(padding, output_padding)
    has_zeros = any(count > 0 for _, count in zeros)
    result = site.step_or_last(not has_zeros).deconv(
        x, filter.items, filter.bias, output_shape=(), groups=filter.groups, padding=cut_off,
        stride=strides, dilation=dilations, border="constant",
    )  # fmt: skip
    if not has_zeros:
        return result
    return site.last.pad(result, padding=[(0, 0), (0, 0), *zeros], border="constant", value=0.0)


def _extents_without_padding(
    shape: Sequence[int],
    strides: Sequence[int],
    spans: Sequence[int],
    output_padding: Sequence[int],
) -> list[int]:
    """Return (in - 1) * stride + span + output_padding for each spatial axis.

    These are the extents of the result of a transposed convolution without padding. `shape` has the
    extents `in` of the input, and `spans` has the extents of a dilated window.
    """
    extents: list[int] = []
    for extent, stride, span, added in zip(shape, strides, spans, output_padding, strict=True):
        extents.append((extent - 1) * stride + span + added)
    return extents


def _with_output_padding(padding: Pairs, output_padding: Sequence[int]) -> tuple[Pairs, Pairs]:
    """Return how many items to cut off, and how many zeros to add, at the ends of each axis.

    Both lists have a pair (start, end) for each axis. The output padding adds items at the end of
    an axis. If the padding cuts items off there, fewer items are cut off. The remaining added items
    are zeros, because no window reaches them. For example, if the padding cuts off 1 item and the
    output padding adds 3 items, no item is cut off and 2 zeros are added.
    """
    cut_off: list[tuple[int, int]] = []
    zeros: list[tuple[int, int]] = []
    for (before, after), added in zip(padding, output_padding, strict=True):
        cut_off.append((before, max(after - added, 0)))
        zeros.append((0, max(added - after, 0)))
    return cut_off, zeros


def _cut_off(mode: str, excess: int, begin: int, *, mode_padding_end: str) -> tuple[int, int]:
    """Return the numbers of items to cut off at the start and at the end of an axis.

    `excess` is the sum of the two numbers. Without an automatic `mode`, `begin` is the number at
    the start. A negative number, such as -2, means that 2 zeros are added. If `mode` equals
    `mode_padding_end`, an odd `excess` cuts off one more item at the end than at the start.
    """
    if mode in SAME:
        begin, _ = halves(max(excess, 0), more_behind=mode == mode_padding_end)
    elif mode == "valid":
        begin = 0
    return begin, excess - begin


def _legacy_bits(site: LayerSite) -> Constant:
    """Return the filter that the layer stores. An item of the filter is one bit."""
    inputs = site.shape()[1] // site.int("group", 1)
    shape = (site.int("output"), inputs, *kernel_of(site))
    return site.required_weights("weights", shape, "bin")


def _bits(site: LayerSite) -> Constant:
    """Return input 1, a stored filter. An item of the filter is one bit."""
    filter_port = (site.layer.id, site.layer.inputs[1].id)
    source_id, _ = site.net.sources[filter_port]
    layer = site.net.by_id[source_id]
    if layer.kind not in CONSTANTS:
        raise InvalidOperation("its filter must be stored")
    # The filter is read as bits, even if the layer that stores it declares a larger type.
    site_of_filter = replace(site, layer=layer, operands=())
    return stored(site_of_filter, "bin")


_SIGN_ATTRIBUTES: dict[str, Any] = {
    "mode": text("mode", "xnor-popcount"),
    "pad": number("pad_value", 0),
}


@legacy("BinaryConvolution", filter=_legacy_bits, **_SIGN_ATTRIBUTES)
@opsets("BinaryConvolution", filter=_bits, **_SIGN_ATTRIBUTES)
def _binary(site: LayerSite, x: Value, *, filter: Constant, mode: str, pad: float) -> Value:
    """Convolve signs (-1 and 1) with a filter of signs.

    Padding with a `pad` of 0 adds nothing to the sums. The bits of a filter begin with the low bit
    of a byte, unlike the bits of other layers.
    """
    if mode != "xnor-popcount":
        raise InvalidOperation(f"there is no mode '{mode}'")
    kernel = filter.array.shape[2:]
    signs = Constant(filter.array.astype(np.float32) * 2 - 1, "f32", filter.label)
    window = window_of(site, x.type.shape[2:], kernel)
    x = site.step.sub(site.step.mul(x, 2.0), 1.0)  # 0 becomes -1
    if pad:
        spatial_padding = dict(enumerate(window["padding"], 2))  # axis 2 is the first spatial axis
        x = site.padded(x, spatial_padding, value=pad)
        window["padding"] = [(0, 0)] * len(kernel)
    no_bias = 0.0
    return site.last.conv(x, signs, no_bias, groups=1, border="constant", **window)


def _mask(site: LayerSite) -> Value | bool:
    """Return the mask of a deformable convolution (input 3), or False if input 3 is left out."""
    return site.tensor(3) if site.has(3) else False


_DEFORMABLE_ATTRIBUTES: dict[str, Any] = {
    "groups": integer("group", 1), "pads_bilinear": flag("bilinear_interpolation_pad"),
}  # fmt: skip


@legacy("DeformableConvolution", filter=_legacy_filter(), mask=False, **_DEFORMABLE_ATTRIBUTES)
@opsets("DeformableConvolution", filter=_filter(2), mask=_mask, **_DEFORMABLE_ATTRIBUTES)
def _deformable(
    site: LayerSite, *, filter: _Filter, mask: Value | bool, groups: int, pads_bilinear: bool
) -> Value:
    x, offsets = site.first_inputs(2)
    window = window_of(site, x.type.shape[2:], filter.kernel)
    offset_groups = site.int("deformable_group", site.int("num_deformable_group", 1))
    return site.last.deformable_conv(
        x, offsets, filter.items, mask, **window, groups=groups, padded_bilinear=pads_bilinear,
        offset_groups=offset_groups,
    )  # fmt: skip


# Pools. If extents are rounded up, the last windows reach cells behind the padded input. Before
# version 10, an average leaves out these cells, as in the runtimes. Since version 10, an average
# includes these cells if the input is padded and the average includes the padding.

_ROUNDING = either(word("rounding_type", "floor", "ceil", "ceil_torch"), "rounding-type")
_LEAVES_OUT = either(flag("exclude-pad"), "exclude_pad")


def _pool(
    site: LayerSite, x: Value, kind: str, *, rounding: str, dilated: bool = True, **attributes: Any
) -> Any:
    """Add the pool operation `kind`, such as "max_pool", with windows along the spatial axes.

    `rounding` is the way to round the extents of the result. If `dilated` is false, the windows
    have no dilation, and the attribute `dilations` is not read. `attributes` are passed to
    `pooled`.
    """
    kernel = kernel_of(site)
    window = window_of(site, x.type.shape[2:], kernel, dilated=dilated)
    return pooled(site, x, getattr(site.last, kind), kernel, window, rounding, **attributes)


@opsets("AvgPool")
def _avg_pool(
    site: LayerSite, x: Value, *, rounding: str = _ROUNDING, leaves_out: bool = _LEAVES_OUT
) -> Value:
    return _pool(
        site, x, "avg_pool", rounding=rounding, includes_padding=not leaves_out,
        includes_round_up=True,
    )  # fmt: skip


@legacy("Pooling")
def _pooling(
    site: LayerSite,
    x: Value,
    *,
    method: str = either(text("pool-method", "max"), "pool_method"),
    rounding: str = _ROUNDING,
) -> Value:
    if method not in ("max", "avg"):
        raise InvalidOperation(f"there is no pool-method '{method}'")
    if method == "max":
        return _pool(site, x, "max_pool", rounding=rounding, dilated=False)
    includes_padding = not _LEAVES_OUT(site)
    return _pool(
        site, x, "avg_pool", rounding=rounding, dilated=False, includes_padding=includes_padding
    )


@opsets("MaxPool")
def _max_pool(site: LayerSite, x: Value, *, rounding: str = _ROUNDING) -> Any:
    """Return the maxima of windows, and the index of each maximum if a layer reads the indices.

    An index counts the items of `x` as if the last axes of `x` were flattened, beginning with the
    axis in the attribute `axis`.
    """
    reads_indices = site.is_read(1)
    if not reads_indices:
        no_indices = None
        return [_pool(site, x, "max_pool", rounding=rounding), no_indices]
    first_axis = site.axis_of("axis", 0)
    return _pool(site, x, "max_pool_with_index", rounding=rounding, first_axis=first_axis)


def _output_size(site: LayerSite) -> list[int]:
    """Return input 1, the spatial extents of the result.

    An extent of 0 or less is replaced by the extent of input 0 along the same axis.
    """
    shape = site.shape()
    extents: list[int] = []
    for axis, size in enumerate(site.integers(1), 2):
        extents.append(size if size > 0 else shape[axis])
    return extents


opsets("AdaptiveAvgPool")(operation("adaptive_avg_pool", output_size=_output_size))
opsets("AdaptiveMaxPool")(operation("adaptive_max_pool", output_size=_output_size))
