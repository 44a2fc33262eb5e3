"""Blocks of space as channels or batches, and channels in another order."""

from __future__ import annotations

import math

import numpy as np

from lowering.errors import InvalidShape
from lowering.extents import show
from lowering.graph import Value
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers import everywhere, opsets


def _is_depth_first(site: LayerSite) -> bool:
    modes = ("blocks_first", "depth_first")
    return site.choice("mode", *modes, default="blocks_first") == "depth_first"


@everywhere("DepthToSpace")
def _depth_to_space(site: LayerSite) -> Value:
    """Move blocks of channels into space; `depth_first` has the block as the fastest channels."""
    x, block = site.tensor(0), site.int("block_size", 1)
    batch, channels, *extents = site.known_shape()
    k = len(extents)
    depth, blocks = channels // block**k, [block] * k
    if _is_depth_first(site):
        split, first, at = [depth, *blocks], 1, 2
    else:
        split, first, at = [*blocks, depth], k + 1, 1
    order = [0, first, *(axis for i in range(k) for axis in (k + 2 + i, at + i))]
    moved = site.transposed(site.reshaped(x, [batch, *split, *extents]), order)
    return site.last_reshape(moved, [batch, depth, *(n * block for n in extents)])


@everywhere("SpaceToDepth")
def _space_to_depth(site: LayerSite) -> Value:
    """Move blocks of space into channels: the reverse of DepthToSpace."""
    x, block = site.tensor(0), site.int("block_size", 1)
    batch, channels, *extents = site.known_shape()
    k = len(extents)
    if any(n % block for n in extents):
        raise InvalidShape(f"blocks of {block} do not divide the extents {show(tuple(extents))}")
    parts = [part for n in extents for part in (n // block, block)]
    split = site.reshaped(x, [batch, channels, *parts])
    outer, inner = [2 + 2 * i for i in range(k)], [3 + 2 * i for i in range(k)]
    order = [0, 1, *inner, *outer] if _is_depth_first(site) else [0, *inner, 1, *outer]
    moved = site.transposed(split, order)
    return site.last_reshape(moved, [batch, channels * block**k, *(n // block for n in extents)])


@opsets("SpaceToBatch")
def _space_to_batch(site: LayerSite) -> Value:
    x = site.tensor(0)
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
def _batch_to_space(site: LayerSite) -> Value:
    x = site.tensor(0)
    block, begin, end = (site.integers(i) for i in (1, 2, 3))
    shape, rank = site.known_shape(), len(block)
    counts = [shape[0] // math.prod(block), *shape[1:]]
    split = site.reshaped(x, [*block, *counts])
    moved = site.transposed(split, [axis for i in range(rank) for axis in (rank + i, i)])
    whole = [n * b for n, b in zip(counts, block, strict=True)]
    joined = site.reshaped(moved, whole)
    ends = [n - e for n, e in zip(whole, end, strict=True)]
    return site.last.slice(joined, axes=[*range(rank)], begin=begin, end=ends, stride=[1] * rank)


@everywhere("ShuffleChannels")
def _shuffle_channels(site: LayerSite) -> Value:
    x, axis, groups = site.tensor(0), site.axis_of("axis", 1), site.int("group", 1)
    channels = x.type.shape[axis]
    if groups < 1 or channels % groups:
        raise InvalidShape(f"{groups} groups do not divide {channels} channels")
    shape = (groups, channels // groups)
    split = site.step.reshape(x, shape=shape, axis_start=axis, axis_count=1)
    order = [*range(axis), axis + 1, axis, *range(axis + 2, len(x.type.shape) + 1)]
    moved = site.transposed(split, order)
    return site.last.reshape(moved, shape=(channels,), axis_start=axis, axis_count=2)


@everywhere("ReorgYolo")
def _reorg_yolo(site: LayerSite) -> Value:
    """Rearrange as darknet does: the input is read as if it had channels / stride^2 channels."""
    x = site.tensor(0)
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
