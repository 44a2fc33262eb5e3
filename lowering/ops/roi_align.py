"""RoIAlign: pools of samples between items (Mask R-CNN, He et al. 2017, arXiv:1703.06870)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidShape
from lowering.extents import Shape, show, volume
from lowering.graph import TensorType
from lowering.kernels.resampling import neighbours
from lowering.ops import require, rules
from lowering.ops.roi import bins_type
from lowering.tracing import Context

_MODES = ("avg", "max", "max_share")


def _type(
    input: TensorType, rois: TensorType, batch_index: TensorType, output_size: Shape,
    sampling_ratio: int, mode: str,
) -> TensorType:  # fmt: skip
    require.same_dtype(require.real, input=input, rois=rois)
    require.one_of("mode", mode, _MODES)
    require.not_negative(sampling_ratio=sampling_ratio)
    require.indexable(samples=TensorType((sampling_ratio, sampling_ratio), "bool"))
    if len(rois.shape) != 2 or rois.shape[1] not in (4, 5):
        raise InvalidShape(
            f"'rois' must have the shape [N,4] or [N,5], it has {show(rois.shape)}",
            hint="a row holds x1, y1, x2, y2, or centre x, y, width, height, angle",
        )
    return bins_type(input, rois, batch_index, output_size)


@rules.rule("roi_align", _type, work=lambda result: 16 * volume(result.shape))
def roi_align(
    ctx: Context, input: Array, rois: Array, batch_index: Array, output_size: Shape,
    sampling_ratio: int, mode: str, least: float = 0.0,
) -> Array:  # fmt: skip
    """Return the mean or maximum of samples in each bin of regions, (N,C,h,w).

    A region is x1, y1, x2, y2 in items, or centre x, y, width, height and an angle from x to y in
    radians. A positive `least` is the lower bound of extents. A bin has `sampling_ratio` samples in
    each direction; 0 means its extent, rounded up. Samples more than 1 outside the input are 0, and
    a maximum is not below 0. 'max_share', as in ONNX, is the largest product of an item and its
    weight in a sample, and may be negative. With `sampling_ratio` 0 there are no derivatives by
    regions, and none in reverse mode for maxima and for rotated regions.
    """
    x, regions = jnp.asarray(input), jnp.asarray(rois)
    # Positions between items need more digits than half precision has.
    regions = regions.astype(np.promote_types(regions.dtype, np.float32))
    regions = regions if sampling_ratio else lax.stop_gradient(regions)
    turned, bins = regions.shape[1] == 5, output_size[::-1]  # along x, along y

    def one(region: tuple[Array, Array]) -> Array:
        roi, item = region
        plane = jnp.take(x, item, 0, mode="clip")
        size = roi[2:4] if turned else jnp.maximum(roi[2:] - roi[:2], float(least) or -jnp.inf)
        start = -size / 2 if turned else roi[:2]
        bin = size / jnp.array(bins, size.dtype)
        counts: Any = (sampling_ratio,) * 2 if sampling_ratio else jnp.ceil(bin).astype(jnp.int32)

        def places(axis: int, k: Array) -> Array:
            """Return the position of sample k of each bin along an axis."""
            within = (jnp.asarray(k, bin.dtype) + 0.5) / jnp.asarray(counts[axis], bin.dtype)
            return start[axis] + (jnp.arange(bins[axis], dtype=bin.dtype) + within) * bin[axis]

        def weights(axis: int) -> Array:
            """Return the share of each item in the mean along an axis, (bins,extent)."""
            extent = plane.shape[2 - axis]
            items = jnp.arange(extent, dtype=bin.dtype)[None, :]

            def add(k: Array, total: Array) -> Array:
                at = places(axis, k)[:, None]
                near = jnp.abs(jnp.clip(at, 0, extent - 1) - items)
                return total + jnp.where(_inside(at, extent), jnp.maximum(1 - near, 0), 0)

            none = jnp.zeros((bins[axis], extent), bin.dtype)
            total = lax.fori_loop(0, counts[axis], add, none)
            return (total / jnp.maximum(jnp.asarray(counts[axis], bin.dtype), 1)).astype(x.dtype)

        if mode == "avg" and not turned:
            return jnp.einsum("cyx,hy,wx->chw", plane, weights(1), weights(0), precision="highest")

        def add(k: Array, total: Array) -> Array:
            column, row = places(0, k % counts[0])[None, :], places(1, k // counts[0])[:, None]
            if turned:
                cos, sin = jnp.cos(roi[4]), jnp.sin(roi[4])
                column, row = column * cos - row * sin, column * sin + row * cos
                column, row = column + roi[0], row + roi[1]
            join = jnp.add if mode == "avg" else jnp.maximum
            return join(total, _sampled(plane, row, column, jnp.maximum if shares else jnp.add))

        samples, shares = counts[0] * counts[1], mode == "max_share"
        start_value = jnp.where(jnp.asarray(samples) > 0, -jnp.inf, 0) if shares else 0
        none = jnp.full((len(plane), *output_size), start_value, x.dtype)
        total = lax.fori_loop(0, samples, add, none)
        if mode == "avg":
            total = total / jnp.maximum(jnp.asarray(samples, x.dtype), 1)
        return total

    pooled = lax.map(jax.checkpoint(one), (regions, jnp.asarray(batch_index)))
    if mode == "avg" and not turned:
        return pooled
    what = "rotated regions" if turned else "a maximum"
    reason = f"samples of {what} are computed in a loop of unknown length"
    hint = "differentiate forwards, by jax.jvp or jax.jacfwd, or take the mean of upright regions"
    return ctx.forward_only([pooled], reason, hint)[0]


def _inside(at: Array, extent: int) -> Array:
    return (at >= -1) & (at <= extent)


def _sampled(
    plane: Array, row: Array, column: Array, join: Callable[[Array, Array], Array]
) -> Array:
    """Return the weighted items around positions (h,w) of a plane (C,H,W), joined; 0 outside."""
    height, width = plane.shape[1:]
    inside = _inside(row, height) & _inside(column, width)
    (top, bottom, down), (left, right, across) = (
        neighbours(at, extent, plane.dtype) for at, extent in ((row, height), (column, width))
    )
    down, across = down[None], across[None]
    upper = join(plane[:, top, left] * (1 - across), plane[:, top, right] * across)
    lower = join(plane[:, bottom, left] * (1 - across), plane[:, bottom, right] * across)
    return jnp.where(inside[None], join(upper * (1 - down), lower * down), 0)
