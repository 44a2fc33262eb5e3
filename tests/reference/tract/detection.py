"""Choosing items by their values; what is chosen comes first, -1 fills the rest."""

from __future__ import annotations

import numpy as np


def _corners(box, center_point_box):
    a, b, c, d = box
    if center_point_box:
        return [a - c / 2, b - d / 2, a + c / 2, b + d / 2]
    return [min(a, c), min(b, d), max(a, c), max(b, d)]


def _overlap(one, other):
    """Return intersection over union, None if boxes do not overlap."""
    shared = 1.0
    for axis in (0, 1):
        shared *= max(0.0, min(one[axis + 2], other[axis + 2]) - max(one[axis], other[axis]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return shared / (sum(areas) - shared) if shared > 0 else None


def non_max_suppression(
    boxes,
    scores,
    max_output_boxes_per_class=0,
    iou_threshold=0.0,
    score_threshold=None,
    center_point_box=False,
):
    batches, classes, count = scores.shape
    most = min(count, max_output_boxes_per_class or count)
    rows = []
    for batch in range(batches):
        corners = [_corners(box, center_point_box) for box in boxes[batch]]
        for of_class in range(classes):
            score = scores[batch, of_class]
            kept: list[int] = []
            for box in sorted(range(count), key=lambda i, score=score: -score[i]):
                if score_threshold is not None and score[box] <= np.ravel(score_threshold)[0]:
                    continue
                overlaps = [_overlap(corners[box], corners[other]) for other in kept]
                if len(kept) < most and all(o is None or o <= iou_threshold for o in overlaps):
                    kept.append(box)
            rows += [[batch, of_class, box] for box in kept]
    rest = [[-1, -1, -1]] * (batches * classes * most - len(rows))
    return np.array(rows + rest, np.int64).reshape(-1, 3)


def non_zero(input):
    output = np.full((input.ndim, input.size), -1, np.int64)
    column = 0
    for place in np.ndindex(*input.shape):
        if input[place] != 0:
            output[:, column] = place
            column += 1
    return output


OPERATIONS = {
    "non_max_suppression": non_max_suppression,
    "non_zero": non_zero,
    "tract_onnx_non_zero": lambda input, count_symbol: non_zero(input),
}
