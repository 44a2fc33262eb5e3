"""Meanings of layers with windows: pools and convolutions.

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
    """A filter of shape (groups * items, ...), a bias, and the extents of the window.

    `kernel` has the extents of the window along the spatial axes.
    """

    items: Tensor
    bias: Tensor | float
    groups: int
    kernel: Sequence[int]


def _filter(i: int = 1) -> Reader:
    """Return a function that reads input `i` as the filter of a convolution without groups."""

    def read(site: LayerSite) -> _Filter:
        filter = site.tensor(i)
        return _Filter(filter, 0.0, 1, filter.type.shape[2:])

    return read


def _grouped(site: LayerSite) -> _Filter:
    """Reshape input 1, a filter of shape (groups, items, ...), to (groups * items, ...)."""
    filter = site.tensor(1)
    groups, items, *extents = filter.type.shape
    joined = site.reshaped(filter, (groups * items, *extents))
    return _Filter(joined, 0.0, groups, extents[1:])


def _old_filter(*, is_transposed: bool = False, may_be_input: bool = False) -> Reader:
    """Return a function that reads the filter and the bias of a layer of versions before 10.

    The layer stores the filter and the bias. If `may_be_input`, they may be inputs 1 and 2 instead.
    `is_transposed` tells whether the layer is a transposed convolution, whose filter has shape
    (channels, outputs / groups, ...).
    """

    def read(site: LayerSite) -> _Filter:
        channels = site.shape()[1]
        groups = site.int("group", 1)
        outputs = site.int("output")
        kernel = kernel_of(site)
        shape: tuple[int, ...]
        if is_transposed:
            shape = (channels, outputs // max(groups, 1), *kernel)
        else:
            shape = (outputs, channels // max(groups, 1), *kernel)
        items = site.blob("weights", shape)
        bias: Tensor | float = site.blob("biases", (1, outputs)) or 0.0
        if items is not None:
            return _Filter(items, bias, groups, kernel)
        if not may_be_input:
            raise InvalidOperation("it has no weights")
        bias = site.reshaped(site.tensor(2), (1, outputs)) if site.has(2) else 0.0
        filter = site.reshaped(site.tensor(1), shape)
        return _Filter(filter, bias, groups, kernel)

    return read


@legacy("Convolution", filter=_old_filter(may_be_input=True))
@opsets("Convolution", filter=_filter())
@opsets("GroupConvolution", filter=_grouped)
def _convolution(site: LayerSite, x: Value, *, filter: _Filter) -> Value:
    window = window_of(site, x.type.shape[2:], filter.kernel)
    x = cropped(site, x, dict(enumerate(window["padding"], 2)))
    window["padding"] = [(max(p, 0), max(q, 0)) for p, q in window["padding"]]
    operands = x, filter.items, filter.bias
    return site.last.conv(*operands, groups=filter.groups, border="constant", **window)


def _input_extents(site: LayerSite) -> Sequence[int] | None:
    return site.integers(2) if site.has(2) else None


def _declared_extents(site: LayerSite) -> Sequence[int] | None:
    return site.declared[2:] if auto_pad(site) in SAME else None


_NEW: dict[str, Any] = {
    "extents": _input_extents,
    "mode": auto_pad,
    "mode_padding_end": "same_lower",
}


@legacy(
    "Deconvolution", filter=_old_filter(is_transposed=True), extents=_declared_extents,
    mode=auto_pad, mode_padding_end="same_upper",
)  # fmt: skip
@opsets("ConvolutionBackpropData", filter=_filter(), **_NEW)
@opsets("GroupConvolutionBackpropData", filter=_grouped, **_NEW)
def _transposed(
    site: LayerSite, x: Value, *, filter: _Filter, extents: Sequence[int] | None, mode: str,
    mode_padding_end: str,
) -> Value:  # fmt: skip
    """Add a transposed convolution.

    Along an axis, the result has (in - 1) * stride + span - padding + output_padding items, where
    `in` is the extent of the input and `span` is the extent of a dilated window. If `extents` is
    not None, it has the extents of the result, and the padding follows from them.
    `mode_padding_end` is the mode in which the padding at the end of an axis is larger than at its
    start, if they differ: `same_upper` before version 10, and `same_lower` since then.
    """
    rank = len(filter.kernel)
    strides = spatial(site, "strides", rank, [1] * rank)
    dilations = spatial(site, "dilations", rank, [1] * rank)
    more = spatial(site, "output_padding", rank, [0] * rank)
    begin = spatial(site, "pads_begin", rank, [0] * rank)
    if extents is not None:
        shape = site.known_shape(x)[2:]
        reach = windows.spans(filter.kernel, dilations)
        axes = zip(shape, strides, reach, more, extents, begin, strict=True)
        padding: Pairs = []
        for extent, stride, span, surplus, result_extent, first in axes:
            excess = (extent - 1) * stride + span + surplus - result_extent
            padding.append(_cut_off(mode, excess, first, mode_padding_end=mode_padding_end))
    elif mode == "valid":
        padding = [(0, 0)] * rank
    else:
        padding = pads_of(site, rank)
    zeros: list[tuple[int, int]] = []  # for items at the end of an axis that no window reaches
    cut_off: list[tuple[int, int]] = []  # the numbers of items to cut off at both ends of each axis
    for (before, after), surplus in zip(padding, more, strict=True):
        zeros.append((0, max(surplus - after, 0)))
        cut_off.append((before, max(after - surplus, 0)))
    has_zeros = any(map(any, zeros))
    result = site.step_or_last(not has_zeros).deconv(
        x, filter.items, filter.bias, output_shape=(), groups=filter.groups, padding=cut_off,
        stride=strides, dilation=dilations, border="constant",
    )  # fmt: skip
    if not has_zeros:
        return result
    return site.last.pad(result, padding=[(0, 0), (0, 0), *zeros], border="constant", value=0.0)


def _cut_off(mode: str, excess: int, begin: int, *, mode_padding_end: str) -> tuple[int, int]:
    """Return the numbers of items to cut off at the start and at the end of an axis.

    `excess` is the sum of the two numbers, and `begin` is the number at the start unless `mode`
    determines it. A negative number says how many zeros are added instead.
    """
    if mode in SAME:
        begin, _ = halves(max(excess, 0), more_behind=mode == mode_padding_end)
    elif mode == "valid":
        begin = 0
    return begin, excess - begin


def _old_bits(site: LayerSite) -> Constant:
    inputs = site.shape()[1] // site.int("group", 1)
    return site.required_weights("weights", (site.int("output"), inputs, *kernel_of(site)), "bin")


def _bits(site: LayerSite) -> Constant:
    source_id, _ = site.net.sources[site.layer.id, site.layer.inputs[1].id]
    layer = site.net.by_id[source_id]
    if layer.kind not in CONSTANTS:
        raise InvalidOperation("its filter must be stored")
    return stored(replace(site, layer=layer, operands=()), "bin")


_SIGNS: dict[str, Any] = {"mode": text("mode", "xnor-popcount"), "pad": number("pad_value", 0)}


@legacy("BinaryConvolution", filter=_old_bits, **_SIGNS)
@opsets("BinaryConvolution", filter=_bits, **_SIGNS)
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
        x = site.padded(x, dict(enumerate(window["padding"], 2)), pad)
        window["padding"] = [(0, 0)] * len(kernel)
    return site.last.conv(x, signs, 0.0, groups=1, border="constant", **window)


def _mask(site: LayerSite) -> Value | bool:
    return site.tensor(3) if site.has(3) else False


_DEFORMABLE: dict[str, Any] = {
    "groups": integer("group", 1), "pads_bilinear": flag("bilinear_interpolation_pad"),
}  # fmt: skip


@legacy("DeformableConvolution", filter=_old_filter(), mask=False, **_DEFORMABLE)
@opsets("DeformableConvolution", filter=_filter(2), mask=_mask, **_DEFORMABLE)
def _deformable(
    site: LayerSite, *, filter: _Filter, mask: Value | bool, groups: int, pads_bilinear: bool
) -> Value:
    x, offsets = site.first_inputs(2)
    return site.last.deformable_conv(
        x, offsets, filter.items, mask, **window_of(site, x.type.shape[2:], filter.kernel),
        groups=groups, padded_bilinear=pads_bilinear,
        offset_groups=site.int("deformable_group", site.int("num_deformable_group", 1)),
    )  # fmt: skip


# Pools. Rounding up adds cells behind the input. Before version 10, means leave these cells out, as
# they do in the runtimes. Since version 10, means include these cells if they include padding and
# if there is padding.

_ROUNDING = either(word("rounding_type", "floor", "ceil", "ceil_torch"), "rounding-type")
_LEAVES_OUT = either(flag("exclude-pad"), "exclude_pad")


def _pool(
    site: LayerSite, x: Value, kind: str, *, rounding: str, dilated: bool = True, **attributes: Any
) -> Any:
    """Add a pool of the kind `kind`, such as "max_pool", with windows along the spatial axes.

    `rounding` says how the extents of the result are rounded. If not `dilated`, the attribute of
    dilations is not read.
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

    An index counts the items of the axes from the attribute `axis` on.
    """
    if not site.is_read(1):
        return [_pool(site, x, "max_pool", rounding=rounding), None]
    first = site.axis_of("axis", 0)
    return _pool(site, x, "max_pool_with_index", rounding=rounding, first_axis=first)


def _output_size(site: LayerSite) -> list[int]:
    shape = site.shape()
    return [n if n > 0 else shape[2 + i] for i, n in enumerate(site.integers(1))]


opsets("AdaptiveAvgPool")(operation("adaptive_avg_pool", output_size=_output_size))
opsets("AdaptiveMaxPool")(operation("adaptive_max_pool", output_size=_output_size))
