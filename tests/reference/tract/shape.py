"""Operations on shapes that tract reads differently from NNEF, or adds to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def unsqueeze(input, axes):
    rank = input.ndim + len(axes)
    output = input
    for axis in sorted(axis % rank for axis in axes):
        output = output.reshape((*output.shape[:axis], 1, *output.shape[axis:]))
    return output


def _items(input, indices, axis):
    return np.take(input, np.array(indices, np.int64), axis)


def slice_(input, axes, begin, end, stride=()):
    """Bounds of 0 and below count from the end, but for a `begin` of 0."""
    output = input
    for k, axis in enumerate(axes):
        extent = input.shape[axis]
        first = begin[k] if begin[k] >= 0 else begin[k] + extent
        last = end[k] if end[k] > 0 else end[k] + extent
        step = stride[k] if stride else 1
        indices = [i for i in range(extent) if first <= i < last]
        if step < 0:
            indices.reverse()
        output = _items(output, indices[:: abs(step)], axis)
    return output


def downsample(input, axis, stride, modulo=0):
    indices = list(range(modulo, input.shape[axis]))
    if stride < 0:
        indices.reverse()
    return _items(input, indices[:: abs(stride)], axis)


def dyn_slice(input, start, end, len, axis):
    """An item past the end is NaN."""
    first = int(np.asarray(start).item())
    missing = np.full((*input.shape[:axis], len, *input.shape[axis + 1 :]), np.nan)
    extended = np.concatenate([input, missing], axis) if first + len > input.shape[axis] else input
    return _items(extended, range(first, first + len), axis)


def trilu(input, k, upper):
    k = int(np.asarray(k).item())
    output = input.copy()
    for i in np.ndindex(*input.shape):
        diagonal = i[-1] - i[-2]
        if (diagonal < k) if upper else (diagonal > k):
            output[i] = 0
    return output


_MODES = {"reflect": "reflect", "replicated": "edge", "replicate": "edge"}


def pad(input, padding, border="constant", value=0.0):
    for axis, (before, after) in enumerate(padding):
        kept = range(max(0, -before), input.shape[axis] + min(0, after))
        input = np.take(input, kept, axis)
    padding = [(max(0, before), max(0, after)) for before, after in padding]
    if border == "constant":
        filling = input.dtype.type(value)
        return np.pad(input, padding, constant_values=filling)
    return np.pad(input, padding, mode=_MODES[border])


def broadcast(input, shape):
    return np.broadcast_to(input, np.broadcast_shapes(input.shape, tuple(shape)))


def range_(start, end, step):
    items = [start]
    while (items[-1] < end) if step > 0 else (items[-1] > end):
        items.append(start + len(items) * step)
    return np.array(items[:-1], np.asarray(start + step).dtype)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "transpose": lambda input, axes: np.transpose(input, axes),
    "squeeze": lambda input, axes: np.squeeze(input, tuple(axes)),
    "unsqueeze": unsqueeze,
    "slice": slice_,
    "tile": lambda input, repeats: np.tile(input, repeats),
    "pad": pad,
    "tract_core_broadcast": broadcast,
    "tract_core_downsample": downsample,
    "tract_core_dyn_slice": dyn_slice,
    "tract_core_trilu": trilu,
    "tract_core_range": range_,
}
