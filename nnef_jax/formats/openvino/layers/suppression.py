"""Suppression of boxes that overlap better ones: indices of those that remain, -1 behind them."""

from __future__ import annotations

from typing import Any

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.formats.openvino.flat_graph import Count
from nnef_jax.formats.openvino.layers import everywhere, opsets
from nnef_jax.formats.openvino.site import Site


def _number(site: Site, i: int, default: float) -> float:
    return float(site.known(i).reshape(-1)[0]) if site.has(i) else default


def _typed(site: Site, *indices: Value) -> list[Value]:
    """Return indices in the integers that the layer says."""
    if "output_type" not in site.layer.attributes:
        return list(indices)
    return [site.cast(x, site.dtype("output_type")) for x in indices]


def _noted(site: Site, count: Value, *rows: Value) -> None:
    """Note how many rows there are: layers behind take no others for boxes."""
    items = site.cast(count, site.graph.builder.integer)
    site.graph.counts.update(dict.fromkeys(rows, Count(0, items, marked=True)))


def _suppressed(site: Site, **attributes: Any) -> tuple[Value, Value, Value]:
    boxes, scores = site.tensor(0), site.tensor(1)
    return site.emit(
        "sorted_suppression",
        {"boxes": boxes, "scores": scores},
        max_output_boxes_per_class=int(min(_number(site, 2, 0), boxes.type.shape[1])),
        iou_threshold=_number(site, 3, 0.0),
        score_threshold=_number(site, 4, 0.0),
        center_point_box=site.choice("box_encoding", "corner", "center", default="corner")
        == "center"
        or site.flag("center_point_box"),
        sorts=site.flag("sort_result_descending", True),
        **attributes,
    )


@everywhere("NonMaxSuppression")
def _non_max_suppression(site: Site) -> Any:
    """Return indices (image, class, box), from set 5 on with scores and how many there are."""
    indices, values, count = _suppressed(site, sigma=_number(site, 5, 0))
    rows = site.layer.outputs[0].shape or ()
    if site.net.is_legacy and rows and rows[0] != indices.type.shape[0] and rows[0] > 0:
        indices = _fitted(site, indices, rows[0])
    indices, count = _typed(site, indices, count)
    if site.layer.opset in ("opset5", "opset9"):  # before, results have a fixed length
        _noted(site, count, indices, values)
    return [indices, values, count][: max(len(site.layer.outputs), 1)]


def _fitted(site: Site, rows: Value, count: int) -> Value:
    """Return so many rows, -1 behind those that there are."""
    have = rows.type.shape[0]
    if have >= count:
        return site.insert(
            "slice", {"input": rows}, axes=(0,), begin=(0,), end=(count,), stride=(1,)
        )
    return site.insert(
        "pad", {"input": rows}, padding=((0, count - have), (0, 0)), border="constant", value=-1.0
    )


@opsets("NMSRotated")
def _nms_rotated(site: Site) -> Any:
    """Return what NonMaxSuppression does, of boxes (centre x, y, width, height, angle)."""
    way = "clockwise" if site.flag("clockwise", True) else "counterclockwise"
    found, values, count = _suppressed(site, rotation=way)
    indices, count = _typed(site, found, count)
    _noted(site, count, indices, values)
    return [indices, values, count]


_ORDERS = {"score": "score", "classid": "class", "none": "none"}


def _several(site: Site, kind: str, operands: dict[str, Value], **attributes: Any) -> Any:
    order = site.text("sort_result_type", "none")
    if order not in _ORDERS:
        raise InvalidOperation(f"'sort_result_type' must be one of {', '.join(_ORDERS)}")
    across = site.flag("sort_result_across_batch")
    if kind == "matrix_suppression" and not across:
        order = "score"  # whatever the layer says: the runtime sorts by class across images alone
    rows, indices, count = site.emit(
        kind,
        {"boxes": site.tensor(0), "scores": site.tensor(1), **operands},
        score_threshold=site.number("score_threshold", 0),
        top_k=site.int("nms_top_k", -1),
        keep_top_k=site.int("keep_top_k", -1),
        background=site.int("background_class", -1),
        pixel_offset=0.0 if site.flag("normalized", True) else 1.0,
        order=_ORDERS[order],
        across=across,
        **attributes,
    )
    return [rows, *_typed(site, indices, count)]


@opsets("MatrixNms")
def _matrix_nms(site: Site) -> Any:
    """Return boxes with their classes and lowered scores, their indices, how many an image has."""
    return _several(
        site,
        "matrix_suppression",
        {},
        decay=site.text("decay_function", "linear"),
        sigma=site.number("gaussian_sigma", 2),
        post_threshold=site.number("post_threshold", 0),
    )


@opsets("MulticlassNms")
def _multiclass_nms(site: Site) -> Any:
    """Return boxes with their classes and scores, their indices, how many an image has."""
    counts: Any = site.tensor(2) if site.has(2) and len(site.shape(1)) == 2 else False
    return _several(
        site,
        "multiclass_suppression",
        {"counts": counts},
        iou_threshold=site.number("iou_threshold", 0),
        eta=site.number("nms_eta", 1),
    )
