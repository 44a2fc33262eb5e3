"""Choosing items by their values."""

from __future__ import annotations

from tests.op_cases.case import Given, Integers, Logical, Real

from .rows import row, tract_case

_INDICES = "the results are indices"

# Six boxes: two that are nearly the same, one shifted, one apart, one within another, one empty.
_BOXES = Given(
    (
        (
            (0.0, 0.0, 1.0, 1.0),
            (0.0, 0.1, 1.0, 1.1),
            (0.0, -0.6, 1.0, 0.4),
            (0.0, 10.0, 1.0, 11.0),
            (0.25, 10.25, 0.75, 10.75),
            (2.0, 2.0, 2.0, 3.0),
        ),
    )
)
_SCORES = Given((((0.9, 0.75, 0.6, 0.95, 0.5, 0.3), (0.1, 0.7, 0.4, 0.2, 0.8, 0.85)),))
# The same boxes, their corners in other orders.
_FLIPPED = Given(
    (
        (
            (1.0, 1.0, 0.0, 0.0),
            (0.0, 1.1, 1.0, 0.1),
            (1.0, -0.6, 0.0, 0.4),
            (1.0, 11.0, 0.0, 10.0),
            (0.75, 10.25, 0.25, 10.75),
            (2.0, 3.0, 2.0, 2.0),
        ),
    )
)
_CENTRES = Given(
    (
        (
            (0.5, 0.5, 1.0, 1.0),
            (0.5, 0.6, 1.0, 1.0),
            (0.5, -0.1, 1.0, 1.0),
            (0.5, 10.5, 1.0, 1.0),
            (0.5, 10.5, 0.5, 0.5),
            (2.0, 2.5, 0.0, 1.0),
        ),
    )
)


def _suppression(name, boxes, scores, threshold=None, **attributes):
    operands = {"boxes": boxes, "scores": scores}
    if threshold is not None:
        operands["score_threshold"] = threshold
    return tract_case(
        f"non_max_suppression_{name}",
        "non_max_suppression",
        operands,
        attributes,
        not_differentiable=_INDICES,
    )


_SUPPRESSION = (
    _suppression("default", _BOXES, _SCORES),
    _suppression("half", _BOXES, _SCORES, iou_threshold=0.5),
    _suppression("quarter", _BOXES, _SCORES, iou_threshold=0.24),
    _suppression("one", _BOXES, _SCORES, iou_threshold=1.0),
    _suppression("limit", _BOXES, _SCORES, iou_threshold=0.5, max_output_boxes_per_class=2),
    _suppression("large_limit", _BOXES, _SCORES, max_output_boxes_per_class=2**62),
    _suppression("threshold", _BOXES, _SCORES, 0.45, iou_threshold=0.5),
    _suppression("threshold_of_rank_1", _BOXES, _SCORES, Given((0.6,)), iou_threshold=0.9),
    _suppression("all_below", _BOXES, _SCORES, 2.0, iou_threshold=0.5),
    _suppression(
        "threshold_and_limit",
        _BOXES,
        _SCORES,
        0.45,
        iou_threshold=0.5,
        max_output_boxes_per_class=1,
    ),
    _suppression("flipped", _FLIPPED, _SCORES, iou_threshold=0.5),
    _suppression("centres", _CENTRES, _SCORES, iou_threshold=0.5, center_point_box=True),
    _suppression(
        "equal_scores", _BOXES, Given((((0.5, 0.5, 0.5, 0.5, 0.5, 0.5),),)), iou_threshold=0.5
    ),
    _suppression(
        "batches",
        Real((3, 7, 4), distinct=True),
        Real((3, 2, 7), distinct=True),
        iou_threshold=0.2,
        max_output_boxes_per_class=5,
    ),
    _suppression("one_box", Real((2, 1, 4)), Real((2, 3, 1)), 0.0),
)


def _non_zero(name, input):
    return row(f"non_zero_{name}", "non_zero", input, not_differentiable=_INDICES)


_NON_ZERO = (
    _non_zero("vector", Given((0.0, 1.5, 0.0, -2.0, -0.0))),
    _non_zero("logical", Logical((3, 4))),
    _non_zero("integers", Integers((2, 3, 2), -1, 2)),
    row(
        "non_zero_named",
        "tract_onnx_non_zero",
        Given((0, 1, 2)),
        count_symbol="n",
        not_differentiable=_INDICES,
    ),
    _non_zero("none", Given(((0, 0), (0, 0)))),
    _non_zero("all", Given(((1, 2), (3, 4)))),
    _non_zero("one_item", Given(3.0)),
)

CASES = (*_SUPPRESSION, *_NON_ZERO)
