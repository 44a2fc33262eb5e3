"""Detections: prior boxes, what networks say of them, decoding of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers.registry import legacy, operator, opsets

_BOX = 4  # steps


def _sizes(site: LayerSite) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the extents of the features and of the image."""
    if site.net.is_legacy:
        feature, image = (site.known_shape(i)[2:] for i in (0, 1))
    else:
        feature, image = (site.integers(i) for i in (0, 1))
    if min(*feature[:2], *image[:2]) < 1:
        raise InvalidOperation(f"there are no extents {list(feature)} of {list(image)}")
    return (feature[0], feature[1]), (image[0], image[1])


def _priors(
    site: LayerSite,
    sizes: tuple[tuple[int, int], tuple[int, int]],
    steps: tuple[float, float],
    offset: float,
    shapes: Sequence[tuple[float, float, float, float, bool]],
) -> Constant:
    """Return boxes around each item of the features, and below them their variances.

    A shape has half the extents of a box, shifts of its centre, and whether the image cuts it.
    """
    (height, width), (image_h, image_w) = sizes
    variance = site.numbers("variance", []) or [0.1]
    if len(variance) not in (1, 4):
        raise InvalidOperation(f"'variance' must have 1 or 4 items, it has {len(variance)}")
    site.spend(_BOX * height * width * max(len(shapes), 1))
    rows, columns = ((np.arange(n) + offset) * s for n, s in zip(sizes[0], steps, strict=True))
    half_w, half_h, right, down, cuts = np.asarray(shapes, float).reshape(-1, 5).T
    with np.errstate(all="ignore"):
        x, y = columns[None, :, None] + right, rows[:, None, None] + down
        ends = x - half_w, y - half_h, x + half_w, y + half_h
        boxes = np.stack(np.broadcast_arrays(*ends), -1) / ([image_w, image_h] * 2)
        inside = np.clip(boxes, (0, 0, -np.inf, -np.inf), (np.inf, np.inf, 1, 1))
        flat = np.where(cuts[:, None], inside, boxes).astype(np.float32).reshape(-1)
    if site.flag("clip"):
        flat = np.clip(flat, 0, 1)
    spread = np.tile(np.asarray(variance * (4 // len(variance)), np.float32), flat.size // 4)
    found = np.stack([flat, spread])
    return derived(found[None] if site.net.is_legacy else found)


def _ratios(site: LayerSite) -> list[float]:
    found = [1.0]
    for ratio in site.numbers("aspect_ratio", []):
        if all(abs(ratio - known) > 1e-6 for known in found):
            found.append(ratio)
            if site.flag("flip"):
                found.append(1 / ratio)
    return found


def _halves(size: float, ratios: Sequence[float]) -> list[tuple[float, float]]:
    """Return half the extents of boxes of a size in some ratios."""
    return [(size / 2 * math.sqrt(ratio), size / 2 / math.sqrt(ratio)) for ratio in ratios]


@operator("PriorBox")
def _prior_box(site: LayerSite) -> Constant:
    """Return boxes of given sizes and ratios around each item (SSD, arXiv:1512.02325).

    Without `scale_all_sizes` all ratios are of the first size, and operation sets give sizes and
    step in heights of the image (MXNet's MultiBoxPrior). Old converters have multiplied them.
    """
    feature, image = _sizes(site)
    smallest, largest = site.numbers("min_size", []), site.numbers("max_size", [])
    fixed, fixed_ratios = site.numbers("fixed_size", []), site.numbers("fixed_ratio", [])
    density = site.numbers("density", [])
    ratios, scale_all = _ratios(site), site.flag("scale_all_sizes", True)
    step, offset = site.number("step", 0), site.number("offset", 0.5)
    in_order = site.flag("min_max_aspect_ratios_order", True)
    if not scale_all and not site.net.is_legacy:  # as of MXNet: in heights of the image
        step = image[0] / feature[0] if step == -1 else step * image[0]
        smallest = [size * image[0] for size in smallest]
    shapes: list[tuple[float, float, float, float, bool]] = []
    for size, per_side in zip(fixed, density, strict=False):  # which the image cuts
        count, whole = int(per_side), int(size)
        shift = int(size / count)
        halves = [] if fixed_ratios else [(whole / 2, whole / 2)]
        halves += _halves(size, fixed_ratios or ratios[1:])
        site.spend(_BOX * len(halves) * count**2)
        places = [shift / 2 + at * shift - whole // 2 for at in range(count)]
        shapes += [
            (*half, right, down, True) for half in halves for down in places for right in places
        ]
    for i, size in enumerate(smallest):
        halves = _halves(size, [1.0])
        if i < len(largest):
            halves += _halves(math.sqrt(size * largest[i]), [1.0])
        others: list[tuple[float, float]] = []
        if scale_all or i == len(smallest) - 1:
            others = _halves(size if scale_all else smallest[0], ratios[1:])
        halves = [*halves, *others] if in_order else [halves[0], *others, *halves[1:]]
        shapes += [(w, h, 0.0, 0.0, False) for w, h in halves]
    steps = (step, step)
    if step == 0:
        steps, offset = (image[0] / feature[0], image[1] / feature[1]), 0.5
    return _priors(site, (feature, image), steps, offset, shapes)


@operator("PriorBoxClustered")
def _prior_box_clustered(site: LayerSite) -> Constant:
    """Return boxes of given extents around each item."""
    feature, image = _sizes(site)
    if site.net.is_legacy:
        image = site.int("img_h", 0) or image[0], site.int("img_w", 0) or image[1]
    widths, heights = site.numbers("width"), site.numbers("height")
    both, offset = site.number("step", 0), site.number("offset", 0)
    step_y = site.number("step_h", 0) or both or image[0] / feature[0]
    step_x = site.number("step_w", 0) or both or image[1] / feature[1]
    shapes = [(w / 2, h / 2, 0.0, 0.0, False) for w, h in zip(widths, heights, strict=True)]
    return _priors(site, (feature, image), (step_y, step_x), offset, shapes)


@operator("DetectionOutput")
def _detection_output(
    site: LayerSite, locations: Value, confidences: Value, priors: Value
) -> Value:
    normalized = site.flag("normalized", site.net.is_legacy)
    is_encoded = site.flag("variance_encoded_in_target")
    if site.net.is_legacy and is_encoded and priors.type.shape[:2] == (1, 2):
        priors = site.part(priors, 1, 0, 1)  # the runtime of 2020 does not read the variances
    count = max(priors.type.shape[-1] // (4 if normalized else 5), 1)
    code = site.text("code_type", "caffe.priorboxparameter.corner")
    anchors = [site.tensor(i) if site.has(i) else False for i in (3, 4)]
    return site.last.detection_output(
        locations, confidences, priors, *anchors,
        num_classes=site.int("num_classes", 0) or math.prod(confidences.type.shape[1:]) // count,
        background_label=site.int("background_label_id", 0), top_k=site.int("top_k", -1),
        keep_top_k=site.ints("keep_top_k", [-1])[0], normalized=normalized,
        share_location=site.flag("share_location", True),
        variance_encoded=is_encoded,
        center_size=code.endswith("center_size"), nms_threshold=site.number("nms_threshold"),
        confidence_threshold=site.number("confidence_threshold", -3.4028234663852886e38),
        clip_before=site.flag("clip_before_nms", site.flag("clip")),
        clip_after=site.flag("clip_after_nms"), decrease_label=site.flag("decrease_label_id"),
        input_size=(site.int("input_height", 1), site.int("input_width", 1)),
        objectness_threshold=site.number("objectness_score", 0),
    )  # fmt: skip


def _anchors(
    base: float, ratios: Sequence[float], scales: Sequence[float], offset: float
) -> tuple[float, ...]:
    """Return boxes around a place, for each ratio and scale.

    With an offset, as of Caffe, they are of whole pixels, and begin at the place.
    """
    found: list[float] = []
    middle = (base - offset) / 2 if offset else 0.0
    for ratio in ratios:
        width = math.sqrt(base * base / ratio)
        width = float(math.floor(width + 0.5)) if offset else width
        height = width * ratio
        height = float(math.floor(height + 0.5)) if offset else height
        for scale in scales:
            half_w, half_h = (width * scale - offset) / 2, (height * scale - offset) / 2
            found += [middle - half_w, middle - half_h, middle + half_w, middle + half_h]
    return tuple(found)


@operator("Proposal")
def _proposal(site: LayerSite) -> Any:
    is_tensorflow = site.choice("framework", "", "tensorflow", "caffe", default="") == "tensorflow"
    offset = 0.0 if is_tensorflow else 1.0
    base, ratios = site.int("base_size", 16), site.numbers("ratio")
    anchors = _anchors(base, ratios, site.numbers("scale"), offset)
    return _proposed(
        site, anchors=anchors, feature_stride=site.int("feat_stride", 16),
        min_size=site.number("min_size", 16), nms_threshold=site.number("nms_thresh"),
        coordinate_scale=site.number("box_coordinate_scale", 1),
        size_scale=site.number("box_size_scale", 1),
        pixel_offset=offset, clips_before=site.flag("clip_before_nms", True),
        clips_after=site.flag("clip_after_nms"), clips_anchors=is_tensorflow, swaps=is_tensorflow,
        normalizes=site.flag("normalize"),
    )  # fmt: skip


@legacy("SimplerNMS")
def _simpler_nms(site: LayerSite) -> Any:
    """Return regions around 9 anchors: of scales, in three ratios of a base of 16 pixels."""
    anchors = _anchors(16, (0.5, 1, 2), site.numbers("scale"), 1.0)
    return _proposed(
        site, anchors=anchors, feature_stride=site.int("feat_stride"), truncates=True,
        min_size=site.number("min_bbox_size"), nms_threshold=site.number("iou_threshold"),
        later_ties=True,
    )[0]  # fmt: skip


def _proposed(site: LayerSite, **attributes: Any) -> Any:
    counts = {"pre_nms": site.int("pre_nms_topn"), "post_nms": site.int("post_nms_topn")}
    return site.last.proposal(*site.first(3), **counts, **attributes)


@operator("RegionYolo")
def _region_yolo(site: LayerSite, x: Value) -> Value:
    """Apply the logistic function to places, objectness and classes, or softmax to classes."""
    batch, channels, height, width = x.type.shape
    coords, classes = site.int("coords", 4), site.int("classes")
    is_softmax = site.flag("do_softmax", True)
    regions = site.int("num") if is_softmax else len(site.ints("mask", []))
    items = coords + classes + 1
    if regions * items != channels:
        message = f"{regions} regions of {items} items do not make {channels} channels"
        raise InvalidOperation(message)
    split = site.reshaped(x, [batch, regions, items, height, width])
    parts = [site.step.sigmoid(site.part(split, 2, 0, 2)), site.part(split, 2, 2, coords)]
    sure = coords + 1 if is_softmax else items
    parts.append(site.step.sigmoid(site.part(split, 2, coords, sure)))
    if is_softmax:
        parts.append(site.step.softmax(site.part(split, 2, sure, items), axes=(2,)))
    joined = site.step.concat(parts, axis=2)
    found = site.reshaped(joined, [batch, channels, height, width])
    if not is_softmax:
        return found
    return site.flattened(found, site.axis_of("axis", 1), site.axis_of("end_axis", 3))


# Networks of two stages


@opsets("ExperimentalDetectronPriorGridGenerator")
def _prior_grid_generator(site: LayerSite, priors: Value) -> Value:
    """Return boxes [n,4] around the middle of each item of the features."""
    extents: list[int] = []
    steps: list[float] = []
    for axis, (size, stride) in enumerate((("h", "stride_y"), ("w", "stride_x")), 2):
        extents.append(site.int(size, 0) or site.known_shape(1)[axis])
        steps.append(site.number(stride, 0) or site.known_shape(2)[axis] / extents[-1])
    site.spend(4 * math.prod(extents))
    y, x = (step * (np.arange(n) + 0.5) for n, step in zip(extents, steps, strict=True))
    y, x = np.meshgrid(y, x, indexing="ij")
    centres = np.stack([x, y, x, y], axis=-1).reshape(-1, 1, 4).astype(np.float32)
    around = site.unsqueezed(priors, (0,))
    boxes = site.step.add(derived(centres), around)
    if not site.flag("flatten", True):
        return site.reshaped(boxes, [*extents, priors.type.shape[0], 4])
    return site.flattened(boxes, 0, 1)


@opsets("ExperimentalDetectronGenerateProposalsSingleImage", "GenerateProposals")
def _generate_proposals(site: LayerSite) -> Any:
    """Return the best regions [n,4] of images, their scores [n], how many an image has.

    Of one image there are no numbers; what is behind the regions and scores is 0.
    """
    operands: Sequence[Value] = site.first(4)
    is_one = site.operator != "generateproposals"
    if is_one:
        count, height, width = site.known_shape(operands[3])
        shapes = [
            [1, *operands[0].type.shape],
            [height, width, count, 4],
            [1, 4 * count, height, width],
            [1, count, height, width],
        ]
        operands = [site.reshaped(x, shape) for x, shape in zip(operands, shapes, strict=True)]
    offset = 1.0 if is_one or not site.flag("normalized", True) else 0.0
    *found, count = site.last.anchored_proposals(
        *operands, scales=not is_one, pixel_offset=offset,
        overlap_offset=0.0 if is_one else offset, min_size=site.number("min_size"),
        nms_threshold=site.number("nms_threshold"), pre_nms=site.int("pre_nms_count"),
        post_nms=site.int("post_nms_count"),
    )  # fmt: skip
    return found if is_one else [*found, site.cast(count, site.dtype("roi_num_type"))]
