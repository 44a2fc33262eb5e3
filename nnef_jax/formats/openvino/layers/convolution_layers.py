"""Convolutions, transposed, binary and deformable ones; operands stay [batch,channels,...]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN
from lowering.graph import Value
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.document import CONSTANTS
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers import legacy, opsets
from nnef_jax.formats.openvino.window_attributes import (
    auto_pad,
    kernel_of,
    pads_of,
    spans_of,
    spatial,
    window_of,
)


def _convolved(
    site: LayerSite, x: Value, filter: Any, bias: Any, groups: int, kernel: Sequence[int]
) -> Value:
    window = window_of(site, x.type.shape[2:], kernel)
    if any(min(pair) < 0 for pair in window["padding"]):
        x, window["padding"] = _cropped(site, x, window["padding"])
    return site.last.conv(x, filter, bias, groups=groups, border="constant", **window)


def _cropped(
    site: LayerSite, x: Value, padding: Sequence[tuple[int, int]]
) -> tuple[Value, list[tuple[int, int]]]:
    """Cut off what negative padding takes away."""
    axes = [i + 2 for i, pair in enumerate(padding) if min(pair) < 0]
    begin = [max(-padding[a - 2][0], 0) for a in axes]
    ends = [x.type.shape[a] - max(-padding[a - 2][1], 0) for a in axes]
    x = site.step.slice(x, axes=axes, begin=begin, end=ends, stride=[1] * len(axes))
    return x, [(max(p, 0), max(q, 0)) for p, q in padding]


def _merged(site: LayerSite, filter: Value) -> tuple[Value, int, Sequence[int]]:
    """Return a filter [groups,items,...] as [groups*items,...], the groups, and its window."""
    groups, items, *rest = filter.type.shape
    return site.reshaped(filter, (groups * items, *rest)), groups, rest[1:]


@opsets("Convolution")
def _convolution(site: LayerSite) -> Value:
    filter = site.tensor(1)
    return _convolved(site, site.tensor(0), filter, 0.0, 1, filter.type.shape[2:])


@opsets("GroupConvolution")
def _group_convolution(site: LayerSite) -> Value:
    filter, groups, kernel = _merged(site, site.tensor(1))
    return _convolved(site, site.tensor(0), filter, 0.0, groups, kernel)


@legacy("Convolution")
def _legacy_convolution(site: LayerSite) -> Value:
    x, groups, outputs = site.tensor(0), site.int("group", 1), site.int("output")
    kernel = kernel_of(site)
    filter: Any = site.blob("weights", (outputs, x.type.shape[1] // max(groups, 1), *kernel))
    bias: Any = site.blob("biases", (1, outputs)) or 0.0
    if filter is None:
        filter = site.reshaped(site.tensor(1), (outputs, x.type.shape[1] // groups, *kernel))
        bias = site.reshaped(site.tensor(2), (1, outputs)) if site.has(2) else 0.0
    return _convolved(site, x, filter, bias, groups, kernel)


def _transposed(
    site: LayerSite, x: Value, filter: Value | Constant, bias: Any, groups: int,
    kernel: Sequence[int],
) -> Value:  # fmt: skip
    """Add a transposed convolution: extents are (in - 1) * stride + span - padding + more.

    The extents of the result may be input 2 of operation sets.
    """
    rank, mode, is_legacy = len(kernel), auto_pad(site), site.net.is_legacy
    strides = spatial(site, "strides", rank, [1] * rank)
    dilations = spatial(site, "dilations", rank, [1] * rank)
    more = spatial(site, "output_padding", rank, [0] * rank)
    whole = [
        UNKNOWN if n is UNKNOWN else (n - 1) * s + span + m
        for n, s, span, m in zip(
            x.type.shape[2:], strides, spans_of(kernel, dilations), more, strict=True
        )
    ]
    extents: Sequence[int] | None = None
    if not is_legacy and site.has(2):
        extents = site.integers(2)
    elif is_legacy and mode in ("same_upper", "same_lower"):
        extents = site.declared[2:]
    begin = spatial(site, "pads_begin", rank, [0] * rank)
    if extents is not None:
        site.known_shape(x)
        padding = [
            _cut_off(mode, t - n, first, is_legacy=is_legacy)
            for t, n, first in zip(whole, extents, begin, strict=True)
        ]
    else:
        padding = [(0, 0)] * rank if mode == "valid" else pads_of(site, rank)
    outputs = [
        UNKNOWN if total is UNKNOWN else total - p - q
        for total, (p, q) in zip(whole, padding, strict=True)
    ]
    # What is more than the windows reach has zeros, behind all else.
    behind = [max(m - q, 0) for (_, q), m in zip(padding, more, strict=True)]
    given = [(p, max(q - m, 0)) for (p, q), m in zip(padding, more, strict=True)]
    shape_of: tuple[int, ...] = ()
    if any(more) and UNKNOWN not in outputs:
        channels = site.shape(filter)[1] * groups
        reached = (n - zeros for n, zeros in zip(outputs, behind, strict=True))
        shape_of = (x.type.shape[0], channels, *reached)
    found = site.step_or_last(not any(behind)).deconv(
        x, filter, bias, output_shape=shape_of, groups=groups, padding=given, stride=strides,
        dilation=dilations, border="constant",
    )  # fmt: skip
    if not any(behind):
        return found
    around = [(0, 0), (0, 0), *((0, zeros) for zeros in behind)]
    return site.last.pad(found, padding=around, border="constant", value=0.0)


def _cut_off(mode: str, excess: int, begin: int, *, is_legacy: bool) -> tuple[int, int]:
    """Return what of an extent is cut off at both ends, less than 0 where zeros are added.

    In old files `same_upper` cuts more at the end, since version 10 at the beginning.
    """
    rest = max(excess, 0)
    if mode in ("same_upper", "same_lower"):
        begin = rest // 2 if (mode == "same_upper") == is_legacy else rest - rest // 2
    elif mode == "valid":
        begin = 0
    return begin, excess - begin


@opsets("ConvolutionBackpropData")
def _convolution_backprop(site: LayerSite) -> Value:
    filter = site.tensor(1)
    return _transposed(site, site.tensor(0), filter, 0.0, 1, filter.type.shape[2:])


@opsets("GroupConvolutionBackpropData")
def _group_convolution_backprop(site: LayerSite) -> Value:
    filter, groups, kernel = _merged(site, site.tensor(1))
    return _transposed(site, site.tensor(0), filter, 0.0, groups, kernel)


@legacy("Deconvolution")
def _deconvolution(site: LayerSite) -> Value:
    x, groups, outputs = site.tensor(0), site.int("group", 1), site.int("output")
    kernel = kernel_of(site)
    filter = site.needed("weights", (x.type.shape[1], outputs // max(groups, 1), *kernel))
    bias: Any = site.blob("biases", (1, outputs)) or 0.0
    return _transposed(site, x, filter, bias, groups, kernel)


def _binary(site: LayerSite, x: Value, filter: Constant, kernel: Sequence[int]) -> Value:
    """Convolve signs with signs; padding of value 0 adds nothing (-1 and 1 are signs of it).

    Unlike other layers it reads a filter's bits from the low one of a byte on.
    """
    if site.text("mode", "xnor-popcount") != "xnor-popcount":
        raise InvalidOperation(f"there is no mode '{site.text('mode')}'")
    pad = site.number("pad_value", 0)
    signs = Constant(filter.array.astype(np.float32) * 2 - 1, "f32", filter.label)
    window = window_of(site, x.type.shape[2:], kernel)
    x = site.step.sub(site.step.mul(x, 2.0), 1.0)  # -1 for 0
    if pad:
        x = site.padded(x, dict(enumerate(window["padding"], 2)), pad)
        window["padding"] = [(0, 0)] * len(kernel)
    return site.last.conv(x, signs, 0.0, groups=1, border="constant", **window)


@opsets("BinaryConvolution")
def _binary_convolution(site: LayerSite) -> Value:
    from nnef_jax.formats.openvino.flatten import stored

    layer = site.net.by_id[site.net.feeds[site.layer.id, site.layer.inputs[1].id][0]]
    if layer.kind not in CONSTANTS:
        raise InvalidOperation("its filter must be stored")
    filter = stored(replace(site, layer=layer, operands=()), "bin")
    return _binary(site, site.tensor(0), filter, filter.array.shape[2:])


@legacy("BinaryConvolution")
def _legacy_binary_convolution(site: LayerSite) -> Value:
    x, kernel = site.tensor(0), kernel_of(site)
    shape = (site.int("output"), x.type.shape[1] // site.int("group", 1), *kernel)
    return _binary(site, x, site.needed("weights", shape, "bin"), kernel)


@opsets("DeformableConvolution")
def _deformable(site: LayerSite) -> Value:
    filter = site.tensor(2)
    mask = site.tensor(3) if site.has(3) else False
    return _deformed(site, filter, mask, filter.type.shape[2:], site.int("group", 1))


@legacy("DeformableConvolution")
def _legacy_deformable(site: LayerSite) -> Value:
    channels, groups = site.shape(0)[1], site.int("group", 1)
    kernel = spatial(site, "kernel", 2)
    filter = site.needed("weights", (site.int("output"), channels // groups, *kernel))
    return _deformed(site, filter, False, kernel, groups)


def _deformed(site: LayerSite, filter: Any, mask: Any, kernel: Sequence[int], groups: int) -> Value:
    x = site.tensor(0)
    return site.last.deformable_conv(
        x, site.tensor(1), filter, mask, **window_of(site, x.type.shape[2:], kernel),
        groups=groups, padded_bilinear=site.flag("bilinear_interpolation_pad"),
        offset_groups=site.int("deformable_group", site.int("num_deformable_group", 1)),
    )  # fmt: skip
