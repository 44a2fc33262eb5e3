"""The kinds that NNEF lacks: values under vmap, and derivatives, against slow numpy.

What else their attributes say is in rows of tests/openvino/layers: plain proposals, detections and
pools, suppression by other orders and decays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering.graph import TensorType, python_name
from lowering.ops import rules
from lowering.tracing import Context
from tests.openvino import reference
from tests.operation_checks import Together

RNG = np.random.default_rng(0)


def real(*shape: int, low: float = -1, high: float = 1) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(np.float32)


def whole(*shape: int, low: int = 0, high: int = 4) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(np.int32)


def corners(*shape: int) -> np.ndarray:
    low = RNG.uniform(0, 0.7, (*shape, 2))
    return np.concatenate([low, low + RNG.uniform(0.1, 0.3, (*shape, 2))], -1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Case:
    kind: str
    operands: Mapping[str, Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    wrt: str = ""  # the operand to differentiate in, "" where there is no derivative to check
    batched: tuple[str, ...] = ()  # the operands to map over under vmap
    is_slow: bool = False  # other rows say it, here or of test_layers and test_rare_layers


_PRIORS = np.stack([corners(6).reshape(-1), np.tile(np.float32([0.1, 0.1, 0.2, 0.2]), 6)])[None]
TURNED = np.concatenate(
    [real(1, 8, 2, low=0, high=6), real(1, 8, 2, low=1, high=5), real(1, 8, 1, low=-3, high=3)], 2
)
TURNED[:, 2, :4] = TURNED[:, 1, :4]  # around one centre
TURNED[:, 4] = TURNED[:, 3]  # twice the same
FEW = np.array([4, 0, 3], np.int32)
_OF_FEW = 9 * corners(3, 7), real(3, 7, low=0), FEW
_WINDOW = {"padding": ((1, 0), (0, 1)), "stride": (2, 1), "dilation": (1, 2)}
CASES = [
    Case(
        "fake_quantize",
        {
            "x": real(3, 4),
            "input_low": real(1, 4, high=-0.5),
            "input_high": real(1, 4, low=0.5),
            "output_low": -1.0,
            "output_high": 2.0,
        },
        {"levels": 5},
        batched=("x",),
    ),
    Case(
        "fake_quantize",
        {
            "x": real(3, 4),
            "input_low": 0.25,
            "input_high": 0.25,
            "output_low": -1.0,
            "output_high": 1.0,
        },
        {"levels": 2},
        batched=("x",),
    ),
    Case(
        "gather_in_batches",
        {"input": real(2, 3, 4), "indices": whole(2, 5, high=3)},
        {"axis": 1, "batch_dims": 1},
        wrt="input",
        batched=("input", "indices"),
    ),
    Case(
        "reverse_sequence",
        {"input": real(3, 2, 4), "lengths": np.array([3, 1, 4], np.int32)},
        {"batch_axis": 0, "time_axis": 2},
        wrt="input",
        batched=("input",),
    ),
    Case(
        "reverse_sequence",
        {"input": real(4, 3, 2), "lengths": np.array([2, 0, 4], np.int32)},
        {"batch_axis": 1, "time_axis": 0},
        wrt="input",
        batched=("input",),
    ),
    Case(
        "adaptive_avg_pool",
        {"input": real(1, 2, 5, 7)},
        {"output_size": (3, 2)},
        "input",
        ("input",),
    ),
    Case(
        "adaptive_max_pool",
        {"input": real(1, 2, 5, 7)},
        {"output_size": (3, 4)},
        "input",
        ("input",),
    ),
    *(
        Case(
            "deformable_conv",
            {
                "input": real(1, 4, 5, 6),
                "offsets": 0.7 * real(1, 2 * 2 * 4, 3, 5),
                "filter": real(2, 2, 2, 2),
                "mask": mask,
            },
            {"groups": 2, "offset_groups": 2, "padded_bilinear": padded, **_WINDOW},
            wrt="filter",
            batched=("input",),
        )
        for mask, padded in ((False, False), (real(1, 8, 3, 5, low=0), True))
    ),
    *(
        Case(
            "sorted_suppression",
            {"boxes": corners(2, 6), "scores": real(2, 3, 6, low=0)},
            {
                "max_output_boxes_per_class": 3,
                "iou_threshold": 0.2,
                "score_threshold": 0.3,
                "center_point_box": centre,
                "sorts": sorts,
            },
            batched=("boxes", "scores"),
            is_slow=not (centre and sorts),
        )
        for centre, sorts in ((True, True), (False, True), (True, False))
    ),
    Case(
        "sorted_suppression",
        {"boxes": TURNED, "scores": real(1, 2, 8, low=0)},
        {
            "max_output_boxes_per_class": 6,
            "iou_threshold": 0.3,
            "score_threshold": 0.1,
            "center_point_box": False,
            "sorts": False,
            "rotation": "counterclockwise",
        },
        batched=("scores",),
    ),
    *(
        Case(
            "matrix_suppression",
            {"boxes": 9 * corners(2, 6), "scores": real(2, 3, 6, low=0)},
            {
                "score_threshold": 0.2,
                "top_k": top_k,
                "keep_top_k": keep,
                "background": background,
                "decay": decay,
                "sigma": 2.0,
                "post_threshold": 0.1,
                "pixel_offset": offset,
                "order": order,
                "across": across,
            },
            batched=("scores",),
            is_slow=is_slow,
        )
        for decay, order, across, top_k, keep, background, offset, is_slow in (
            ("linear", "class", True, -1, -1, 1, 1.0, False),
            ("linear", "class", True, 4, 5, -1, 0.0, True),
            ("gaussian", "score", False, -1, -1, 1, 1.0, True),
        )
    ),
    *(
        Case(
            "multiclass_suppression",
            {"boxes": boxes, "scores": scores, "counts": counts},
            {
                "score_threshold": 0.2,
                "iou_threshold": 0.6,
                "top_k": top_k,
                "keep_top_k": keep,
                "background": background,
                "eta": eta,
                "pixel_offset": 1.0,
                "order": order,
                "across": across,
            },
            batched=("scores",),
            is_slow=is_slow,
        )
        for boxes, scores, counts, top_k, keep, background, eta, order, across, is_slow in (
            (*_OF_FEW, -1, 6, 0, 0.5, "score", False, False),
            (*_OF_FEW, -1, -1, 0, 1.0, "class", False, True),
            (9 * corners(2, 6), real(2, 3, 6, low=0), False, 5, 6, -1, 0.5, "score", True, True),
        )
    ),
    Case(
        "anchored_proposals",
        {
            "image": np.float32([[48, 60, 1, 1.5], [50, 40, 1.2, 1]]),
            "anchors": 60 * corners(3, 4, 2),
            "deltas": 0.3 * real(2, 8, 3, 4),
            "scores": real(2, 2, 3, 4, low=0),
        },
        {
            "min_size": 6.0,
            "pre_nms": 20,
            "post_nms": 12,
            "nms_threshold": 0.3,
            "pixel_offset": 1.0,
            "overlap_offset": 0.0,
            "scales": True,
        },
        batched=("scores",),
        is_slow=True,
    ),
    *(
        Case(
            "refined_detections",
            {
                "rois": np.concatenate([60 * corners(7), np.float32([[5, 5, 5, 9]])]),
                "deltas": 0.3 * real(8, 12),
                "scores": real(8, 3, low=0),
            },
            {
                "score_threshold": 0.2,
                "nms_threshold": 0.4,
                "keep_per_class": kept,
                "keep": 4,
                "largest": 4.0,
                "weights": (1.0, 2.0, 0.5, 1.0),
            },
            batched=("deltas",),
            is_slow=kept > 0,
        )
        for kept in (5, 0)
    ),
    *(
        Case(
            "roi_align",
            {"input": real(2, 2, 5, 6), "rois": rois, "batch_index": np.int32([1, 0, 1])},
            {"output_size": (2, 3), "sampling_ratio": ratio, "mode": mode, "least": least},
            wrt=wrt,
            batched=("input",),
            is_slow=mode == "max",
        )
        for rois, ratio, mode, least, wrt in (
            (np.float32([[0.3, 1, 5.2, 3], [-3, -2, 9, 8], [2, 2, 2.2, 1]]), 0, "avg", 1, "input"),
            (np.float32([[0.3, 1, 5.2, 3], [-3.3, -2, 9, 8], [2, 2, 3, 1]]), 2, "avg", 0, "rois"),
            (np.float32([[0.3, 1, 5.2, 3], [-3.3, -2, 9, 8], [2, 2, 3, 1]]), 2, "max", 0, "rois"),
            (np.float32([[3, 2, 4, 3, 0.5], [0, 1, 3, 5, 2], [3, 3, 9, 1, -1]]), 0, "avg", 0, ""),
        )
    ),
    Case(
        "position_sensitive_roi_pool",
        {
            "input": real(2, 16, 6, 6),
            "rois": np.float32([[1, 0, 0, 40, 44], [-1, 0, 0, 1, 1], [0, 13, 9, 70, 60]]),
            "offsets": real(3, 4, 2, 2),
        },
        {
            "output_channels": 4,
            "group_size": 2,
            "spatial_scale": 0.1,
            "mode": "deformable",
            "bins": (2, 3),
            "offset_scale": 0.2,
        },
        wrt="input",
        batched=("input",),
    ),
    *(
        Case(
            "ctc_greedy_decoder",
            {
                "probabilities": real(6, 2, 3, low=0),
                "mask": np.float32([[1, 1]] * 4 + [[0, 1], [1, 1]]),
            },
            {"merges": merges},
            batched=("probabilities",),
        )
        for merges in (True, False)
    ),
    Case(
        "position_sensitive_roi_pool",
        {
            "input": real(2, 8, 6, 6),
            "rois": np.float32(
                [[1, 0, 0, 40, 44], [0, 13, 9, 70, 60], [-1, 0, 0, 1, 1], [0, 5, 5, 9, 9]]
            ),
        },
        {
            "output_channels": 2,
            "group_size": 2,
            "spatial_scale": 0.1,
            "mode": "average",
            "bins": (1, 1),
        },
        wrt="input",
        batched=("input",),
        is_slow=True,
    ),
    *(
        Case(
            "detection_output",
            {
                "locations": real(2, 24),
                "confidences": real(2, 18, low=0),
                "priors": _PRIORS,
                "anchor_confidences": False,
                "anchor_locations": False,
            },
            {
                "num_classes": 3,
                "background_label": background,
                "top_k": 4,
                "keep_top_k": keep,
                "share_location": True,
                "variance_encoded": False,
                "center_size": centre,
                "nms_threshold": 0.3,
                "confidence_threshold": 0.3,
                "clip_before": clips,
                "clip_after": False,
                "decrease_label": False,
                "normalized": True,
                "input_size": (1, 1),
                "objectness_threshold": 0.0,
            },
            batched=("locations",),
            is_slow=is_slow,
        )
        for background, keep, centre, clips, is_slow in (
            (-1, -1, False, True, False),
            (0, -1, True, True, True),
            (-1, 5, False, False, True),
        )
    ),
    *(
        Case(
            "proposal",
            {
                "scores": real(2, 4, 3, 4, low=0),
                "deltas": 0.3 * real(2, 8, 3, 4),
                "image": np.float32([[48, 64, 1]]),
            },
            {
                "anchors": (-8.0, -8.0, 8.0, 8.0, -16.0, -8.0, 16.0, 8.0),
                "feature_stride": 16,
                "min_size": 6.0,
                "pre_nms": 20,
                "post_nms": 8,
                "nms_threshold": 0.4,
                "coordinate_scale": 1.0,
                "size_scale": 1.0,
                "pixel_offset": offset,
                "clips_before": by_anchors,
                "clips_after": not by_anchors,
                "clips_anchors": by_anchors,
                "swaps": by_anchors,
                "truncates": False,
                "normalizes": not by_anchors,
                "later_ties": False,
            },
            batched=("scores",),
            is_slow=True,
        )
        for offset, by_anchors in ((1.0, False), (0.0, True))
    ),
    Case(
        "inverse",
        {"input": real(2, 3, 3) + 2 * np.eye(3, dtype=np.float32)},
        {},
        "input",
        ("input",),
    ),
    Case("rfft", {"input": real(2, 5, 3)}, {"axis": 1}, "input", ("input",)),
    Case("rfft", {"input": real(2, 4)}, {"axis": -1}, "input", ("input",)),
    Case("determinant", {"input": real(2, 3, 3)}, {}, "input", ("input",)),
    Case(
        "rem",
        {"x": real(3, 4, low=-9, high=9), "y": real(3, 4, low=0.3, high=2)},
        {},
        "x",
        ("x", "y"),
    ),
    Case(
        "rem",
        {"x": whole(3, 4, low=-9, high=9), "y": np.array([[-2, 3, 0, 4]] * 3, np.int32)},
        batched=("x",),
    ),
    *(
        Case(
            "cumprod",
            {"x": real(2, 3, 4)},
            {"axis": 1, "exclusive": exclusive, "reverse": reverse},
            "x",
            ("x",),
        )
        for exclusive, reverse in ((False, False), (True, True), (True, False))
    ),
    Case("bitcast", {"input": real(2, 3)}, {"dtype": "int32"}, batched=("input",)),
    *(
        Case(
            "ctc_loss",
            {
                "logits": real(2, 4, 3),
                "logit_lengths": np.array([4, 3], np.int32),
                "labels": np.array([[1, 1, 0], [2 - blank, 0, 0]], np.int32),
                "label_lengths": np.array([2, 1], np.int32),
            },
            {"blank": blank, "collapses": False, "merges": merges, "unique": unique},
            "logits",
            ("logits",),
            is_slow=merges,
        )
        for blank, merges, unique in ((2, True, False), (0, False, True))
    ),
    Case(
        "gather_tree",
        {
            "tokens": whole(5, 2, 3, high=6),
            "parents": whole(5, 2, 3, high=3),
            "lengths": np.array([5, 3], np.int32),
            "end": np.array(5, np.int32),
        },
        batched=("tokens",),
    ),
    *(
        Case(
            "unique",
            {"input": whole(*shape)},
            {"axis": axis, "sorts": sorts},
            batched=("input",),
            is_slow=sorts,
        )
        for shape, axis, sorts in (((7,), 0, True), ((2, 6), 1, False))
    ),
]


def name(case: Case) -> str:
    return f"{CASES.index(case)}-{case.kind}"


def computed(case: Case, operands: Mapping[str, Any]) -> tuple[Any, ...]:
    rule = rules[case.kind]
    given = {python_name(k): v for k, v in {**operands, **case.attributes}.items()}
    if rule.wants_context:
        given["ctx"] = Context(precision="highest")
    found = rule.lower(**given)
    return tuple(found) if isinstance(found, tuple | list) else (found,)


def types(case: Case) -> dict[str, TensorType]:
    def type(x: Any) -> TensorType:
        if isinstance(x, np.ndarray):
            return TensorType(x.shape, x.dtype.name)
        return TensorType((), "bool" if isinstance(x, bool) else "float32")

    return {k: type(v) for k, v in case.operands.items()}


def inferred(case: Case) -> list[tuple[Any, str]]:
    """Return the shapes and dtypes that the rule infers."""
    rule, given = rules[case.kind], {**types(case), **case.attributes}
    reads = rule.infer_reads
    found = rule.infer(**{k: v for k, v in given.items() if k in reads or "**" in reads})
    return [(t.shape, t.dtype) for t in (found if isinstance(found, tuple) else (found,))]


def expected(case: Case, **changed: np.ndarray) -> tuple[np.ndarray, ...]:
    wide = {
        k: v.astype(f"{v.dtype.kind}8") if isinstance(v, np.ndarray) else v
        for k, v in {**case.operands, **changed}.items()
    }
    found = getattr(reference, case.kind)(**wide, **case.attributes)
    return found if isinstance(found, tuple) else (found,)


def arrays(case: Case) -> dict[str, np.ndarray]:
    return {k: v for k, v in case.operands.items() if isinstance(v, np.ndarray)}


def run(case: Case, *values: Any) -> tuple[Any, ...]:
    return computed(case, {**case.operands, **dict(zip(arrays(case), values, strict=True))})


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_types_of_16_bits(dtype: str) -> None:
    """What is computed in more of them is what the rule infers in the end."""

    def narrow(x: Any) -> Any:
        is_real = isinstance(x, float) or (isinstance(x, np.ndarray) and x.dtype == np.float32)
        return np.asarray(x, dtype) if is_real else x

    wrong: dict[str, Any] = {}
    for case in CASES:
        if case.kind == "bitcast":  # from 32 bits
            continue
        case = replace(case, operands={x: narrow(y) for x, y in case.operands.items()})
        found = jax.eval_shape(partial(run, case), *arrays(case).values())
        types = [(x.shape, x.dtype.name) for x in found]
        if types != inferred(case):
            wrong[name(case)] = types, inferred(case)
    assert wrong == {}


def parts(case: Case) -> list[dict[str, np.ndarray]]:
    """What is mapped over: the operands, and these from behind."""
    return [{n: case.operands[n][::step] for n in case.batched} for step in (1, -1)]


def applied_to_parts(case: Case, differentiates: bool) -> tuple[Any, Any]:
    several = {n: np.stack([part[n] for part in parts(case)]) for n in case.batched}
    axes = [0 if n in several else None for n in arrays(case)]
    function = partial(with_slope, case) if differentiates else lambda *xs: (run(case, *xs), None)
    return jax.vmap(function, axes), [*{**arrays(case), **several}.values()]


def with_slope(case: Case, *values: Any) -> tuple[Any, Any]:
    """Return what a case computes, and the derivative of the first result's weighted sum."""
    operands = dict(zip(arrays(case), values, strict=True))

    def weighted(x: Any) -> Any:
        found = run(case, *(operands | {case.wrt: x}).values())
        return jnp.sum(found[0] * weights(case).astype(np.float32)), found

    slope, found = jax.grad(weighted, has_aux=True)(operands[case.wrt])
    return found, slope


