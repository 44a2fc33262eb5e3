"""Adds pools and other operations on windows of spatial axes, for layers and nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowering import windows
from lowering.errors import InvalidShape
from lowering.extents import UNKNOWN, show
from nnef_jax.flattening.host_operations import ceil_div
from nnef_jax.flattening.site import Operand, Site, Tensor
from nnef_jax.flattening.tensor_graph import TensorGraph

Pairs = list[tuple[int, int]]  # padding before and after each axis


def halves(total: int, *, more_behind: bool) -> tuple[int, int]:
    """Divide the padding of an axis into two halves: (before the axis, behind the axis).

    If `total` is odd, one half is larger by 1. If `more_behind`, this is the half behind the axis,
    otherwise the half before it.
    """
    smaller_half = total // 2
    larger_half = total - smaller_half
    return (smaller_half, larger_half) if more_behind else (larger_half, smaller_half)


def same_padding(
    site: Site[TensorGraph], shape: Sequence[int], spans: Sequence[int], strides: Sequence[int], *,
    more_behind: bool,
) -> Pairs:  # fmt: skip
    """Return the padding with which there are ceil(extent / stride) windows along each axis.

    The result has a pair (before, behind) for each spatial axis. `shape` has the spatial extents.
    `spans` has the extents of a window with its dilation. If the total padding of an axis is odd,
    the padding behind is larger by 1 if `more_behind`, otherwise the padding before.
    """
    shape = _known_if_strided(site, shape, strides)
    padding: Pairs = []
    for extent, span, stride in zip(shape, spans, strides, strict=True):
        if extent is UNKNOWN:  # the stride is 1
            total = span - 1
        else:
            count = ceil_div(extent, stride)
            last_start = (count - 1) * stride
            total = max(last_start + span - extent, 0)
        padding.append(halves(total, more_behind=more_behind))
    return padding


def _known_if_strided(
    site: Site[TensorGraph], shape: Sequence[int], strides: Sequence[int]
) -> Sequence[int]:
    """Return the spatial extents of input 0. An extent may be UNKNOWN only if its stride is 1.

    `shape` has these extents, any of which may be UNKNOWN. Raises ExtentNeeded if the extent of an
    axis with a larger stride is open.
    """
    for extent, stride in zip(shape, strides, strict=True):
        if extent is UNKNOWN and stride != 1:
            return site.known_shape()[2:]  # the axes 0 and 1 are batch and channels
    return shape


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
    strides = window["stride"]
    shape = _known_if_strided(site, site.shape()[2:], strides)
    spans = windows.spans(kernel, window["dilation"])
    added_items: list[int] = []
    axes = zip(shape, window["padding"], spans, strides, strict=True)
    for extent, (before, behind), span, stride in axes:
        if stride == 1:
            added_items.append(0)  # every position begins a window, so nothing is rounded
            continue
        # A window may begin up to this position without reaching beyond the padding.
        last_fitting_start = before + extent + behind - span
        last_start = ceil_div(last_fitting_start, stride) * stride
        is_in_padding_behind = last_start >= before + extent
        if begins_inside and is_in_padding_behind:
            last_start -= stride
        added_items.append(max(last_start - last_fitting_start, 0))
    return added_items


def pooled(
    site: Site[TensorGraph], x: Tensor, add: Callable[..., object], kernel: Sequence[int],
    window: Mapping[str, Any], rounding: str, *, includes_padding: bool = False,
    includes_round_up: bool = False, **attributes: object,
) -> Any:  # fmt: skip
    """Add a pooling operation over windows of spatial axes.

    Args:
        site: the layer or node.
        x: a tensor of shape (batch, channels, *spatial).
        add: the method that adds the pool, such as `site.last.max_pool`.
        kernel: the size of a window.
        window: "stride", "dilation" and "padding", each with an item for every spatial axis.
        rounding: how the number of windows is rounded. "floor" and "ceil" round down and up.
            "ceil_torch" rounds up too, but without windows that begin in the padding behind an
            axis.
        includes_padding: whether averages include the padding.
        includes_round_up: whether averages also include the items that rounding up adds to the
            padding.
        attributes: additional attributes of the operation.
    """
    padding = window["padding"]
    border = "ignore"
    round_up = [0] * len(kernel)  # the items that rounding up adds behind each axis
    if rounding != "floor":
        begins_inside = rounding == "ceil_torch"
        round_up = _padding_to_round_up(site, kernel, window, begins_inside=begins_inside)
    has_padding = any(before or behind for before, behind in padding)
    if includes_padding and has_padding:
        excludes_round_up = any(round_up) and not includes_round_up
        if excludes_round_up:
            # The averages include the padding, so the padding becomes items of the tensor. The
            # averages ignore the items that rounding up adds.
            item_padding = [(0, 0), (0, 0), *padding]
            x = site.step.pad(x, padding=item_padding, border="constant", value=0.0)
            padding = [(0, 0)] * len(kernel)
        else:
            border = "constant"
    full_padding = [(0, 0), (0, 0)]  # the padding of the axes batch and channels
    for (before, behind), added in zip(padding, round_up, strict=True):
        full_padding.append((before, behind + added))
    return add(
        x, size=[1, 1, *kernel], border=border, padding=full_padding,
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
    spans = windows.spans(kernel, window["dilation"])
    axes = zip(size, window["padding"], spans, window["stride"], strict=True)
    counts: list[int] = []  # the number of patches along each axis
    for extent, (before, behind), span, stride in axes:
        counts.append((before + extent + behind - span) // stride + 1)
    cells = math.prod(kernel)
    has_all_cells = channels % cells == 0
    has_all_patches = math.prod(counts) == patches
    if len(batch) > 1 or not has_all_cells or not has_all_patches:
        due = f"{cells} cells a channel, {math.prod(counts)} patches"
        raise InvalidShape(f"{show(site.shape())} does not have {due}")
    planes = math.prod(batch) * channels // cells  # a plane for each channel of each sample
    # A deconvolution by the identity matrix puts each cell at its position.
    rows = site.positions(cells, axis=0, rank=2)
    columns = site.positions(cells, axis=1, rank=2)
    identity = site.insert("eq", {"x": rows, "y": columns})
    operands = {
        "input": site.reshaped(site.operand(0), (planes, cells, *counts)),
        "filter": site.reshaped(site.cast(identity, site.dtype_of()), (cells, 1, *kernel)),
        "bias": zero,
    }
    output_shape = (planes, 1, *size)
    images = site.insert(
        "deconv", operands, output_shape=output_shape, groups=1, border="constant", **window
    )
    return site.last_reshape(images, (*batch, channels // cells, *size))


def depth_to_space(site: Site[TensorGraph], block: int, *, depth_first: bool) -> Any:
    """Move channels of input 0 into blocks along the spatial axes, as the site's last operation.

    The channel axis is split into (depth, *block) if `depth_first`, otherwise into (*block, depth).
    In the result, each spatial extent is multiplied by `block`.
    """
    batch, channels, *extents = site.known_shape()
    spatial_rank = len(extents)
    depth = channels // block**spatial_rank
    blocks = [block] * spatial_rank
    split_channels = [depth, *blocks] if depth_first else [*blocks, depth]
    x = site.reshaped(site.operand(0), [batch, *split_channels, *extents])
    depth_axis = 1 if depth_first else spatial_rank + 1
    first_block_axis = 2 if depth_first else 1
    first_spatial_axis = spatial_rank + 2
    order = [0, depth_axis]
    for i in range(spatial_rank):
        # The axis of a block follows the spatial axis that the block belongs to.
        order += [first_spatial_axis + i, first_block_axis + i]
    x = site.transposed(x, order)
    new_extents = [extent * block for extent in extents]
    return site.last_reshape(x, [batch, depth, *new_extents])


def space_to_depth(site: Site[TensorGraph], block: int, *, depth_first: bool) -> Any:
    """Move blocks along the spatial axes of input 0 into channels; the inverse of `depth_to_space`.

    The new channel axis is (depth, *block) if `depth_first`, otherwise (*block, depth).
    """
    batch, channels, *extents = site.known_shape()
    spatial_rank = len(extents)
    new_extents = [extent // block for extent in extents]
    # Each spatial axis is split into (blocks, block).
    split_extents: list[int] = []
    for new_extent in new_extents:
        split_extents += [new_extent, block]
    x = site.reshaped(site.operand(0), [batch, channels, *split_extents])
    end = 2 * spatial_rank + 2
    blocks_axes = range(2, end, 2)  # the axes that count blocks
    block_axes = range(3, end, 2)  # the axes inside a block
    new_channel_axes = [1, *block_axes] if depth_first else [*block_axes, 1]
    x = site.transposed(x, [0, *new_channel_axes, *blocks_axes])
    new_channels = channels * block**spatial_rank
    return site.last_reshape(x, [batch, new_channels, *new_extents])
