"""Reductions and running sums of tract: the reduced axes stay, with extent 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def _reduced(input, axes, function, kind):
    """Apply a function to the flattened part of the input for each item of the result."""
    axes = [axis % input.ndim for axis in axes]
    output = np.zeros([1 if k in axes else x for k, x in enumerate(input.shape)], kind)
    for i in np.ndindex(*output.shape):
        part = input[tuple(slice(None) if k in axes else i[k] for k in range(input.ndim))]
        output[i] = function(np.ravel(part).tolist())
    return output


def sum_reduce(input, axes, normalize=False):
    def total(items):
        if not normalize:
            return sum(items)
        quotient = abs(sum(items)) / len(items) * (1 if sum(items) > 0 else -1)
        return int(quotient) if input.dtype.kind == "i" else quotient

    return _reduced(input, axes, total, input.dtype)


def product_reduce(input, axes):
    def product(items):
        result = 1
        for item in items:
            result = result * item
        return result

    return _reduced(input, axes, product, input.dtype)


def _last(items, value):
    return max(i for i, item in enumerate(items) if item == value)


def argmax_reduce(input, axes):
    return _reduced(input, axes, lambda items: items.index(max(items)), np.int64)


def argmin_reduce(input, axes):
    return _reduced(input, axes, lambda items: items.index(min(items)), np.int64)


def argmax_reduce_last(input, axes):
    return _reduced(input, axes, lambda items: _last(items, max(items)), np.int64)


def argmin_reduce_last(input, axes):
    return _reduced(input, axes, lambda items: _last(items, min(items)), np.int64)


def cumsum(x, axis, exclusive=False, reverse=False):
    items = np.moveaxis(x, axis, 0)
    output = np.zeros_like(items)
    for i in range(len(items)):
        for k in range(len(items)):
            before = k > i if reverse else k < i
            if before or (k == i and not exclusive):
                output[i] += items[k]
    return np.moveaxis(output, 0, axis)


def log_softmax(x, axes):
    moved = x - np.max(x, axis=tuple(axes), keepdims=True)
    return moved - np.log(np.sum(np.exp(moved), axis=tuple(axes), keepdims=True))


def rms_norm(input, axis, eps=1e-6):
    return input / np.sqrt(np.mean(input**2, axis=axis, keepdims=True) + eps)


def scaled_rms_norm(input, scale, axis, eps=1e-6, out_dt="", scale_dt=""):
    normal = np.moveaxis(rms_norm(input, axis, eps), axis, -1)
    return np.moveaxis(normal * np.ravel(scale), -1, axis)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum_reduce": sum_reduce,
    "max_reduce": lambda input, axes: _reduced(input, axes, max, input.dtype),
    "min_reduce": lambda input, axes: _reduced(input, axes, min, input.dtype),
    "argmax_reduce": argmax_reduce,
    "argmin_reduce": argmin_reduce,
    "tract_core_product_reduce": product_reduce,
    "tract_core_argmax_reduce_last": argmax_reduce_last,
    "tract_core_argmin_reduce_last": argmin_reduce_last,
    "tract_core_cumsum": cumsum,
    "tract_core_softmax": lambda x, axes, exp="": np.exp(log_softmax(x, axes)),
    "tract_core_log_softmax": log_softmax,
    "tract_core_rms_norm": rms_norm,
    "tract_core_scaled_rms_norm": scaled_rms_norm,
}
