"""vxPoolingLayer and vxROIPoolingLayer."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from nnef_jax.openvx import layer_checks as checks
from nnef_jax.openvx import shapes
from nnef_jax.openvx.layers.accumulation import ends
from nnef_jax.openvx.layers.product_layers import SIZE_ROUNDING
from nnef_jax.openvx.profiles import SEMANTICS
from nnef_jax.openvx.tensor import Tensor, require_one_of
from nnef_jax.openvx.vx_errors import unsupported, wrong_dimension

POOLING = ("max", "avg")
_MOST_CELLS = 1 << 16  # of a window: their sum fits an int32


@checks.layer
def pooling_layer(
    inputs: Tensor,
    *,
    pooling_size: tuple[int, int],
    pooling_type: str = "max",
    pooling_padding: tuple[int, int] = (0, 0),
    rounding: str = "floor",
    output_shape: tuple[int, ...] | None = None,
    skip: tuple[int, int] | None = None,
    semantics: str = "spec",
    strict: bool = True,
) -> Tensor:
    """Return the maximum or mean ('avg') of windows of inputs ([batch,] C,H,W) (vxPoolingLayer).

    Pairs are (x, y). Zeros surround the inputs; in 'spec' semantics they take part in maxima, in
    'khronos' they do not. What windows reach beyond them, where sizes are rounded up, takes part in
    none, and counts as zeros in means: the sum divided by the size of the window, truncated.

    The skip is given, or the smallest that brings the inputs to `output_shape`, or 1; `rounding` is
    that of sizes, 'floor' or 'ceiling'. The output has the position of the inputs.
    """
    require_one_of("pooling_type", pooling_type, POOLING)
    require_one_of("rounding", rounding, SIZE_ROUNDING)
    require_one_of("semantics", semantics, SEMANTICS)
    x = checks.tensor("inputs", inputs, 3, 4)
    checks.same_format(strict, inputs=x)
    size = checks.pair("pooling_size", pooling_size, 1)[::-1]
    padding = checks.pair("pooling_padding", pooling_padding)
    *known, _, _ = x.shape
    infer, extents = partial(shapes.infer_skip, rounding=rounding), x.shape[-2:]
    skip = checks.stride(
        "skip", skip, output_shape, tuple(known), infer, extents, size, padding[::-1]
    )
    shape = shapes.pooling_output_shape(x.shape, size[::-1], padding, skip, rounding)
    checks.bounded_padding(x, padding, shape)
    if pooling_type == "avg" and size[0] * size[1] > _MOST_CELLS:
        unsupported(f"a mean of more than {_MOST_CELLS} items: pooling_size {size[::-1]}")
    pads = tuple(map(ends, extents, padding[::-1], size, shape[-2:], skip[::-1]))
    windows = {"size": size, "skip": skip[::-1], "pads": pads}
    if pooling_type == "avg":
        return Tensor(_mean(x.data, **windows), x.fixed_point_position)
    ignored = semantics == "khronos"
    return Tensor(_maximum(x.data, ignored=ignored, **windows), x.fixed_point_position)


@partial(jax.jit, static_argnames=("size", "skip", "pads"))
def _mean(x: Array, *, size: Any, skip: Any, pads: Any) -> Array:
    total = _reduce(x.astype(np.int32), lax.add, 0, size, skip, pads)
    return lax.div(total, np.int32(size[0] * size[1])).astype(x.dtype)  # which truncates


@partial(jax.jit, static_argnames=("size", "skip", "pads", "ignored"))
def _maximum(x: Array, *, size: Any, skip: Any, pads: Any, ignored: bool) -> Array:
    least = int(jnp.iinfo(x.dtype).min)
    if not ignored:
        # As many zeros as there are before the inputs; what windows reach beyond them is nothing.
        zeros = tuple((before, min(before, after)) for before, after in pads)
        x, pads = _padded(x, 0, zeros), tuple((0, max(q - p, 0)) for p, q in pads)
    return _reduce(x, lax.max, least, size, skip, pads)


def _reduce(x: Array, operation: Any, padding: int, size: Any, skip: Any, pads: Any) -> Array:
    lead = (1,) * (x.ndim - 2)
    first = np.asarray(padding, x.dtype)
    x = _padded(x, padding, pads)
    return lax.reduce_window(x, first, operation, (*lead, *size), (*lead, *skip), "VALID")


def _padded(x: Array, value: int, pads: Any) -> Array:
    lead = [(0, 0, 0)] * (x.ndim - 2)
    return lax.pad(x, np.asarray(value, x.dtype), lead + [(*ends, 0) for ends in pads])


@checks.layer
def roi_pooling_layer(
    inputs: Tensor,
    input_rois: Tensor,
    *,
    output_shape: tuple[int, ...],
    pool_type: str = "max",
    semantics: str = "spec",
    strict: bool = True,
) -> Tensor:
    """Return maxima of inputs ([batch,] C,H,W) in parts of regions: [batch,] R,C and two extents.

    `input_rois` ([batch,] R,4) holds x0, y0, x1 and y1 in items of the inputs, whatever the
    fixed-point position, ends included (vxROIPoolingLayer). A part of a region that lies outside
    of the inputs is 0. Where a part begins before them, 'spec' semantics take what is inside of
    them, 'khronos' nothing.
    """
    require_one_of("semantics", semantics, SEMANTICS)
    if pool_type != "max":
        require_one_of("pool_type", pool_type, POOLING)
        unsupported("only maxima of regions are taken: pool_type must be 'max'")
    x = checks.tensor("inputs", inputs, 3, 4)
    rois = checks.tensor("input_rois", input_rois, len(x.shape) - 1)
    checks.same_format(False, inputs=x, input_rois=rois)
    checks.same_format(strict, inputs=x)
    *batch, count, corners = rois.shape
    if corners != 4 or tuple(batch) != x.shape[:-3]:
        wrong_dimension(
            f"input_rois have the shape {rois.shape}, not {(*x.shape[:-3], 'regions', 4)}"
        )
    wanted = checks.output_shape(output_shape, (*batch, count, x.shape[-3]), 2)
    if max(wanted[-2:]) >= 1 << 15:
        unsupported(f"regions are divided in 2**15 parts or more: output_shape {wanted}")
    pool = partial(_regions, size=wanted[-2:], clipped=semantics == "spec")
    pool = jax.vmap(pool) if batch else pool
    return Tensor(pool(x.data, rois.data), x.fixed_point_position)


@partial(jax.jit, static_argnames=("size", "clipped"))
def _regions(x: Array, rois: Array, *, size: tuple[int, int], clipped: bool) -> Array:
    """Return the maxima (R,C,h,w) of regions (R,4) of (C,H,W), an axis after the other."""
    corners = rois.astype(np.int32)
    rows = _parts(corners[:, 1], corners[:, 3], size[0], x.shape[-2], clipped)  # (R,h,H)
    columns = _parts(corners[:, 0], corners[:, 2], size[1], x.shape[-1], clipped)
    least = np.asarray(jnp.iinfo(x.dtype).min, x.dtype)
    high = jnp.where(rows[:, None, :, :, None], x[None, :, None], least).max(3)  # (R,C,h,W)
    best = jnp.where(columns[:, None, None], high[:, :, :, None], least).max(4)
    some = rows.any(2)[:, None, :, None] & columns.any(2)[:, None, None]
    return jnp.where(some, best, np.asarray(0, x.dtype))


def _parts(first: Array, last: Array, count: int, extent: int, clipped: bool) -> Array:
    """Return which items along an axis are in each part of each region: (R,count,extent)."""
    length = jnp.maximum(last - first, 0) + 1
    place = jnp.arange(count, dtype=np.int32)
    starts = lax.div(place[None] * length[:, None], np.int32(count)) + first[:, None]
    after = lax.div((place[None] + 1) * length[:, None] + (count - 1), np.int32(count))
    item = jnp.arange(extent, dtype=np.int32)[None, None]
    inside = (item >= starts[:, :, None]) & (item < (after + first[:, None])[:, :, None])
    return inside if clipped else inside & (starts >= 0)[:, :, None]
