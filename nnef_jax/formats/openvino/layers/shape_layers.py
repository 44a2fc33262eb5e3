"""Functions for layers that change shapes or the order of items, such as reshape and concat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, show, volume
from lowering.graph import Value
from nnef_jax.flattening.along_axes import split_by_lengths, split_evenly
from nnef_jax.flattening.operators.attributes import axis, integer, integers, word
from nnef_jax.flattening.spatial_windows import depth_to_space, space_to_depth
from nnef_jax.flattening.symbolic import shape_array
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.element_types import element_type
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers.registry import (
    axes_at,
    axis_at,
    integers_at,
    legacy,
    operator,
    opsets,
)


@legacy("ShapeOf", "Shape", default="i32")
@opsets("ShapeOf", "Shape", default="i64")
def _shape_of(site: LayerSite, *, default: str) -> Constant | Value:
    """Return the shape of input 0, without the padding that input 0 may have.

    `default` is the default for the element type of the result. An extent that depends on values is
    a symbolic item of the result.
    """
    type = element_type(site.text("output_type", default))
    return Constant(shape_array(site.known_shape()), type, derived=True)


@opsets("Reshape")
def _reshape(site: LayerSite, x: Value, *, shape: list[int] = integers_at(1)) -> Value:
    """Reshape a tensor to `shape`.

    If the attribute `special_zero` is set, 0 in `shape` stands for the extent of the input along
    the same axis.
    """
    if 0 in shape and -1 not in shape and not site.flag("special_zero"):
        # An extent of the result is 0, so the result has no items, and `x` must have none.
        if volume(x.type.shape) == 0:
            return site.last.constant(shape=shape, value=(), dtype=x.type.dtype)
        raise InvalidShape(f"{show(x.type.shape)} cannot be reshaped to {shape}")
    return site.last_reshape(x, shape)


@legacy("Reshape")
def _legacy_reshape(site: LayerSite, x: Value) -> Value:
    """Reshape to the shape that the file declares for the output.

    If the input has another batch than the file declares, the batch of the result is changed too.
    """
    declared_input = site.layer.inputs[0].shape or ()
    shape = _with_actual_batch(site.declared, declared_input, actual_input=x.type.shape)
    return site.last_reshape(x, shape)


def _with_actual_batch(
    result: Sequence[int], declared_input: Sequence[int], actual_input: Sequence[int]
) -> list[int]:
    """Adapt `result`, the declared shape of a result, to the actual shape of the input.

    `declared_input` is the declared shape of the input. Only the first extent, the batch, is
    changed, so that the result has as many elements as the input.
    """
    is_as_declared = tuple(declared_input) == tuple(actual_input)
    if is_as_declared or not result:
        return list(result)
    batch, *extents = result
    keeps_batch = batch == declared_input[0]
    if keeps_batch and batch != actual_input[0]:
        return [0, *extents]  # 0 stands for the extent of the input
    if UNKNOWN in actual_input:
        return [-1, *extents]  # -1 stands for the extent that follows from all others
    items = math.prod(extents)
    is_divisible = items != 0 and math.prod(actual_input) % items == 0
    return [-1, *extents] if is_divisible else [batch, *extents]


@operator("Squeeze")
def _squeeze(site: LayerSite, x: Value) -> Value:
    """Remove the axes in input 1. Without input 1, remove all axes of extent 1.

    If the attribute `allow_axis_skip` is set, an axis in input 1 remains if its extent is not 1.
    """
    shape = x.type.shape
    axes = site.axes(1) if site.has(1) else []
    if not axes:
        axes = [axis for axis, extent in enumerate(shape) if extent == 1]
    elif site.flag("allow_axis_skip"):
        axes = [axis for axis in axes if shape[axis] == 1]
    return site.last.squeeze(x, axes=sorted(set(axes)))


@operator("Unsqueeze")
def _unsqueeze(site: LayerSite, x: Value, *, axes: Sequence[int] = integers_at(1)) -> Value:
    """Insert axes of extent 1. Input 1 has the indices of these axes in the result."""
    rank = len(x.type.shape) + len(axes)
    positive_axes = {site.axis(axis, rank) for axis in axes}
    return site.last.unsqueeze(x, axes=sorted(positive_axes))


@opsets("Transpose", order=integers_at(1))
@legacy("Permute", order=integers("order"))
def _transpose(site: LayerSite, x: Value, *, order: Sequence[int]) -> Value:
    """Permute the axes of `x`. If `order` is empty, the axes are reversed."""
    rank = len(x.type.shape)
    axes = [site.axis(axis) for axis in order]
    if not axes:
        axes = list(reversed(range(rank)))
    if sorted(axes) != list(range(rank)):
        raise InvalidOperation(f"the order {list(order)} must be a permutation of {rank} axes")
    return site.last.transpose(x, axes=axes)


@operator("Concat")
def _concat(site: LayerSite, *, axis: int = axis("axis", 1)) -> Value:
    """Join the inputs along an axis. Inputs without items along the axis are left out."""
    tensors = site.tensors()
    nonempty: list[Value] = []
    for x in tensors:
        extents = x.type.shape[axis : axis + 1]  # (extent,), or () if there is no such axis
        if extents != (0,):
            nonempty.append(x)
    if not nonempty:
        nonempty = tensors[:1]  # all inputs are empty, and the result is empty too
    if len(nonempty) == 1:
        return site.last.copy(nonempty[0])
    return site.last.concat(nonempty, axis=axis)


@opsets("Split")
def _split(
    site: LayerSite, *, axis: int = axis_at(1), count: int = integer("num_splits")
) -> Sequence[Value]:
    if count != len(site.layer.outputs):
        raise InvalidOperation(f"'num_splits' is {count}, it has {len(site.layer.outputs)} outputs")
    return split_evenly(site, site.tensor(0), axis, count)


@opsets("VariadicSplit")
def _variadic_split(
    site: LayerSite, *, axis: int = axis_at(1), lengths: list[int] = integers_at(2)
) -> Sequence[Value]:
    """Cut a tensor along an axis into parts of the lengths in input 2.

    The length -1 stands for all items that are not in the other parts.
    """
    if -1 in lengths:
        declared_items = sum(length for length in lengths if length != -1)
        lengths[lengths.index(-1)] = site.known_shape()[axis] - declared_items
    return split_by_lengths(site, site.tensor(0), axis, lengths)


@legacy("Split", "Slice")
def _legacy_split(site: LayerSite, *, axis: int = axis("axis", 1)) -> Sequence[Value]:
    """Cut a tensor along an axis into one part for each output.

    A part has the extent that the file declares for the output.
    """
    shapes = [port.shape for port in site.layer.outputs]
    if any(len(shape) <= axis for shape in shapes):
        raise InvalidShape(f"an output has no axis {axis}")
    return split_by_lengths(site, site.tensor(0), axis, [shape[axis] for shape in shapes])


@legacy("Tile")
def _legacy_tile(
    site: LayerSite, x: Value, *, axis: int = axis("axis"), count: int = integer("tiles")
) -> Value:
    repeats = [1] * len(x.type.shape)
    repeats[axis] = count
    return site.last.tile(x, repeats=repeats)


@opsets("Tile")
def _tile(site: LayerSite, x: Value, *, repeats: list[int] = integers_at(1)) -> Value:
    """Repeat the items of `x` along each axis.

    If `x` has fewer axes than `repeats` has items, axes of extent 1 are inserted before the first
    axis. If `repeats` has fewer items than `x` has axes, ones are inserted before the first item.
    """
    missing_axes = len(repeats) - len(x.type.shape)
    if missing_axes < 0:
        missing_items = -missing_axes
        repeats = [1] * missing_items + repeats
    x = site.unsqueezed(x, range(missing_axes))  # no axes if the number is negative
    return site.last.tile(x, repeats=repeats)


@operator("Broadcast")
def _broadcast(
    site: LayerSite,
    x: Value,
    *,
    shape: Sequence[int] = integers_at(1),
    mode: str = word("mode", "numpy", "bidirectional", "explicit", "pdpd"),
) -> Value:
    """Broadcast `x` to a shape.

    In the modes "numpy" and "bidirectional", the last axes of `x` lie along the last axes of the
    shape. In the mode "explicit", input 2 has an axis of the shape for each axis of `x`. In the
    mode "pdpd", the axes of `x` lie along successive axes of the shape, beginning with the
    attribute `axis`.
    """
    rank = len(x.type.shape)
    axes: Sequence[int] | None = None
    if mode == "explicit":
        axes = site.integers(2)
        if len(axes) != rank:
            raise InvalidOperation(f"axes {axes} do not fit the input {show(x.type.shape)}")
    elif mode == "pdpd":
        first = site.int("axis", 0)
        axes = range(first, first + rank)
    if axes is not None:
        # All other axes of the shape become axes of extent 1.
        new_axes = [axis for axis in range(len(shape)) if axis not in axes]
        x = site.step.unsqueeze(x, axes=new_axes)
    return site.last.broadcast(x, shape=shape)


@opsets("Reverse")
def _reverse(
    site: LayerSite,
    x: Value,
    *,
    axes: Sequence[int] = integers_at(1),
    mode: str = word("mode", "index", "mask"),
) -> Value:
    """Reverse the order of the items along axes.

    In the mode "index", the axes are in input 1. In the mode "mask", input 1 has a bool for each
    axis.
    """
    if mode == "mask":
        mask = site.known(1).tolist()
        axes = [axis for axis, is_reversed in enumerate(mask) if is_reversed]
    axes = [site.axis(axis) for axis in axes]
    count = len(axes)
    before_first = -(2**31)  # an index before the first item of each axis
    return site.last.slice(
        x, axes=axes, begin=[-1] * count, end=[before_first] * count, stride=[-1] * count
    )


@opsets("Roll")
def _roll(
    site: LayerSite,
    x: Value,
    *,
    shifts: list[int] = integers_at(1),
    axes: Sequence[int] = axes_at(2),
) -> Value:
    """Shift items along axes. Items that leave an axis at one end enter it at the other end.

    `shifts` has a distance for each of `axes`, or one distance for all axes.
    """
    if len(shifts) == 1:
        shifts *= len(axes)
    for i, (shift, shift_axis) in enumerate(zip(shifts, axes, strict=True)):
        is_last = i == len(axes) - 1
        extent = site.known_shape(x)[shift_axis]
        # `first` is the index of the item that comes first after the shift. For 5 items and a shift
        # of 2, it is 3: the result is the items 3:5 and then the items 0:3.
        first = (-shift) % extent if extent else 0
        parts: list[Value] = []
        for begin, end in ((first, extent), (0, first)):
            if begin != end:
                parts.append(site.part(x, axis=shift_axis, first=begin, last=end))
        if len(parts) > 1:
            x = site.step_or_last(is_last).concat(parts, axis=shift_axis)
        else:
            x = parts[0]  # the shift moves no item
    return x


# Blocks of space as channels or batches

_BLOCK_ATTRIBUTES: dict[str, Any] = {
    "block": integer("block_size", 1),
    "mode": word("mode", "blocks_first", "depth_first"),
}


@operator("DepthToSpace", **_BLOCK_ATTRIBUTES)
def _depth_to_space(site: LayerSite, *, block: int, mode: str) -> Value:
    return depth_to_space(site, block, depth_first=mode == "depth_first")


@operator("SpaceToDepth", **_BLOCK_ATTRIBUTES)
def _space_to_depth(site: LayerSite, *, block: int, mode: str) -> Value:
    """Cut each spatial axis into blocks, and move the items of a block to channels.

    A block has `block` items along each spatial axis. With blocks of 2, the shape (1, 3, 4, 6)
    becomes (1, 12, 2, 3).
    """
    extents = site.known_shape()[2:]
    if any(extent % block != 0 for extent in extents):
        raise InvalidShape(f"blocks of {block} do not divide the extents {show(extents)}")
    return space_to_depth(site, block, depth_first=mode == "depth_first")


_BLOCK_INPUTS: dict[str, Any] = {
    "block": integers_at(1),
    "begin": integers_at(2),
    "end": integers_at(3),
}


@opsets("SpaceToBatch", **_BLOCK_INPUTS)
def _space_to_batch(
    site: LayerSite, x: Value, *, block: Sequence[int], begin: Sequence[int], end: Sequence[int]
) -> Value:
    """Pad a tensor, cut it into blocks, and move the positions within a block to the batch axis.

    `block` has the extents of a block, and `begin` and `end` have the padding of each axis.
    """
    if any((*begin, *end)):
        pairs = zip(begin, end, strict=True)
        x = site.padded(x, dict(enumerate(pairs)))
    shape = x.type.shape
    block_counts = [extent // size for extent, size in zip(shape, block, strict=True)]
    # Each axis is split into an axis of blocks, and an axis of the positions within a block. An
    # axis of 6 items becomes (3, 2) with blocks of 2 items.
    split_shape: list[int] = []
    for block_count, block_extent in zip(block_counts, block, strict=True):
        split_shape += [block_count, block_extent]
    split = site.reshaped(x, split_shape)
    rank = len(shape)
    count_axes = range(0, 2 * rank, 2)
    position_axes = range(1, 2 * rank, 2)
    positions_first = site.transposed(split, [*position_axes, *count_axes])
    batch, *extents = block_counts
    return site.last_reshape(positions_first, [math.prod(block) * batch, *extents])


@opsets("BatchToSpace", **_BLOCK_INPUTS)
def _batch_to_space(
    site: LayerSite, x: Value, *, block: Sequence[int], begin: Sequence[int], end: Sequence[int]
) -> Value:
    """Move items from the batch axis back to positions within blocks, then crop the result.

    This is the inverse of `_space_to_batch`. `block` has the extents of a block. `begin` and `end`
    are the numbers of items to cut off at the start and at the end of each axis.
    """
    rank = len(block)
    batch, *input_extents = site.known_shape()
    block_counts = [batch // math.prod(block), *input_extents]
    split = site.reshaped(x, [*block, *block_counts])
    # The first `rank` axes of `split` are positions within blocks, and the other axes count the
    # blocks. Each axis of positions is moved behind its axis of blocks. For two axes, the order is
    # [2, 0, 3, 1].
    order: list[int] = []
    for i in range(rank):
        order += [rank + i, i]
    moved = site.transposed(split, order)
    extents = [count * size for count, size in zip(block_counts, block, strict=True)]
    joined = site.reshaped(moved, extents)
    ends = [extent - cut_off for extent, cut_off in zip(extents, end, strict=True)]
    return site.last.slice(joined, axes=[*range(rank)], begin=begin, end=ends, stride=[1] * rank)


@operator("ShuffleChannels")
def _shuffle_channels(
    site: LayerSite, x: Value, *, axis: int = axis("axis", 1), groups: int = integer("group", 1)
) -> Value:
    """Interleave groups of channels: the groups (0, 1, 2) and (3, 4, 5) become 0, 3, 1, 4, 2, 5."""
    channels = x.type.shape[axis]
    if groups < 1 or channels % groups:
        raise InvalidShape(f"{groups} groups do not divide {channels} channels")
    split = site.reshaped(x, (groups, channels // groups), first=axis, count=1)
    # The axis of groups and the axis of channels in a group are exchanged.
    order = [*range(axis), axis + 1, axis, *range(axis + 2, len(x.type.shape) + 1)]
    exchanged = site.transposed(split, order)
    return site.last.reshape(exchanged, shape=(channels,), axis_start=axis, axis_count=2)


@operator("ReorgYolo")
def _reorg_yolo(site: LayerSite, x: Value, *, strides: Sequence[int] = integers("stride")) -> Value:
    """Move blocks of stride * stride items of the plane to channels, in darknet's order.

    Darknet reads an input of shape (channels, height, width) as if its shape were
    (channels / stride**2, height * stride, width * stride).
    """
    stride = strides[0]
    batch, channels, height, width = site.known_shape()
    is_divisible = stride >= 1
    for extent, divisor in ((channels, stride**2), (height, stride), (width, stride)):
        is_divisible = is_divisible and extent % divisor == 0
    if not is_divisible:
        raise InvalidShape(f"a stride of {stride} does not divide {show(site.shape())}")
    if stride == 1:
        return site.last.copy(x)
    plane_channels = channels // stride**2
    items = channels * height * width
    site.spend(items)
    # c, i and j are the channel, the row and the column of each item of `moved`. They have shape
    # (channels, height, width).
    c, i, j = np.meshgrid(*map(np.arange, (channels, height, width)), indexing="ij")
    # Darknet reads the input as if its shape were (plane_channels, height * stride,
    # width * stride). Item (c, i, j) of `moved` is item (channel, row, column) in this shape.
    channel = c % plane_channels
    position_in_block = c // plane_channels
    row = i * stride + position_in_block // stride
    column = j * stride + position_in_block % stride
    indices = column + width * stride * (row + height * stride * channel)
    flat = site.reshaped(x, [batch, items])
    moved = site.step.gather(flat, derived(indices.reshape(-1)), axis=1)
    shape = [batch, channels * stride**2, height // stride, width // stride]
    return site.last_reshape(moved, shape)
