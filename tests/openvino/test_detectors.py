"""Layers of detectors from documents: what they are read as, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from tests.openvino.documents import Writer


def test_no_boxes_are_no_detections(tmp_path: Path) -> None:
    net = Writer()
    boxes, scores = net.input("boxes", (2, 0, 4)), net.input("scores", (2, 3, 0))
    found = net.layer("MulticlassNms", [boxes, scores], [(-1, 6), (-1, 1), (2,)], opset="opset9")
    model = net.result((found, 2), (found, 3), (found, 4)).load(tmp_path)
    rows, indices, counts = model(*(np.zeros(x.shape, np.float32) for x in model.inputs))
    assert rows.shape == (0, 6) and indices.shape == (0, 1)
    np.testing.assert_array_equal(counts, [0, 0])


WRONG: dict[str, tuple[str, list[tuple[int, ...]], dict[str, Any], str]] = {
    "boxes of other images": (
        "MulticlassNms", [(2, 5, 4), (1, 3, 5)], {}, r"'boxes' \[2,5,4\] must have the boxes",
    ),
    "an order that there is not": (
        "MatrixNms", [(1, 5, 4), (1, 3, 5)], {"sort_result_type": "size"}, "must be one of score",
    ),
    "a decay that there is not": (
        "MatrixNms", [(1, 5, 4), (1, 3, 5)], {"decay_function": "steep"}, "'decay' must be one of",
    ),
    "regions without an angle": (
        "NMSRotated", [(1, 5, 4), (1, 3, 5)], {}, r"must have the shape \[batches,boxes,5\]",
    ),
    "an alignment that there is not": (
        "ROIAlign", [(1, 2, 4, 4), (3, 4), (3,)],
        {"aligned_mode": "left", "spatial_scale": 1, "pooled_h": 2, "pooled_w": 2, "mode": "avg",
         "sampling_ratio": 2}, "'aligned_mode' must be one of asymmetric",
    ),
    "deltas of other anchors": (
        "GenerateProposals", [(1, 3), (2, 2, 3, 4), (1, 8, 2, 2), (1, 3, 2, 2)],
        {"min_size": 1, "nms_threshold": 0.5, "pre_nms_count": 4, "post_nms_count": 4,
         "roi_num_type": "i64"},
        r"'deltas' must have the shape \[1,12,2,2\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_located(name: str, tmp_path: Path) -> None:
    type, shapes, attributes, message = WRONG[name]
    net = Writer()
    inputs = [
        net.input(f"x{i}", shape, "i64" if len(shape) == 1 else "f32")
        for i, shape in enumerate(shapes)
    ]
    found = net.layer(type, inputs, [()] * 3, attributes=attributes, name="found")
    net.result((found, len(inputs)))
    with pytest.raises(nnef_jax.NnefError, match=message) as caught:
        net.load(tmp_path)
    assert f"'found' ({type})" in str(caught.value) and "net.xml:" in str(caught.value)
