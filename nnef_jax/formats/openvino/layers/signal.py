"""Fourier transforms of whole tensors and of frames, and what adds frames up again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.graph import Value
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.layers import opsets
from nnef_jax.formats.openvino.layers.matrices import diagonal
from nnef_jax.formats.openvino.site import Site


def _axes(site: Site, rank: int) -> tuple[list[int], list[int]]:
    """Return the axes of the signal, counted without [re,im], and the lengths given, or -1."""
    axes = [site.axis(a, rank) for a in site.integers(1)]
    sizes = site.integers(2) if site.has(2) else [-1] * len(axes)
    if len(sizes) != len(axes) or len(set(axes)) != len(axes):
        raise InvalidOperation(f"axes {axes} and lengths {sizes} do not go together")
    return axes, sizes


def _fitted(site: Site, x: Value, axis: int, size: int) -> Value:
    """Return a tensor with so many items along an axis: cut off, or with zeros behind."""
    extent = x.type.shape[axis]
    if size < extent:
        window = {"axes": (axis,), "begin": (0,), "end": (size,), "stride": (1,)}
        return site.insert("slice", {"input": x}, **window)
    if size == extent:
        return x
    around = [(0, 0)] * len(x.type.shape)
    around[axis] = (0, size - extent)
    return site.insert("pad", {"input": x}, padding=around, border="constant", value=0.0)


def _transformed(
    site: Site, x: Value, axes: Sequence[int], sizes: Sequence[int], *, inverse: bool
) -> Value:
    for axis, size in zip(axes, sizes, strict=True):
        x = _fitted(site, x, axis, x.type.shape[axis] if size < 0 else size)
        x = site.insert("fft", {"input": x}, axis=axis, inverse=inverse)
    return x


def _scaled(site: Site, x: Value, count: int) -> Value:
    return site.emit("mul", {"x": x, "y": 1 / max(count, 1)})


def _complex_transform(site: Site, *, inverse: bool) -> Value:
    x = site.tensor(0)
    axes, sizes = _axes(site, len(site.known_shape()) - 1)
    found = _transformed(site, x, axes, sizes, inverse=inverse)
    if not inverse:
        return site.emit("copy", {"x": found})
    return _scaled(site, found, math.prod(found.type.shape[a] for a in axes))


@opsets("DFT")
def _dft(site: Site) -> Value:
    """Transform pairs [re,im] along axes."""
    return _complex_transform(site, inverse=False)


@opsets("IDFT")
def _idft(site: Site) -> Value:
    """Reverse DFT."""
    return _complex_transform(site, inverse=True)


def _pairs(site: Site, x: Value) -> Value:
    """Return real numbers as pairs [re,im]."""
    rank = len(x.type.shape)
    pairs = site.insert("unsqueeze", {"input": x}, axes=(rank,))
    return _fitted(site, pairs, rank, 2)


@opsets("RDFT")
def _rdft(site: Site) -> Value:
    """Transform real numbers; of the last axis the frequencies from 0 to a half are kept."""
    axes, sizes = _axes(site, len(site.known_shape()))
    found = _transformed(site, _pairs(site, site.tensor(0)), axes, sizes, inverse=False)
    return _halved(site, found, axes[-1])


def _halved(site: Site, x: Value, axis: int) -> Value:
    end = x.type.shape[axis] // 2 + 1
    window = {"axes": (axis,), "begin": (0,), "end": (end,), "stride": (1,)}
    return site.emit("slice", {"input": x}, **window)


def _real_signal(site: Site, x: Value, axis: int, size: int) -> Value:
    """Return the real signal whose frequencies from 0 to a half are given, times its length."""
    x = _fitted(site, x, axis, size // 2 + 1)
    count = (size - 1) // 2  # of the frequencies above a half: conjugates of those below
    if count:
        window = {"axes": (axis,), "begin": (count,), "end": (0,), "stride": (-1,)}
        others = site.insert("slice", {"input": x}, **window)
        shape = (1,) * (len(x.type.shape) - 1) + (2,)
        signs = Constant(np.array([1, -1], np.float32).reshape(shape), "f32", derived=True)
        others = site.insert("mul", {"x": others, "y": signs})
        x = site.insert("concat", {"values": [x, others]}, axis=axis)
    pairs = site.insert("fft", {"input": x}, axis=axis, inverse=True)
    last = len(pairs.type.shape) - 1
    window = {"axes": (last,), "begin": (0,), "end": (1,), "stride": (1,)}
    real = site.insert("slice", {"input": pairs}, **window)
    return site.insert("squeeze", {"input": real}, axes=(last,))


@opsets("IRDFT")
def _irdft(site: Site) -> Value:
    """Reverse RDFT; the last axis has twice as many items as frequencies but the first and last."""
    x = site.tensor(0)
    axes, sizes = _axes(site, len(site.known_shape()) - 1)
    x = _transformed(site, x, axes[:-1], sizes[:-1], inverse=True)
    size = 2 * (x.type.shape[axes[-1]] - 1) if sizes[-1] < 0 else sizes[-1]
    found = _real_signal(site, x, axes[-1], size)
    return _scaled(site, found, math.prod(found.type.shape[a] for a in axes))


# Frames


@opsets("STFT")
def _stft(site: Site) -> Value:
    """Return frequencies from 0 to a half of windowed frames, [batch,frames,frequencies,2].

    With `transpose_frames` frequencies are before frames.
    """
    x, window = site.tensor(0), site.tensor(1)
    size, step = site.integers(2)[0], site.integers(3)[0]
    axis = len(site.known_shape()) - 1
    given = {"input": _pairs(site, x), "window": window}
    found = site.insert("stft", given, axis=axis, frame_length=size, frame_step=step)
    if not site.flag("transpose_frames"):
        return _halved(site, found, axis + 1)
    order = [*range(axis), axis + 1, axis, axis + 2]
    return _halved(site, site.transposed(found, order), axis)


@opsets("ISTFT")
def _istft(site: Site) -> Value:
    """Add windowed frames up, over the squares of their windows; of a length if one is given."""
    x, window = site.tensor(0), site.tensor(1)
    size, step = site.integers(2)[0], site.integers(3)[0]
    shape = site.known_shape()
    if len(shape) == 3:
        x = site.reshaped(x, (1, *shape))
    if len(shape) not in (3, 4) or min(size, step) < 1 or window.type.shape[0] > size:
        raise InvalidShape(f"{list(shape)} holds no frames of {size} items")
    frames = _real_signal(site, x, 1, size)  # [batch,size,frames]
    frames = site.insert("mul", {"x": frames, "y": 1 / size})
    before = (size - window.type.shape[0]) // 2
    around = ((before, size - window.type.shape[0] - before),)
    whole = site.insert("pad", {"input": window}, padding=around, border="constant", value=0.0)
    whole = site.reshaped(whole, (1, size, 1))
    windowed = site.insert("mul", {"x": frames, "y": whole})
    if site.flag("normalized"):
        windowed = site.insert("mul", {"x": windowed, "y": math.sqrt(size)})
    squares = site.insert("sqr", {"x": whole})
    squares = site.insert("broadcast", {"input": squares}, shape=(1, *frames.type.shape[1:]))
    total, weight = _overlapped(site, windowed, step), _overlapped(site, squares, step)
    is_seen = site.insert("gt", {"x": weight, "y": 0.0})
    ones = site.insert("constant", {}, shape=(), value=(1.0,), dtype=weight.type.dtype)
    choices = {"condition": is_seen, "true_value": weight, "false_value": ones}
    signal = site.insert("div", {"x": total, "y": site.insert("select", choices)})
    signal = site.reshaped(signal, (signal.type.shape[0], signal.type.shape[2]))
    edge, extent = size // 2 if site.flag("center") else 0, signal.type.shape[1]
    end = extent if site.has(4) else extent - edge
    ends = {"axes": (1,), "begin": (edge,), "end": (end,), "stride": (1,)}
    signal = site.insert("slice", {"input": signal}, **ends)
    if site.has(4):
        signal = _fitted(site, signal, 1, site.integers(4)[0])
    return site.reshaped(signal, signal.type.shape[1:]) if len(shape) == 3 else signal


def _overlapped(site: Site, frames: Value, step: int) -> Value:
    """Add frames [batch,size,frames] up, each a step behind the one before: [batch,1,items]."""
    size = frames.type.shape[1]
    filter = site.reshaped(diagonal(site, size, size, 0, frames.type.dtype), (size, 1, size))
    operands: dict[str, Any] = {"input": frames, "filter": filter, "bias": 0.0}
    window = {"stride": (step,), "dilation": (1,), "padding": ((0, 0),), "border": "constant"}
    return site.insert("deconv", operands, output_shape=(), groups=1, **window)
