"""Windows and blocks on spatial axes, which formats say alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowering import windows
from lowering.errors import InvalidShape
from lowering.extents import UNKNOWN, show
from nnef_jax.flattening.site import Site

Pairs = list[tuple[int, int]]  # what is before and after each axis


def halves(total: int, *, more_behind: bool) -> tuple[int, int]:
    """Split padding into its parts before and behind."""
    less, more = total // 2, total - total // 2
    return (less, more) if more_behind else (more, less)


def same_padding(
    site: Site[Any], shape: Sequence[int], reach: Sequence[int], strides: Sequence[int], *,
    more_behind: bool,
) -> Pairs:  # fmt: skip
    """Return the padding of windows of some reach with which strides alone divide the extents."""
    if any(n is UNKNOWN and s != 1 for n, s in zip(shape, strides, strict=True)):
        shape = site.known_shape()[2:]
    totals = (
        n - 1 if extent is UNKNOWN else max((-(-extent // s) - 1) * s + n - extent, 0)
        for extent, n, s in zip(shape, reach, strides, strict=True)
    )
    return [halves(total, more_behind=more_behind) for total in totals]


def _read_behind(
    site: Site[Any], kernel: Sequence[int], window: Mapping[str, Any], *, begins_inside: bool
) -> list[int]:
    """Return how many items more there are behind each axis if the number of windows rounds up.

    The last window may have to begin on the input, or on what is put before it.
    """
    shape, strides = site.shape()[2:], window["stride"]
    if any(n is UNKNOWN and s > 1 for n, s in zip(shape, strides, strict=True)):
        shape = site.known_shape()[2:]
    reach = windows.spans(kernel, window["dilation"])
    found: list[int] = []
    for n, (p, q), span, s in zip(shape, window["padding"], reach, strides, strict=True):
        left = n + p + q - span
        positions = -(-left // s) + 1
        if s > 1 and begins_inside and (positions - 1) * s >= n + p:
            positions -= 1
        found.append(max((positions - 1) * s - left, 0) if s > 1 else 0)
    return found


def pooled(
    site: Site[Any], x: Any, add: Callable[..., Any], kernel: Sequence[int],
    window: Mapping[str, Any], rounding: str, *, includes: bool = False, counts_more: bool = False,
    **attributes: Any,
) -> Any:  # fmt: skip
    """Add a pool of windows on spatial axes, whose number is rounded down, up, or up as by torch.

    Means are of the input, or of it with its padding if that `includes` any. What rounding up adds
    is part of these where it `counts_more`.
    """
    padding, more, border = window["padding"], [0] * len(kernel), "ignore"
    if rounding != "floor":
        more = _read_behind(site, kernel, window, begins_inside=rounding == "ceil_torch")
    if includes and any(map(any, padding)):
        border = "constant"
        if any(more) and not counts_more:
            around = [(0, 0), (0, 0), *padding]
            x = site.step.pad(x, padding=around, border="constant", value=0.0)
            border, padding = "ignore", [(0, 0)] * len(kernel)
    padding = [(0, 0), (0, 0), *((p, q + n) for (p, q), n in zip(padding, more, strict=True))]
    whole = {name: [1, 1, *window[name]] for name in ("stride", "dilation")}
    return add(x, size=[1, 1, *kernel], padding=padding, border=border, **whole, **attributes)


def add_patches(
    site: Site[Any], size: Sequence[int], kernel: Sequence[int], zero: Any, **window: Any
) -> Any:
    """Add patches up, [batch,channels*cells,patches], where they lie in an image of a size."""
    *batch, channels, patches = site.known_shape()
    reach = windows.spans(kernel, window["dilation"])
    axes = zip(size, window["padding"], reach, window["stride"], strict=True)
    counts = [(n + p + q - span) // s + 1 for n, (p, q), span, s in axes]
    cells = math.prod(kernel)
    if len(batch) > 1 or channels % cells or math.prod(counts) != patches:
        wanted = f"{cells} cells a channel, {math.prod(counts)} patches"
        raise InvalidShape(f"{show(site.shape())} does not have {wanted}")
    planes = math.prod(batch) * channels // cells
    rows, columns = (site.places(cells, axis, 2) for axis in (0, 1))
    is_own = site.insert("eq", {"x": rows, "y": columns})
    operands = {
        "input": site.reshaped(site.operand(0), (planes, cells, *counts)),
        "filter": site.reshaped(site.cast(is_own, site.dtype_of()), (cells, 1, *kernel)),
        "bias": zero,
    }
    shape = (planes, 1, *size)
    found = site.insert(
        "deconv", operands, output_shape=shape, groups=1, border="constant", **window
    )
    return site.last_reshape(found, (*batch, channels // cells, *size))


def depth_to_space(site: Site[Any], block: int, *, depth_first: bool) -> Any:
    """Move blocks of channels into space; `depth_first` has the block as the fastest channels."""
    batch, channels, *extents = site.known_shape()
    k = len(extents)
    depth, blocks = channels // block**k, [block] * k
    if depth_first:
        split, first, at = [depth, *blocks], 1, 2
    else:
        split, first, at = [*blocks, depth], k + 1, 1
    order = [0, first, *(axis for i in range(k) for axis in (k + 2 + i, at + i))]
    x = site.reshaped(site.operand(0), [batch, *split, *extents])
    return site.last_reshape(
        site.transposed(x, order), [batch, depth, *(n * block for n in extents)]
    )


def space_to_depth(site: Site[Any], block: int, *, depth_first: bool) -> Any:
    """Move blocks of space into channels: the reverse of `depth_to_space`."""
    batch, channels, *extents = site.known_shape()
    k = len(extents)
    parts = [part for n in extents for part in (n // block, block)]
    x = site.reshaped(site.operand(0), [batch, channels, *parts])
    outer, inner = range(2, 2 * k + 2, 2), range(3, 2 * k + 3, 2)
    x = site.transposed(x, [0, 1, *inner, *outer] if depth_first else [0, *inner, 1, *outer])
    return site.last_reshape(x, [batch, channels * block**k, *(n // block for n in extents)])
