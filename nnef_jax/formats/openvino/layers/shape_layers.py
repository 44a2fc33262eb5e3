"""Shapes and the order of items: reshape, transpose, join, split, repeat, shift, blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, show, volume
from lowering.graph import Value
from nnef_jax.flattening.along_axes import cut, divided
from nnef_jax.flattening.spatial_windows import depth_to_space, space_to_depth
from nnef_jax.flattening.symbolic import numbers
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.element_types import element_type
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers.registry import legacy, operator, opsets


@operator("ShapeOf", "Shape")
def _shape_of(site: LayerSite) -> Constant | Value:
    """Return the shape, without padding: the network computes how many items values say."""
    x = site.operand(0)
    if isinstance(x, Value) and x in site.graph.counts:
        site.known_shape()
        parts = [n if isinstance(n, Value) else derived([n]) for n in site.graph.items_of(x)]
        return parts[0] if len(parts) == 1 else site.last.concat(parts, axis=0)
    type = element_type(site.text("output_type", "i32" if site.net.is_legacy else "i64"))
    return Constant(numbers(site.known_shape()), type, derived=True)


@opsets("Reshape")
def _reshape(site: LayerSite) -> Value:
    """Reshape; with `special_zero` a 0 copies the extent of the input."""
    x, wanted = site.tensor(0), site.integers(1)
    if 0 in wanted and -1 not in wanted and not site.flag("special_zero"):
        if volume(x.type.shape) == 0:
            return site.last.constant(shape=wanted, value=(), dtype=x.type.dtype)
        raise InvalidShape(f"{show(x.type.shape)} cannot be reshaped to {wanted}")
    return site.last_reshape(x, wanted)


@legacy("Reshape")
def _legacy_reshape(site: LayerSite) -> Value:
    """Reshape to the declared extents of the output, in which a batch of the input follows it."""
    x, before = site.tensor(0), site.layer.inputs[0].shape or ()
    return site.last_reshape(x, _rebatched(site.declared, before, x.type.shape))


def _rebatched(wanted: Sequence[int], declared: Sequence[int], found: Sequence[int]) -> list[int]:
    """Return a declared shape for another input than the declared one.

    The first axis keeps being the batch: it has the same share of the items.
    """
    wanted = list(wanted)
    if tuple(declared) == tuple(found) or not wanted:
        return wanted
    if wanted[0] == declared[0] and wanted[0] != found[0]:
        return [0, *wanted[1:]]  # which copies that of the input
    rest = math.prod(wanted[1:])
    if UNKNOWN in found or (rest and math.prod(found) % rest == 0):
        return [-1, *wanted[1:]]
    return wanted


@operator("Squeeze")
def _squeeze(site: LayerSite, x: Value) -> Value:
    shape = x.type.shape
    axes = site.axes(1) if site.has(1) else []
    if not axes:
        axes = [i for i, n in enumerate(shape) if n == 1]
    elif site.flag("allow_axis_skip"):
        axes = [i for i in axes if shape[i] == 1]
    return site.last.squeeze(x, axes=sorted(set(axes)))


@operator("Unsqueeze")
def _unsqueeze(site: LayerSite) -> Value:
    x, axes = site.tensor(0), site.integers(1)
    rank = len(x.type.shape) + len(axes)
    return site.last.unsqueeze(x, axes=sorted({site.axis(a, rank) for a in axes}))


@opsets("Transpose")
@legacy("Permute")
def _transpose(site: LayerSite) -> Value:
    """Permute axes, by input 1 or by the attribute of old files; without any they are reversed."""
    order = site.integers_at(1, "order")
    rank = len(site.shape())
    axes = [site.axis(a) for a in order] or list(range(rank))[::-1]
    if sorted(axes) != list(range(rank)):
        raise InvalidOperation(f"{list(order)} is no order of {rank} axes")
    return site.last.transpose(site.tensor(0), axes=axes)


@operator("Concat")
def _concat(site: LayerSite) -> Value:
    axis, values = site.axis_of("axis", 1), site.tensors()
    values = [x for x in values if x.type.shape[axis : axis + 1] != (0,)] or values[:1]
    if len(values) == 1:
        return site.last.copy(values[0])
    return site.last.concat(values, axis=axis)


@opsets("Split")
def _split(site: LayerSite) -> Sequence[Value]:
    axis, count = site.axes(1)[0], site.int("num_splits")
    if count != len(site.layer.outputs):
        raise InvalidOperation(f"'num_splits' is {count}, it has {len(site.layer.outputs)} outputs")
    return divided(site, site.tensor(0), axis, count)


@opsets("VariadicSplit")
def _variadic_split(site: LayerSite) -> Sequence[Value]:
    axis, lengths = site.axes(1)[0], site.integers(2)
    if -1 in lengths:
        lengths[lengths.index(-1)] = site.known_shape()[axis] - sum(n for n in lengths if n != -1)
    return cut(site, site.tensor(0), axis, lengths)


@legacy("Split", "Slice")
def _legacy_split(site: LayerSite) -> Sequence[Value]:
    """Cut along an axis, into parts of the declared extents of the outputs."""
    axis = site.axis_of("axis", 1)
    shapes = [port.shape or () for port in site.layer.outputs]
    if any(len(shape) <= axis for shape in shapes):
        raise InvalidShape(f"an output has no axis {axis}")
    return cut(site, site.tensor(0), axis, [shape[axis] for shape in shapes])


@operator("Tile")
def _tile(site: LayerSite, x: Value) -> Value:
    if site.net.is_legacy:
        axis, repeats = site.axis_of("axis"), [1] * len(x.type.shape)
        repeats[axis] = site.int("tiles")
    else:
        repeats = site.integers(1)
    more = len(repeats) - len(x.type.shape)
    return site.last.tile(site.unsqueezed(x, range(more)), repeats=[1] * -more + repeats)


@operator("Broadcast")
def _broadcast(site: LayerSite) -> Value:
    """Repeat items to a shape: as numpy does, both ways, or along the axes of input 2."""
    x, wanted = site.tensor(0), site.integers(1)
    rank = len(x.type.shape)
    mode = site.choice("mode", "numpy", "bidirectional", "explicit", "pdpd", default="numpy")
    axes: Sequence[int] | None = None
    if mode == "explicit":
        axes = site.integers(2)
        if len(axes) != rank:
            raise InvalidOperation(f"axes {axes} do not fit the input {show(x.type.shape)}")
    elif mode == "pdpd":
        axis = site.int("axis", 0)
        axes = range(axis, axis + rank)
    if axes is not None:
        rest = [i for i in range(len(wanted)) if i not in axes]
        x = site.step.unsqueeze(x, axes=rest)
    return site.last.broadcast(x, shape=wanted)


@opsets("Reverse")
def _reverse(site: LayerSite) -> Value:
    x, axes = site.tensor(0), site.integers(1)
    if site.choice("mode", "index", "mask", default="index") == "mask":
        axes = [i for i, flag in enumerate(site.known(1).tolist()) if flag]
    ways = {"begin": -1, "end": -(2**31), "stride": -1}
    window = {name: [bound] * len(axes) for name, bound in ways.items()}
    return site.last.slice(x, axes=[site.axis(axis) for axis in axes], **window)


@opsets("Roll")
def _roll(site: LayerSite) -> Value:
    x: Any = site.tensor(0)
    shifts, axes = site.integers(1), site.axes(2)
    if len(shifts) == 1:
        shifts *= len(axes)
    for i, (shift, axis) in enumerate(zip(shifts, axes, strict=True), 1):
        extent = site.known_shape(x)[axis]
        at = (-shift) % extent if extent else 0
        ends = [(a, b) for a, b in ((at, extent), (0, at)) if a != b]
        halves = [site.part(x, axis, a, b) for a, b in ends]
        add = site.step_or_last(i == len(axes))
        x = add.concat(halves, axis=axis) if len(halves) > 1 else halves[0]
    return x


# Blocks of space as channels or batches


def _is_depth_first(site: LayerSite) -> bool:
    modes = ("blocks_first", "depth_first")
    return site.choice("mode", *modes, default="blocks_first") == "depth_first"


@operator("DepthToSpace")
def _depth_to_space(site: LayerSite) -> Value:
    return depth_to_space(site, site.int("block_size", 1), depth_first=_is_depth_first(site))


@operator("SpaceToDepth")
def _space_to_depth(site: LayerSite) -> Value:
    block, extents = site.int("block_size", 1), site.known_shape()[2:]
    if any(n % block for n in extents):
        raise InvalidShape(f"blocks of {block} do not divide the extents {show(extents)}")
    return space_to_depth(site, block, depth_first=_is_depth_first(site))


@opsets("SpaceToBatch")
def _space_to_batch(site: LayerSite, x: Value) -> Value:
    block, begin, end = (site.integers(i) for i in (1, 2, 3))
    if any((*begin, *end)):
        x = site.padded(x, dict(enumerate(zip(begin, end, strict=True))))
    shape = x.type.shape
    counts = [n // b for n, b in zip(shape, block, strict=True)]
    split = site.reshaped(x, [part for pair in zip(counts, block, strict=True) for part in pair])
    rank = len(shape)
    moved = site.transposed(split, [*range(1, 2 * rank, 2), *range(0, 2 * rank, 2)])
    return site.last_reshape(moved, [math.prod(block) * counts[0], *counts[1:]])


@opsets("BatchToSpace")
def _batch_to_space(site: LayerSite, x: Value) -> Value:
    block, begin, end = (site.integers(i) for i in (1, 2, 3))
    shape, rank = site.known_shape(), len(block)
    counts = [shape[0] // math.prod(block), *shape[1:]]
    split = site.reshaped(x, [*block, *counts])
    moved = site.transposed(split, [axis for i in range(rank) for axis in (rank + i, i)])
    whole = [n * b for n, b in zip(counts, block, strict=True)]
    joined = site.reshaped(moved, whole)
    ends = [n - e for n, e in zip(whole, end, strict=True)]
    return site.last.slice(joined, axes=[*range(rank)], begin=begin, end=ends, stride=[1] * rank)


@operator("ShuffleChannels")
def _shuffle_channels(site: LayerSite) -> Value:
    x, axis, groups = site.tensor(0), site.axis_of("axis", 1), site.int("group", 1)
    channels = x.type.shape[axis]
    if groups < 1 or channels % groups:
        raise InvalidShape(f"{groups} groups do not divide {channels} channels")
    split = site.reshaped(x, (groups, channels // groups), axis, 1)
    order = [*range(axis), axis + 1, axis, *range(axis + 2, len(x.type.shape) + 1)]
    moved = site.transposed(split, order)
    return site.last.reshape(moved, shape=(channels,), axis_start=axis, axis_count=2)


@operator("ReorgYolo")
def _reorg_yolo(site: LayerSite, x: Value) -> Value:
    """Rearrange as darknet does: the input is read as if it had channels / stride^2 channels."""
    stride = site.ints("stride")[0]
    batch, channels, height, width = site.known_shape()
    if stride < 1 or channels % stride**2 or height % stride or width % stride:
        raise InvalidShape(f"a stride of {stride} does not divide {show(site.shape())}")
    depth, items = channels // stride**2, channels * height * width
    if stride == 1:
        return site.last.copy(x)
    site.spend(items)
    c, j, i = np.meshgrid(*map(np.arange, (channels, height, width)), indexing="ij")
    inner, offset = c % depth, c // depth
    column, row = i * stride + offset % stride, j * stride + offset // stride
    places = column + width * stride * (row + height * stride * inner)
    flat = site.reshaped(x, [batch, items])
    moved = site.step.gather(flat, derived(places.reshape(-1)), axis=1)
    return site.last_reshape(
        moved, [batch, channels * stride**2, height // stride, width // stride]
    )
