"""Convolutions and what reverses them: Conv, ConvTranspose, DeformConv, Col2Im."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, show
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator


def spatial(site: NodeSite, name: str, rank: int, default: int = 1) -> tuple[int, ...]:
    """Return an attribute with an item for each spatial axis."""
    found = site.ints(name, (default,) * rank)
    if len(found) != rank:
        raise InvalidOperation(f"'{name}' must have {rank} items, it has {len(found)}")
    return found


def auto_pad(site: NodeSite) -> str:
    """Return how padding is decided."""
    modes = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    return site.choice("auto_pad", *modes, default="NOTSET")


def halves(total: int, mode: str) -> tuple[int, int]:
    """Split a total of padding into before and behind; SAME_UPPER puts less of it before."""
    less, more = total // 2, total - total // 2
    return (less, more) if mode == "SAME_UPPER" else (more, less)


def padding_of(
    site: NodeSite, shape: Sequence[int], spans: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the padding before and behind each spatial axis; a window spans its gaps too."""
    rank, mode = len(spans), auto_pad(site)
    if mode == "VALID":
        return [(0, 0)] * rank
    if mode == "NOTSET":
        pads = spatial(site, "pads", 2 * rank, 0)
        if min(pads, default=0) < 0:
            raise InvalidOperation(f"'pads' {list(pads)} has items below 0")
        return list(zip(pads[:rank], pads[rank:], strict=True))
    if any(n is UNKNOWN and stride != 1 for n, stride in zip(shape, strides, strict=True)):
        shape = site.known_shape()[2:]
    totals = (
        span - 1 if n is UNKNOWN else max((-(-n // stride) - 1) * stride + span - n, 0)
        for n, span, stride in zip(shape, spans, strides, strict=True)
    )
    return [halves(total, mode) for total in totals]


def spans_of(kernel: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """Return the extents of windows with their gaps."""
    return [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]


def kernel_of(site: NodeSite, i: int = 1) -> tuple[int, ...]:
    """Return the spatial extents of the filter, which an attribute repeats."""
    found, rank = site.shape(i)[2:], site.rank()
    if rank < 3 or len(found) != rank - 2:
        raise InvalidShape(
            f"its input {show(site.shape())} and filter {show(site.shape(i))} must have one rank, "
            "3 or more"
        )
    given = site.ints("kernel_shape", found)
    if tuple(given) != tuple(found):
        raise InvalidShape(f"'kernel_shape' is {list(given)}, its filter is {show(site.shape(i))}")
    return found


def windows_of(site: NodeSite, kernel: Sequence[int]) -> dict[str, Any]:
    """Return the attributes of windows of so many spatial items."""
    rank = len(kernel)
    strides, dilations = spatial(site, "strides", rank), spatial(site, "dilations", rank)
    padding = padding_of(site, site.shape()[2:], spans_of(kernel, dilations), strides)
    return {"stride": strides, "dilation": dilations, "padding": padding}


def _bias(site: NodeSite, i: int) -> Any:
    return site.unsqueezed(site.operand(i), (0,)) if site.has(i) else site.zero(site.operand(0))


@operator("Conv")
def _conv(site: NodeSite) -> Any:
    operands = {"input": site.operand(0), "filter": site.operand(1), "bias": _bias(site, 2)}
    window = windows_of(site, kernel_of(site))
    return site.emit("conv", operands, groups=site.int("group", 1), border="constant", **window)


@operator("ConvTranspose")
def _conv_transpose(site: NodeSite) -> Any:
    """Reverse a convolution: what is beyond the reach of windows is the bias."""
    kernel = kernel_of(site)
    rank, mode = len(kernel), auto_pad(site)
    strides, dilations = spatial(site, "strides", rank), spatial(site, "dilations", rank)
    more, spans = spatial(site, "output_padding", rank, 0), spans_of(kernel, dilations)
    axes = list(zip(strides, spans, more, strict=True))
    if "output_shape" in site.node.attributes:
        wanted = site.ints("output_shape")[-rank:]
        wholes = [(n - 1) * s + span for n, s, span in zip(
            site.known_shape()[2:], strides, spans, strict=True)]  # fmt: skip
        begins = [
            halves(max(whole + m - n, 0), mode)[0]
            for whole, m, n in zip(wholes, more, wanted, strict=True)
        ]
        ends = [whole - p - n for whole, p, n in zip(wholes, begins, wanted, strict=True)]
    elif mode.startswith("SAME"):  # extents grow by the strides
        begins = [halves(max(span - s + m, 0), mode)[0] for s, span, m in axes]
        ends = [span - s - p for (s, span, _), p in zip(axes, begins, strict=True)]
    else:
        padding = padding_of(site, site.shape()[2:], spans, strides)
        begins = [p for p, _ in padding]
        ends = [q - m for (_, q), m in zip(padding, more, strict=True)]
    window = {
        "padding": [(p, max(q, 0)) for p, q in zip(begins, ends, strict=True)],
        "stride": strides, "dilation": dilations, "border": "constant", "output_shape": (),
        "groups": site.int("group", 1),
    }  # fmt: skip
    operands = {"input": site.operand(0), "filter": site.operand(1)}
    if min(ends) >= 0:
        return site.emit("deconv", operands | {"bias": _bias(site, 2)}, **window)
    found = site.insert("deconv", operands | {"bias": site.zero(site.operand(0))}, **window)
    behind = [(0, 0), (0, 0), *((0, max(-q, 0)) for q in ends)]
    found = site.insert("pad", {"input": found}, padding=behind, border="constant", value=0.0)
    return site.emit("add", {"x": found, "y": _bias(site, 2)}) if site.has(2) else found


@operator("DeformConv")
def _deform_conv(site: NodeSite) -> Any:
    names = ("input", "filter", "offsets", "", "mask")
    operands = {name: site.operand(i) for i, name in enumerate(names) if name and site.has(i)}
    window = windows_of(site, kernel_of(site))
    add = site.insert if site.has(3) else site.emit
    found = add(
        "deformable_conv", {"mask": False} | operands, groups=site.int("group", 1),
        offset_groups=site.int("offset_group", 1), padded_bilinear=True, **window,
    )  # fmt: skip
    return site.emit("add", {"x": found, "y": _bias(site, 3)}) if site.has(3) else found


@operator("Col2Im")
def _col_to_im(site: NodeSite) -> Any:
    """Add patches up, [batch,channels*cells,patches], where they lie in the image."""
    size, kernel = site.integers(1), site.integers(2)
    strides = spatial(site, "strides", len(size))
    dilations = spatial(site, "dilations", len(size))
    spans = spans_of(kernel, dilations)
    padding = padding_of(site, size, spans, strides)
    counts = [
        (n + p + q - span) // s + 1
        for n, (p, q), span, s in zip(size, padding, spans, strides, strict=True)
    ]
    batch, channels, patches = site.known_shape()
    cells = math.prod(kernel)
    if channels % cells or math.prod(counts) != patches:
        wanted = f"{cells} cells a channel, {math.prod(counts)} patches"
        raise InvalidShape(f"{show(site.shape())} does not have {wanted}")
    dtype = site.dtype_of()
    is_own = site.term("eq", site.places(cells, 0, 2), site.places(cells, 1, 2))
    operands = {
        "input": site.reshaped(site.operand(0), (batch * channels // cells, cells, *counts)),
        "filter": site.reshaped(site.cast(is_own, dtype), (cells, 1, *kernel)),
        "bias": site.zero(site.operand(0)),
    }
    shape = (batch * channels // cells, 1, *size)
    found = site.insert(
        "deconv", operands, output_shape=shape, groups=1, border="constant", stride=strides,
        dilation=dilations, padding=padding,
    )  # fmt: skip
    return site.reshaped(found, (batch, channels // cells, *size))
