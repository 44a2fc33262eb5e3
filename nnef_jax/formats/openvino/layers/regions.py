"""Pools of regions of interest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.layers import everywhere, opsets
from nnef_jax.formats.openvino.site import Site


@everywhere("ROIPooling")
def _roi_pooling(site: Site) -> Value:
    """Pool regions (image, x1, y1, x2, y2): maxima of bins, or items between corners."""
    x, rois = site.tensor(0), site.tensor(1)
    size = site.ints("output_size", site.ints("output_roi", [0, 0]))
    size = [site.int("pooled_h", size[0]), site.int("pooled_w", size[-1])]

    def columns(begin: int, end: int) -> Value:
        return site.insert(
            "slice", {"input": rois}, axes=(1,), begin=(begin,), end=(end,), stride=(1,)
        )

    first = columns(0, 1)
    image = site.insert(
        "squeeze", {"input": site.insert("cast", {"input": first}, dtype="int32")}, axes=(1,)
    )
    box = columns(1, 5)
    if site.choice("method", "max", "bilinear", default="max") == "max":
        scaled = site.insert("mul", {"x": box, "y": site.number("spatial_scale")})
        operands = {"input": x, "rois": scaled, "batch_index": image}
        found = site.insert("max_roi_pool", operands, output_size=size)
    else:
        height, width = site.known_shape()[2:]
        scaled = _scaled(site, box, [width - 1, height - 1] * 2, [0, 0, 1, 1])
        operands = {"input": x, "rois": scaled, "batch_index": image}
        method = "aligned" if min(size) > 1 else "symmetric"
        found = site.insert("roi_resample", operands, output_size=size, method=method)
    alive = site.insert(
        "cast", {"input": site.insert("ge", {"x": first, "y": 0.0})}, dtype=x.type.dtype
    )
    alive = site.insert("unsqueeze", {"input": alive}, axes=(2, 3))
    return site.emit("mul", {"x": found, "y": alive})


@everywhere("PSROIPooling")
def _psroi_pooling(site: Site) -> Value:
    mode = site.text("mode", "average")
    if mode == "bilinear_deformable":
        return _deformable_psroi_pooling(site)
    if mode not in ("average", "bilinear"):
        raise InvalidOperation(f"the mode '{mode}' is not supported")
    return _position_sensitive(site, mode)


def _position_sensitive(site: Site, mode: str, **attributes: Any) -> Value:
    operands = {"input": site.tensor(0), "rois": site.tensor(1)}
    if site.has(2) and not site.flag("no_trans"):
        operands["offsets"] = site.tensor(2)
    return site.emit(
        "position_sensitive_roi_pool", operands, output_channels=site.int("output_dim"),
        group_size=site.int("group_size", site.int("pooled_height", 1)),
        spatial_scale=site.number("spatial_scale"), mode=mode,
        bins=(site.int("spatial_bins_y", 1), site.int("spatial_bins_x", 1)), **attributes,
    )  # fmt: skip


@opsets("DeformablePSROIPooling")
def _deformable_psroi_pooling(site: Site) -> Value:
    return _position_sensitive(site, "deformable", offset_scale=site.number("trans_std", 1))


def _scaled(site: Site, rois: Value, factors: Sequence[float], more: Sequence[float]) -> Value:
    """Return regions times one row, plus another."""
    rows = (Constant(np.array([x], np.float32), "f32", derived=True) for x in (factors, more))
    factor, offset = rows
    return site.insert("add", {"x": site.insert("mul", {"x": rois, "y": factor}), "y": offset})


def _size(site: Site) -> tuple[int, int]:
    return site.int("pooled_h"), site.int("pooled_w")


@opsets("ROIAlign")
def _roi_align(site: Site) -> Value:
    """Pool samples of regions (x1, y1, x2, y2), whose corners are places of items or of pixels."""
    mode, scale = site.text("aligned_mode", "asymmetric"), site.number("spatial_scale")
    more = {"asymmetric": 0, "half_pixel_for_nn": -0.5, "half_pixel": scale / 2 - 0.5}
    if mode not in more:
        raise InvalidOperation(f"'aligned_mode' must be one of {', '.join(more)}")
    operands = {
        "input": site.tensor(0),
        "rois": _scaled(site, site.tensor(1), [scale] * 4, [more[mode]] * 4),
        "batch_index": site.tensor(2),
    }
    return site.emit(
        "roi_align", operands, output_size=_size(site), mode=site.text("mode"),
        sampling_ratio=site.int("sampling_ratio"), least=1.0 if mode == "asymmetric" else 0.0,
    )  # fmt: skip


@opsets("ROIAlignRotated")
def _roi_align_rotated(site: Site) -> Value:
    """Pool samples of regions (centre x, y, width, height, angle)."""
    scale, turn = site.number("spatial_scale"), 1.0 if site.flag("clockwise_mode") else -1.0
    factors, more = [*[scale] * 4, turn], [-0.5, -0.5, 0, 0, 0]
    operands = {
        "input": site.tensor(0),
        "rois": _scaled(site, site.tensor(1), factors, more),
        "batch_index": site.tensor(2),
    }
    return site.emit(
        "roi_align", operands, output_size=_size(site), mode="avg",
        sampling_ratio=site.int("sampling_ratio"),
    )  # fmt: skip


@opsets("ExperimentalDetectronROIFeatureExtractor")
def _roi_feature_extractor(site: Site) -> Any:
    """Pool each region from the level of a pyramid that suits its area; return regions too.

    The level is 2 for the area of 224 x 224 items, one more for four times that
    (arXiv:1612.03144, equation 1).
    """
    rois, *levels = site.tensors()
    size, samples = site.int("output_size"), site.int("sampling_ratio")
    scales = site.ints("pyramid_scales")
    if len(scales) < len(levels):
        raise InvalidOperation(f"'pyramid_scales' must have {len(levels)} items")
    aligned = site.flag("aligned")
    corners = site.insert("split", {"value": rois}, axis=1, ratios=(1, 1, 1, 1))
    left, top, right, bottom = corners
    sides = [site.insert("sub", {"x": b, "y": a}) for a, b in ((left, right), (top, bottom))]
    area = site.insert("mul", {"x": sides[0], "y": sides[1]})
    exists = site.insert("gt", {"x": area, "y": 0.0})
    root = site.insert("sqrt", {"x": site.insert("max", {"x": area, "y": 0.0})})
    relative = site.insert("add", {"x": site.insert("div", {"x": root, "y": 224.0}), "y": 1e-6})
    level = site.insert("add", {"x": site.insert("log2", {"x": relative}), "y": 2.0})
    level = site.insert("floor", {"x": level})
    level = site.insert("clamp", {"x": level, "a": 0.0, "b": float(len(levels) - 1)})
    level = site.insert("select", {"condition": exists, "true_value": level, "false_value": -1.0})
    level = site.insert("unsqueeze", {"input": level}, axes=(2, 3))
    none = Constant(np.zeros(site.known_shape(rois)[0], np.int64), "i64", derived=True)
    total: Any = 0.0
    for i, features in enumerate(levels):
        corners = _scaled(site, rois, [1 / scales[i]] * 4, [-0.5 if aligned else 0] * 4)
        pooled = site.insert(
            "roi_align", {"input": features, "rois": corners, "batch_index": none},
            output_size=(size, size), sampling_ratio=samples, mode="avg", least=1.0,
        )  # fmt: skip
        here = site.insert("eq", {"x": level, "y": float(i)})
        chosen = {"condition": here, "true_value": pooled, "false_value": total}
        total = (site.emit if i == len(levels) - 1 else site.insert)("select", chosen)
    return [total, rois]
