"""Fourier transforms, in float32 at least. Complex numbers are pairs [re,im] on the last axis."""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import differ, show, volume, with_extent
from lowering.graph import ABSENT, TensorType
from lowering.kernels.precision import widened
from lowering.ops import require, rules
from lowering.ops.require import normal_axis


def _require_pairs(input: TensorType) -> None:
    """Refuse an input that does not have pairs [re,im] along its last axis."""
    require.floating(input=input)
    if not input.shape or differ(input.shape[-1], 2):
        raise InvalidShape(
            f"'input' {show(input.shape)} must hold pairs [re,im] along its last axis",
            hint="`pad` the last axis of real numbers with a 0 behind each",
        )


def _complex(pairs: Array) -> Array:
    """Convert pairs [re,im] along the last axis to complex numbers, of at least 64 bits."""
    wide = widened(pairs)
    return lax.complex(wide[..., 0], wide[..., 1])


def _pairs(x: Array, dtype: np.dtype[np.generic]) -> Array:
    """Convert complex numbers to pairs [re,im] of the dtype `dtype`, along a new last axis."""
    return jnp.stack([jnp.real(x), jnp.imag(x)], axis=-1).astype(dtype)


def _to_complex_type(input: TensorType) -> TensorType:
    _require_pairs(input)
    dtype = "complex128" if input.dtype == "float64" else "complex64"
    return TensorType(input.shape[:-1], dtype)


@rules.rule("pairs_to_complex", _to_complex_type)
def pairs_to_complex(input: Array) -> Array:
    """Convert pairs [re,im] along the last axis to complex numbers.

    The result lacks the last axis. Its dtype is complex128 for float64, and otherwise
    complex64.
    """
    return _complex(jnp.asarray(input))


def _to_pairs_type(input: TensorType) -> TensorType:
    require.complex(input=input)
    dtype = "float64" if input.dtype == "complex128" else "float32"
    return TensorType((*input.shape, 2), dtype)


@rules.rule("complex_to_pairs", _to_pairs_type)
def complex_to_pairs(input: Array) -> Array:
    """Convert complex numbers to pairs [re,im] along a new last axis."""
    x = jnp.asarray(input)
    return _pairs(x, jnp.real(x).dtype)


def signal_axis(input: TensorType, axis: int) -> int:
    """Return the axis as a number from 0 on, for an input with pairs [re,im] along its last axis.

    Raises InvalidOperation if the axis is the last one or out of range.
    """
    _require_pairs(input)
    axis = normal_axis(axis, len(input.shape))
    if axis == len(input.shape) - 1:
        raise InvalidOperation(
            f"'axis' must not be the last one of 'input' {show(input.shape)}, which holds [re,im]"
        )
    return axis


def _fft_type(input: TensorType, axis: int) -> TensorType:
    signal_axis(input, axis)
    return input


@rules.rule("fft", _fft_type)
def fft(input: Array, axis: int, inverse: bool) -> Array:
    """Return the discrete Fourier transform of complex numbers along one axis.

    The complex numbers are pairs [re,im] along the last axis of the input and of the result. If
    `inverse` is true, the inverse transform is returned, without the division by the extent.
    """
    x = jnp.asarray(input)
    # With the norm "forward", `ifft` is not divided by the extent.
    transform = partial(jnp.fft.ifft, norm="forward") if inverse else jnp.fft.fft
    return _pairs(transform(_complex(x), axis=axis % x.ndim), x.dtype)


def _rfft_type(input: TensorType, axis: int) -> TensorType:
    require.floating(input=input)
    axis = normal_axis(axis, len(input.shape))
    shape = with_extent(input.shape, axis, input.shape[axis] // 2 + 1)
    return TensorType((*shape, 2), input.dtype)


@rules.rule("rfft", _rfft_type)
def rfft(input: Array, axis: int) -> Array:
    """Return the Fourier transform of real numbers along the axis.

    For an extent of n the result has the n // 2 + 1 frequencies from 0 to 1/2 cycle per item, as
    pairs [re,im] along a new last axis.
    """
    x = jnp.asarray(input)
    return _pairs(jnp.fft.rfft(widened(x), axis=axis), x.dtype)


def _stft_type(
    input: TensorType, window: TensorType, axis: int, frame_length: int, frame_step: int
) -> TensorType:
    """Check the arguments of `stft`, and return the type of its result."""
    axis = signal_axis(input, axis)
    require.int32(frame_length=frame_length, frame_step=frame_step)
    if frame_length < 1 or frame_step < 1:
        raise InvalidOperation(
            f"'frame_length' and 'frame_step' must be positive: {frame_length}, {frame_step}"
        )
    if window != ABSENT:
        require.floating(window=window)
        require.same_dtype(input=input, window=window)
        if volume(window.shape) > frame_length:
            raise InvalidShape(
                f"'window' {show(window.shape)} must fit into 'frame_length' {frame_length}"
            )
    extent = input.shape[axis]
    if extent < frame_length:
        raise InvalidShape(
            f"axis {axis} of 'input' {show(input.shape)} must be as long as one frame, "
            f"{frame_length}",
            hint="a signal is not padded: `pad` it",
        )
    frames = (extent - frame_length) // frame_step + 1
    return TensorType(with_extent(input.shape, axis, frames, frame_length), input.dtype)


@rules.rule("stft", _stft_type)
def stft(
    input: Array, window: Array | Literal[False], axis: int, frame_length: int, frame_step: int
) -> Array:
    """Return the Fourier transforms of frames of a signal. The signal lies along `axis`.

    The result has two axes, frames and frequencies, in the place of `axis`. The input and the
    result have pairs [re,im] along the last axis. Frames have `frame_length` items, and begin
    at multiples of `frame_step`, as long as they fit into the signal. Frames are multiplied by
    `window`, unless `window` is False. A window that is shorter than a frame is padded with zeros
    at both ends. If the number of zeros is odd, there is one more at the right end. The result
    has all `frame_length` frequencies.
    """
    x = widened(jnp.asarray(input))
    frame_axis = axis % x.ndim
    item_axis = frame_axis + 1
    frame_count = (x.shape[frame_axis] - frame_length) // frame_step + 1
    frames_shape = (frame_count, frame_length)
    item_numbers = lax.broadcasted_iota(np.int32, frames_shape, 1)
    starts = lax.broadcasted_iota(np.int32, frames_shape, 0) * frame_step
    # The axes of frames and of their items replace the axis of the signal.
    frames = jnp.take(x, item_numbers + starts, axis=frame_axis, mode="clip")
    if window is not False:
        weights = jnp.ravel(jnp.asarray(window, x.dtype))
        missing = frame_length - weights.size
        left = missing // 2
        weights = jnp.pad(weights, (left, missing - left))
        other_axes = [i for i in range(frames.ndim) if i != item_axis]
        frames *= jnp.expand_dims(weights, other_axes)
    return _pairs(jnp.fft.fft(_complex(frames), axis=item_axis), input.dtype)
