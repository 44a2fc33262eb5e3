"""Functions for Fourier transforms: along an axis (DFT), or of windowed frames (STFT)."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from nnef_jax.flattening.operators.attributes import flag, integer
from nnef_jax.flattening.site import Tensor
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator


def _is_real(site: NodeSite) -> bool:
    """Tell whether the signal in input 0 is real.

    The last axis of a real signal has extent 1. The last axis of a complex signal has extent 2: the
    real part and the imaginary part of a number. Raises InvalidShape for any other extent.
    """
    last_extent = site.known_shape()[-1:]  # () if the signal has no axes
    if last_extent not in ((1,), (2,)):
        raise InvalidShape(f"the last axis of {show(site.shape())} must hold [re] or [re,im]")
    return last_extent == (1,)


@operator("DFT", since=20)
def _dft(
    site: NodeSite, x: Tensor, *, inverse: bool = flag("inverse"), onesided: bool = flag("onesided")
) -> Any:
    """Compute the Fourier transform along the axis in input 2, or its inverse; see `_along_axis`.

    The last axis has the real and imaginary parts of numbers. Without input 2, the transform is
    along the axis before the last axis.
    """
    axis = site.integer(2, default=-2)
    return _along_axis(site, x, axis=axis, inverse=inverse, onesided=onesided)


@operator("DFT")
def _along_axis(
    site: NodeSite,
    x: Tensor,
    *,
    axis: int = integer("axis", 1),
    inverse: bool = flag("inverse"),
    onesided: bool = flag("onesided"),
) -> Any:
    """Compute the Fourier transform along `axis`, or its inverse.

    Input 1 is the number of items that are transformed. If `onesided`, the transform of a real
    signal has only the first half of the frequencies. If `onesided` and `inverse`, x is the first
    half of a spectrum, and the result is a real signal.
    """
    rank = site.rank()
    parts_axis = rank - 1  # the axis of [re] or [re,im]
    is_real = _is_real(site)
    if site.axis(axis) == parts_axis:
        raise InvalidOperation(f"'axis' must not be {axis}, the axis of [re] or [re,im]")
    needs_real = not inverse
    if onesided and is_real != needs_real:
        due = "complex" if inverse else "real"
        raise InvalidOperation(f"the signal must be {due} if 'onesided' is 1")
    axis = site.axis(axis)
    extent = site.known_shape()[axis]
    has_half_spectrum = onesided and inverse  # whether x is half the spectrum of a real signal
    default_count = 2 * (extent - 1) if has_half_spectrum else extent
    count = site.integer(1, default_count)
    if count < 1:
        raise InvalidOperation(f"its length must be positive, it is {count}")
    site.spend(count)
    if has_half_spectrum:
        x = _weighted_half(site, x, axis, count)
    x = site.cut_or_padded(x, axis, size=count)
    if is_real and not inverse:
        signal = site.squeezed(x, parts_axis)
        return _of_real(site, signal, axis, count, onesided=onesided)
    pairs = site.cut_or_padded(x, parts_axis, size=2)  # [re,im]
    result = site.step.fft(pairs, axis=axis, inverse=inverse)
    if inverse:
        result = site.step.div(result, float(count))
    if not onesided:
        return result
    return site.cut_or_padded(result, parts_axis, size=1)  # [re]


def _weighted_half(site: NodeSite, x: Tensor, axis: int, count: int) -> Any:
    """Multiply the lower half of a real signal's spectrum, so that the half stands for both halves.

    `count` is the number of frequencies in both halves. The upper half has the conjugates of the
    lower half. Therefore most frequencies of the lower half are multiplied by 2.
    """
    half_count = count // 2 + 1
    # Frequency 0 has no conjugate. If the number of frequencies is even, the middle frequency has
    # no conjugate either. The factors are 1, 2, 2 for 5 frequencies, and 1, 2, 2, 1 for 6.
    factors = np.full(half_count, 2.0)
    factors[0] = 1
    if count % 2 == 0:
        factors[-1] = 1
    shape = [1] * site.rank()
    shape[axis] = half_count
    weights = site.constant(factors.reshape(shape), site.dtype_of())
    half_spectrum = site.cut_or_padded(x, axis, size=half_count)
    return site.step.mul(half_spectrum, weights)


def _of_real(site: NodeSite, x: Tensor, axis: int, count: int, *, onesided: bool) -> Any:
    """Compute the spectrum of a real signal along an axis.

    The spectrum has `count` frequencies. The upper half of the spectrum has the conjugates of the
    lower half. If `onesided`, the upper half is left out.
    """
    lower_half = site.step_or_last(onesided).rfft(x, axis=axis)
    upper_count = (count - 1) // 2  # the number of frequencies in the upper half
    if onesided or upper_count == 0:
        return lower_half
    # The upper half has the conjugates of the frequencies from `upper_count` down to 1. For 6
    # frequencies, the lower half has the frequencies 0, 1, 2, 3, and the slice has 2, 1.
    mirrored = site.step.slice(
        lower_half, axes=(axis,), begin=(upper_count,), end=(0,), stride=(-1,)
    )
    signs_of_parts = site.constant([1, -1], site.dtype_of())  # of [re,im]
    conjugates = site.step.mul(mirrored, signs_of_parts)
    return site.last.concat([lower_half, conjugates], axis=axis)


@operator("STFT")
def _stft(site: NodeSite, x: Tensor, *, onesided: bool = flag("onesided", True)) -> Any:
    """Compute the spectra of the frames of signals.

    The result has shape (batch, frames, frequencies, 2). Input 1 is the distance between the starts
    of neighbouring frames, input 2 is the window, and input 3 is the length of a frame. Real
    signals have shape (batch, items, 1), and complex signals have shape (batch, items, 2). Real
    signals may also have shape (batch, items), which torch.onnx writes and runtimes read.
    """
    if site.rank() not in (2, 3):
        raise InvalidShape(f"its signal {show(site.shape())} must have two or three axes")
    is_flat = site.rank() == 2
    is_real = is_flat or _is_real(site)
    frame_step = site.integer(1)
    if onesided and not is_real:
        raise InvalidOperation("the signal must be real if 'onesided' is 1")
    default_length = site.shape(2)[0] if site.has(2) else site.known_shape()[1]
    frame_length = site.integer(3, default_length)
    if site.has(2) and site.shape(2) != (frame_length,):
        raise InvalidShape(f"its window {show(site.shape(2))} must have {frame_length} items")
    window = site.operand(2) if site.has(2) else False  # the operation takes False for no window
    if is_flat:
        x = site.unsqueezed(x, (2,))
    pairs = site.cut_or_padded(x, axis=2, size=2)  # [re,im]
    add = site.step_or_last(is_last=not onesided)
    spectra = add.stft(pairs, window, axis=1, frame_length=frame_length, frame_step=frame_step)
    if not onesided:
        return spectra
    half_count = frame_length // 2 + 1
    return site.cut_or_padded(spectra, axis=2, size=half_count)
