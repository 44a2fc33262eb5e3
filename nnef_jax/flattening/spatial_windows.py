"""Adds pools and other operations on windows of spatial axes, for layers and nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowering import windows
from lowering.errors import InvalidShape
from lowering.extents import UNKNOWN, show
from nnef_jax.flattening.hostvalues import ceil_div
from nnef_jax.flattening.site import Operand, Site, Tensor
from nnef_jax.flattening.tensor_graph import TensorGraph

Pairs = list[tuple[int, int]]  # padding before and after each axis


def halves(total: int, *, more_behind: bool) -> tuple[int, int]:
    """Divide the padding of an axis into two halves: (before the axis, behind the axis).

    If `total` is odd, the half behind is larger by 1 if `more_behind`, otherwise the half before.
    """
    less = total // 2
    more = total - less
    return (less, more) if more_behind else (more, less)


def same_padding(
    site: Site[TensorGraph], shape: Sequence[int], reach: Sequence[int], strides: Sequence[int], *,
    more_behind: bool,
) -> Pairs:  # fmt: skip
    """Return the padding with which there are ceil(extent / stride) windows along each axis.

    The result has a pair (before, behind) for each spatial axis. `shape` has the spatial extents.
    `reach` has the extents of a window with its dilation. If the total padding of an axis is odd,
    the padding behind is larger by 1 if `more_behind`, otherwise the padding before.
    """
    if any(n is UNKNOWN and s != 1 for n, s in zip(shape, strides, strict=True)):
        shape = site.known_shape()[2:]
    padding: Pairs = []
    for extent, span, stride in zip(shape, reach, strides, strict=True):
        total = span - 1
        if extent is not UNKNOWN:
            count = ceil_div(extent, stride)
            last_start = (count - 1) * stride
            total = max(last_start + span - extent, 0)
        padding.append(halves(total, more_behind=more_behind))
    return padding


def _padding_to_round_up(
    site: Site[TensorGraph],
    kernel: Sequence[int],
    window: Mapping[str, Any],
    *,
    begins_inside: bool,
) -> list[int]:
    """Return the number of items to add behind each axis to round the number of windows up.

    `window` has the items "stride", "dilation" and "padding". The added items become part of the
    padding. If `begins_inside`, no window begins in the padding behind an axis.
    """
    shape = site.shape()[2:]
    strides = window["stride"]
    if any(n is UNKNOWN and s > 1 for n, s in zip(shape, strides, strict=True)):
        shape = site.known_shape()[2:]
    reach = windows.spans(kernel, window["dilation"])
    more: list[int] = []
    axes = zip(shape, window["padding"], reach, strides, strict=True)
    for extent, (before, behind), span, stride in axes:
        if stride == 1:
            more.append(0)
            continue
        # The last start of a window that does not reach beyond the padding.
        bound = before + extent + behind - span
        last_start = ceil_div(bound, stride) * stride
        if begins_inside and last_start >= before + extent:
            last_start -= stride
        more.append(max(last_start - bound, 0))
    return more


def pooled(
    site: Site[TensorGraph], x: Tensor, add: Callable[..., object], kernel: Sequence[int],
    window: Mapping[str, Any], rounding: str, *, includes_padding: bool = False,
    includes_round_up: bool = False, **attributes: object,
) -> Any:  # fmt: skip
    """Add a pool of windows on spatial axes.

    Args:
        site: the layer or node.
        x: a tensor of shape (batch, channels, *spatial).
        add: the method that adds the pool, such as `site.last.max_pool`.
        kernel: the size of a window.
        window: "stride", "dilation" and "padding", each with an item for every spatial axis.
        rounding: how the number of windows is rounded. "floor" and "ceil" round down and up.
            "ceil_torch" rounds up too, but without windows that begin in the padding behind an
            axis.
        includes_padding: whether means include the padding.
        includes_round_up: whether means also include the items that rounding up adds to the
            padding.
        attributes: further attributes of the operation.
    """
    padding = window["padding"]
    border = "ignore"
    round_up = [0] * len(kernel)  # the items that rounding up adds behind each axis
    if rounding != "floor":
        begins_inside = rounding == "ceil_torch"
        round_up = _padding_to_round_up(site, kernel, window, begins_inside=begins_inside)
    has_padding = any(map(any, padding))
    if includes_padding and has_padding:
        if any(round_up) and not includes_round_up:
            around = [(0, 0), (0, 0), *padding]
            x = site.step.pad(x, padding=around, border="constant", value=0.0)
            padding = [(0, 0)] * len(kernel)
        else:
            border = "constant"
    pairs = zip(padding, round_up, strict=True)
    spatial = [(before, behind + added) for (before, behind), added in pairs]
    return add(
        x, size=[1, 1, *kernel], border=border, padding=[(0, 0), (0, 0), *spatial],
        stride=[1, 1, *window["stride"]], dilation=[1, 1, *window["dilation"]], **attributes,
    )  # fmt: skip


def add_patches(
    site: Site[TensorGraph],
    size: Sequence[int],
    kernel: Sequence[int],
    zero: Operand,
    **window: Any,
) -> Any:
    """Sum patches at their positions in an image of the size `size`, as torch's `fold` does.

    The positions in a patch are called cells. Input 0 has shape (batch, channels * cells, patches)
    or (channels * cells, patches). `kernel` has the extents of a patch. `zero` is an operand with
    the value 0, which becomes the bias of a deconvolution.
    """
    *batch, channels, patches = site.known_shape()
    reach = windows.spans(kernel, window["dilation"])
    axes = zip(size, window["padding"], reach, window["stride"], strict=True)
    counts = [
        (before + extent + behind - span) // stride + 1
        for extent, (before, behind), span, stride in axes
    ]
    cells = math.prod(kernel)
    has_all_cells = channels % cells == 0 and math.prod(counts) == patches
    if len(batch) > 1 or not has_all_cells:
        due = f"{cells} cells a channel, {math.prod(counts)} patches"
        raise InvalidShape(f"{show(site.shape())} does not have {due}")
    planes = math.prod(batch) * channels // cells
    rows, columns = (site.positions(cells, axis, 2) for axis in (0, 1))
    identity = site.insert("eq", {"x": rows, "y": columns})
    operands = {
        "input": site.reshaped(site.operand(0), (planes, cells, *counts)),
        "filter": site.reshaped(site.cast(identity, site.dtype_of()), (cells, 1, *kernel)),
        "bias": zero,
    }
    shape = (planes, 1, *size)
    images = site.insert(
        "deconv", operands, output_shape=shape, groups=1, border="constant", **window
    )
    return site.last_reshape(images, (*batch, channels // cells, *size))


def depth_to_space(site: Site[TensorGraph], block: int, *, depth_first: bool) -> Any:
    """Move channels of input 0 into blocks along its spatial axes, as the site's last operation.

    The channel axis is split into (depth, *block) if `depth_first`, otherwise into (*block, depth).
    In the result, each spatial extent is multiplied by `block`.
    """
    batch, channels, *extents = site.known_shape()
    k = len(extents)
    depth = channels // block**k
    blocks = [block] * k
    split = [depth, *blocks] if depth_first else [*blocks, depth]
    depth_axis = 1 if depth_first else k + 1
    first_block = 2 if depth_first else 1
    order = [0, depth_axis]
    for i in range(k):
        # The axis of a block follows the spatial axis that the block belongs to.
        order += [k + 2 + i, first_block + i]
    x = site.reshaped(site.operand(0), [batch, *split, *extents])
    x = site.transposed(x, order)
    return site.last_reshape(x, [batch, depth, *(n * block for n in extents)])


def space_to_depth(site: Site[TensorGraph], block: int, *, depth_first: bool) -> Any:
    """Move blocks along the spatial axes of input 0 into channels; the inverse of `depth_to_space`.

    The new channel axis is (depth, *block) if `depth_first`, otherwise (*block, depth).
    """
    batch, channels, *extents = site.known_shape()
    k = len(extents)
    parts = [part for n in extents for part in (n // block, block)]
    x = site.reshaped(site.operand(0), [batch, channels, *parts])
    outer = range(2, 2 * k + 2, 2)
    inner = range(3, 2 * k + 3, 2)
    order = [0, 1, *inner, *outer] if depth_first else [0, *inner, 1, *outer]
    x = site.transposed(x, order)
    return site.last_reshape(x, [batch, channels * block**k, *(n // block for n in extents)])
