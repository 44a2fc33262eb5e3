"""Reductions (spec 4.4): the reduced axes stay, with extent 1."""

from __future__ import annotations

import math

import numpy as np

from .table import OPERATIONS, operation


@operation
def sum_reduce(input, axes, normalize=False):
    total = np.sum(input, axis=tuple(axes), keepdims=True)
    return total / math.prod(input.shape[axis] for axis in axes) if normalize else total


@operation
def argmax_reduce(input, axes):
    """Return the row-major index of the first maximum of the reduced part."""
    kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(input.shape))
    output = np.zeros(kept, np.int64)
    for i in np.ndindex(*kept):
        part = input[tuple(slice(None) if axis in axes else i[axis] for axis in range(input.ndim))]
        output[i] = np.argmax(part.flatten())
    return output


@operation
def mean_reduce(input, axes):
    return sum_reduce(input, axes, normalize=True)


@operation
def moments(input, axes):
    mean = mean_reduce(input, axes)
    deviation = input - mean
    return mean, mean_reduce(deviation * deviation, axes)


OPERATIONS.update(
    {
        "max_reduce": lambda input, axes: np.max(input, axis=tuple(axes), keepdims=True),
        "min_reduce": lambda input, axes: np.min(input, axis=tuple(axes), keepdims=True),
        "argmin_reduce": lambda input, axes: argmax_reduce(-input, axes),
        "any_reduce": lambda input, axes: np.any(input, axis=tuple(axes), keepdims=True),
        "all_reduce": lambda input, axes: np.all(input, axis=tuple(axes), keepdims=True),
    }
)
