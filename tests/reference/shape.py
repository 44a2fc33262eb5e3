"""Operations on shapes (spec 4.5)."""

from __future__ import annotations

import math

import numpy as np

from .borders import extended
from .table import OPERATIONS, operation


@operation
def reshape(input, shape, axis_start=0, axis_count=-1):
    count = input.ndim - axis_start if axis_count == -1 else axis_count
    before = list(input.shape[:axis_start])
    replaced = list(input.shape[axis_start : axis_start + count])
    after = list(input.shape[axis_start + count :])
    # 0 keeps the extent at the same place; -1 takes what the others leave.
    middle = [replaced[k] if extent == 0 else extent for k, extent in enumerate(shape)]
    if -1 in middle:
        known = math.prod(extent for extent in middle if extent != -1)
        middle[middle.index(-1)] = math.prod(replaced) // known
    return input.reshape(before + middle + after)


@operation
def transpose(input, axes):
    return np.transpose(input, [*axes, *range(len(axes), input.ndim)])


@operation
def split(value, axis, ratios):
    unit = value.shape[axis] // sum(ratios)
    parts, start = [], 0
    for ratio in ratios:
        parts.append(np.take(value, range(start, start + ratio * unit), axis))
        start += ratio * unit
    return parts


@operation
def slice_(input, axes, begin, end, stride=()):
    output = input
    for k, axis in enumerate(axes):
        step = stride[k] if stride else 1
        output = np.take(output, slice_indices(begin[k], end[k], step, input.shape[axis]), axis)
    return output


def slice_indices(begin: int, end: int, step: int, extent: int) -> range:
    """Return the indices of a slice along an axis; an offset below 0 counts from the end."""
    if end == 0 and step > 0:
        end = extent
    first = begin + extent if begin < 0 else begin
    last = end + extent if end < 0 else end
    return range(first, last, step)


@operation
def squeeze(input, axes):
    return input.reshape([extent for axis, extent in enumerate(input.shape) if axis not in axes])


@operation
def unsqueeze(input, axes):
    shape = list(input.shape)
    for axis in sorted(axes):
        shape.insert(axis, 1)
    return input.reshape(shape)


@operation
def stack(values, axis):
    return np.concatenate([unsqueeze(value, [axis]) for value in values], axis)


@operation
def tile(input, repeats):
    output = np.zeros([r * x for r, x in zip(repeats, input.shape, strict=True)], input.dtype)
    for i in np.ndindex(*output.shape):
        output[i] = input[tuple(i_k % x for i_k, x in zip(i, input.shape, strict=True))]
    return output


@operation
def pad(input, padding, border="constant", value=0.0):
    output = np.zeros([p + x + q for (p, q), x in zip(padding, input.shape, strict=True)])
    for i in np.ndindex(*output.shape):
        position = [i_k - p for i_k, (p, _) in zip(i, padding, strict=True)]
        output[i] = extended(input, position, border, value)
    return output


@operation
def cast(input, dtype):
    if dtype == "logical":
        return input != 0
    if dtype == "integer":
        return np.trunc(input).astype(np.int64)
    return input.astype(np.float64)


OPERATIONS.update(
    {
        "transpose": lambda input, axes: np.transpose(
            input, [*axes, *range(len(axes), input.ndim)]
        ),
        "concat": lambda values, axis: np.concatenate(values, axis),
        "unstack": lambda value, axis: [np.take(value, i, axis) for i in range(value.shape[axis])],
        "gather": lambda input, indices, axis=0: np.take(input, indices, axis),
    }
)
