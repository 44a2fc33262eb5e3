"""Sliding windows of tract, window by window; up-sampling line by line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def _complete(items, rank):
    return list(items) or [1] * rank


def _spans(size, dilation):
    return [(f - 1) * d + 1 for f, d in zip(size, dilation, strict=True)]


def _pads(extents, size, padding, stride, dilation):
    """Return padding before and after along each axis, by default for ceil(extent / stride)."""
    if padding:
        return list(padding)
    pads = []
    for extent, span, s in zip(extents, _spans(size, dilation), stride, strict=True):
        total = max((-(-extent // s) - 1) * s + span - extent, 0)
        pads.append((total // 2, total - total // 2))
    return pads


def _channels(bias, rank):
    return np.ravel(bias).reshape(-1, *[1] * (rank - 2))


def conv(input, filter, bias=0.0, border="constant", padding=(), stride=(), dilation=(), groups=1):
    batch, channels, *extents = input.shape
    count, depth, *size = filter.shape
    groups = groups or channels
    stride, dilation = _complete(stride, len(size)), _complete(dilation, len(size))
    padding = padding[2:] if len(padding) == input.ndim else padding
    pads = _pads(extents, size, padding, stride, dilation)
    padded = np.pad(input, [(0, 0), (0, 0), *pads])
    positions = [
        (extent - span) // s + 1
        for extent, span, s in zip(padded.shape[2:], _spans(size, dilation), stride, strict=True)
    ]
    output = np.zeros([batch, count, *positions], input.dtype)
    for b, o, *place in np.ndindex(*output.shape):
        first = o // (count // groups) * depth
        cells = [
            slice(p * s, p * s + span, d)
            for p, s, span, d in zip(place, stride, _spans(size, dilation), dilation, strict=True)
        ]
        output[b, o, *place] = np.sum(padded[b, first : first + depth, *cells] * filter[o])
    return output + _channels(bias, input.ndim)


def deconv(
    input,
    filter,
    bias=0.0,
    border="constant",
    padding=(),
    stride=(),
    dilation=(),
    output_shape=(),
    groups=1,
):
    batch, channels, *extents = input.shape
    count, depth, *size = filter.shape
    groups = groups or channels // depth
    stride, dilation = _complete(stride, len(size)), _complete(dilation, len(size))
    padding = padding[2:] if len(padding) == input.ndim else padding
    output_shape = output_shape[2:] if len(output_shape) == input.ndim else output_shape
    spans = _spans(size, dilation)
    whole = [(n - 1) * s + span for n, s, span in zip(extents, stride, spans, strict=True)]
    if padding:
        before = [p for p, _ in padding]
        found = [length - p - q for length, (p, q) in zip(whole, padding, strict=True)]
        found = output_shape or found
    else:
        found = output_shape or [n * s for n, s in zip(extents, stride, strict=True)]
        before = [max(length - n, 0) // 2 for length, n in zip(whole, found, strict=True)]
    room = [max(length, p + n) for length, p, n in zip(whole, before, found, strict=True)]
    output = np.zeros([batch, count, *room])
    for b, i, *place in np.ndindex(*input.shape):
        group, j = divmod(i, depth)
        for o in range(group * (count // groups), (group + 1) * (count // groups)):
            cells = [
                slice(p * s, p * s + span, d)
                for p, s, span, d in zip(place, stride, spans, dilation, strict=True)
            ]
            output[b, o, *cells] += input[b, i, *place] * filter[o, j]
    cut = [slice(p, p + n) for p, n in zip(before, found, strict=True)]
    return output[:, :, *cut] + _channels(bias, input.ndim)


def max_pool_with_index(input, size, border="constant", padding=(), stride=(), dilation=()):
    stride, dilation = _complete(stride, input.ndim), _complete(dilation, input.ndim)
    pads = _pads(input.shape, size, padding, stride, dilation)
    spans = _spans(size, dilation)
    output_shape = [
        (p + extent + q - span) // s + 1
        for extent, (p, q), span, s in zip(input.shape, pads, spans, stride, strict=True)
    ]
    # The plane that indices count on: without a batch axis windows reach along axis 1.
    moving = [k for k in range(input.ndim) if size[k] > 1 or stride[k] > 1]
    first = min([2, *moving])
    output = np.zeros(output_shape, input.dtype)
    index = np.zeros(output_shape, np.int64)
    for place in np.ndindex(*output.shape):
        best = None
        for cell in np.ndindex(*size):
            position = tuple(
                p * s + c * d - before
                for p, s, c, d, (before, _) in zip(place, stride, cell, dilation, pads, strict=True)
            )
            if any(p < 0 or p >= extent for p, extent in zip(position, input.shape, strict=True)):
                continue
            if best is None or input[position] > input[best]:
                best = position
        output[place] = input[best]
        index[place] = np.ravel_multi_index(best[first:], input.shape[first:])
    return output, index


def max_pool(input, size, border="constant", padding=(), stride=(), dilation=()):
    return max_pool_with_index(input, size, border, padding, stride, dilation)[0]


def nearest_upsample(input, factor):
    for k, f in enumerate(factor):
        input = np.repeat(input, f, axis=input.ndim - len(factor) + k)
    return input


def multilinear_upsample(input, factor, method="symmetric", border="replicate"):
    for k, f in enumerate(factor):
        axis = input.ndim - len(factor) + k
        extent = input.shape[axis]
        item = np.arange(extent * f)
        places = {
            "symmetric": (item + 0.5) / f - 0.5,
            "asymmetric": item / f,
            "aligned": item * (extent - 1) / max(extent * f - 1, 1),
        }[method]
        # np.interp goes on with the last item beyond either end.
        input = np.apply_along_axis(
            lambda line, places=places: np.interp(places, np.arange(len(line)), line), axis, input
        )
    return input


OPERATIONS: dict[str, Callable[..., Any]] = {
    "conv": conv,
    "deconv": deconv,
    "max_pool": max_pool,
    "max_pool_with_index": max_pool_with_index,
    "nearest_upsample": nearest_upsample,
    "multilinear_upsample": multilinear_upsample,
}
