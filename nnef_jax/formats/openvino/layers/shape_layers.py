"""Meanings of layers for shapes and the order of items, such as reshape, transpose and concat."""

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
from nnef_jax.flattening.symbolic import numbers
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

    `default` is the default for the element type of the result. If an extent depends on values, the
    result is computed when the network runs.
    """
    x = site.operand(0)
    if isinstance(x, Value) and x in site.graph.counts:
        site.known_shape()
        parts: list[Any] = []
        for extent in site.graph.unpadded_shape(x):
            part = extent if isinstance(extent, Value) else derived([extent])
            parts.append(part)
        return parts[0] if len(parts) == 1 else site.last.concat(parts, axis=0)
    type = element_type(site.text("output_type", default))
    return Constant(numbers(site.known_shape()), type, derived=True)


@opsets("Reshape")
def _reshape(site: LayerSite, x: Value, *, shape: list[int] = integers_at(1)) -> Value:
    """Reshape a tensor to `shape`.

    If the attribute `special_zero` is set, 0 in `shape` stands for the extent of the input along
    this axis.
    """
    if 0 in shape and -1 not in shape and not site.flag("special_zero"):
        if volume(x.type.shape) == 0:
            return site.last.constant(shape=shape, value=(), dtype=x.type.dtype)
        raise InvalidShape(f"{show(x.type.shape)} cannot be reshaped to {shape}")
    return site.last_reshape(x, shape)


@legacy("Reshape")
def _legacy_reshape(site: LayerSite, x: Value) -> Value:
    """Reshape to the shape that the file declares for the output.

    If the input has another batch than the file declares, the batch of the result is changed too.
    """
    declared = site.layer.inputs[0].shape or ()
    return site.last_reshape(x, _rebatched(site.declared, declared, x.type.shape))


def _rebatched(result: Sequence[int], declared: Sequence[int], actual: Sequence[int]) -> list[int]:
    """Adapt `result`, the declared shape of a result, to the actual shape of the input.

    `declared` is the declared shape of the input. Only the first extent, the batch, is changed, so
    that the result has as many elements as the input.
    """
    result = list(result)
    if tuple(declared) == tuple(actual) or not result:
        return result
    if result[0] == declared[0] and result[0] != actual[0]:
        return [0, *result[1:]]  # 0 stands for the extent of the input
    items = math.prod(result[1:])
    may_fit = UNKNOWN in actual or (items != 0 and math.prod(actual) % items == 0)
    return [-1, *result[1:]] if may_fit else result


@operator("Squeeze")
def _squeeze(site: LayerSite, x: Value) -> Value:
    """Remove the axes that input 1 lists. Without input 1, remove all axes of extent 1."""
    shape = x.type.shape
    axes = site.axes(1) if site.has(1) else []
    if not axes:
        axes = [i for i, n in enumerate(shape) if n == 1]
    elif site.flag("allow_axis_skip"):
        axes = [i for i in axes if shape[i] == 1]
    return site.last.squeeze(x, axes=sorted(set(axes)))


@operator("Unsqueeze")
def _unsqueeze(site: LayerSite, x: Value, *, axes: Sequence[int] = integers_at(1)) -> Value:
    rank = len(x.type.shape) + len(axes)
    return site.last.unsqueeze(x, axes=sorted({site.axis(a, rank) for a in axes}))


@opsets("Transpose", order=integers_at(1))
@legacy("Permute", order=integers("order"))
def _transpose(site: LayerSite, x: Value, *, order: Sequence[int]) -> Value:
    """Permute the axes of `x`. If `order` is empty, the axes are reversed."""
    rank = len(x.type.shape)
    axes = [site.axis(a) for a in order] or list(range(rank))[::-1]
    if sorted(axes) != list(range(rank)):
        raise InvalidOperation(f"the order {list(order)} must be a permutation of {rank} axes")
    return site.last.transpose(x, axes=axes)


@operator("Concat")
def _concat(site: LayerSite, *, axis: int = axis("axis", 1)) -> Value:
    tensors = site.tensors()
    filled = [x for x in tensors if x.type.shape[axis : axis + 1] != (0,)] or tensors[:1]
    if len(filled) == 1:
        return site.last.copy(filled[0])
    return site.last.concat(filled, axis=axis)


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
    if -1 in lengths:
        declared = sum(n for n in lengths if n != -1)
        lengths[lengths.index(-1)] = site.known_shape()[axis] - declared
    return split_by_lengths(site, site.tensor(0), axis, lengths)


@legacy("Split", "Slice")
def _legacy_split(site: LayerSite, *, axis: int = axis("axis", 1)) -> Sequence[Value]:
    """Cut a tensor along an axis into one part for each output.

    A part has the extent that the file declares for the output.
    """
    shapes = [port.shape or () for port in site.layer.outputs]
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
    missing_axes = len(repeats) - len(x.type.shape)
    if missing_axes < 0:
        repeats = [1] * -missing_axes + repeats
    x = site.unsqueezed(x, range(missing_axes))
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
    shape. In the mode "explicit", input 2 lists the axes of the shape along which the axes of `x`
    lie. In the mode "pdpd", the axes of `x` lie along the axes of the shape from `axis` on.
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
        x = site.step.unsqueeze(x, axes=[i for i in range(len(shape)) if i not in axes])
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

    Input 1 lists the axes in the mode "index". In the mode "mask" it has a bool for each axis.
    """
    if mode == "mask":
        axes = [i for i, flag in enumerate(site.known(1).tolist()) if flag]
    bounds = {"begin": -1, "end": -(2**31), "stride": -1}
    window = {name: [bound] * len(axes) for name, bound in bounds.items()}
    return site.last.slice(x, axes=[site.axis(axis) for axis in axes], **window)


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
    for i, (shift, along) in enumerate(zip(shifts, axes, strict=True), 1):
        extent = site.known_shape(x)[along]
        first = (-shift) % extent if extent else 0
        ranges = [(first, extent), (0, first)]
        parts = [site.part(x, along, begin, end) for begin, end in ranges if begin != end]
        if len(parts) > 1:
            x = site.step_or_last(i == len(axes)).concat(parts, axis=along)
        else:
            x = parts[0]
    return x


