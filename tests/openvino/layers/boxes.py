"""Layers of detectors; suppression and pools by slow references of their kinds."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.openvino import reference
from tests.openvino.layers import RNG, Known, new, old, real

I32 = np.int32


def corners(*shape: int, scale: float = 1) -> np.ndarray:
    low = RNG.uniform(0, 0.7, (*shape, 2))
    box = np.concatenate([low, low + RNG.uniform(0.1, 0.3, (*shape, 2))], -1)
    return (scale * box).astype(np.float32)


def _float(*found: Any) -> tuple[np.ndarray, ...]:
    """Return results of a reference in float32, whole numbers unchanged."""
    return tuple(x.astype(np.float32) if x.dtype.kind == "f" else x for x in map(np.asarray, found))


def _centred(widths: Any, heights: Any, step: tuple[float, float], offset: float) -> np.ndarray:
    """Return boxes of some sizes around each of 2 x 3 cells of an image of 40 x 60."""
    rows = []
    for i, j in np.ndindex(2, 3):
        x, y = (j + offset) * step[1], (i + offset) * step[0]
        for w, h in zip(widths, heights, strict=True):
            rows.append([(x - w / 2) / 60, (y - h / 2) / 40, (x + w / 2) / 60, (y + h / 2) / 40])
    flat = np.float32(rows).reshape(-1)
    return np.stack([flat, np.tile(np.float32([0.1, 0.1, 0.2, 0.2]), len(flat) // 4)])


def _anchors(scales: Any) -> np.ndarray:
    """Return the anchors of Faster R-CNN: 16 x 16 pixels, in ratios, rounded, then scaled."""
    found = []
    for ratio in (0.5, 1, 2):
        width = np.floor(np.sqrt(256 / ratio) + 0.5)
        height = np.floor(width * ratio + 0.5)
        for scale in scales:
            half = np.array([width * scale - 1, height * scale - 1]) / 2
            found.append([*(7.5 - half), *(7.5 + half)])
    return np.array(found)


def _simpler_nms(scores: np.ndarray, deltas: np.ndarray, limits: tuple[int, int]) -> np.ndarray:
    """Return the best regions of positive score; of equal ones the last is the best."""
    around, (height, width) = _anchors([1, 2, 3]), scores.shape[2:]
    boxes, ranked = [], []
    for y, x, a in np.ndindex(height, width, 9):
        start = around[a] + 16 * np.array([x, y, x, y])
        move = deltas[0, 4 * a : 4 * a + 4, y, x]
        extent = start[2:] - start[:2] + 1
        centre = start[:2] + extent / 2 + move[:2] * extent
        extent = extent * np.exp(move[2:])
        box = np.concatenate([centre - extent / 2, centre + extent / 2])
        box = np.clip(box, 0, [limits[1] - 1, limits[0] - 1] * 2)
        if all((box[2:] - box[:2] + 1).astype(int) >= 6) and scores[0, 9 + a, y, x] > 0:
            boxes.append(box)
            ranked.append(scores[0, 9 + a, y, x])
    order = sorted(range(len(ranked)), key=lambda i: (-ranked[i], -i))[:30]
    kept = reference.greedy(np.array(boxes), order, 8, 0.4, 1)
    out = np.zeros((8, 5), np.float32)
    for n, i in enumerate(kept):
        out[n, 1:] = boxes[i]
    if len(kept) < 8:
        out[len(kept), 0] = -1
    return out


def _max_of_bins(x: np.ndarray, rois: np.ndarray) -> np.ndarray:
    """Return maxima of 2 x 2 bins of regions with rounded corners (Fast R-CNN)."""
    out = np.zeros((len(rois), x.shape[1], 2, 2), np.float32)
    for n, (image, *box) in enumerate(rois):
        x1, y1, x2, y2 = (int(np.floor(0.5 * v + 0.5)) for v in box)
        height, width = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        for i, j in np.ndindex(2, 2):
            top, bottom = y1 + i * height // 2, y1 - (-(i + 1) * height // 2)
            left, right = x1 + j * width // 2, x1 - (-(j + 1) * width // 2)
            cell = x[int(image), :, max(top, 0) : bottom, max(left, 0) : right]
            out[n, :, i, j] = cell.max((1, 2)) if cell.size else 0
    return out


def _yolo(x: np.ndarray) -> np.ndarray:
    """Two regions of x, y, w, h, sure, two classes."""
    parts = x.reshape(1, 2, 7, 2, 3).copy()
    parts[:, :, :2] = 1 / (1 + np.exp(-parts[:, :, :2]))
    parts[:, :, 4:] = 1 / (1 + np.exp(-parts[:, :, 4:]))
    return parts.reshape(x.shape)


X, FEATURES, PICTURE = real(2, 8, 6, 6), real(1, 2, 2, 3), real(1, 3, 40, 60)
SIZES, PLACES = Known(np.array([2, 3])), Known(np.array([40, 60]))
_VARIANCE = "0.1,0.1,0.2,0.2"
_CLUSTERED = _centred([8, 20], [10, 6], (20, 20), 0.5)
# Of MXNet: old converters multiplied sizes and step by the height, newer runtimes do.
_SIZES = [0.2, 0.27, 0.2 * 2**0.5], [0.2, 0.27, 0.2 / 2**0.5]  # the ratio is of the first
_UNSCALED = _centred(*_SIZES, (0.1, 0.1), 0.5)
_OF_HEIGHT = _centred(*(40 * np.array(_SIZES)), (4, 4), 0.5)
_OF_CELLS = _centred(*(40 * np.array(_SIZES)), (20, 20), 0.5)
# Four boxes of 9 x 9, 4 apart from 4 - 2 before the middle on; the image cuts them.
_DENSE = np.float32(
    [
        [max((x - 4.5) / 60, 0), max((y - 4.5) / 40, 0), (x + 4.5) / 60, (y + 4.5) / 40]
        for i, j in np.ndindex(2, 3)
        for y in (15 * i - 2, 15 * i + 2)
        for x in (15 * j - 2, 15 * j + 2)
    ]
).reshape(-1)
_DENSE = np.stack([_DENSE, np.full_like(_DENSE, 0.1)])
_SSD = _centred([8, np.sqrt(8 * 18), 8 * 2**0.5], [8, np.sqrt(8 * 18), 8 / 2**0.5], (20, 20), 0.5)
_PRIORS = np.stack([corners(6).reshape(-1), np.tile(np.float32([0.1, 0.1, 0.2, 0.2]), 6)])[None]
_LOCATIONS, _CONFIDENCES = real(2, 24), real(2, 18, low=0)
_ENCODED = reference.detection_output(  # of which the variances are not read
    _LOCATIONS / 8, _CONFIDENCES, _PRIORS, False, False, 3, 0, 4, 5, True, True, True, 0.3, 0.3,
    False, False, False, True, (1, 1), 0.0,
)  # fmt: skip
_SSD_GIVEN = {
    "num_classes": 3, "background_label_id": 0, "top_k": 4, "keep_top_k": 5, "share_location": 1,
    "variance_encoded_in_target": 0, "code_type": "caffe.PriorBoxParameter.CENTER_SIZE",
    "nms_threshold": 0.3, "confidence_threshold": 0.3, "normalized": 1,
}  # fmt: skip
_FEW = _LOCATIONS[:1, :16], _CONFIDENCES[:1, :8], _PRIORS[..., :16]  # 4 boxes
_DETECTED = reference.detection_output(
    *_FEW, False, False, 2, 0, -1, 3, True, False, True, 0.3, 0.1, False, False, False, True,
    (1, 1), 0.0,
)  # fmt: skip
_SCORES, _DELTAS, _IMAGE = real(1, 18, 2, 3, low=0), 0.2 * real(1, 36, 2, 3), real(1, 3)
_IMAGE[:] = 40, 56, 1
_PROPOSED = reference.proposal(
    _SCORES, _DELTAS, _IMAGE, _anchors([1, 2, 3]).reshape(-1), 16, 6, 30, 8, 0.4, 1, 1, 1, True,
    False, False, False, False, False, False,
)  # fmt: skip
_FRAME = np.float32([[40, 56, 1, 2]])  # 40 high, 56 wide, with two scales
_SMALL = [16 * scale / 2 * side for scale in (1, 2, 3) for side in (-1, -1, 1, 1)]  # of one ratio
_BY_TENSORFLOW = reference.proposal(
    _SCORES[:, :6], 5 * _DELTAS[:, :12], _FRAME, _SMALL, 16, 6, 30, 8, 0.4, 10, 5, 0, False,
    True, True, True, False, True, False,
)  # fmt: skip
_GIVEN = {
    "base_size": 16, "scale": "1,2,3", "feat_stride": 16, "min_size": 6, "pre_nms_topn": 30,
    "post_nms_topn": 8, "nms_thresh": 0.4,
}  # fmt: skip
_TENSORFLOW = _GIVEN | {
    "framework": "tensorflow", "ratio": 1, "normalize": 1, "clip_after_nms": 1,
    "clip_before_nms": 0, "box_coordinate_scale": 10, "box_size_scale": 5,
}  # fmt: skip
_ROIS = np.float32([[1, 0, 0, 4, 4], [0, 3, 1, 9, 7], [0, 5, 5, 4, 12]])
_FAR = np.float32([[1, 0, 0, 40, 44], [0, 13, 9, 70, 60]])
_MOVES, _SHAPES = real(2, 4, 2, 2), real(2, 4)
_PATH, _MASK = real(5, 2, 4, low=0), np.float32([[1, 1], [1, 1], [1, 0], [1, 1], [0, 1]])
_BOXES, _OF = corners(2, 6), real(2, 3, 6, low=0)
_TURNED = np.concatenate(
    [real(1, 6, 2, low=0, high=5), real(1, 6, 2, low=1, high=5), real(1, 6, 1, low=-3, high=3)], 2
)
_TURNED_OF = real(1, 2, 6, low=0)
_SOFT = reference.sorted_suppression(_BOXES, _OF, 4, 0.2, 0.3, False, True, 0.2)
_LIMITS = (Known(np.array(3)), Known(np.array(0.2)), Known(np.array(0.3)))
_ALIGNED = np.float32([[0.5, 1, 11, 7], [-5, -3, 17, 15]])
_TILTED = np.float32([[6, 5, 8, 6, 0.5], [1, 2, 7, 9, 2]])
_SHIFTED = np.concatenate(
    [_TILTED[:, :2] / 2 - np.float32(0.5), _TILTED[:, 2:4] / 2, -_TILTED[:, 4:]], 1
)
_CELLS = real(1, 14, 2, 3)
_WHICH = np.array([1, 0], I32)
_LEVELS = [real(1, 2, n, n) for n in (12, 6)]
_PYRAMID_ROIS = np.float32([[0, 0, 30, 40], [2, 4, 130, 140]])
_AROUND = corners(3, 4, 2, scale=60)
_RPN_INFO, _RPN_DELTAS = np.float32([[48, 60, 1]]), 0.3 * real(1, 8, 3, 4)
_RPN_SCORES = real(1, 2, 3, 4, low=0)
_RPN = {"min_size": 6, "nms_threshold": 0.3, "pre_nms_count": 20, "post_nms_count": 6}
_HEAD_ROIS, _HEAD_DELTAS, _HEAD_SCORES = corners(7, scale=60), 0.3 * real(7, 12), real(7, 3, low=0)


def _grid(priors: np.ndarray) -> np.ndarray:
    """Return boxes around the centres of 2 x 3 cells of 20 x 20."""
    rows = [
        p + 20 * np.float32([j, i, j, i]) + 10 for i in range(2) for j in range(3) for p in priors
    ]
    return np.float32(rows)


def _of_levels() -> np.ndarray:
    """Pool the first region from the fine level, the second, above 112 x 112, from the coarse."""
    pairs = zip(_LEVELS, (4, 8), np.split(_PYRAMID_ROIS, 2), strict=True)
    none = np.zeros(1, I32)
    parts = [reference.roi_align(x, roi / n, none, (2, 2), 2, "avg", 1.0) for x, n, roi in pairs]
    return np.concatenate(parts).astype(np.float32)


PRIORS = [
    old("PriorBox", [FEATURES, PICTURE], _SSD[None], min_size=8, max_size=18, aspect_ratio=2,
        flip=0, clip=0, step=0, offset=0.5, variance=_VARIANCE),
    new("PriorBox", [SIZES, PLACES], _SSD, opset="opset8", min_size=8, max_size=18,
        aspect_ratio=2, flip=False, clip=False, step=0, offset=0.5, variance=_VARIANCE,
        scale_all_sizes=True),
    old("PriorBox", [FEATURES, PICTURE], _UNSCALED[None], min_size="0.2,0.27", max_size="",
        aspect_ratio=2, scale_all_sizes=0, step=0.1, offset=0.5, variance=_VARIANCE),
    new("PriorBox", [SIZES, PLACES], _OF_HEIGHT, opset="opset8", min_size="0.2,0.27",
        aspect_ratio=2, scale_all_sizes=False, step=0.1, offset=0.5, variance=_VARIANCE),
    new("PriorBox", [SIZES, PLACES], _OF_CELLS, min_size="0.2,0.27", aspect_ratio=2,
        scale_all_sizes=False, step=-1, offset=0.5, variance=_VARIANCE),
    new("PriorBox", [SIZES, PLACES], _DENSE, fixed_size=9, density=2, step=15, offset=0),
    old("PriorBox", [FEATURES, PICTURE], _DENSE[None], fixed_size=9, density=2, step=15, offset=0),
    old("PriorBoxClustered", [FEATURES, PICTURE], _CLUSTERED[None], width="8,20", height="10,6",
        step=20, offset=0.5, clip=0, variance=_VARIANCE),
    new("PriorBoxClustered", [SIZES, PLACES], _CLUSTERED, width="8,20", height="10,6", step=20,
        offset=0.5, clip=False, variance=_VARIANCE),
    new("ExperimentalDetectronPriorGridGenerator", [_SHAPES, FEATURES, PICTURE],
        _grid(_SHAPES), opset="opset6", flatten=True, h=0, w=0,
        stride_x=0, stride_y=0),
]  # fmt: skip
CHOSEN = [
    old("DetectionOutput", [_LOCATIONS / 8, _CONFIDENCES, _PRIORS], *_float(_ENCODED),
        **(_SSD_GIVEN | {"variance_encoded_in_target": 1})),
    new("DetectionOutput", _FEW, *_float(_DETECTED), opset="opset8", background_label_id=0,
        top_k=-1, keep_top_k=3, code_type="caffe.PriorBoxParameter.CENTER_SIZE", normalized=True,
        nms_threshold=0.3, confidence_threshold=0.1),
    old("Proposal", [_SCORES, _DELTAS, _IMAGE], *_float(_PROPOSED[0]), ratio="0.5,1,2", **_GIVEN),
    old("Proposal", [_SCORES[:, :6], 5 * _DELTAS[:, :12], _FRAME], *_float(_BY_TENSORFLOW[0]),
        **_TENSORFLOW),
    new("Proposal", [_SCORES[:, :6], 5 * _DELTAS[:, :12], _FRAME[0]], _float(*_BY_TENSORFLOW),
        opset="opset4", **_TENSORFLOW),
    old("SimplerNMS", [_SCORES, _DELTAS, _IMAGE], _simpler_nms(_SCORES, _DELTAS, (40, 56)),
        iou_threshold=0.4, min_bbox_size=6, feat_stride=16, pre_nms_topn=30, post_nms_topn=8,
        scale="1,2,3"),
    old("CTCGreedyDecoder", [_PATH, _MASK],
         *_float(reference.ctc_greedy_decoder(_PATH, _MASK, True)), ctc_merge_repeated=1),
    new("CTCGreedyDecoder", [_PATH, _MASK],
         *_float(reference.ctc_greedy_decoder(_PATH, _MASK, False)), ctc_merge_repeated=False),
    new("NonMaxSuppression", [_BOXES, _OF, Known(np.array(4)), *_LIMITS[1:], Known(np.array(0.2))],
        _float(*_SOFT), opset="opset9"),
    new("NMSRotated", [_TURNED, _TURNED_OF, *_LIMITS], _float(*reference.sorted_suppression(
        _TURNED, _TURNED_OF, 3, 0.2, 0.3, False, True, 0.0, "clockwise")), opset="opset13"),
    new("MatrixNms", [_BOXES, _OF], _float(*reference.matrix_suppression(
        _BOXES, _OF, 0.2, 4, 5, 0, "gaussian", 2.0, 0.1, 0.0, "score", True)), opset="opset8",
        score_threshold=0.2, nms_top_k=4, keep_top_k=5, background_class=0, gaussian_sigma=2,
        decay_function="gaussian", post_threshold=0.1, sort_result_type="score",
        sort_result_across_batch=True),
    new("MulticlassNms", [_BOXES, _OF], _float(*reference.multiclass_suppression(
        _BOXES, _OF, False, 0.2, 0.3, 4, 5, -1, 1.0, 0.0, "class", False)), opset="opset9",
        score_threshold=0.2, iou_threshold=0.3, nms_top_k=4, keep_top_k=5, background_class=-1,
        sort_result_type="classid"),
    new("GenerateProposals", [_RPN_INFO, _AROUND, _RPN_DELTAS, _RPN_SCORES],
        _float(*reference.anchored_proposals(
            _RPN_INFO, _AROUND, _RPN_DELTAS, _RPN_SCORES, 6, 20, 6, 0.3, 1, 1, True)),
        opset="opset9", normalized=False, roi_num_type="i32", **_RPN),
    new("ExperimentalDetectronGenerateProposalsSingleImage",
        [_RPN_INFO[0], _AROUND.reshape(-1, 4), _RPN_DELTAS[0], _RPN_SCORES[0]],
        _float(*reference.anchored_proposals(
            _RPN_INFO, _AROUND, _RPN_DELTAS, _RPN_SCORES, 6, 20, 6, 0.3, 1, 0, False)[:2]),
        opset="opset6", **_RPN),
    new("ExperimentalDetectronDetectionOutput",
        [_HEAD_ROIS, _HEAD_DELTAS, _HEAD_SCORES, _RPN_INFO],
        _float(*reference.refined_detections(
            _HEAD_ROIS, _HEAD_DELTAS, _HEAD_SCORES, 0.2, 0.4, 5, 6, 4.0, (1, 2, 0.5, 1))),
        opset="opset6", score_threshold=0.2, nms_threshold=0.4, max_delta_log_wh=4, num_classes=3,
        post_nms_count=5, max_detections_per_image=6, deltas_weights="1,2,0.5,1"),
    new("ExperimentalDetectronTopKROIs", [_HEAD_ROIS, _HEAD_SCORES[:, 0]],
        _HEAD_ROIS[np.argsort(-_HEAD_SCORES[:, 0])[:3]], opset="opset6", max_rois=3),
]  # fmt: skip
POOLED = [
    old("ROIPooling", [X, _ROIS], _max_of_bins(X, _ROIS), pooled_h=2, pooled_w=2,
         output_size="2,2", spatial_scale=0.5, method="max"),
    old("PSROIPooling", [X, _FAR], *_float(reference.position_sensitive_roi_pool(
        X, _FAR, 2, 2, 0.1, "average", (1, 1))), output_dim=2, group_size=2, spatial_scale=0.1,
        mode="average"),
    new("DeformablePSROIPooling", [X, _FAR, _MOVES], *_float(reference.position_sensitive_roi_pool(
        X, _FAR, 2, 2, 0.1, "deformable", (2, 3), _MOVES, 0.2)), output_dim=2, group_size=2,
        spatial_scale=0.1, mode="bilinear_deformable", spatial_bins_x=3, spatial_bins_y=2,
        trans_std=0.2, part_size=2),
    new("ROIAlign", [X, _ALIGNED, _WHICH], *_float(reference.roi_align(
        X, 0.5 * _ALIGNED - 0.25, _WHICH, (2, 3), 2, "max")), opset="opset9", pooled_h=2,
        pooled_w=3, sampling_ratio=2, spatial_scale=0.5, mode="max", aligned_mode="half_pixel"),
    new("ROIAlignRotated", [X, _TILTED, _WHICH], *_float(reference.roi_align(
        X, _SHIFTED, _WHICH, (2, 3), 2, "avg")), opset="opset15", pooled_h=2, pooled_w=3,
        sampling_ratio=2, spatial_scale=0.5, clockwise_mode=False),
    new("ExperimentalDetectronROIFeatureExtractor", [_PYRAMID_ROIS, *_LEVELS],
        (_of_levels(), _PYRAMID_ROIS),
        opset="opset6", output_size=2, sampling_ratio=2, pyramid_scales="4,8", aligned=False),
    old("RegionYolo", [_CELLS], _yolo(_CELLS), coords=4, classes=2, num=2,
         do_softmax=0, mask="0,1", axis=1, end_axis=3),
]  # fmt: skip
ROWS = [*PRIORS, *CHOSEN, *POOLED]
