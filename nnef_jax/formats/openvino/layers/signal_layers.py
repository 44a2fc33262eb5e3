"""Meanings of signal layers: Fourier transforms, frames, patches, and some matrices.

The matrices are identity matrices and inverses of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering import windows
from lowering.errors import InvalidOperation, InvalidShape
from lowering.graph import Value
from nnef_jax.flattening.operators.attributes import dtype, flag, integers
from nnef_jax.flattening.spatial_windows import add_patches
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers.registry import integer_at, integers_at, opsets
from nnef_jax.formats.openvino.window_attributes import padding_of


def _diagonal(site: LayerSite, rows: int, columns: int, offset: Value | int, dtype: str) -> Value:
    """Return a matrix with ones where column - row is `offset`, and with zeros elsewhere."""
    row = site.positions(rows, 0, 2)
    column = site.positions(columns, 1, 2)
    is_diagonal = site.step.eq(site.step.sub(column, row), offset)
    return site.step.cast(is_diagonal, dtype=dtype)


@opsets("Eye")
def _eye(
    site: LayerSite,
    *,
    rows: int = integer_at(0),
    columns: int = integer_at(1),
    batch: Sequence[int] = integers_at(3, ()),
    dtype: str = dtype("output_type"),
) -> Value:
    """Return matrices with ones on one diagonal, of shape (*batch, rows, columns).

    Input 2 says how far to the right of the main diagonal the ones are.
    """
    if min((rows, columns, *batch)) < 0:
        raise InvalidShape(f"its shape {[*batch, rows, columns]} has a negative extent")
    offset = site.reshaped(site.integer_tensor(2), (1, 1))
    matrix = _diagonal(site, rows, columns, offset, dtype)
    matrix = site.unsqueezed(matrix, range(len(batch)))
    return site.last.broadcast(matrix, shape=(*batch, rows, columns))


@opsets("Inverse")
def _inverse(site: LayerSite, x: Value, *, adjoint: bool = flag("adjoint")) -> Value:
    """Invert matrices.

    If `adjoint` is set, the inverses are transposed, as OpenVINO's runtime does.
    """
    inverse = site.step_or_last(not adjoint).inverse(x)
    *axes, rows, columns = range(len(inverse.type.shape))
    return site.last.transpose(inverse, axes=(*axes, columns, rows)) if adjoint else inverse


@opsets("Col2Im")
def _col_to_im(
    site: LayerSite,
    *,
    size: list[int] = integers_at(1),
    kernel: list[int] = integers_at(2),
    begin: list[int] = integers("pads_begin", (0, 0)),
    end: list[int] = integers("pads_end", (0, 0)),
    strides: list[int] = integers("strides", (1, 1)),
    dilations: list[int] = integers("dilations", (1, 1)),
) -> Value:
    window = {"padding": list(zip(begin, end, strict=True)), "stride": strides}
    return add_patches(site, size, kernel, 0.0, **window, dilation=dilations)


@opsets("ExtractImagePatches")
def _extract_patches(
    site: LayerSite,
    x: Value,
    *,
    sizes: list[int] = integers("sizes"),
    strides: list[int] = integers("strides"),
    rates: list[int] = integers("rates"),
) -> Value:
    """Return the items of windows as channels: one for each position in a window and each channel.

    Channels of the result are ordered by the position in the window, then by the channel of `x`.
    """
    channels = x.type.shape[1]
    padding = padding_of(site, x.type.shape[2:], windows.spans(sizes, rates), strides)
    # The layer is a convolution with one-hot filters. There is one filter for each position in the
    # window and each channel.
    count = math.prod(sizes) * channels
    site.spend(count**2 // 4)
    ones = np.eye(count, dtype=np.float32).reshape(count, -1, channels).swapaxes(1, 2)
    filter = derived(ones.reshape(count, channels, *sizes))
    window = {"padding": padding, "stride": strides, "dilation": rates, "border": "constant"}
    return site.last.conv(x, filter, 0.0, groups=1, **window)


# Fourier transforms


def _axes(site: LayerSite, rank: int) -> tuple[list[int], list[int]]:
    """Return the axes to transform, and their lengths. The length -1 stands for the input's extent.

    `rank` does not count the axis of the pairs [re, im].
    """
    axes = [site.axis(a, rank) for a in site.integers(1)]
    sizes = site.integers(2) if site.has(2) else [-1] * len(axes)
    are_distinct = len(set(axes)) == len(axes)
    if len(sizes) != len(axes) or not are_distinct:
        raise InvalidOperation(f"axes {axes} must be different and fit lengths {sizes}")
    return axes, sizes


def _transformed(
    site: LayerSite, x: Value, axes: Sequence[int], sizes: Sequence[int], *, inverse: bool
) -> Value:
    for axis, size in zip(axes, sizes, strict=True):
        length = x.type.shape[axis] if size < 0 else size
        x = site.cut_or_padded(x, axis, length)
        x = site.step.fft(x, axis=axis, inverse=inverse)
    return x


def _over_length(site: LayerSite, x: Value, axes: Sequence[int]) -> Value:
    """Divide the sums of an inverse transform by the number of their terms."""
    terms = math.prod(x.type.shape[axis] for axis in axes)
    return site.last.mul(x, 1 / max(terms, 1))


@opsets("DFT", inverse=False)
@opsets("IDFT", inverse=True)
def _complex_transform(site: LayerSite, *, inverse: bool) -> Value:
    """Compute the Fourier transform along axes of pairs [re, im], or its inverse.

    The last axis of input 0 has the pairs. Input 1 lists the axes.
    """
    axes, sizes = _axes(site, len(site.known_shape()) - 1)
    sums = _transformed(site, site.tensor(0), axes, sizes, inverse=inverse)
    return _over_length(site, sums, axes) if inverse else site.last.copy(sums)


def _pairs(site: LayerSite, x: Value) -> Value:
    """Return real numbers as pairs [re, im]."""
    rank = len(x.type.shape)
    return site.cut_or_padded(site.unsqueezed(x, (rank,)), rank, 2)


@opsets("RDFT")
def _rdft(site: LayerSite) -> Value:
    """Compute the Fourier transform of real numbers along axes.

    Along the last of these axes, which has n items, the result has the frequencies 0 to n // 2.
    """
    axes, sizes = _axes(site, len(site.known_shape()))
    sums = _transformed(site, _pairs(site, site.tensor(0)), axes, sizes, inverse=False)
    return _halved(site, sums, axes[-1])


def _halved(site: LayerSite, x: Value, axis: int) -> Value:
    end = x.type.shape[axis] // 2 + 1
    return site.last.slice(x, axes=(axis,), begin=(0,), end=(end,), stride=(1,))


def _real_signal(site: LayerSite, x: Value, axis: int, size: int) -> Value:
    """Compute `size` times the real signal of `size` items with the frequencies 0 to size // 2."""
    x = site.cut_or_padded(x, axis, size // 2 + 1)
    # The number of upper frequencies, which are conjugates of lower frequencies.
    count = (size - 1) // 2
    if count:
        upper = site.part(x, axis, count, 0, -1)
        shape = [1] * len(x.type.shape)
        shape[-1] = 2
        signs = derived(np.array([1, -1], np.float32).reshape(shape))
        upper = site.step.mul(upper, signs)
        x = site.step.concat([x, upper], axis=axis)
    pairs = site.step.fft(x, axis=axis, inverse=True)
    last = len(pairs.type.shape) - 1
    return site.step.squeeze(site.part(pairs, last, 0, 1), axes=(last,))


@opsets("IRDFT")
def _irdft(site: LayerSite) -> Value:
    """Invert the layer RDFT: compute real numbers from frequencies.

    Along the last transformed axis, the result has 2 * (frequencies - 1) items by default.
    """
    axes, sizes = _axes(site, len(site.known_shape()) - 1)
    x = _transformed(site, site.tensor(0), axes[:-1], sizes[:-1], inverse=True)
    size = 2 * (x.type.shape[axes[-1]] - 1) if sizes[-1] < 0 else sizes[-1]
    return _over_length(site, _real_signal(site, x, axes[-1], size), axes)


# Frames


_FRAMES: dict[str, Any] = {"size": integer_at(2), "hop": integer_at(3)}


@opsets("STFT", **_FRAMES)
def _stft(
    site: LayerSite,
    x: Value,
    window: Value,
    *,
    size: int,
    hop: int,
    swaps: bool = flag("transpose_frames"),
) -> Value:
    """Compute the frequencies 0 to size // 2 of windowed frames.

    The result has shape (batch, frames, frequencies, 2). If `transpose_frames` is set, it has shape
    (batch, frequencies, frames, 2).
    """
    axis = len(site.known_shape()) - 1
    frames = {"axis": axis, "frame_length": size, "frame_step": hop}
    spectra = site.step.stft(_pairs(site, x), window, **frames)
    if not swaps:
        return _halved(site, spectra, axis + 1)
    order = [*range(axis), axis + 1, axis, axis + 2]
    return _halved(site, site.transposed(spectra, order), axis)


@opsets("ISTFT", **_FRAMES)
def _istft(
    site: LayerSite,
    x: Value,
    window: Value,
    *,
    size: int,
    hop: int,
    is_normal: bool = flag("normalized"),
    is_centred: bool = flag("center"),
) -> Value:
    """Add up windowed frames of a signal, and divide by the sum of the squared windows.

    `x` has the frequencies of the frames. `size` is the length of a frame, and `hop` is the
    distance between the starts of frames. Input 4 is the length of the signal.
    """
    step = site.step
    shape = site.known_shape()
    missing = size - window.type.shape[0]
    if len(shape) == 3:
        x = site.reshaped(x, (1, *shape))
    if len(shape) not in (3, 4) or min(size, hop) < 1 or missing < 0:
        raise InvalidShape(f"{list(shape)} cannot hold the frequencies of frames of {size} items")
    frames = step.mul(_real_signal(site, x, 1, size), 1 / size)  # of shape (batch, size, frames)
    before = missing // 2
    padded = site.padded(window, {0: (before, missing - before)})
    padded = site.reshaped(padded, (1, size, 1))
    windowed = step.mul(frames, padded)
    if is_normal:
        windowed = step.mul(windowed, math.sqrt(size))
    squares = step.broadcast(step.sqr(padded), shape=(1, *frames.type.shape[1:]))
    total = _overlapped(site, windowed, hop)
    weight = _overlapped(site, squares, hop)
    is_covered = step.gt(weight, 0.0)
    divisor = step.select(is_covered, weight, site.filled(1.0, weight.type.dtype))
    signal = step.div(total, divisor)
    signal = site.reshaped(signal, (signal.type.shape[0], signal.type.shape[2]))
    extent = signal.type.shape[1]
    edge = size // 2 if is_centred else 0
    if site.has(4):
        signal = site.part(signal, 1, edge, extent)
        signal = site.cut_or_padded(signal, 1, site.integers(4)[0])
    else:
        signal = site.part(signal, 1, edge, extent - edge)
    return site.reshaped(signal, signal.type.shape[1:]) if len(shape) == 3 else signal


def _overlapped(site: LayerSite, frames: Value, step: int) -> Value:
    """Add up frames whose starts are `step` items apart.

    `frames` has shape (batch, size, count), and the sum has shape (batch, 1, items).
    """
    size = frames.type.shape[1]
    filter = site.reshaped(_diagonal(site, size, size, 0, frames.type.dtype), (size, 1, size))
    window = {"stride": (step,), "dilation": (1,), "padding": ((0, 0),), "border": "constant"}
    return site.step.deconv(frames, filter, 0.0, output_shape=(), groups=1, **window)
