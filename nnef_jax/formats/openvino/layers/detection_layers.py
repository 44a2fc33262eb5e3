"""Meanings of layers for object detection: prior boxes, detections, regions and proposals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.operators.attributes import dtype, flag, integer, number, numbers
from nnef_jax.flattening.operators.registry import operation
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers.registry import legacy, operator, opsets, tensor

_BOX = 4  # steps of the meter for a box
_INPUTS = [*map(tensor, range(3))]
_Sizes = tuple[tuple[int, int], tuple[int, int]]
# A box in pixels: (half width, half height, right, down, clips). Its centre is shifted by `right`
# and `down`. `clips` says whether the box is clipped to the image.
_Shape = tuple[float, float, float, float, bool]


def _old_sizes(site: LayerSite) -> _Sizes:
    """Return two pairs (height, width): first of the features, then of the image.

    Input 0 is the feature map and input 1 is the image; the pairs are their extents along the
    spatial axes.
    """
    return _positive(*(site.known_shape(i)[2:] for i in (0, 1)))


def _sizes(site: LayerSite) -> _Sizes:
    """Return two pairs (height, width): first of the features, then of the image.

    Inputs 0 and 1 contain the pairs as known numbers.
    """
    return _positive(*(site.integers(i) for i in (0, 1)))


def _clustered_sizes(site: LayerSite) -> _Sizes:
    feature, (image_h, image_w) = _old_sizes(site)
    return feature, (site.int("img_h", 0) or image_h, site.int("img_w", 0) or image_w)


def _positive(feature: Sequence[int], image: Sequence[int]) -> _Sizes:
    if min(*feature[:2], *image[:2]) < 1:
        raise InvalidOperation(
            f"extents must be 1 or more: features {list(feature)}, image {list(image)}"
        )
    return (feature[0], feature[1]), (image[0], image[1])


def _priors(
    site: LayerSite,
    sizes: _Sizes,
    steps: tuple[float, float],
    offset: float,
    shapes: Sequence[_Shape],
) -> Constant:
    """Return a constant with boxes around each position of the feature map, and their variances.

    The constant has shape (2, 4 * boxes), with the boxes in the first row. Before version 10 it has
    shape (1, 2, 4 * boxes). `sizes` has the pairs (height, width) of the features and of the image.
    `steps` are the distances between positions in pixels, (vertical, horizontal), and `offset` is
    the place of a box's centre in its cell. `shapes` describe the boxes of a position.
    """
    (height, width), (image_h, image_w) = sizes
    variance = site.numbers("variance", []) or [0.1]
    if len(variance) not in (1, 4):
        raise InvalidOperation(f"'variance' must have 1 or 4 items, it has {len(variance)}")
    site.spend(_BOX * height * width * max(len(shapes), 1))
    step_h, step_w = steps
    rows = (np.arange(height) + offset) * step_h
    columns = (np.arange(width) + offset) * step_w
    half_w, half_h, right, down, clips = np.asarray(shapes, float).reshape(-1, 5).T
    with np.errstate(all="ignore"):
        x = columns[None, :, None] + right
        y = rows[:, None, None] + down
        ends = x - half_w, y - half_h, x + half_w, y + half_h
        boxes = np.stack(np.broadcast_arrays(*ends), -1) / ([image_w, image_h] * 2)
        inside = np.clip(boxes, (0, 0, -np.inf, -np.inf), (np.inf, np.inf, 1, 1))
        flat = np.where(clips[:, None], inside, boxes).astype(np.float32).reshape(-1)
    if site.flag("clip"):
        flat = np.clip(flat, 0, 1)
    box_variance = variance if len(variance) == 4 else variance * 4
    variances = np.tile(np.asarray(box_variance, np.float32), flat.size // 4)
    priors = np.stack([flat, variances])
    if site.net.is_legacy:
        priors = priors[None]
    return derived(priors)


def _ratios(site: LayerSite) -> list[float]:
    ratios = [1.0]
    for ratio in site.numbers("aspect_ratio", []):
        if all(abs(ratio - other) > 1e-6 for other in ratios):
            ratios.append(ratio)
            if site.flag("flip"):
                ratios.append(1 / ratio)
    return ratios


def _halves(size: float, ratios: Sequence[float]) -> list[tuple[float, float]]:
    """Return pairs (half width, half height) of boxes whose area is `size`**2, one for each ratio.

    A ratio is width / height.
    """
    return [(size / 2 * math.sqrt(ratio), size / 2 / math.sqrt(ratio)) for ratio in ratios]


_OF_SIZES: dict[str, Any] = {
    "smallest": numbers("min_size", ()), "largest": numbers("max_size", ()),
    "fixed": numbers("fixed_size", ()), "fixed_ratios": numbers("fixed_ratio", ()),
    "density": numbers("density", ()), "ratios": _ratios,
    "scale_all": flag("scale_all_sizes", True), "step": number("step", 0),
    "offset": number("offset", 0.5), "ratios_last": flag("min_max_aspect_ratios_order", True),
}  # fmt: skip


@legacy("PriorBox", sizes=_old_sizes, **_OF_SIZES)
@opsets("PriorBox", sizes=_sizes, **_OF_SIZES)
def _prior_box(
    site: LayerSite, *, sizes: _Sizes, smallest: list[float], largest: list[float],
    fixed: list[float], fixed_ratios: list[float], density: list[float], ratios: list[float],
    scale_all: bool, step: float, offset: float, ratios_last: bool,
) -> Constant:  # fmt: skip
    """Return boxes of several sizes and ratios around each position of a feature map.

    Section 2.2 of arXiv:1512.02325 (SSD) explains the boxes. If the attribute `scale_all_sizes` is
    not set, only the first size has boxes of all ratios, as MXNet's MultiBoxPrior does it; from
    version 10 on, sizes and step are then fractions of the image's height. Otherwise they are
    pixels.
    """
    feature, image = sizes
    if not scale_all and not site.net.is_legacy:
        step = image[0] / feature[0] if step == -1 else step * image[0]
        smallest = [size * image[0] for size in smallest]
    shapes: list[_Shape] = []
    for size, per_side in zip(fixed, density, strict=False):  # further items are ignored
        halves = [] if fixed_ratios else [(int(size) / 2, int(size) / 2)]
        halves += _halves(size, fixed_ratios or ratios[1:])
        shapes += _dense(site, size, int(per_side), halves)
    for i, size in enumerate(smallest):
        halves = _halves(size, [1.0])
        if i < len(largest):
            halves += _halves(math.sqrt(size * largest[i]), [1.0])
        of_ratios: list[tuple[float, float]] = []
        if scale_all:
            of_ratios = _halves(size, ratios[1:])
        elif i == len(smallest) - 1:
            of_ratios = _halves(smallest[0], ratios[1:])
        # The boxes of all other ratios come after the larger box of ratio 1 if `ratios_last`,
        # otherwise before it.
        halves = [*halves, *of_ratios] if ratios_last else [halves[0], *of_ratios, *halves[1:]]
        shapes += [(w, h, 0.0, 0.0, False) for w, h in halves]
    steps = (step, step)
    if step == 0:
        steps = (image[0] / feature[0], image[1] / feature[1])
        offset = 0.5
    return _priors(site, sizes, steps, offset, shapes)


def _dense(
    site: LayerSite, size: float, count: int, halves: Sequence[tuple[float, float]]
) -> list[_Shape]:
    """Return the shapes of clipped boxes around a grid of `count` * `count` points in a square.

    The square has `size` pixels on each side. Each point has one box for each pair (half width,
    half height) of `halves`.
    """
    site.spend(_BOX * len(halves) * count**2)
    step = int(size / count)
    shifts = [step / 2 + i * step - int(size) // 2 for i in range(count)]
    shapes: list[_Shape] = []
    for half_w, half_h in halves:
        for down in shifts:
            shapes += [(half_w, half_h, right, down, True) for right in shifts]
    return shapes


_OF_EXTENTS: dict[str, Any] = {
    "widths": numbers("width"), "heights": numbers("height"), "step": number("step", 0),
    "step_h": number("step_h", 0), "step_w": number("step_w", 0), "offset": number("offset", 0),
}  # fmt: skip


@legacy("PriorBoxClustered", sizes=_clustered_sizes, **_OF_EXTENTS)
@opsets("PriorBoxClustered", sizes=_sizes, **_OF_EXTENTS)
def _prior_box_clustered(
    site: LayerSite, *, sizes: _Sizes, widths: list[float], heights: list[float], step: float,
    step_h: float, step_w: float, offset: float,
) -> Constant:  # fmt: skip
    """Return boxes around each position of a feature map.

    A position has one box for each pair of a width of `widths` and the height of `heights` at the
    same index.
    """
    feature, image = sizes
    step_h = step_h or step or image[0] / feature[0]
    step_w = step_w or step or image[1] / feature[1]
    shapes = [(w / 2, h / 2, 0.0, 0.0, False) for w, h in zip(widths, heights, strict=True)]
    return _priors(site, sizes, (step_h, step_w), offset, shapes)


_ENCODED = flag("variance_encoded_in_target")


def _old_priors(site: LayerSite) -> Value:
    """Return input 2, the prior boxes.

    If the attribute `variance_encoded_in_target` is set, the variances are removed from the input,
    because the runtime of 2020 does not read them in this case.
    """
    priors = site.tensor(2)
    has_variances = _ENCODED(site) and priors.type.shape[:2] == (1, 2)
    return site.part(priors, 1, 0, 1) if has_variances else priors


def _scaled(default: bool) -> dict[str, Any]:
    """Return readers of the attributes `normalized` and `num_classes`.

    `default` is the default of `normalized`. If `normalized` is set, coordinates are fractions of
    the image's extents, otherwise pixels. If `num_classes` is missing, its reader computes the
    number from the shapes of the inputs.
    """
    is_normalized = flag("normalized", default)

    def classes(site: LayerSite) -> int:
        items_per_prior = 4 if is_normalized(site) else 5
        count = max(site.shape(2)[-1] // items_per_prior, 1)
        return site.int("num_classes", 0) or math.prod(site.shape(1)[1:]) // count

    return {"normalized": is_normalized, "num_classes": classes}


_DETECTIONS: dict[str, Any] = {
    "background_label": integer("background_label_id", 0),
    "top_k": integer("top_k", -1), "keep_top_k": lambda site: site.ints("keep_top_k", [-1])[0],
    "share_location": flag("share_location", True), "variance_encoded": _ENCODED,
    "center_size": lambda site: site.text("code_type", "corner").endswith("center_size"),
    "nms_threshold": number("nms_threshold"),
    "confidence_threshold": number("confidence_threshold", -3.4028234663852886e38),
    "clip_before": lambda site: site.flag("clip_before_nms", site.flag("clip")),
    "clip_after": flag("clip_after_nms"), "decrease_label": flag("decrease_label_id"),
    "input_size": lambda site: (site.int("input_height", 1), site.int("input_width", 1)),
    "objectness_threshold": number("objectness_score", 0),
}  # fmt: skip
_ANCHORS = [lambda site, i=i: site.tensor(i) if site.has(i) else False for i in (3, 4)]

legacy("DetectionOutput")(
    operation(
        "detection_output", tensor(0), tensor(1), _old_priors, *_ANCHORS, **_scaled(True),
        **_DETECTIONS,
    )
)  # fmt: skip
opsets("DetectionOutput")(
    operation("detection_output", *_INPUTS, *_ANCHORS, **_scaled(False), **_DETECTIONS)
)


def _anchors(
    base: float, ratios: Sequence[float], scales: Sequence[float], offset: float
) -> tuple[float, ...]:
    """Return the corners of a box for each ratio and scale, in pixels relative to a point.

    A ratio is height / width, and a scale multiplies the `base` pixels of a side. If `offset` is 0,
    the boxes are centred at the point. Otherwise, as in Caffe, the extents of the boxes are whole
    pixels, and the box of `base` pixels begins at the point.
    """
    boxes: list[float] = []
    middle = (base - offset) / 2 if offset else 0.0
    for ratio in ratios:
        width = math.sqrt(base * base / ratio)
        if offset:
            width = float(math.floor(width + 0.5))
        height = width * ratio
        if offset:
            height = float(math.floor(height + 0.5))
        for scale in scales:
            half_w = (width * scale - offset) / 2
            half_h = (height * scale - offset) / 2
            boxes += [middle - half_w, middle - half_h, middle + half_w, middle + half_h]
    return tuple(boxes)


_COUNTS: dict[str, Any] = {
    "pre_nms": integer("pre_nms_topn"), "post_nms": integer("post_nms_topn")
}  # fmt: skip


def _is_tensorflow(site: LayerSite) -> bool:
    return site.word("framework", "", "tensorflow", "caffe") == "tensorflow"


def _pixel(site: LayerSite) -> float:
    return 0.0 if _is_tensorflow(site) else 1.0


def _anchors_around(site: LayerSite) -> tuple[float, ...]:
    base = site.int("base_size", 16)
    return _anchors(base, site.numbers("ratio"), site.numbers("scale"), _pixel(site))


operator("Proposal")(
    operation(
        "proposal", *_INPUTS, anchors=_anchors_around, feature_stride=integer("feat_stride", 16),
        min_size=number("min_size", 16), nms_threshold=number("nms_thresh"),
        coordinate_scale=number("box_coordinate_scale", 1), size_scale=number("box_size_scale", 1),
        pixel_offset=_pixel, clips_before=flag("clip_before_nms", True),
        clips_after=flag("clip_after_nms"), clips_anchors=_is_tensorflow, swaps=_is_tensorflow,
        normalizes=flag("normalize"), **_COUNTS,
    )
)  # fmt: skip

# The anchors are boxes of 16 x 16 pixels, in three ratios and in all scales.
_SIMPLER = operation(
    "proposal", *_INPUTS,
    anchors=lambda site: _anchors(16, (0.5, 1, 2), site.numbers("scale"), 1.0),
    feature_stride=integer("feat_stride"), truncates=True, min_size=number("min_bbox_size"),
    nms_threshold=number("iou_threshold"), later_ties=True, **_COUNTS,
)  # fmt: skip
legacy("SimplerNMS")(lambda site: _SIMPLER(site)[0])


@operator("RegionYolo")
def _region_yolo(
    site: LayerSite,
    x: Value,
    *,
    coords: int = integer("coords", 4),
    classes: int = integer("classes"),
    is_softmax: bool = flag("do_softmax", True),
) -> Value:
    """Apply the logistic function to the centre (x, y) and the objectness of each region of YOLO.

    Width and height are not changed. The scores of the classes get a softmax if `is_softmax`,
    otherwise the logistic function.
    """
    batch, channels, height, width = x.type.shape
    regions = site.int("num") if is_softmax else len(site.ints("mask", []))
    items = coords + classes + 1
    if regions * items != channels:
        message = f"{regions} regions of {items} items do not fit {channels} channels"
        raise InvalidOperation(message)
    split = site.reshaped(x, [batch, regions, items, height, width])
    parts = [site.step.sigmoid(site.part(split, 2, 0, 2)), site.part(split, 2, 2, coords)]
    end = coords + 1 if is_softmax else items
    parts.append(site.step.sigmoid(site.part(split, 2, coords, end)))
    if is_softmax:
        parts.append(site.step.softmax(site.part(split, 2, end, items), axes=(2,)))
    joined = site.step.concat(parts, axis=2)
    result = site.reshaped(joined, [batch, channels, height, width])
    if not is_softmax:
        return result
    return site.flattened(result, site.axis_of("axis", 1), site.axis_of("end_axis", 3))


# Detectors of two stages


@opsets("ExperimentalDetectronPriorGridGenerator")
def _prior_grid_generator(
    site: LayerSite,
    priors: Value,
    *,
    h: int = integer("h", 0),
    w: int = integer("w", 0),
    stride_y: float = number("stride_y", 0),
    stride_x: float = number("stride_x", 0),
    flattens: bool = flag("flatten", True),
) -> Value:
    """Move each of `priors` to the centre of each position of a feature map.

    `priors` has shape (priors, 4). The result has shape (height * width * priors, 4) if `flattens`,
    otherwise (height, width, priors, 4).
    """
    height = h or site.known_shape(1)[2]
    width = w or site.known_shape(1)[3]
    step_y = stride_y or site.known_shape(2)[2] / height
    step_x = stride_x or site.known_shape(2)[3] / width
    site.spend(4 * height * width)
    rows = step_y * (np.arange(height) + 0.5)
    columns = step_x * (np.arange(width) + 0.5)
    y, x = np.meshgrid(rows, columns, indexing="ij")
    centres = np.stack([x, y, x, y], axis=-1).reshape(-1, 1, 4).astype(np.float32)
    around = site.unsqueezed(priors, (0,))
    boxes = site.step.add(derived(centres), around)
    if not flattens:
        return site.reshaped(boxes, [height, width, priors.type.shape[0], 4])
    return site.flattened(boxes, 0, 1)


def _limits(site: LayerSite) -> dict[str, Any]:
    return {
        "min_size": site.number("min_size"), "nms_threshold": site.number("nms_threshold"),
        "pre_nms": site.int("pre_nms_count"), "post_nms": site.int("post_nms_count"),
    }  # fmt: skip


@opsets("ExperimentalDetectronGenerateProposalsSingleImage", limits=_limits)
def _proposals_of_image(site: LayerSite, *, limits: dict[str, Any]) -> Any:
    """Return the best regions of an image, of shape (n, 4), and the regions' scores, of shape (n,).

    If there are fewer than n regions, the results are padded with zeros.
    """
    operands = site.first_inputs(4)
    count, height, width = site.known_shape(operands[3])
    shapes = [
        [1, *operands[0].type.shape],
        [height, width, count, 4],
        [1, 4 * count, height, width],
        [1, count, height, width],
    ]
    operands = [site.reshaped(x, shape) for x, shape in zip(operands, shapes, strict=True)]
    offsets = {"pixel_offset": 1.0, "overlap_offset": 0.0}
    return site.last.anchored_proposals(*operands, scales=False, **offsets, **limits)[:-1]


@opsets("GenerateProposals", limits=_limits)
def _proposals(
    site: LayerSite,
    *,
    limits: dict[str, Any],
    is_normal: bool = flag("normalized", True),
    dtype: str = dtype("roi_num_type"),
) -> Any:
    """Return the best regions of all images, their scores, and the number of regions by image.

    The regions have shape (n, 4) and the scores (n,). If there are fewer than n regions, the
    regions and the scores are padded with zeros.
    """
    offset = 0.0 if is_normal else 1.0
    offsets = {"pixel_offset": offset, "overlap_offset": offset}
    regions, scores, count = site.last.anchored_proposals(
        *site.first_inputs(4), scales=True, **offsets, **limits
    )
    return [regions, scores, site.cast(count, dtype)]
