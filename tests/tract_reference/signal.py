"""Fourier transforms by their sums, exponential averages item by item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def inner_dim_to_complex(input):
    return input[..., 0] + 1j * input[..., 1]


def complex_to_inner_dim(input):
    return np.stack([input.real, input.imag], axis=-1)


def _transform(x, inverse=False):
    """Along the first axis."""
    length = len(x)
    sign = 1 if inverse else -1
    return np.array(
        [
            sum(x[n] * np.exp(sign * 2j * np.pi * f * n / length) for n in range(length))
            for f in range(length)
        ]
    )


def fft(input, axis, inverse=False):
    axis = axis + input.ndim if axis < 0 else axis
    x = np.moveaxis(inner_dim_to_complex(input), axis, 0)
    return complex_to_inner_dim(np.moveaxis(_transform(x, inverse), 0, axis))


def stft(input, axis, frame, stride, window=False):
    axis = axis + input.ndim if axis < 0 else axis
    x = np.moveaxis(inner_dim_to_complex(input), axis, 0)
    weights = np.ones(frame)
    if window is not False:
        weights = np.zeros(frame)
        left = (frame - window.size) // 2
        weights[left : left + window.size] = np.ravel(window)
    weights = weights.reshape([frame] + [1] * (x.ndim - 1))
    starts = [s for s in range(0, len(x), stride) if s + frame <= len(x)]
    frames = np.stack([_transform(x[s : s + frame] * weights) for s in starts])
    return complex_to_inner_dim(np.moveaxis(frames, (0, 1), (axis, axis + 1)))


def exp_unit_norm(input, state, axis, alpha, skip=0, stateless=False, complex=False, epsilon=1e-14):
    axis = axis + input.ndim if axis < 0 else axis
    x = np.moveaxis(input, axis, 0)
    output = np.zeros(x.shape)
    for t, now in enumerate(x):
        size = np.abs(inner_dim_to_complex(now)) if complex else np.abs(now)
        if t >= skip:
            state = np.maximum(size, epsilon) * (1 - alpha) + state * alpha
        output[t] = now / np.sqrt(state[..., None] if complex else state)
    return np.moveaxis(output, 0, axis)


def exp_mean_norm(input, state, axis, alpha, skip=0, stateless=False, scaling_factor=1.0):
    axis = axis + input.ndim if axis < 0 else axis
    x = np.moveaxis(input, axis, 0)
    output = np.zeros(x.shape)
    for t, now in enumerate(x):
        if t >= skip:
            state = now * (1 - alpha) + state * alpha
        output[t] = (now - state) / scaling_factor
    return np.moveaxis(output, 0, axis)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "tract_core_inner_dim_to_complex": inner_dim_to_complex,
    "tract_core_complex_to_inner_dim": complex_to_inner_dim,
    "tract_core_fft": fft,
    "tract_core_stft": stft,
    "tract_extra_exp_unit_norm": exp_unit_norm,
    "tract_extra_exp_mean_norm": exp_mean_norm,
}
