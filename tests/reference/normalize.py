"""Normalisations (spec 4.8.4), with the bias and epsilon of 1.0 final."""

from __future__ import annotations

import numpy as np

from .elementwise import align
from .reduce import sum_reduce
from .table import operation
from .windows import box


@operation
def local_response_normalization(input, size, alpha=1.0, beta=0.5, bias=1.0):
    sigma = bias + alpha * box(input * input, size, normalize=True)
    return input / sigma**beta


@operation
def local_mean_normalization(input, size):
    return input - box(input, size, normalize=True)


@operation
def local_variance_normalization(input, size, bias=0.0, epsilon=0.0):
    sigma = box(input * input, size, normalize=True)
    return input / np.maximum(np.sqrt(sigma) + bias, epsilon)


@operation
def local_contrast_normalization(input, size, bias=0.0, epsilon=0.0):
    centered = local_mean_normalization(input, size)
    return local_variance_normalization(centered, size, bias, epsilon)


@operation
def l1_normalization(input, axes, bias=0.0, epsilon=0.0):
    sigma = sum_reduce(np.abs(input), axes)
    return input / np.maximum(sigma + bias, epsilon)


@operation
def l2_normalization(input, axes, bias=0.0, epsilon=0.0):
    sigma = sum_reduce(input * input, axes)
    return input / np.maximum(np.sqrt(sigma) + bias, epsilon)


@operation
def batch_normalization(input, mean, variance, offset, scale, epsilon):
    input, mean, variance, offset, scale = align(input, mean, variance, offset, scale)
    return offset + scale * (input - mean) / np.sqrt(variance + epsilon)
