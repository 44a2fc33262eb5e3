"""Functions for signal layers: Fourier transforms, frames, patches, and some matrices.

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
    row_indices = site.positions(rows, axis=0, rank=2)  # has shape (rows, 1)
    column_indices = site.positions(columns, axis=1, rank=2)  # has shape (1, columns)
    is_diagonal = site.step.eq(site.step.sub(column_indices, row_indices), offset)
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
    """Return matrices with ones on one diagonal, in shape (*batch, rows, columns).

    Input 2 is the distance from the main diagonal to the ones, positive to the right.
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
    if not adjoint:
        return inverse
    *batch_axes, rows_axis, columns_axis = range(len(inverse.type.shape))
    return site.last.transpose(inverse, axes=(*batch_axes, columns_axis, rows_axis))


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
    """Add up patches at their positions in an image. The columns of input 0 are the patches."""
    window = {"padding": list(zip(begin, end, strict=True)), "stride": strides}
    return add_patches(site, size, kernel, zero=0.0, **window, dilation=dilations)


@opsets("ExtractImagePatches")
def _extract_patches(
    site: LayerSite,
    x: Value,
    *,
    sizes: list[int] = integers("sizes"),
    strides: list[int] = integers("strides"),
    rates: list[int] = integers("rates"),
) -> Value:
    """Return the items of each window as channels.

    There is a channel for each position in a window and each channel of `x`. The channels are
    ordered by the position in the window, then by the channel of `x`. `rates` are the dilations of
    the windows.
    """
    channels = x.type.shape[1]
    padding = padding_of(site, x.type.shape[2:], windows.spans(sizes, rates), strides)
    # The layer is a convolution with one-hot filters. There is one filter for each position in the
    # window and each channel.
    filter_count = math.prod(sizes) * channels
    site.spend(filter_count**2 // 4)
    one_hot = np.eye(filter_count, dtype=np.float32).reshape(filter_count, -1, channels)
    channels_first = one_hot.swapaxes(1, 2)  # has shape (filters, channels, positions)
    filter = derived(channels_first.reshape(filter_count, channels, *sizes))
    window = {"padding": padding, "stride": strides, "dilation": rates, "border": "constant"}
    no_bias = 0.0
    return site.last.conv(x, filter, no_bias, groups=1, **window)


# Fourier transforms


def _axes(site: LayerSite, rank: int) -> tuple[list[int], list[int]]:
    """Return the axes to transform, and their lengths. The length -1 stands for the input's extent.

    The axes are in input 1, and the lengths are in input 2. `rank` is the number of axes of input 0
    without the axis of the pairs [re, im].
    """
    axes = [site.axis(axis, rank) for axis in site.integers(1)]
    sizes = site.integers(2) if site.has(2) else [-1] * len(axes)
    are_distinct = len(set(axes)) == len(axes)
    if len(sizes) != len(axes) or not are_distinct:
        raise InvalidOperation(f"axes {axes} must be different and fit lengths {sizes}")
    return axes, sizes


def _transformed(
    site: LayerSite, x: Value, axes: Sequence[int], sizes: Sequence[int], *, inverse: bool
) -> Value:
    """Compute the Fourier transform of pairs [re, im] along axes.

    If `inverse`, compute the sums of the inverse transform instead, without dividing these sums by
    the number of their terms. `sizes` has the length of the transform along each axis, or -1 for
    the extent of `x`.
    """
    for axis, size in zip(axes, sizes, strict=True):
        length = x.type.shape[axis] if size < 0 else size
        x = site.cut_or_padded(x, axis=axis, size=length)
        x = site.step.fft(x, axis=axis, inverse=inverse)
    return x


def _over_length(site: LayerSite, sums: Value, axes: Sequence[int]) -> Value:
    """Divide the sums of an inverse transform along `axes` by the number of their terms."""
    terms = math.prod(sums.type.shape[axis] for axis in axes)
    return site.last.mul(sums, 1 / max(terms, 1))


@opsets("DFT", inverse=False)
@opsets("IDFT", inverse=True)
def _complex_transform(site: LayerSite, *, inverse: bool) -> Value:
    """Compute the Fourier transform of pairs [re, im] along axes, or the inverse transform.

    The last axis of input 0 has the pairs. The axes are in input 1.
    """
    axes, sizes = _axes(site, len(site.known_shape()) - 1)
    sums = _transformed(site, site.tensor(0), axes, sizes, inverse=inverse)
    if inverse:
        return _over_length(site, sums, axes)
    return site.last.copy(sums)


def _pairs(site: LayerSite, x: Value) -> Value:
    """Return real numbers as pairs [re, im]."""
    rank = len(x.type.shape)
    real_parts = site.unsqueezed(x, (rank,))  # has shape (..., 1)
    # The imaginary parts are the padding, 0.
    return site.cut_or_padded(real_parts, axis=rank, size=2)


@opsets("RDFT")
def _rdft(site: LayerSite) -> Value:
    """Compute the Fourier transform of real numbers along axes.

    If the last of these axes has n items, the result has the frequencies 0 to n // 2 along this
    axis.
    """
    axes, sizes = _axes(site, len(site.known_shape()))
    sums = _transformed(site, _pairs(site, site.tensor(0)), axes, sizes, inverse=False)
    return _halved(site, sums, axes[-1])


def _halved(site: LayerSite, spectrum: Value, axis: int) -> Value:
    """Return the frequencies 0 to n // 2 of a spectrum that has n frequencies along `axis`."""
    end = spectrum.type.shape[axis] // 2 + 1
    return site.last.slice(spectrum, axes=(axis,), begin=(0,), end=(end,), stride=(1,))


def _real_signal(site: LayerSite, spectrum: Value, axis: int, size: int) -> Value:
    """Compute real signals from half of their frequencies, and multiply the signals by `size`.

    `spectrum` has the frequencies 0 to size // 2 along `axis`. A frequency is a pair [re, im] along
    the last axis of `spectrum`. A signal has `size` items along `axis`.
    """
    spectrum = site.cut_or_padded(spectrum, axis=axis, size=size // 2 + 1)
    # Frequency size - i is the conjugate of frequency i. For 6 items, the frequencies 0 to 3 are
    # in `spectrum`, and the frequencies 4 and 5 are the conjugates of 2 and 1.
    conjugates = (size - 1) // 2  # the number of frequencies above size // 2
    if conjugates:
        mirrored = site.part(spectrum, axis=axis, first=conjugates, last=0, step=-1)
        shape = [1] * len(spectrum.type.shape)
        shape[-1] = 2
        signs = derived(np.array([1, -1], np.float32).reshape(shape))  # the signs of re and im
        upper_frequencies = site.step.mul(mirrored, signs)
        spectrum = site.step.concat([spectrum, upper_frequencies], axis=axis)
    pairs = site.step.fft(spectrum, axis=axis, inverse=True)
    pairs_axis = len(pairs.type.shape) - 1
    real_parts = site.part(pairs, axis=pairs_axis, first=0, last=1)
    return site.step.squeeze(real_parts, axes=(pairs_axis,))


@opsets("IRDFT")
def _irdft(site: LayerSite) -> Value:
    """Invert the layer RDFT: compute real numbers from frequencies.

    Along the last transformed axis, the result has 2 * (frequencies - 1) items by default.
    """
    axes, sizes = _axes(site, len(site.known_shape()) - 1)
    x = _transformed(site, site.tensor(0), axes[:-1], sizes[:-1], inverse=True)
    last_axis = axes[-1]
    size = sizes[-1]
    if size < 0:
        size = 2 * (x.type.shape[last_axis] - 1)
    sums = _real_signal(site, x, last_axis, size)
    return _over_length(site, sums, axes)


# Frames


_FRAME_INPUTS: dict[str, Any] = {"size": integer_at(2), "hop": integer_at(3)}


@opsets("STFT", **_FRAME_INPUTS)
def _stft(
    site: LayerSite,
    x: Value,
    window: Value,
    *,
    size: int,
    hop: int,
    swaps: bool = flag("transpose_frames"),
) -> Value:
    """Compute the frequencies 0 to size // 2 of windowed frames of a signal.

    A frame has `size` items, and `hop` is the distance between the starts of frames. The result has
    shape (batch, frames, frequencies, 2), or (batch, frequencies, frames, 2) if `swaps`.
    """
    axis = len(site.known_shape()) - 1
    frames = {"axis": axis, "frame_length": size, "frame_step": hop}
    spectra = site.step.stft(_pairs(site, x), window, **frames)
    if not swaps:
        return _halved(site, spectra, axis + 1)
    order = [*range(axis), axis + 1, axis, axis + 2]
    return _halved(site, site.transposed(spectra, order), axis)


@opsets("ISTFT", **_FRAME_INPUTS)
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
    distance between the starts of frames. Input 4 is the length of the signal. If `is_normal`, the
    frequencies have been divided by sqrt(size). If `is_centred`, the first half of the first frame
    lies before the signal.
    """
    step = site.step
    shape = site.known_shape()
    has_batch = len(shape) == 4
    missing = size - window.type.shape[0]  # zeros to add to the window
    if len(shape) == 3:
        x = site.reshaped(x, (1, *shape))
    if len(shape) not in (3, 4) or min(size, hop) < 1 or missing < 0:
        raise InvalidShape(f"{list(shape)} cannot hold the frequencies of frames of {size} items")
    # The frames have shape (batch, size, frames).
    frames = step.mul(_real_signal(site, x, axis=1, size=size), 1 / size)
    before = missing // 2
    padded_window = site.padded(window, {0: (before, missing - before)})
    padded_window = site.reshaped(padded_window, (1, size, 1))
    windowed_frames = step.mul(frames, padded_window)
    if is_normal:
        windowed_frames = step.mul(windowed_frames, math.sqrt(size))
    squares = step.broadcast(step.sqr(padded_window), shape=(1, *frames.type.shape[1:]))
    frame_sums = _overlapped_sums(site, windowed_frames, hop)
    square_sums = _overlapped_sums(site, squares, hop)
    signal = _quotient(site, frame_sums, square_sums)
    batch, _, extent = signal.type.shape
    signal = site.reshaped(signal, (batch, extent))
    signal = _without_edges(site, signal, edge=size // 2 if is_centred else 0)
    return signal if has_batch else site.reshaped(signal, signal.type.shape[1:])


def _without_edges(site: LayerSite, signal: Value, edge: int) -> Value:
    """Cut off `edge` items at the start of a signal of shape (batch, items).

    The rest is cut or padded to the length in input 4. Without input 4, `edge` items are cut off at
    the end too.
    """
    extent = signal.type.shape[1]
    if not site.has(4):
        return site.part(signal, axis=1, first=edge, last=extent - edge)
    after_edge = site.part(signal, axis=1, first=edge, last=extent)
    return site.cut_or_padded(after_edge, axis=1, size=site.integers(4)[0])


def _quotient(site: LayerSite, sums: Value, square_sums: Value) -> Value:
    """Divide sums of frames by sums of squared windows. An item that no window covers stays 0."""
    is_covered = site.step.gt(square_sums, 0.0)
    one = site.filled(1.0, square_sums.type.dtype)
    divisor = site.step.select(is_covered, square_sums, one)
    return site.step.div(sums, divisor)


def _overlapped_sums(site: LayerSite, frames: Value, hop: int) -> Value:
    """Add up frames whose starts are `hop` items apart.

    `frames` has shape (batch, size, count), and the sum has shape (batch, 1, items).
    """
    # A transposed convolution with the identity matrix as filter copies each frame to its place,
    # and adds up copies that overlap.
    size = frames.type.shape[1]
    identity = _diagonal(site, rows=size, columns=size, offset=0, dtype=frames.type.dtype)
    filter = site.reshaped(identity, (size, 1, size))
    window = {"stride": (hop,), "dilation": (1,), "padding": ((0, 0),), "border": "constant"}
    no_bias = 0.0
    return site.step.deconv(frames, filter, no_bias, output_shape=(), groups=1, **window)
