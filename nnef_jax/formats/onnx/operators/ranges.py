"""Tensors made of a few numbers: ranges, diagonals, windows, banks of filters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import is_symbolic, show
from nnef_jax.flattening.hostvalues import LARGEST
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator

_WINDOWS = {
    "BlackmanWindow": (0.42, -0.5, 0.08), "HannWindow": (0.5, -0.5),
    "HammingWindow": (25 / 46, -21 / 46),
}  # fmt: skip
_MELS, _CORNER = 2595, 700  # of the scale: mel(f) = 2595 * log10(1 + f / 700)


@operator("Range")
def _range(site: NodeSite) -> Any:
    """Return numbers from a first one on to before a limit."""
    start, limit, delta = (site.known(i).reshape(-1)[0] for i in range(3))
    operand = site.operand(0)
    dtype = operand.type if isinstance(operand, Constant) else site.dtype_of()
    if not any(map(is_symbolic, (start, limit, delta))):
        kind = float if np.dtype(dtype).kind not in "iu" else int
        start, limit, delta = map(kind, (start, limit, delta))
        if delta == 0:
            raise InvalidOperation("'delta' must not be 0")
        count = max(math.ceil((limit - start) / delta), 0)
        if count <= LARGEST:
            return site.constant(start + delta * np.arange(count), dtype)
    given: dict[str, Any] = {"start": start, "end": limit, "step": delta}
    return site.emit("range", {}, **given, dtype=site.computed(dtype))


@operator("EyeLike")
def _eye_like(site: NodeSite) -> Any:
    """Return ones on a diagonal of a matrix, zeros elsewhere."""
    if site.rank() != 2:
        raise InvalidShape(f"it takes a matrix, not {show(site.shape())}")
    rows, columns = site.known_shape()
    dtype = site.dtype("dtype") if "dtype" in site.node.attributes else site.dtype_of()
    row, column = site.places(rows, 0, 2), site.places(columns, 1, 2)
    if k := site.int("k", 0):
        row = site.insert("add", {"x": row, "y": k})
    is_one = site.insert("eq", {"x": row, "y": column})
    return site.emit("cast", {"input": is_one}, dtype=site.computed(dtype))


def _window(site: NodeSite) -> Any:
    """Return a sum of cosines over one period, of which the last item is the first unless open."""
    size = site.integer(0)
    if size < 0:
        raise InvalidShape(f"it must not have {size} items")
    site.spend(size)
    turns = size if site.flag("periodic", True) else size - 1
    angles = 2 * np.pi * np.arange(size) / max(turns, 1)
    factors = _WINDOWS[site.node.operator]
    items = sum(factor * np.cos(i * angles) for i, factor in enumerate(factors))
    return site.constant(items, site.dtype("output_datatype", 1))


operator(*_WINDOWS)(_window)


@operator("MelWeightMatrix")
def _mel_weights(site: NodeSite) -> Any:
    """Return triangles over bins of a spectrum, [bins,bands], at equal steps of the mel scale."""
    bands, length, rate = (site.integer(i) for i in range(3))
    edges = [float(site.known(i).reshape(-1)[0]) for i in (3, 4)]
    if min(bands, length, rate) < 1:
        raise InvalidOperation(f"it needs positive numbers, not {bands}, {length}, {rate}")
    low, high = (_MELS / math.log(10) * math.log1p(edge / _CORNER) for edge in edges)
    count = length // 2 + 1
    site.spend(bands * count)
    mels = low + np.arange(bands + 2) * ((high - low) / (bands + 2))
    hertz = _CORNER * np.expm1(mels / _MELS * math.log(10))
    at = np.floor((length + 1) * hertz / rate).astype(np.int64)
    first, middle, last = (part[None, :] for part in (at[:-2], at[1:-1], at[2:]))
    bins = np.arange(count)[:, None]
    with np.errstate(all="ignore"):
        rising = np.where(middle > first, (bins - first) / (middle - first), bins == middle)
        falling = np.where(last > middle, (last - bins) / (last - middle), 0.0)
    inside = (bins >= first) & (bins < last)
    weights = np.where(bins <= middle, rising, falling) * (inside | (bins == middle))
    return site.constant(weights, site.dtype("output_datatype", 1))
