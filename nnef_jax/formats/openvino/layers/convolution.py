"""Convolutions, their transposes, binary and deformable ones; operands stay [batch,channels,...].

Lists of attributes are in the order of the spatial axes. Version 2 has one attribute an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN
from lowering.graph import Value
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.document import CONSTANTS
from nnef_jax.formats.openvino.layers import legacy, opsets
from nnef_jax.formats.openvino.site import Site

_LETTERS = "xyz"


def spatial(site: Site, name: str, rank: int, default: Sequence[int] | None = None) -> list[int]:
    """Return an attribute with an item for each spatial axis; version 2 writes `kernel-y`."""
    old = {"strides": "stride", "dilations": "dilation", "pads_begin": "pad"}.get(name, name)
    keys = [f"{old}-{letter}" for letter in _LETTERS[:rank]]
    if name == "pads_end":
        keys = ["pad-r", "pad-b"][:rank] if rank <= 2 else []
    if name not in site.layer.attributes and any(key in site.layer.attributes for key in keys):
        wanted = default if default is not None else [1] * rank
        found = [site.int(key, wanted[rank - 1 - i]) for i, key in enumerate(keys)]
        return found[::-1]
    found = site.ints(name, default)
    if len(found) == 1 and rank > 1:
        found *= rank
    if len(found) != rank:
        raise InvalidOperation(f"'{name}' must have {rank} items, it has {len(found)}")
    return found


def auto_pad(site: Site) -> str:
    """Return how padding is decided: explicit, valid, same_upper or same_lower."""
    known = ("explicit", "valid", "same_upper", "same_lower")
    found = site.choice("auto_pad", *known, "none", "notset", "", default="explicit")
    return found if found in known else "explicit"


def padding_of(
    site: Site, shape: Sequence[int], spans: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """Return what is put before and after each spatial axis, by `auto_pad` or as given.

    `spans` are the extents of a window with its gaps. Without `pads_end` old files mean
    `pads_begin`.
    """
    rank, mode = len(spans), auto_pad(site)
    if mode in ("same_upper", "same_lower"):
        pads: list[tuple[int, int]] = []
        for extent, span, stride in zip(shape, spans, strides, strict=True):
            if extent is UNKNOWN and stride != 1:
                site.known_shape(0)
            total = (
                span - 1
                if extent is UNKNOWN
                else max((-(-extent // stride) - 1) * stride + span - extent, 0)
            )
            less, more = total // 2, total - total // 2
            pads.append((less, more) if mode == "same_upper" else (more, less))
        return pads
    if mode == "valid":
        return [(0, 0)] * rank
    begin = spatial(site, "pads_begin", rank, [0] * rank)
    end = spatial(site, "pads_end", rank, begin if site.net.is_legacy else [0] * rank)
    return list(zip(begin, end, strict=True))


def _windows(site: Site, shape: Sequence[int], kernel: Sequence[int]) -> dict[str, Any]:
    rank = len(kernel)
    strides = spatial(site, "strides", rank, [1] * rank)
    dilations = spatial(site, "dilations", rank, [1] * rank)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    padding = padding_of(site, shape, spans, strides)
    return {"stride": strides, "dilation": dilations, "padding": padding, "border": "constant"}


def _convolved(
    site: Site, x: Value, filter: Any, bias: Any, groups: int, kernel: Sequence[int]
) -> Value:
    window = _windows(site, x.type.shape[2:], kernel)
    if any(min(pair) < 0 for pair in window["padding"]):
        x, window["padding"] = _cropped(site, x, window["padding"])
    operands = {"input": x, "filter": filter, "bias": bias}
    return site.emit("conv", operands, groups=groups, **window)


def _cropped(
    site: Site, x: Value, padding: Sequence[tuple[int, int]]
) -> tuple[Value, list[tuple[int, int]]]:
    """Cut off what negative padding takes away."""
    axes = [i + 2 for i, pair in enumerate(padding) if min(pair) < 0]
    begin = [max(-padding[a - 2][0], 0) for a in axes]
    ends = [x.type.shape[a] - max(-padding[a - 2][1], 0) for a in axes]
    x = site.insert("slice", {"input": x}, axes=axes, begin=begin, end=ends, stride=[1] * len(axes))
    return x, [(max(p, 0), max(q, 0)) for p, q in padding]


@opsets("Convolution")
def _convolution(site: Site) -> Value:
    filter = site.tensor(1)
    return _convolved(site, site.tensor(0), filter, 0.0, 1, filter.type.shape[2:])


@opsets("GroupConvolution")
def _group_convolution(site: Site) -> Value:
    filter = site.tensor(1)
    groups, outputs, *rest = filter.type.shape
    merged = site.reshaped(filter, (groups * outputs, *rest))
    return _convolved(site, site.tensor(0), merged, 0.0, groups, rest[1:])


def _kernel(site: Site, rank: int) -> list[int]:
    return spatial(site, "kernel", rank)


@legacy("Convolution")
def _legacy_convolution(site: Site) -> Value:
    x = site.tensor(0)
    rank, groups, outputs = len(x.type.shape) - 2, site.int("group", 1), site.int("output")
    kernel = _kernel(site, rank)
    filter: Any = site.blob("weights", (outputs, x.type.shape[1] // max(groups, 1), *kernel))
    bias: Any = site.blob("biases", (1, outputs)) or 0.0
    if filter is None:
        filter = site.reshaped(site.tensor(1), (outputs, x.type.shape[1] // groups, *kernel))
        bias = site.reshaped(site.tensor(2), (1, outputs)) if site.has(2) else 0.0
    return _convolved(site, x, filter, bias, groups, kernel)


def _transposed(
    site: Site, x: Value, filter: Any, bias: Any, groups: int, kernel: Sequence[int],
    extents: Sequence[int] | None = None,
) -> Value:  # fmt: skip
    """Add a transposed convolution: extents are (in - 1) * stride + span - padding + more."""
    rank = len(kernel)
    strides = spatial(site, "strides", rank, [1] * rank)
    dilations = spatial(site, "dilations", rank, [1] * rank)
    more = spatial(site, "output_padding", rank, [0] * rank)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    shape = x.type.shape[2:]
    mode, is_legacy = auto_pad(site), site.net.is_legacy
    whole = [
        UNKNOWN if n is UNKNOWN else (n - 1) * s + span + m
        for n, s, span, m in zip(shape, strides, spans, more, strict=True)
    ]
    if mode in ("same_upper", "same_lower") and extents is None and is_legacy:
        extents = (site.layer.outputs[0].shape or ())[2:]
    begin = spatial(site, "pads_begin", rank, [0] * rank)
    if extents is not None:
        site.known_shape(x)
        padding = [
            _cut_off(mode, t - n, first, is_legacy=is_legacy)
            for t, n, first in zip(whole, extents, begin, strict=True)
        ]
    elif mode == "valid":
        padding = [(0, 0)] * rank
    else:
        end = spatial(site, "pads_end", rank, begin if is_legacy else [0] * rank)
        padding = list(zip(begin, end, strict=True))
    outputs = [
        UNKNOWN if total is UNKNOWN else total - p - q
        for total, (p, q) in zip(whole, padding, strict=True)
    ]
    channels = (filter.type.shape if isinstance(filter, Value) else filter.array.shape)[1] * groups
    window = {"stride": strides, "dilation": dilations, "border": "constant"}
    operands = {"input": x, "filter": filter, "bias": bias}
    # What is more than the windows reach has zeros, behind all else.
    behind = [max(m - q, 0) for (_, q), m in zip(padding, more, strict=True)]
    given = [(p, max(q - m, 0)) for (p, q), m in zip(padding, more, strict=True)]
    shape_of: tuple[int, ...] = ()
    if any(more) and UNKNOWN not in outputs:
        reached = (n - zeros for n, zeros in zip(outputs, behind, strict=True))
        shape_of = (x.type.shape[0], channels, *reached)
    add = site.insert if any(behind) else site.emit
    found = add("deconv", operands, output_shape=shape_of, groups=groups, padding=given, **window)
    if not any(behind):
        return found
    around = [(0, 0), (0, 0), *((0, zeros) for zeros in behind)]
    return site.emit("pad", {"input": found}, padding=around, border="constant", value=0.0)


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
def _convolution_backprop(site: Site) -> Value:
    filter = site.tensor(1)
    extents = site.integers(2) if site.has(2) else None
    return _transposed(site, site.tensor(0), filter, 0.0, 1, filter.type.shape[2:], extents)


@opsets("GroupConvolutionBackpropData")
def _group_convolution_backprop(site: Site) -> Value:
    filter = site.tensor(1)
    groups, inputs, *rest = filter.type.shape
    merged = site.reshaped(filter, (groups * inputs, *rest))
    extents = site.integers(2) if site.has(2) else None
    return _transposed(site, site.tensor(0), merged, 0.0, groups, rest[1:], extents)


@legacy("Deconvolution")
def _deconvolution(site: Site) -> Value:
    x = site.tensor(0)
    rank, groups, outputs = len(x.type.shape) - 2, site.int("group", 1), site.int("output")
    kernel = _kernel(site, rank)
    filter = site.blob("weights", (x.type.shape[1], outputs // max(groups, 1), *kernel))
    if filter is None:
        raise InvalidOperation("it has no weights")
    bias: Any = site.blob("biases", (1, outputs)) or 0.0
    return _transposed(site, x, filter, bias, groups, kernel)


def _signs(site: Site, x: Value) -> Value:
    """Return -1 for 0 and 1 for 1."""
    return site.insert("sub", {"x": site.insert("mul", {"x": x, "y": 2.0}), "y": 1.0})


def _binary(site: Site, x: Value, filter: Constant, kernel: Sequence[int]) -> Value:
    """Convolve signs with signs; padding of value 0 adds nothing (-1 and 1 are signs of it).

    Unlike other layers it reads a filter's bits from the low one of a byte on.
    """
    if site.text("mode", "xnor-popcount") != "xnor-popcount":
        raise InvalidOperation(f"there is no mode '{site.text('mode')}'")
    pad = site.number("pad_value", 0)
    signs = Constant(filter.array.astype(np.float32) * 2 - 1, "f32", filter.label)
    window = _windows(site, x.type.shape[2:], kernel)
    x = _signs(site, x)
    if pad:
        around = [(0, 0), (0, 0), *window["padding"]]
        x = site.insert("pad", {"input": x}, padding=around, border="constant", value=float(pad))
        window["padding"] = [(0, 0)] * len(kernel)
    return site.emit("conv", {"input": x, "filter": signs, "bias": 0.0}, groups=1, **window)


@opsets("BinaryConvolution")
def _binary_convolution(site: Site) -> Value:
    from nnef_jax.formats.openvino.flatten import stored

    layer = site.net.by_id[site.net.feeds[site.layer.id, site.layer.inputs[1].id][0]]
    if layer.kind not in CONSTANTS:
        raise InvalidOperation("its filter must be stored")
    filter = stored(replace(site, layer=layer, operands=()), "bin")
    return _binary(site, site.tensor(0), filter, filter.array.shape[2:])


@legacy("BinaryConvolution")
def _legacy_binary_convolution(site: Site) -> Value:
    x = site.tensor(0)
    kernel = _kernel(site, len(x.type.shape) - 2)
    shape = (site.int("output"), x.type.shape[1] // site.int("group", 1), *kernel)
    filter = site.blob("weights", shape, "bin")
    if filter is None:
        raise InvalidShape("it has no weights")
    return _binary(site, x, filter, kernel)


@opsets("DeformableConvolution")
def _deformable(site: Site) -> Value:
    filter = site.tensor(2)
    mask = site.tensor(3) if site.has(3) else False
    return _deformed(site, filter, mask, filter.type.shape[2:], site.int("group", 1))


@legacy("DeformableConvolution")
def _legacy_deformable(site: Site) -> Value:
    channels, groups = site.shape(0)[1], site.int("group", 1)
    kernel = _kernel(site, 2)
    filter = site.blob("weights", (site.int("output"), channels // groups, *kernel))
    if filter is None:
        raise InvalidOperation("it has no weights")
    return _deformed(site, filter, False, kernel, groups)


def _deformed(site: Site, filter: Any, mask: Any, kernel: Sequence[int], groups: int) -> Value:
    x = site.tensor(0)
    window = _windows(site, x.type.shape[2:], kernel)
    window.pop("border")
    operands = {"input": x, "offsets": site.tensor(1), "filter": filter, "mask": mask}
    parts = site.int("deformable_group", site.int("num_deformable_group", 1))
    return site.emit(
        "deformable_conv", operands, groups=groups, offset_groups=parts,
        padded_bilinear=site.flag("bilinear_interpolation_pad"), **window,
    )  # fmt: skip