# Blocks of space as channels or batches

_BLOCKS: dict[str, Any] = {
    "block": integer("block_size", 1),
    "mode": word("mode", "blocks_first", "depth_first"),
}


@operator("DepthToSpace", **_BLOCKS)
def _depth_to_space(site: LayerSite, *, block: int, mode: str) -> Value:
    return depth_to_space(site, block, depth_first=mode == "depth_first")


@operator("SpaceToDepth", **_BLOCKS)
def _space_to_depth(site: LayerSite, *, block: int, mode: str) -> Value:
    extents = site.known_shape()[2:]
    if any(n % block for n in extents):
        raise InvalidShape(f"blocks of {block} do not divide the extents {show(extents)}")
    return space_to_depth(site, block, depth_first=mode == "depth_first")


_PARTS: dict[str, Any] = {"block": integers_at(1), "begin": integers_at(2), "end": integers_at(3)}


@opsets("SpaceToBatch", **_PARTS)
def _space_to_batch(
    site: LayerSite, x: Value, *, block: Sequence[int], begin: Sequence[int], end: Sequence[int]
) -> Value:
    """Pad a tensor, cut it into blocks, and move the positions within a block to the batch axis.

    `block` has the extents of a block, and `begin` and `end` have the padding of each axis.
    """
    if any((*begin, *end)):
        x = site.padded(x, dict(enumerate(zip(begin, end, strict=True))))
    shape = x.type.shape
    counts = [n // b for n, b in zip(shape, block, strict=True)]
    parts: list[int] = []
    for pair in zip(counts, block, strict=True):
        parts += pair
    split = site.reshaped(x, parts)
    rank = len(shape)
    count_axes = range(0, 2 * rank, 2)
    block_axes = range(1, 2 * rank, 2)
    moved = site.transposed(split, [*block_axes, *count_axes])
    return site.last_reshape(moved, [math.prod(block) * counts[0], *counts[1:]])


@opsets("BatchToSpace", **_PARTS)
def _batch_to_space(
    site: LayerSite, x: Value, *, block: Sequence[int], begin: Sequence[int], end: Sequence[int]
) -> Value:
    """Move parts of the batch axis to the positions within blocks, then crop the result.

    `block` has the extents of a block. `begin` and `end` are the numbers of items to cut off at the
    ends of each axis.
    """
    rank = len(block)
    batch, *extents = site.known_shape()
    counts = [batch // math.prod(block), *extents]
    split = site.reshaped(x, [*block, *counts])
    order: list[int] = []
    for i in range(rank):
        order += [rank + i, i]  # the axis of the block follows the axis that the block belongs to
    moved = site.transposed(split, order)
    extents = [n * b for n, b in zip(counts, block, strict=True)]
    joined = site.reshaped(moved, extents)
    ends = [n - e for n, e in zip(extents, end, strict=True)]
    return site.last.slice(joined, axes=[*range(rank)], begin=begin, end=ends, stride=[1] * rank)


@operator("ShuffleChannels")
def _shuffle_channels(
    site: LayerSite, x: Value, *, axis: int = axis("axis", 1), groups: int = integer("group", 1)
) -> Value:
    channels = x.type.shape[axis]
    if groups < 1 or channels % groups:
        raise InvalidShape(f"{groups} groups do not divide {channels} channels")
    split = site.reshaped(x, (groups, channels // groups), axis, 1)
    order = [*range(axis), axis + 1, axis, *range(axis + 2, len(x.type.shape) + 1)]
    moved = site.transposed(split, order)
    return site.last.reshape(moved, shape=(channels,), axis_start=axis, axis_count=2)


@operator("ReorgYolo")
def _reorg_yolo(site: LayerSite, x: Value, *, strides: Sequence[int] = integers("stride")) -> Value:
    """Move blocks of space to channels, in the order of darknet's implementation.

    Darknet computes indices as if the input had channels / stride**2 channels and a larger plane.
    """
    stride = strides[0]
    batch, channels, height, width = site.known_shape()
    divisors = ((channels, stride**2), (height, stride), (width, stride))
    is_divisible = stride >= 1 and all(extent % divisor == 0 for extent, divisor in divisors)
    if not is_divisible:
        raise InvalidShape(f"a stride of {stride} does not divide {show(site.shape())}")
    if stride == 1:
        return site.last.copy(x)
    depth = channels // stride**2
    items = channels * height * width
    site.spend(items)
    c, j, i = np.meshgrid(*map(np.arange, (channels, height, width)), indexing="ij")
    channel = c % depth
    offset = c // depth
    column = i * stride + offset % stride
    row = j * stride + offset // stride
    indices = column + width * stride * (row + height * stride * channel)
    flat = site.reshaped(x, [batch, items])
    moved = site.step.gather(flat, derived(indices.reshape(-1)), axis=1)
    shape = [batch, channels * stride**2, height // stride, width // stride]
    return site.last_reshape(moved, shape)