def weights(case: Case) -> np.ndarray:
    return np.random.default_rng(1).normal(size=inferred(case)[0][0])


# One of each kind: attributes that change the values change the derivatives alike.
DIFFERENTIABLE = {x.kind: x for x in CASES if x.wrt and not x.is_slow}.values()
mapped = Together(
    [case for case in CASES if not case.is_slow],
    lambda case: applied_to_parts(case, case in DIFFERENTIABLE),
)


@pytest.mark.parametrize("case", [case for case in CASES if not case.is_slow], ids=name)
def test_values_types_and_derivatives(case: Case) -> None:
    check(case, mapped(case))


OTHERS = [case for case in CASES if case.is_slow or (case.wrt and case not in DIFFERENTIABLE)]


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS, ids=name)
def test_other_values_types_and_derivatives(case: Case) -> None:
    prepare = partial(applied_to_parts, differentiates=bool(case.wrt))
    check(case, Together([case], prepare)(case))


def check(case: Case, results: Any) -> None:
    """Both parts are computed under one vmap; the first one has the operands as they are."""
    found, slope = jax.tree.map(np.asarray, results)
    for i, part in enumerate(parts(case)):
        for ours, theirs in zip(found, expected(case, **part), strict=True):
            np.testing.assert_allclose(ours[i], theirs, rtol=2e-5, atol=2e-6)
    assert [(x.shape[1:], x.dtype.name) for x in found] == inferred(case)
    if slope is not None:
        assert_derivative(case, slope[0])


def assert_derivative(case: Case, found: np.ndarray) -> None:
    """Along a direction it is the difference of the reference in 64 bits."""
    x = case.operands[case.wrt].astype(np.float64)
    along, step = np.random.default_rng(2).normal(size=x.shape), 1e-6
    ends = [expected(case, **{case.wrt: x + t * along})[0] for t in (step, -step)]
    wanted = np.sum(weights(case) * (ends[0] - ends[1])) / (2 * step)
    total = np.sum(found.astype(np.float64) * along)
    np.testing.assert_allclose(total, wanted, rtol=2e-2, atol=2e-2)


def test_what_has_no_derivative_says_why() -> None:
    kinds = {
        "sorted_suppression", "detection_output", "proposal", "ctc_greedy_decoder", "gather_tree",
        "matrix_suppression", "multiclass_suppression", "anchored_proposals", "refined_detections",
    }  # fmt: skip
    assert {kind for kind in kinds if not rules[kind].not_differentiable} == set()
