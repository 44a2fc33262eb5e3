"""Suppression of boxes that overlap better ones: indices of those that remain, -1 behind them."""

from __future__ import annotations

from typing import Any

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.formats.openvino.flat_graph import Count
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers import everywhere, opsets


def _typed(site: LayerSite, *indices: Value) -> list[Value]:
    """Return indices in the integers that the layer says."""
    if "output_type" not in site.layer.attributes:
        return list(indices)
    return [site.cast(x, site.dtype("output_type")) for x in indices]


def _noted(site: LayerSite, count: Value, *rows: Value) -> None:
    """Note how many rows there are: layers behind take no others for boxes."""
    items = site.cast(count, site.integer)
    site.graph.counts.update(dict.fromkeys(rows, Count(0, items, marked=True)))


def _suppressed(site: LayerSite, **attributes: Any) -> tuple[Value, Value, Value]:
    boxes, scores = site.first(2)
    is_centre = site.choice("box_encoding", "corner", "center", default="corner") == "center"
    return site.last.sorted_suppression(
        boxes, scores,
        max_output_boxes_per_class=int(min(site.scalar(2, 0), boxes.type.shape[1])),
        iou_threshold=site.scalar(3, 0.0), score_threshold=site.scalar(4, 0.0),
        center_point_box=is_centre or site.flag("center_point_box"),
        sorts=site.flag("sort_result_descending", True), **attributes,
    )  # fmt: skip


@everywhere("NonMaxSuppression")
def _non_max_suppression(site: LayerSite) -> Any:
    """Return indices (image, class, box), from set 5 on with scores and how many there are."""
    indices, values, count = _suppressed(site, sigma=site.scalar(5, 0))
    rows = site.layer.outputs[0].shape or ()
    if site.net.is_legacy and rows and rows[0] > 0:
        indices = site.fitted(indices, 0, rows[0], -1.0)
    indices, count = _typed(site, indices, count)
    if site.layer.opset in ("opset5", "opset9"):  # before, results have a fixed length
        _noted(site, count, indices, values)
    return [indices, values, count][: max(len(site.layer.outputs), 1)]


@opsets("NMSRotated")
def _nms_rotated(site: LayerSite) -> Any:
    """Return what NonMaxSuppression does, of boxes (centre x, y, width, height, angle)."""
    way = "clockwise" if site.flag("clockwise", True) else "counterclockwise"
    found, values, count = _suppressed(site, rotation=way)
    indices, count = _typed(site, found, count)
    _noted(site, count, indices, values)
    return [indices, values, count]


_ORDERS = {"score": "score", "classid": "class", "none": "none"}


def _how(site: LayerSite, *, by_class: bool) -> dict[str, Any]:
    """Return the attributes of suppression in several classes, sorted by these if it can be."""
    order = site.text("sort_result_type", "none")
    if order not in _ORDERS:
        raise InvalidOperation(f"'sort_result_type' must be one of {', '.join(_ORDERS)}")
    across = site.flag("sort_result_across_batch")
    return {
        "score_threshold": site.number("score_threshold", 0),
        "top_k": site.int("nms_top_k", -1),
        "keep_top_k": site.int("keep_top_k", -1),
        "background": site.int("background_class", -1),
        "pixel_offset": 0.0 if site.flag("normalized", True) else 1.0,
        "order": _ORDERS[order] if by_class or across else "score",
        "across": across,
    }


@opsets("MatrixNms")
def _matrix_nms(site: LayerSite) -> Any:
    """Return boxes with their classes and lowered scores, their indices, how many an image has.

    Whatever the layer says the runtime sorts by class across images alone.
    """
    rows, indices, count = site.last.matrix_suppression(
        *site.first(2), **_how(site, by_class=False), decay=site.text("decay_function", "linear"),
        sigma=site.number("gaussian_sigma", 2), post_threshold=site.number("post_threshold", 0),
    )  # fmt: skip
    return [rows, *_typed(site, indices, count)]


@opsets("MulticlassNms")
def _multiclass_nms(site: LayerSite) -> Any:
    """Return boxes with their classes and scores, their indices, how many an image has."""
    counts: Any = site.tensor(2) if site.has(2) and len(site.shape(1)) == 2 else False
    rows, indices, count = site.last.multiclass_suppression(
        *site.first(2), counts, **_how(site, by_class=True),
        iou_threshold=site.number("iou_threshold", 0), eta=site.number("nms_eta", 1),
    )  # fmt: skip
    return [rows, *_typed(site, indices, count)]
