"""Shapes and the order of items: reshape, transpose, join, split, blocks of space and depth."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, show, volume
from lowering.graph import Value
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.element_types import element_type
from nnef_jax.formats.openvino.layers import everywhere, legacy, opsets
from nnef_jax.formats.openvino.site import Site
from nnef_jax.formats.symbolic import numbers


def reshaped(site: Site, x: Value, shape: Sequence[int]) -> Value:
    """Add a reshape that is the layer itself."""
    return site.emit("reshape", {"input": x}, shape=tuple(shape), axis_start=0, axis_count=-1)


@everywhere("ShapeOf", "Shape")
def _shape_of(site: Site) -> Constant:
    type = element_type(site.text("output_type", "i32" if site.net.is_legacy else "i64"))
    return Constant(numbers(site.known_shape()), type, derived=True)


@opsets("Reshape")
def _reshape(site: Site) -> Value:
    """Reshape; with `special_zero` a 0 copies the extent of the input."""
    x, wanted = site.tensor(0), site.integers(1)
    if 0 in wanted and -1 not in wanted and not site.flag("special_zero"):
        if volume(x.type.shape) == 0:
            return _emptied(site, x, wanted)
        raise InvalidShape(f"{show(x.type.shape)} cannot be reshaped to {wanted}")
    return reshaped(site, x, wanted)


def _emptied(site: Site, x: Value, shape: Sequence[int]) -> Value:
    attributes = {
        "shape": tuple(shape),
        "value": (0,) if 0 not in shape else (),
        "dtype": x.type.dtype,
    }
    return site.emit("constant", {}, **attributes)


@legacy("Reshape")
def _legacy_reshape(site: Site) -> Value:
    """Reshape to the declared extents of the output, in which a batch of the input follows it."""
    x = site.tensor(0)
    declared = site.layer.outputs[0].shape or ()
    before = site.layer.inputs[0].shape or ()
    return reshaped(site, x, rebatched(declared, before, x.type.shape))


def rebatched(wanted: Sequence[int], declared: Sequence[int], found: Sequence[int]) -> list[int]:
    """Return a declared shape for another input than the declared one.

    The first axis keeps being the batch: it has the same share of the items.
    """
    wanted = list(wanted)
    if tuple(declared) == tuple(found) or not wanted:
        return wanted
    if wanted[0] == declared[0] and wanted[0] != found[0]:
        return [0, *wanted[1:]] if found[0] is UNKNOWN else [found[0], *wanted[1:]]
    rest = math.prod(wanted[1:])
    if UNKNOWN in found or (rest and math.prod(found) % rest == 0):
        return [-1, *wanted[1:]]
    return wanted


@legacy("Flatten")
def _flatten(site: Site) -> Value:
    x = site.tensor(0)
    first, last = site.axis(site.int("axis", 0)), site.axis(site.int("end_axis", -1))
    return site.emit(
        "reshape", {"input": x}, shape=(-1,), axis_start=first, axis_count=last - first + 1
    )


@everywhere("Squeeze")
def _squeeze(site: Site) -> Value:
    x = site.tensor(0)
    shape = x.type.shape
    axes = [site.axis(a) for a in site.integers(1)] if site.has(1) else []
    if not axes:
        axes = [i for i, n in enumerate(shape) if n == 1]
    elif site.flag("allow_axis_skip"):
        axes = [i for i in axes if shape[i] == 1]
    return site.emit("squeeze", {"input": x}, axes=tuple(sorted(set(axes))))


@everywhere("Unsqueeze")
def _unsqueeze(site: Site) -> Value:
    x, axes = site.tensor(0), site.integers(1)
    rank = len(x.type.shape) + len(axes)
    normal = sorted({site.axis(a, rank) for a in axes})
    return site.emit("unsqueeze", {"input": x}, axes=tuple(normal))


def _transposed(site: Site, order: Sequence[int]) -> Value:
    x = site.tensor(0)
    rank = len(x.type.shape)
    axes = [site.axis(a) for a in order] or list(range(rank))[::-1]
    if sorted(axes) != list(range(rank)):
        raise InvalidOperation(f"{list(order)} is no order of {rank} axes")
    return site.emit("transpose", {"input": x}, axes=tuple(axes))


@opsets("Transpose")
def _transpose(site: Site) -> Value:
    return _transposed(site, site.integers(1))


@legacy("Permute")
def _permute(site: Site) -> Value:
    return _transposed(site, site.ints("order"))


@everywhere("Concat")
def _concat(site: Site) -> Value:
    axis = site.axis(site.int("axis", 1))
    values = [x for x in site.tensors() if x.type.shape[axis : axis + 1] != (0,)] or site.tensors()[
        :1
    ]
    if len(values) == 1:
        return site.emit("copy", {"x": values[0]})
    return site.emit("concat", {"values": values}, axis=axis)


@opsets("Split")
def _split(site: Site) -> list[Value]:
    axis, count = site.axis(site.integers(1)[0]), site.int("num_splits")
    extent = site.shape()[axis]
    if count != len(site.layer.outputs):
        raise InvalidOperation(f"'num_splits' is {count}, it has {len(site.layer.outputs)} outputs")
    if count < 1 or (extent is not UNKNOWN and extent % count):
        raise InvalidShape(f"{count} parts do not divide the {extent} items of axis {axis}")
    return _parts(site, axis, [1] * count)


def _parts(site: Site, axis: int, ratios: Sequence[int]) -> list[Value]:
    x = site.tensor(0)
    if len(ratios) == 1:
        return [site.emit("copy", {"x": x})]
    names = site.emit("split", {"value": x}, axis=axis, ratios=tuple(ratios))
    return list(names)


@opsets("VariadicSplit")
def _variadic_split(site: Site) -> list[Value]:
    axis, lengths = site.axis(site.integers(1)[0]), site.integers(2)
    if -1 in lengths:
        extent = site.shape()[axis]
        if extent is UNKNOWN:
            site.known_shape()
        lengths[lengths.index(-1)] = extent - sum(n for n in lengths if n != -1)
    return _cut(site, axis, lengths)


def _cut(site: Site, axis: int, lengths: Sequence[int]) -> list[Value]:
    x, start = site.tensor(0), 0
    if min(lengths, default=0) < 0:
        raise InvalidShape(f"lengths must not be negative, they are {list(lengths)}")
    total = x.type.shape[axis]
    if total is not UNKNOWN and sum(lengths) != total:
        raise InvalidShape(
            f"lengths {list(lengths)} do not add up to the {total} items of axis {axis}"
        )
    if 0 not in lengths and len(lengths) > 1:
        common = math.gcd(*lengths)
        return _parts(site, axis, [n // common for n in lengths])
    found: list[Value] = []
    for length in lengths:
        window = {"axes": (axis,), "begin": (start,), "end": (start + length,), "stride": (1,)}
        found.append(site.emit("slice", {"input": x}, **window))
        start += length
    return found


@legacy("Split", "Slice")
def _legacy_split(site: Site) -> list[Value]:
    """Cut along an axis, into parts of the declared extents of the outputs."""
    axis = site.axis(site.int("axis", 1))
    shapes = [port.shape or () for port in site.layer.outputs]
    if any(len(shape) <= axis for shape in shapes):
        raise InvalidShape(f"an output has no axis {axis}")
    return _cut(site, axis, [shape[axis] for shape in shapes])


@opsets("Tile")
def _tile(site: Site) -> Value:
    x, repeats = site.tensor(0), site.integers(1)
    rank = max(len(x.type.shape), len(repeats))
    if rank > len(x.type.shape):
        x = site.insert("unsqueeze", {"input": x}, axes=tuple(range(rank - len(x.type.shape))))
    repeats = [1] * (rank - len(repeats)) + repeats
    return site.emit("tile", {"input": x}, repeats=tuple(repeats))


@legacy("Tile")
def _legacy_tile(site: Site) -> Value:
    axis, repeats = site.axis(site.int("axis")), [1] * len(site.shape())
    repeats[axis] = site.int("tiles")
    return site.emit("tile", {"input": site.tensor(0)}, repeats=tuple(repeats))


@everywhere("Broadcast")
def _broadcast(site: Site) -> Value:
    """Repeat items to a shape: as numpy does, both ways, or along the axes of input 2."""
    x, wanted = site.tensor(0), site.integers(1)
    mode = site.choice("mode", "numpy", "bidirectional", "explicit", "pdpd", default="numpy")
    if mode == "explicit":
        axes = site.integers(2)
        if (len(x.type.shape) == 1 and len(axes) == 1) or len(axes) == len(x.type.shape):
            rest = tuple(i for i in range(len(wanted)) if i not in axes)
            x = site.insert("unsqueeze", {"input": x}, axes=rest)
        else:
            raise InvalidOperation(f"axes {axes} do not fit the input {show(x.type.shape)}")
    elif mode == "pdpd":
        axis = site.int("axis", 0)
        rest = (*range(axis), *range(axis + len(x.type.shape), len(wanted)))
        x = site.insert("unsqueeze", {"input": x}, axes=rest)
    return site.emit("broadcast", {"input": x}, shape=tuple(wanted))


@legacy("Fill")
def _fill(site: Site) -> Value:
    return site.emit("broadcast", {"input": site.tensor(1)}, shape=tuple(site.integers(0)))


def _is_depth_first(site: Site) -> bool:
    modes = ("blocks_first", "depth_first")
    return site.choice("mode", *modes, default="blocks_first") == "depth_first"


@everywhere("DepthToSpace")
def _depth_to_space(site: Site) -> Value:
    """Move blocks of channels into space; `depth_first` has the block as the fastest channels."""
    x, block = site.tensor(0), site.int("block_size", 1)
    batch, channels, *extents = site.known_shape()
    k = len(extents)
    depth = channels // block**k
    is_depth_first = _is_depth_first(site)
    blocks = [block] * k
    split = site.reshaped(
        x, [batch, *([depth, *blocks] if is_depth_first else [*blocks, depth]), *extents]
    )
    first, at = (1, 2) if is_depth_first else (k + 1, 1)
    order = [0, first]
    for i in range(k):
        order += [k + 2 + i, at + i]
    moved = site.transposed(split, order)
    return reshaped(site, moved, [batch, depth, *(n * block for n in extents)])


@everywhere("SpaceToDepth")
def _space_to_depth(site: Site) -> Value:
    """Move blocks of space into channels: the reverse of DepthToSpace."""
    x, block = site.tensor(0), site.int("block_size", 1)
    batch, channels, *extents = site.known_shape()
    k = len(extents)
    if any(n % block for n in extents):
        raise InvalidShape(f"blocks of {block} do not divide the extents {show(tuple(extents))}")
    parts = [part for n in extents for part in (n // block, block)]
    split = site.reshaped(x, [batch, channels, *parts])
    outer, inner = [2 + 2 * i for i in range(k)], [3 + 2 * i for i in range(k)]
    is_depth_first = _is_depth_first(site)
    order = [0, 1, *inner, *outer] if is_depth_first else [0, *inner, 1, *outer]
    moved = site.transposed(split, order)
    return reshaped(site, moved, [batch, channels * block**k, *(n // block for n in extents)])


@opsets("SpaceToBatch")
def _space_to_batch(site: Site) -> Value:
    x = site.tensor(0)
    block, begin, end = (site.integers(i) for i in (1, 2, 3))
    if any((*begin, *end)):
        around = tuple(zip(begin, end, strict=True))
        x = site.insert("pad", {"input": x}, padding=around, border="constant", value=0.0)
    shape = x.type.shape
    parts = [part for n, b in zip(shape, block, strict=True) for part in (n // b, b)]
    split = site.reshaped(x, parts)
    rank = len(shape)
    order = [2 * i + 1 for i in range(rank)] + [2 * i for i in range(rank)]
    moved = site.transposed(split, order)
    batch = math.prod(block) * (shape[0] // block[0])
    return reshaped(
        site, moved, [batch, *(n // b for n, b in zip(shape[1:], block[1:], strict=True))]
    )


@opsets("BatchToSpace")
def _batch_to_space(site: Site) -> Value:
    x = site.tensor(0)
    block, begin, end = (site.integers(i) for i in (1, 2, 3))
    shape, rank = site.known_shape(), len(block)
    split = site.reshaped(x, [*block, shape[0] // math.prod(block), *shape[1:]])
    order = [axis for i in range(rank) for axis in (rank + i, i)]
    moved = site.transposed(split, order)
    whole = [
        shape[0] // math.prod(block) * block[0],
        *(n * b for n, b in zip(shape[1:], block[1:], strict=True)),
    ]
    joined = site.reshaped(moved, whole)
    axes = tuple(range(rank))
    ends = tuple(n - e for n, e in zip(whole, end, strict=True))
    return site.emit(
        "slice", {"input": joined}, axes=axes, begin=tuple(begin), end=ends, stride=(1,) * rank
    )


@everywhere("ShuffleChannels")
def _shuffle_channels(site: Site) -> Value:
    x, axis, groups = site.tensor(0), site.axis(site.int("axis", 1)), site.int("group", 1)
    channels = x.type.shape[axis]
    if groups < 1 or channels % groups:
        raise InvalidShape(f"{groups} groups do not divide {channels} channels")
    rank = len(x.type.shape)
    split = site.insert(
        "reshape", {"input": x}, shape=(groups, channels // groups), axis_start=axis, axis_count=1
    )
    order = [*range(axis), axis + 1, axis, *range(axis + 2, rank + 1)]
    moved = site.transposed(split, order)
    return site.emit("reshape", {"input": moved}, shape=(channels,), axis_start=axis, axis_count=2)


@opsets("Reverse")
def _reverse(site: Site) -> Value:
    x, axes = site.tensor(0), site.integers(1)
    if site.choice("mode", "index", "mask", default="index") == "mask":
        axes = [i for i, flag in enumerate(site.known(1).tolist()) if flag]
    axes = [site.axis(a) for a in axes]
    for i, axis in enumerate(axes):
        add = site.emit if i == len(axes) - 1 else site.insert
        window = {"axes": (axis,), "begin": (-1,), "end": (-(2**31),), "stride": (-1,)}
        x = add("slice", {"input": x}, **window)
    return x


@opsets("Roll")
def _roll(site: Site) -> Value:
    x = site.tensor(0)
    shifts, axes = site.integers(1), [site.axis(a) for a in site.integers(2)]
    if len(shifts) == 1:
        shifts *= len(axes)
    for i, (shift, axis) in enumerate(zip(shifts, axes, strict=True)):
        extent = site.known_shape(x)[axis]
        at = (-shift) % extent if extent else 0
        halves = [
            site.insert("slice", {"input": x}, axes=(axis,), begin=(a,), end=(b,), stride=(1,))
            for a, b in ((at, extent), (0, at))
            if a != b
        ]
        add = site.emit if i == len(axes) - 1 else site.insert
        x = add("concat", {"values": halves}, axis=axis) if len(halves) > 1 else halves[0]
    return x


@everywhere("ReorgYolo")
def _reorg_yolo(site: Site) -> Value:
    """Rearrange as darknet does: the input is read as if it had channels / stride^2 channels."""
    x = site.tensor(0)
    stride = site.ints("stride")[0]
    batch, channels, height, width = site.known_shape()
    if stride < 1 or channels % stride**2 or height % stride or width % stride:
        raise InvalidShape(f"a stride of {stride} does not divide {show(site.shape())}")
    depth = channels // stride**2
    if stride == 1:
        return site.emit("copy", {"x": x})
    site.spend(channels * height * width)
    index = np.arange(channels * height * width).reshape(channels, height, width)
    out = np.zeros((channels, height, width), np.int64)
    c, j, i = np.meshgrid(*(np.arange(n) for n in (channels, height, width)), indexing="ij")
    inner, offset = c % depth, c // depth
    column, row = i * stride + offset % stride, j * stride + offset // stride
    places = column + width * stride * (row + height * stride * inner)
    out = index.reshape(-1)[places.reshape(-1)]
    flat = site.reshaped(x, [batch, channels * height * width])
    indices = Constant(out.astype(np.int64), "i64", derived=True)
    moved = site.insert("gather", {"input": flat, "indices": indices}, axis=1)
    return reshaped(site, moved, [batch, channels * stride**2, height // stride, width // stride])
