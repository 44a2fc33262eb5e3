"""Fourier transforms by their sums, exponential averages item by item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def pairs_to_complex(input):
    return input[..., 0] + 1j * input[..., 1]


def complex_to_pairs(input):
    return np.stack([input.real, input.imag], axis=-1)


def _transform(x, inverse=False):
    """Transform along the first axis."""
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
    x = np.moveaxis(pairs_to_complex(input), axis, 0)
    return complex_to_pairs(np.moveaxis(_transform(x, inverse), 0, axis))


def stft(input, axis, frame_length, frame_step, window=False):
    axis = axis + input.ndim if axis < 0 else axis
    x = np.moveaxis(pairs_to_complex(input), axis, 0)
    weights = np.ones(frame_length)
    if window is not False:
        weights = np.zeros(frame_length)
        left = (frame_length - window.size) // 2
        weights[left : left + window.size] = np.ravel(window)
    weights = weights.reshape([frame_length] + [1] * (x.ndim - 1))
    starts = [s for s in range(0, len(x), frame_step) if s + frame_length <= len(x)]
    frames = np.stack([_transform(x[s : s + frame_length] * weights) for s in starts])
    return complex_to_pairs(np.moveaxis(frames, (0, 1), (axis, axis + 1)))


def exp_unit_norm(input, state, axis, alpha, skip=0, complex=False, epsilon=1e-14):
    axis = axis + input.ndim if axis < 0 else axis
    x = np.moveaxis(input, axis, 0)
    output = np.zeros(x.shape)
    for t, now in enumerate(x):
        size = np.abs(pairs_to_complex(now)) if complex else np.abs(now)
        if t >= skip:
            state = np.maximum(size, epsilon) * (1 - alpha) + state * alpha
        output[t] = now / np.sqrt(state[..., None] if complex else state)
    return np.moveaxis(output, 0, axis)


def exp_mean_norm(input, state, axis, alpha, skip=0, scaling_factor=1.0):
    axis = axis + input.ndim if axis < 0 else axis
    x = np.moveaxis(input, axis, 0)
    output = np.zeros(x.shape)
    for t, now in enumerate(x):
        if t >= skip:
            state = now * (1 - alpha) + state * alpha
        output[t] = (now - state) / scaling_factor
    return np.moveaxis(output, 0, axis)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "pairs_to_complex": pairs_to_complex,
    "complex_to_pairs": complex_to_pairs,
    "fft": fft,
    "stft": stft,
    "tract.exp_unit_norm": exp_unit_norm,
    "tract_extra_exp_unit_norm": lambda *, stateless, **others: exp_unit_norm(**others),
    "tract.exp_mean_norm": exp_mean_norm,
}
