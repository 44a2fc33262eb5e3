"""Regions of interest (1.0 final). A region is x1, y1, x2, y2 in pixels of the input.

1.0 leaves the arithmetic open. The pools are those of Fast R-CNN; resampling takes the region for
an image of x2 - x1 by y2 - y1 pixels and samples it as `multilinear_upsample` would, with the
input's edges replicated.
"""

from __future__ import annotations

import math

import numpy as np

from .table import operation
from .windows import avg_pool, max_pool


def rounded(x: float) -> int:
    """Round halves away from zero, as Fast R-CNN's C code does."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def bin_range(i: int, count: int, first: float, last: float, extent: int) -> range:
    """Return the rows (or columns) of bin i; both corners are part of the region."""
    start = rounded(first)
    size = max(rounded(last) - start + 1, 1)
    begin = start + (i * size) // count
    end = start + -(-((i + 1) * size) // count)
    return range(max(begin, 0), min(end, extent))


def roi_pool(input, rois, batch_index, output_size, function):
    output = np.zeros([len(rois), input.shape[1], *output_size])
    for n, c, i, j in np.ndindex(*output.shape):
        x1, y1, x2, y2 = rois[n]
        plane = input[batch_index[n], c]
        rows = bin_range(i, output_size[0], y1, y2, plane.shape[0])
        columns = bin_range(j, output_size[1], x1, x2, plane.shape[1])
        values = [plane[row, column] for row in rows for column in columns]
        output[n, c, i, j] = function(values) if values else 0.0
    return output


@operation
def avg_roi_pool(input, rois, batch_index, output_size):
    return roi_pool(input, rois, batch_index, output_size, np.mean)


@operation
def max_roi_pool(input, rois, batch_index, output_size):
    return roi_pool(input, rois, batch_index, output_size, np.max)


def sample_position(i: int, count: int, first: float, last: float, method: str) -> float:
    """Return where sample i of `count` lies between the corners of a region."""
    size = last - first
    if method == "symmetric":
        return first + (i + 0.5) * size / count - 0.5
    if method == "asymmetric":
        return first + i * size / count
    if method == "aligned":
        return first + i * (size - 1) / (count - 1) if count > 1 else first
    raise ValueError(f"unknown method '{method}'")


def bilinear(plane: np.ndarray, y: float, x: float) -> float:
    """Interpolate between pixels of a plane, whose edges are replicated outside."""
    height, width = plane.shape
    y = min(max(y, 0.0), height - 1.0)
    x = min(max(x, 0.0), width - 1.0)
    top, left = math.floor(y), math.floor(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    v, u = y - top, x - left
    upper = (1 - u) * plane[top, left] + u * plane[top, right]
    lower = (1 - u) * plane[bottom, left] + u * plane[bottom, right]
    return (1 - v) * upper + v * lower


@operation
def roi_resample(input, rois, batch_index, output_size, method="symmetric"):
    output = np.zeros([len(rois), input.shape[1], *output_size])
    for n, c, i, j in np.ndindex(*output.shape):
        x1, y1, x2, y2 = rois[n]
        y = sample_position(i, output_size[0], y1, y2, method)
        x = sample_position(j, output_size[1], x1, x2, method)
        output[n, c, i, j] = bilinear(input[batch_index[n], c], y, x)
    return output


def resampled(input, rois, batch_index, output_size, sampling_rate, resize_method):
    """Resample regions with `sampling_rate` samples for each item of the output."""
    size = [o * r for o, r in zip(output_size, sampling_rate, strict=True)]
    return roi_resample(input, rois, batch_index, size, resize_method)


@operation
def avg_roi_align(input, rois, batch_index, output_size, sampling_rate, resize_method="symmetric"):
    samples = resampled(input, rois, batch_index, output_size, sampling_rate, resize_method)
    return avg_pool(samples, [1, 1, *sampling_rate], stride=[1, 1, *sampling_rate])


@operation
def max_roi_align(input, rois, batch_index, output_size, sampling_rate, resize_method="symmetric"):
    samples = resampled(input, rois, batch_index, output_size, sampling_rate, resize_method)
    return max_pool(samples, [1, 1, *sampling_rate], stride=[1, 1, *sampling_rate])
