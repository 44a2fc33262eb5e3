"""Matrices: diagonals, inverses, columns of patches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowering.errors import InvalidShape
from lowering.extents import show
from lowering.graph import Value
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.layers import opsets
from nnef_jax.formats.openvino.layers.convolution import padding_of
from nnef_jax.formats.openvino.site import Site


def diagonal(site: Site, rows: int, columns: int, at: Any, dtype: str) -> Value:
    """Return ones where the column is so much above the row, zeros elsewhere."""
    row, column = site.places(rows, 0, 2), site.places(columns, 1, 2)
    places = site.insert("sub", {"x": column, "y": row})
    return site.insert("cast", {"input": site.insert("eq", {"x": places, "y": at})}, dtype=dtype)


@opsets("Eye")
def _eye(site: Site) -> Value:
    """Return a matrix with ones on a diagonal, once for each item of a batch."""
    rows, columns = site.integers(0)[0], site.integers(1)[0]
    batch = site.integers(3) if site.has(3) else []
    if min((rows, columns, *batch)) < 0:
        raise InvalidShape(f"there is no shape {[*batch, rows, columns]}")
    integer = site.graph.builder.integer
    at = site.reshaped(site.cast(site.tensor(2), integer), (1, 1))
    found = diagonal(site, rows, columns, at, site.dtype("output_type"))
    if batch:
        found = site.insert("unsqueeze", {"input": found}, axes=tuple(range(len(batch))))
    return site.emit("broadcast", {"input": found}, shape=(*batch, rows, columns))


@opsets("Inverse")
def _inverse(site: Site) -> Value:
    """Invert matrices; with `adjoint` the results are transposed, as the runtime has it."""
    if not site.flag("adjoint"):
        return site.emit("inverse", {"input": site.tensor(0)})
    found = site.insert("inverse", {"input": site.tensor(0)})
    rank = len(found.type.shape)
    axes = (*range(rank - 2), rank - 1, rank - 2)
    return site.emit("transpose", {"input": found}, axes=axes)


@opsets("Col2Im")
def _col_to_im(site: Site) -> Value:
    """Add patches up, [batch,channels*cells,patches], where they lie in the image."""
    x = site.tensor(0)
    size, kernel = site.integers(1), site.integers(2)
    strides, dilations = site.ints("strides", [1, 1]), site.ints("dilations", [1, 1])
    begin, end = site.ints("pads_begin", [0, 0]), site.ints("pads_end", [0, 0])
    *batch, channels, patches = site.known_shape()
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    padding = list(zip(begin, end, strict=True))
    counts = [
        (n + p + q - span) // s + 1
        for n, (p, q), span, s in zip(size, padding, spans, strides, strict=True)
    ]
    cells = math.prod(kernel)
    if len(batch) > 1 or channels % cells or math.prod(counts) != patches:
        wanted = f"{cells} cells a channel, {math.prod(counts)} patches"
        raise InvalidShape(f"{show(site.shape())} does not have {wanted}")
    planes = channels // cells
    filter = diagonal(site, cells, cells, 0, x.type.dtype)
    filter = site.reshaped(filter, (cells, 1, *kernel))
    filter = site.insert("tile", {"input": filter}, repeats=(planes, 1, 1, 1))
    columns = site.reshaped(x, (math.prod(batch), channels, *counts))
    operands: dict[str, Any] = {"input": columns, "filter": filter, "bias": 0.0}
    window = {"stride": strides, "dilation": dilations, "padding": padding, "border": "constant"}
    shape = (math.prod(batch), planes, *size)
    found = site.insert("deconv", operands, output_shape=shape, groups=planes, **window)
    return site.emit(
        "reshape", {"input": found}, shape=(*batch, *shape[1:]), axis_start=0, axis_count=-1
    )


@opsets("ExtractImagePatches")
def _extract_patches(site: Site) -> Value:
    """Return the items of windows as channels, the window's cells slowest."""
    x = site.tensor(0)
    sizes, strides, rates = (site.ints(n) for n in ("sizes", "strides", "rates"))
    channels = x.type.shape[1]
    spans = [(k - 1) * r + 1 for k, r in zip(sizes, rates, strict=True)]
    padding = padding_of(site, x.type.shape[2:], spans, strides)
    # A convolution with filters of one 1 each: for every cell of the window, then every channel.
    height, width = sizes
    site.spend((height * width * channels) ** 2 // 4)
    filter = np.zeros((height, width, channels, channels, height, width), np.float32)
    for r in range(height):
        for c in range(width):
            filter[r, c, np.arange(channels), np.arange(channels), r, c] = 1
    filter = filter.reshape(height * width * channels, channels, height, width)
    operands = {"input": x, "filter": Constant(filter, "f32", derived=True), "bias": 0.0}
    window = {"padding": padding, "stride": strides, "dilation": rates}
    return site.emit("conv", operands, groups=1, border="constant", **window)
