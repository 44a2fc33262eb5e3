"""Convolutions, transposed, binary and deformable ones, and pools of windows.

Operands stay [batch,channels,...].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lowering import windows
from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.along_axes import cropped
from nnef_jax.flattening.spatial_windows import halves, pooled
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.document import CONSTANTS
from nnef_jax.formats.openvino.layer_site import LayerSite, stored
from nnef_jax.formats.openvino.layers.registry import legacy, operator, opsets
from nnef_jax.formats.openvino.layers.rows import operation
from nnef_jax.formats.openvino.window_attributes import (
    auto_pad,
    kernel_of,
    pads_of,
    spatial,
    window_of,
)


def _filter(
    site: LayerSite, i: int = 1, *, transposed: bool = False
) -> tuple[Any, Any, int, Sequence[int]]:
    """Return the filter, the bias, how many groups there are, and the extents of the window.

    Old layers store it. An input [groups,items,...] becomes [groups*items,...].
    """
    if not site.net.is_legacy:
        filter = site.tensor(i)
        if not site.operator.startswith("group"):
            return filter, 0.0, 1, filter.type.shape[2:]
        groups, items, *rest = filter.type.shape
        return site.reshaped(filter, (groups * items, *rest)), 0.0, groups, rest[1:]
    channels, groups, outputs = site.shape()[1], site.int("group", 1), site.int("output")
    kernel = kernel_of(site)
    first, second = (channels, outputs) if transposed else (outputs, channels)
    shape = (first, second // max(groups, 1), *kernel)
    filter = site.blob("weights", shape)
    bias: Any = site.blob("biases", (1, outputs)) or 0.0
    if filter is not None:
        return filter, bias, groups, kernel
    if transposed or i != 1:
        raise InvalidOperation("it has no weights")
    bias = site.reshaped(site.tensor(2), (1, outputs)) if site.has(2) else 0.0
    return site.reshaped(site.tensor(1), shape), bias, groups, kernel


@operator("Convolution")
@opsets("GroupConvolution")
def _convolution(site: LayerSite, x: Value) -> Value:
    filter, bias, groups, kernel = _filter(site)
    window = window_of(site, x.type.shape[2:], kernel)
    x = cropped(site, x, dict(enumerate(window["padding"], 2)))
    window["padding"] = [(max(p, 0), max(q, 0)) for p, q in window["padding"]]
    return site.last.conv(x, filter, bias, groups=groups, border="constant", **window)


@legacy("Deconvolution")
@opsets("ConvolutionBackpropData", "GroupConvolutionBackpropData")
def _transposed(site: LayerSite) -> Value:
    """Add a transposed convolution: extents are (in - 1) * stride + span - padding + more.

    The extents of the result may be input 2 of operation sets.
    """
    x, is_legacy = site.tensor(0), site.net.is_legacy
    filter, bias, groups, kernel = _filter(site, transposed=True)
    rank, mode = len(kernel), auto_pad(site)
    strides, dilations, more, begin = (
        spatial(site, name, rank, [default] * rank)
        for name, default in (
            ("strides", 1), ("dilations", 1), ("output_padding", 0), ("pads_begin", 0),
        )
    )  # fmt: skip
    extents: Sequence[int] | None = None
    if not is_legacy and site.has(2):
        extents = site.integers(2)
    elif is_legacy and mode in ("same_upper", "same_lower"):
        extents = site.declared[2:]
    if extents is not None:
        shape, reach = site.known_shape(x)[2:], windows.spans(kernel, dilations)
        axes = zip(shape, strides, reach, more, extents, begin, strict=True)
        padding = [
            _cut_off(mode, (n - 1) * s + span + m - wanted, first, is_legacy=is_legacy)
            for n, s, span, m, wanted, first in axes
        ]
    else:
        padding = [(0, 0)] * rank if mode == "valid" else pads_of(site, rank)
    # What is more than the windows reach has zeros, behind all else.
    behind = [max(m - q, 0) for (_, q), m in zip(padding, more, strict=True)]
    given = [(p, max(q - m, 0)) for (p, q), m in zip(padding, more, strict=True)]
    found = site.step_or_last(not any(behind)).deconv(
        x, filter, bias, output_shape=(), groups=groups, padding=given, stride=strides,
        dilation=dilations, border="constant",
    )  # fmt: skip
    if not any(behind):
        return found
    around = [(0, 0), (0, 0), *((0, zeros) for zeros in behind)]
    return site.last.pad(found, padding=around, border="constant", value=0.0)


def _cut_off(mode: str, excess: int, begin: int, *, is_legacy: bool) -> tuple[int, int]:
    """Return the numbers of items to cut off at both ends, below 0 where zeros are added.

    In old files `same_upper` cuts more at the end, since version 10 at the beginning.
    """
    if mode in ("same_upper", "same_lower"):
        begin, _ = halves(max(excess, 0), more_behind=(mode == "same_upper") == is_legacy)
    elif mode == "valid":
        begin = 0
    return begin, excess - begin


@operator("BinaryConvolution")
def _binary(site: LayerSite) -> Value:
    """Convolve signs with signs; padding of value 0 adds nothing (-1 and 1 are signs of it).

    Unlike other layers it reads a filter's bits from the low one of a byte on.
    """
    x, filter = site.tensor(0), _bits(site)
    kernel = filter.array.shape[2:]
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


def _bits(site: LayerSite) -> Constant:
    if site.net.is_legacy:
        inputs = site.shape()[1] // site.int("group", 1)
        return site.needed("weights", (site.int("output"), inputs, *kernel_of(site)), "bin")
    layer = site.net.by_id[site.net.feeds[site.layer.id, site.layer.inputs[1].id][0]]
    if layer.kind not in CONSTANTS:
        raise InvalidOperation("its filter must be stored")
    return stored(replace(site, layer=layer, operands=()), "bin")


@operator("DeformableConvolution")
def _deformable(site: LayerSite) -> Value:
    filter, _, _, kernel = _filter(site, 2)
    mask = site.tensor(3) if site.has(3) and not site.net.is_legacy else False
    x, offsets = site.first(2)
    return site.last.deformable_conv(
        x, offsets, filter, mask, **window_of(site, x.type.shape[2:], kernel),
        groups=site.int("group", 1), padded_bilinear=site.flag("bilinear_interpolation_pad"),
        offset_groups=site.int("deformable_group", site.int("num_deformable_group", 1)),
    )  # fmt: skip


# Pools


def _pool(site: LayerSite, kind: str, *, dilated: bool, **attributes: Any) -> Any:
    """Add a pool over all axes.

    What rounding up adds is part of no mean before version 10, and since then where nothing is
    padded, as the runtimes of both have it.
    """
    kernel, rounding = kernel_of(site), site.attribute("rounding_type", "rounding-type")
    return pooled(
        site, site.tensor(0), getattr(site.last, kind), kernel,
        window_of(site, site.shape()[2:], kernel, dilated=dilated),
        site.choice(rounding, "floor", "ceil", "ceil_torch", default="floor"),
        includes=kind == "avg_pool" and not site.flag(site.attribute("exclude-pad", "exclude_pad")),
        counts_more=not site.net.is_legacy, **attributes,
    )  # fmt: skip


opsets("AvgPool")(lambda site: _pool(site, "avg_pool", dilated=True))


@legacy("Pooling")
def _pooling(site: LayerSite) -> Value:
    method = site.text(site.attribute("pool-method", "pool_method"), "max")
    if method not in ("max", "avg"):
        raise InvalidOperation(f"there is no pool-method '{method}'")
    return _pool(site, f"{method}_pool", dilated=False)


@opsets("MaxPool")
def _max_pool(site: LayerSite) -> Any:
    """Return maxima, and from operation set 8 on their places from `axis` on, where read."""
    if not site.is_read(1):
        return [_pool(site, "max_pool", dilated=True), None]
    first = site.axis_of("axis", 0)
    return _pool(site, "max_pool_with_index", dilated=True, first_axis=first)


def _output_size(site: LayerSite) -> list[int]:
    shape = site.shape()
    return [n if n > 0 else shape[2 + i] for i, n in enumerate(site.integers(1))]


for _how in ("avg", "max"):
    _adaptive = operation(f"adaptive_{_how}_pool", output_size=_output_size)
    opsets(f"Adaptive{_how.capitalize()}Pool")(_adaptive)
