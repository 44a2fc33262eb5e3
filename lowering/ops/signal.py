"""Fourier transforms of pairs [re,im], in float32 at least; tract's averages and masks."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import differ, show, volume, with_extent
from lowering.graph import ABSENT, TensorType
from lowering.kernels.precision import widened
from lowering.kernels.rounding import saturated
from lowering.ops import require, rules
from lowering.ops.require import normal_axis


def _require_pairs(input: TensorType) -> None:
    require.real(input=input)
    if not input.shape or differ(input.shape[-1], 2):
        raise InvalidShape(
            f"'input' {show(input.shape)} must hold pairs [re,im] along its last axis",
            hint="`pad` the last axis of real numbers with a 0 behind each",
        )


def _complex(pairs: Array) -> Array:
    wide = widened(pairs)
    return lax.complex(wide[..., 0], wide[..., 1])


def _pairs(x: Array, dtype: Any) -> Array:
    return jnp.stack([jnp.real(x), jnp.imag(x)], axis=-1).astype(dtype)


def _to_complex_type(input: TensorType) -> TensorType:
    _require_pairs(input)
    return TensorType(input.shape[:-1], "complex128" if input.dtype == "float64" else "complex64")


@rules.rule("pairs_to_complex", _to_complex_type)
def pairs_to_complex(input: Any) -> Array:
    """Return complex numbers, complex64 at least, of pairs [re,im] along the last axis."""
    return _complex(jnp.asarray(input))


def _to_pairs_type(input: TensorType) -> TensorType:
    require.complex(input=input)
    dtype = "float64" if input.dtype == "complex128" else "float32"
    return TensorType((*input.shape, 2), dtype)


@rules.rule("complex_to_pairs", _to_pairs_type)
def complex_to_pairs(input: Any) -> Array:
    """Return pairs [re,im] along a new last axis."""
    x = jnp.asarray(input)
    return _pairs(x, jnp.real(x).dtype)


def _signal_axis(input: TensorType, axis: int) -> int:
    _require_pairs(input)
    axis = normal_axis(axis, len(input.shape))
    if axis == len(input.shape) - 1:
        raise InvalidOperation(
            f"'axis' must not be the last one of 'input' {show(input.shape)}, which holds [re,im]"
        )
    return axis


def _fft_type(input: TensorType, axis: int) -> TensorType:
    _signal_axis(input, axis)
    return input


@rules.rule("fft", _fft_type)
def fft(input: Any, axis: int, inverse: bool) -> Array:
    """Return the discrete Fourier transform along the axis; the inverse is not normalised."""
    x = jnp.asarray(input)
    transform = partial(jnp.fft.ifft, norm="forward") if inverse else jnp.fft.fft
    return _pairs(transform(_complex(x), axis=axis % x.ndim), x.dtype)


def _rfft_type(input: TensorType, axis: int) -> TensorType:
    require.real(input=input)
    axis = normal_axis(axis, len(input.shape))
    shape = with_extent(input.shape, axis, input.shape[axis] // 2 + 1)
    return TensorType((*shape, 2), input.dtype)


@rules.rule("rfft", _rfft_type)
def rfft(input: Any, axis: int) -> Array:
    """Return pairs [re,im] of the frequencies from 0 to a half of real numbers along the axis."""
    x = jnp.asarray(input)
    return _pairs(jnp.fft.rfft(widened(x), axis=axis), x.dtype)


def _stft_type(
    input: TensorType, window: TensorType, axis: int, frame_length: int, frame_step: int
) -> TensorType:
    axis = _signal_axis(input, axis)
    require.int32(frame_length=frame_length, frame_step=frame_step)
    if frame_length < 1 or frame_step < 1:
        raise InvalidOperation(
            f"'frame_length' and 'frame_step' must be positive: {frame_length}, {frame_step}"
        )
    if window != ABSENT:
        require.real(window=window)
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
def stft(input: Any, window: Any, axis: int, frame_length: int, frame_step: int) -> Array:
    """Return Fourier transforms of overlapping frames: axes of frames and frequencies for the axis.

    A frame begins at each multiple of the step from which it fits. It is multiplied by the window,
    padded by zeros on both sides (one more on the right); all frequencies are given.
    """
    x = widened(jnp.asarray(input))
    axis %= x.ndim
    count = (x.shape[axis] - frame_length) // frame_step + 1
    places = lax.broadcasted_iota(np.int32, (count, frame_length), 1)
    places += lax.broadcasted_iota(np.int32, (count, frame_length), 0) * frame_step
    frames = jnp.take(x, places, axis=axis, mode="clip")
    if window is not False:
        weights = jnp.ravel(jnp.asarray(window, x.dtype))
        left = (frame_length - weights.size) // 2
        weights = jnp.pad(weights, (left, frame_length - weights.size - left))
        frames *= jnp.expand_dims(weights, [i for i in range(frames.ndim) if i != axis + 1])
    return _pairs(jnp.fft.fft(_complex(frames), axis=axis + 1), input.dtype)


def _average_type(
    input: TensorType, state: TensorType, axis: int, skip: int, complex: bool
) -> TensorType:
    if complex:
        axis = _signal_axis(input, axis)
    axis = normal_axis(axis, len(input.shape))
    require.same_dtype(require.real, input=input, state=state)
    require.not_negative(skip=skip)
    why = f"it is 'input' {show(input.shape)} without axis {axis}"
    wanted = with_extent(input.shape, axis)
    if complex:
        why, wanted = f"{why} and without the last one", wanted[:-1]
    require.shape("state", state, wanted, why)
    return input


def _averages(x: Array, state: Any, alpha: float, skip: int) -> Array:
    """Return s <- (1 - alpha) x + alpha s along the first axis, s unchanged for `skip` items."""
    items = x[skip:] * (1 - alpha)
    decays = jnp.full((items.shape[0],) + (1,) * (x.ndim - 1), alpha, x.dtype)

    def after(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
        return first[0] * second[0], second[0] * first[1] + second[1]

    decays, sums = lax.associative_scan(after, (decays, items))
    start = jnp.asarray(state, x.dtype)[None]
    idle = jnp.broadcast_to(start, (min(skip, x.shape[0]), *start.shape[1:]))
    return jnp.concatenate([idle, decays * start + sums])


@rules.rule("tract.exp_unit_norm", _average_type)
def exp_unit_norm(
    input: Any, state: Any, axis: int, alpha: float, skip: int, complex: bool, epsilon: float
) -> Array:
    """Return x / sqrt(s) along the axis, where s <- (1 - alpha) max(|x|, epsilon) + alpha s.

    s begins with the state; `skip` items leave it. If `complex` |x| is that of pairs [re,im].
    """
    x = jnp.moveaxis(widened(jnp.asarray(input)), axis, 0)
    if complex:
        squares = jnp.sum(jnp.square(x), axis=-1)
        # sqrt has no finite derivative at 0, not even where it is not selected.
        small = squares <= epsilon * epsilon
        sizes = jnp.where(small, epsilon, jnp.sqrt(jnp.where(small, 1.0, squares)))
    else:
        sizes = jnp.maximum(jnp.abs(x), epsilon)
    roots = jnp.sqrt(_averages(sizes, state, alpha, skip))
    result = x / (roots[..., None] if complex else roots)
    return jnp.moveaxis(result, 0, axis).astype(input.dtype)


def _mean_type(input: TensorType, state: TensorType, axis: int, skip: int) -> TensorType:
    return _average_type(input, state, axis, skip, complex=False)


@rules.rule("tract.exp_mean_norm", _mean_type)
def exp_mean_norm(
    input: Any, state: Any, axis: int, alpha: float, skip: int, scaling_factor: float
) -> Array:
    """Return (x - s) / scaling_factor; s averages x itself, as in `exp_unit_norm`."""
    x = jnp.moveaxis(widened(jnp.asarray(input)), axis, 0)
    result = (x - _averages(x, state, alpha, skip)) / scaling_factor
    return jnp.moveaxis(result, 0, axis).astype(input.dtype)


def _pulse_mask_type(input: TensorType, axis: int) -> TensorType:
    normal_axis(axis, len(input.shape))
    return input


@rules.rule("tract.pulse_mask", _pulse_mask_type)
def pulse_mask(input: Any, position: Any, axis: int, begin: int, end: int, value: float) -> Array:
    """Return the input in begin ... end - 1 of the stream, from `position` on, else the value."""
    x = jnp.asarray(input)
    places = position + lax.broadcasted_iota(position.dtype, x.shape, normal_axis(axis, x.ndim))
    return jnp.where((places >= begin) & (places < end), x, saturated(value, x.dtype))
