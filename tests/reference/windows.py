"""Sliding windows (spec 4.3.1 to 4.3.3, 4.8.2, 4.8.3), position by position."""

from __future__ import annotations

import math

import numpy as np

from .borders import basic_axes, extended, inside, reverse_axes, reverse_sources, sources
from .elementwise import add
from .table import operation


@operation
def conv(input, filter, bias=0.0, border="constant", padding=(), stride=(), dilation=(), groups=1):
    batch, channels, *extents = input.shape
    count, depth, *size = filter.shape
    groups = groups or channels
    axes = basic_axes(extents, size, padding, stride, dilation)
    output = np.zeros([batch, count, *(a.down for a in axes)])
    for b, k2, *i in np.ndindex(*output.shape):
        group = k2 // (count // groups)
        planes = input[b, group * depth : (group + 1) * depth]
        for j, position in sources(i, axes):
            output[b, k2, *i] += np.sum(extended(planes, position, border) * filter[k2, :, *j])
    return add(output, bias)


@operation
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
    batch, count, *extents = input.shape
    _, depth, *size = filter.shape
    # Plane-wise means as many groups as output channels; without output_shape they are the input's.
    groups = groups or (output_shape[1] if output_shape else count)
    axes = reverse_axes(extents, size, padding, stride, dilation, output_shape[2:])
    output = np.zeros([batch, depth * groups, *(a.up for a in axes)])
    for b, k1, *i in np.ndindex(*output.shape):
        group, n = divmod(k1, depth)
        k2 = slice(group * (count // groups), (group + 1) * (count // groups))
        for j, position in reverse_sources(i, axes):
            output[b, k1, *i] += np.sum(
                extended(input[b, k2], position, border) * filter[k2, n, *j]
            )
    return add(output, bias)


@operation
def box(input, size, border="constant", padding=(), stride=(), dilation=(), normalize=False):
    axes = basic_axes(input.shape, size, padding, stride, dilation)
    output = np.zeros([a.down for a in axes])
    for i in np.ndindex(*output.shape):
        positions = [position for _, position in sources(i, axes)]
        if border == "ignore":
            positions = [position for position in positions if inside(position, input.shape)]
        output[i] = sum(extended(input, position, border) for position in positions)
        if normalize:
            # The volume of the window, of which 'ignore' leaves out the cells beyond the edges.
            output[i] /= len(positions)
    return output


@operation
def debox(
    input,
    size,
    border="constant",
    padding=(),
    stride=(),
    dilation=(),
    output_shape=(),
    normalize=False,
):
    # A sum does not change by leaving out zeros, so 'ignore' is 'constant'.
    border = "constant" if border == "ignore" else border
    axes = reverse_axes(input.shape, size, padding, stride, dilation, output_shape)
    output = np.zeros([a.up for a in axes])
    for i in np.ndindex(*output.shape):
        positions = [position for _, position in reverse_sources(i, axes)]
        output[i] = sum(extended(input, position, border) for position in positions)
    return output / math.prod(size) if normalize else output


@operation
def argmax_pool(input, size, border="constant", padding=(), stride=(), dilation=()):
    axes = basic_axes(input.shape, size, padding, stride, dilation)
    index = np.zeros([a.down for a in axes], np.int64)
    for i in np.ndindex(*index.shape):
        best = None
        for j, position in sources(i, axes):
            if border == "ignore" and not inside(position, input.shape):
                continue
            value = extended(input, position, border)
            if best is None or value > best:
                best = value
                index[i] = np.ravel_multi_index(j, [a.f for a in axes])
    return index


@operation
def sample(input, index, size, border="constant", padding=(), stride=(), dilation=()):
    axes = basic_axes(input.shape, size, padding, stride, dilation)
    output = np.zeros([a.down for a in axes])
    for i in np.ndindex(*output.shape):
        j = np.unravel_index(index[i], [a.f for a in axes])
        position = [i_k * a.s + j_k * a.d - a.p for i_k, j_k, a in zip(i, j, axes, strict=True)]
        output[i] = extended(input, position, border)
    return output


@operation
def desample(
    input, index, size, border="constant", padding=(), stride=(), dilation=(), output_shape=()
):
    axes = reverse_axes(input.shape, size, padding, stride, dilation, output_shape)
    output = np.zeros([a.up for a in axes])
    for i in np.ndindex(*output.shape):
        for j, position in reverse_sources(i, axes):
            number = np.ravel_multi_index(j, [a.f for a in axes])
            if inside(position, input.shape) and index[tuple(position)] == number:
                output[i] += input[tuple(position)]
    return output


@operation
def max_pool_with_index(input, size, border="constant", padding=(), stride=(), dilation=()):
    window = (size, border, padding, stride, dilation)
    index = argmax_pool(input, *window)
    return sample(input, index, *window), index


@operation
def max_pool(input, size, border="constant", padding=(), stride=(), dilation=()):
    output, _ = max_pool_with_index(input, size, border, padding, stride, dilation)
    return output


@operation
def avg_pool(input, size, border="constant", padding=(), stride=(), dilation=()):
    return box(input, size, border, padding, stride, dilation, normalize=True)


@operation
def rms_pool(input, size, border="constant", padding=(), stride=(), dilation=()):
    return np.sqrt(avg_pool(input * input, size, border, padding, stride, dilation))


@operation
def separable_conv(
    input,
    plane_filter,
    point_filter,
    bias=0.0,
    border="constant",
    padding=(),
    stride=(),
    dilation=(),
    groups=1,
):
    filtered = conv(input, plane_filter, 0.0, border, padding, stride, dilation, groups=0)
    return conv(filtered, point_filter, bias, groups=groups)


@operation
def separable_deconv(
    input,
    plane_filter,
    point_filter,
    bias=0.0,
    border="constant",
    padding=(),
    stride=(),
    dilation=(),
    output_shape=(),
    groups=1,
):
    filtered = deconv(input, point_filter, groups=groups)
    return deconv(
        filtered, plane_filter, bias, border, padding, stride, dilation, output_shape, groups=0
    )
