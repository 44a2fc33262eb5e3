"""Matrices: diagonals, inverses, columns of patches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowering.errors import InvalidShape
from lowering.extents import show
from lowering.graph import Value
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers import opsets
from nnef_jax.formats.openvino.window_attributes import padding_of, spans_of


def diagonal(site: LayerSite, rows: int, columns: int, at: Any, dtype: str) -> Value:
    """Return ones where the column is so much above the row, zeros elsewhere."""
    row, column = site.places(rows, 0, 2), site.places(columns, 1, 2)
    return site.step.cast(site.step.eq(site.step.sub(column, row), at), dtype=dtype)


@opsets("Eye")
def _eye(site: LayerSite) -> Value:
    """Return a matrix with ones on a diagonal, once for each item of a batch."""
    rows, columns = site.integers(0)[0], site.integers(1)[0]
    batch = site.integers(3) if site.has(3) else []
    if min((rows, columns, *batch)) < 0:
        raise InvalidShape(f"there is no shape {[*batch, rows, columns]}")
    at = site.reshaped(site.whole(2), (1, 1))
    found = diagonal(site, rows, columns, at, site.dtype("output_type"))
    found = site.unsqueezed(found, *range(len(batch)))
    return site.last.broadcast(found, shape=(*batch, rows, columns))


@opsets("Inverse")
def _inverse(site: LayerSite) -> Value:
    """Invert matrices; with `adjoint` the results are transposed, as the runtime has it."""
    adjoint = site.flag("adjoint")
    found = site.step_or_last(not adjoint).inverse(site.tensor(0))
    *axes, rows, columns = range(len(found.type.shape))
    return site.last.transpose(found, axes=(*axes, columns, rows)) if adjoint else found


@opsets("Col2Im")
def _col_to_im(site: LayerSite) -> Value:
    """Add patches up, [batch,channels*cells,patches], where they lie in the image."""
    x = site.tensor(0)
    size, kernel = site.integers(1), site.integers(2)
    strides, dilations = site.ints("strides", [1, 1]), site.ints("dilations", [1, 1])
    begin, end = site.ints("pads_begin", [0, 0]), site.ints("pads_end", [0, 0])
    *batch, channels, patches = site.known_shape()
    padding = list(zip(begin, end, strict=True))
    counts = [
        (n + p + q - span) // s + 1
        for n, (p, q), span, s in zip(
            size, padding, spans_of(kernel, dilations), strides, strict=True
        )
    ]
    cells = math.prod(kernel)
    if len(batch) > 1 or channels % cells or math.prod(counts) != patches:
        wanted = f"{cells} cells a channel, {math.prod(counts)} patches"
        raise InvalidShape(f"{show(site.shape())} does not have {wanted}")
    planes = channels // cells
    filter = site.reshaped(diagonal(site, cells, cells, 0, x.type.dtype), (cells, 1, *kernel))
    filter = site.step.tile(filter, repeats=(planes, 1, 1, 1))
    columns = site.reshaped(x, (math.prod(batch), channels, *counts))
    shape = (math.prod(batch), planes, *size)
    found = site.step.deconv(
        columns, filter, 0.0, output_shape=shape, groups=planes, stride=strides,
        dilation=dilations, padding=padding, border="constant",
    )  # fmt: skip
    return site.last_reshape(found, (*batch, *shape[1:]))


@opsets("ExtractImagePatches")
def _extract_patches(site: LayerSite) -> Value:
    """Return the items of windows as channels, the window's cells slowest."""
    x = site.tensor(0)
    sizes, strides, rates = (site.ints(n) for n in ("sizes", "strides", "rates"))
    channels = x.type.shape[1]
    padding = padding_of(site, x.type.shape[2:], spans_of(sizes, rates), strides)
    # A convolution with filters of one 1 each: for every cell of the window, then every channel.
    height, width = sizes
    site.spend((height * width * channels) ** 2 // 4)
    filter = np.zeros((height, width, channels, channels, height, width), np.float32)
    for r in range(height):
        for c in range(width):
            filter[r, c, np.arange(channels), np.arange(channels), r, c] = 1
    filter = derived(filter.reshape(height * width * channels, channels, height, width))
    window = {"padding": padding, "stride": strides, "dilation": rates, "border": "constant"}
    return site.last.conv(x, filter, 0.0, groups=1, **window)
