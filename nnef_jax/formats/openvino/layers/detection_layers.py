"""Functions for layers of object detection: prior boxes, detections and proposals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.operators.attributes import dtype, flag, integer, number, numbers
from nnef_jax.flattening.operators.registry import operation
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers.registry import legacy, operator, opsets, tensor

_BOX_STEPS = 4  # the cost of a box, counted towards `Limits.steps`
_INPUTS = [*map(tensor, range(3))]
_Sizes = tuple[tuple[int, int], tuple[int, int]]


class _BoxShape(NamedTuple):
    """A box in pixels, relative to a position of the feature map.

    The centre of the box is the position, moved by `right` and by `down`. If `clips`, the box is
    clipped to the image.
    """

    half_width: float
    half_height: float
    right: float = 0.0
    down: float = 0.0
    clips: bool = False


def _sizes_from_shapes(site: LayerSite) -> _Sizes:
    """Return the extents (height, width) of the features and of the image, as two pairs.

    Input 0 has the features, input 1 the image. Shapes are (batch, channels, height, width).
    """
    return _positive_sizes(site.known_shape(0)[2:], site.known_shape(1)[2:])


def _sizes_from_numbers(site: LayerSite) -> _Sizes:
    """Return the extents (height, width) of the features and of the image, as two pairs.

    Inputs 0 and 1 are constants that contain the two pairs.
    """
    return _positive_sizes(site.integers(0), site.integers(1))


def _clustered_sizes(site: LayerSite) -> _Sizes:
    """Return the extents (height, width) of the features and of the image, as two pairs.

    The attributes `img_h` and `img_w` replace the extents of the image, unless they are 0.
    """
    feature, (image_height, image_width) = _sizes_from_shapes(site)
    height = site.int("img_h", 0) or image_height
    width = site.int("img_w", 0) or image_width
    return feature, (height, width)


def _positive_sizes(feature: Sequence[int], image: Sequence[int]) -> _Sizes:
    """Return the first two extents of the features and of the image, as two pairs.

    Raises InvalidOperation if one of these extents is less than 1.
    """
    if min(*feature[:2], *image[:2]) < 1:
        message = f"extents must be 1 or more: features {list(feature)}, image {list(image)}"
        raise InvalidOperation(message)
    return (feature[0], feature[1]), (image[0], image[1])


def _priors(
    site: LayerSite,
    sizes: _Sizes,
    steps: tuple[float, float],
    offset: float,
    shapes: Sequence[_BoxShape],
) -> Constant:
    """Return boxes around each position of a feature map, and the variances of the boxes.

    The constant has shape (2, 4 * boxes): row 0 has the corners of the boxes, and row 1 has the
    variances. Before version 10 it has shape (1, 2, 4 * boxes).

    `sizes` has the pairs (height, width) of the features and of the image. `steps` is the distance
    between positions in pixels, as the pair (vertical, horizontal). The first position is `offset`
    steps from the image's upper left corner. Each position has a box for each item of `shapes`.
    """
    (height, width), (image_h, image_w) = sizes
    box_variance = _box_variance(site)
    site.spend(_BOX_STEPS * height * width * max(len(shapes), 1))
    step_h, step_w = steps
    rows = (np.arange(height) + offset) * step_h
    columns = (np.arange(width) + offset) * step_w
    # Each of these arrays has an item for each shape.
    half_w, half_h, right, down, clips = np.asarray(shapes, float).reshape(-1, 5).T
    with np.errstate(all="ignore"):  # numbers too large for float32 become infinite
        # The centres (x, y) are in pixels, and have shape (height, width, shapes).
        x = columns[None, :, None] + right
        y = rows[:, None, None] + down
        corners = np.broadcast_arrays(x - half_w, y - half_h, x + half_w, y + half_h)
        # The boxes are fractions of the image, and have shape (height, width, shapes, 4).
        boxes = np.stack(corners, -1) / [image_w, image_h, image_w, image_h]
        # Clipped boxes have a left and top of at least 0, and a right and bottom of at most 1.
        clipped = np.clip(boxes, (0, 0, -np.inf, -np.inf), (np.inf, np.inf, 1, 1))
        boxes = np.where(clips[:, None], clipped, boxes)
        flat_boxes = boxes.astype(np.float32).reshape(-1)
    if site.flag("clip"):
        flat_boxes = np.clip(flat_boxes, 0, 1)
    variances = np.tile(np.asarray(box_variance, np.float32), flat_boxes.size // 4)
    priors = np.stack([flat_boxes, variances])
    return derived(priors[None] if site.net.is_legacy else priors)


def _box_variance(site: LayerSite) -> list[float]:
    """Return the attribute `variance`: four numbers, or one number for all four. Default: 0.1."""
    variance = site.numbers("variance", []) or [0.1]
    if len(variance) not in (1, 4):
        raise InvalidOperation(f"'variance' must have 1 or 4 items, it has {len(variance)}")
    return variance if len(variance) == 4 else variance * 4


def _ratios(site: LayerSite) -> list[float]:
    """Return the ratio 1 and the ratios of the attribute `aspect_ratio`, without repetitions.

    If the attribute `flip` is set, the reciprocal of a ratio follows the ratio. For example, the
    ratio 2 becomes [1, 2, 0.5].
    """
    ratios = [1.0]
    for ratio in site.numbers("aspect_ratio", []):
        is_new = all(abs(ratio - earlier) > 1e-6 for earlier in ratios)
        if is_new:
            ratios.append(ratio)
            if site.flag("flip"):
                ratios.append(1 / ratio)
    return ratios


def _half_extents(size: float, ratios: Sequence[float]) -> list[tuple[float, float]]:
    """Return the half width and the half height of a box for each ratio.

    The boxes have the area size**2, and a ratio is width / height.
    """
    half = size / 2
    return [(half * math.sqrt(ratio), half / math.sqrt(ratio)) for ratio in ratios]


_SIZE_ATTRIBUTES: dict[str, Any] = {
    "smallest": numbers("min_size", ()), "largest": numbers("max_size", ()),
    "fixed": numbers("fixed_size", ()), "fixed_ratios": numbers("fixed_ratio", ()),
    "density": numbers("density", ()), "ratios": _ratios,
    "scale_all": flag("scale_all_sizes", True), "step": number("step", 0),
    "offset": number("offset", 0.5), "ratios_last": flag("min_max_aspect_ratios_order", True),
}  # fmt: skip


@legacy("PriorBox", sizes=_sizes_from_shapes, **_SIZE_ATTRIBUTES)
@opsets("PriorBox", sizes=_sizes_from_numbers, **_SIZE_ATTRIBUTES)
def _prior_box(
    site: LayerSite, *, sizes: _Sizes, smallest: list[float], largest: list[float],
    fixed: list[float], fixed_ratios: list[float], density: list[float], ratios: list[float],
    scale_all: bool, step: float, offset: float, ratios_last: bool,
) -> Constant:  # fmt: skip
    """Return boxes of several sizes and ratios around each position of a feature map.

    Section 2.2 of arXiv:1512.02325 (SSD) explains the boxes. If `scale_all`, each size has boxes of
    all ratios. Otherwise only the first size has boxes of all ratios, as in MXNet's MultiBoxPrior.
    In this case, `smallest` and `step` are fractions of the image's height in versions 10 and 11,
    and pixels in older versions. In versions 10 and 11 a `step` of -1 divides the height evenly.

    Each size in `smallest` has a square. If `largest` has an item for this size, the size also has
    a larger square. Each ratio in `ratios[1:]` adds a rectangle. (`ratios[0]` is 1, the square.) If
    `ratios_last`, the rectangles come after the larger square. Each size in `fixed` has a grid of
    boxes at each position. `density` has the number of points per side for each grid.
    """
    (feature_height, feature_width), (image_height, image_width) = sizes
    are_fractions = not scale_all and not site.net.is_legacy
    if are_fractions:
        step = image_height / feature_height if step == -1 else step * image_height
        smallest = [size * image_height for size in smallest]
    shapes: list[_BoxShape] = []
    for size, points_per_side in zip(fixed, density, strict=False):  # the longer list is cut
        if fixed_ratios:
            half_extents = _half_extents(size, fixed_ratios)
        else:
            rounded_square = (int(size) / 2, int(size) / 2)
            half_extents = [rounded_square, *_half_extents(size, ratios[1:])]
        shapes += _grid_shapes(site, size, int(points_per_side), half_extents)
    for i, size in enumerate(smallest):
        square = _half_extents(size, [1.0])
        larger_square: list[tuple[float, float]] = []
        if i < len(largest):
            mean_size = math.sqrt(size * largest[i])
            larger_square = _half_extents(mean_size, [1.0])
        rectangles: list[tuple[float, float]] = []
        is_last = i == len(smallest) - 1
        if scale_all:
            rectangles = _half_extents(size, ratios[1:])
        elif is_last:
            # The rectangles of the first size follow the squares of all sizes.
            rectangles = _half_extents(smallest[0], ratios[1:])
        if ratios_last:
            half_extents = square + larger_square + rectangles
        else:
            half_extents = square + rectangles + larger_square
        shapes += [_BoxShape(half_width, half_height) for half_width, half_height in half_extents]
    steps = (step, step)
    if step == 0:  # the positions divide the image evenly
        steps = (image_height / feature_height, image_width / feature_width)
        offset = 0.5
    return _priors(site, sizes, steps, offset, shapes)


def _grid_shapes(
    site: LayerSite, size: float, points_per_side: int, half_extents: Sequence[tuple[float, float]]
) -> list[_BoxShape]:
    """Return clipped boxes around the points of a grid. The grid covers `size` * `size` pixels.

    Each point has one box for each pair (half width, half height) in `half_extents`.
    """
    site.spend(_BOX_STEPS * len(half_extents) * points_per_side**2)
    step = int(size / points_per_side)
    # For example, a grid of size 8 with 2 points per side has the shifts -2 and 2.
    shifts = [step / 2 + i * step - int(size) // 2 for i in range(points_per_side)]
    return [
        _BoxShape(half_width, half_height, right, down, clips=True)
        for half_width, half_height in half_extents
        for down in shifts
        for right in shifts
    ]


_EXTENT_ATTRIBUTES: dict[str, Any] = {
    "widths": numbers("width"), "heights": numbers("height"), "step": number("step", 0),
    "step_h": number("step_h", 0), "step_w": number("step_w", 0), "offset": number("offset", 0),
}  # fmt: skip


@legacy("PriorBoxClustered", sizes=_clustered_sizes, **_EXTENT_ATTRIBUTES)
@opsets("PriorBoxClustered", sizes=_sizes_from_numbers, **_EXTENT_ATTRIBUTES)
def _prior_box_clustered(
    site: LayerSite, *, sizes: _Sizes, widths: list[float], heights: list[float], step: float,
    step_h: float, step_w: float, offset: float,
) -> Constant:  # fmt: skip
    """Return boxes around each position of a feature map.

    At each position, box i has the width `widths[i]` and the height `heights[i]`.
    """
    (feature_height, feature_width), (image_height, image_width) = sizes
    # A step of 0 stands for the default: the positions divide the image evenly.
    if step_h == 0:
        step_h = step if step != 0 else image_height / feature_height
    if step_w == 0:
        step_w = step if step != 0 else image_width / feature_width
    pairs = zip(widths, heights, strict=True)
    shapes = [_BoxShape(half_width=width / 2, half_height=height / 2) for width, height in pairs]
    return _priors(site, sizes, (step_h, step_w), offset, shapes)


_ENCODED = flag("variance_encoded_in_target")


def _legacy_priors(site: LayerSite) -> Value:
    """Return input 2, the prior boxes.

    If the attribute `variance_encoded_in_target` is set, the variances are removed, since the
    runtime of 2020 does not read variances in this case.
    """
    priors = site.tensor(2)
    if not _ENCODED(site):
        return priors
    has_variances = priors.type.shape[:2] == (1, 2)  # row 0 has the boxes, row 1 the variances
    return site.part(priors, axis=1, first=0, last=1) if has_variances else priors


def _scale_and_classes(normalized_default: bool) -> dict[str, Any]:
    """Return a dict of functions that read the attributes `normalized` and `num_classes`.

    If `normalized` is set, coordinates are fractions of the image's extents, otherwise pixels. If
    `num_classes` is missing or 0, the number of classes follows from the shapes of the inputs:
    input 1 has a score for each class of each prior box, and input 2 has the prior boxes.
    """
    is_normalized = flag("normalized", normalized_default)

    def read_classes(site: LayerSite) -> int:
        declared_classes = site.int("num_classes", 0)
        if declared_classes:
            return declared_classes
        items_per_prior = 4 if is_normalized(site) else 5
        priors = max(site.shape(2)[-1] // items_per_prior, 1)
        return math.prod(site.shape(1)[1:]) // priors

    return {"normalized": is_normalized, "num_classes": read_classes}


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
        "detection_output", tensor(0), tensor(1), _legacy_priors, *_ANCHORS,
        **_scale_and_classes(normalized_default=True), **_DETECTIONS,
    )
)  # fmt: skip
opsets("DetectionOutput")(
    operation("detection_output", *_INPUTS, *_ANCHORS, **_scale_and_classes(False), **_DETECTIONS)
)


def _anchors(
    base: float, ratios: Sequence[float], scales: Sequence[float], offset: float
) -> tuple[float, ...]:
    """Return the corners of a box for each ratio and scale, in pixels relative to a point.

    A ratio is height / width, and a scale multiplies the `base` pixels of a side. If `offset` is 0,
    the boxes are centred at the point. Otherwise, as in Caffe, the extents of the boxes are whole
    pixels, and a square with sides of `base` pixels begins at the point.
    """
    corners: list[float] = []
    is_caffe = offset != 0
    centre = (base - offset) / 2 if is_caffe else 0.0

    def rounded(extent: float) -> float:
        return float(math.floor(extent + 0.5)) if is_caffe else extent

    for ratio in ratios:
        width = rounded(math.sqrt(base * base / ratio))
        height = rounded(width * ratio)
        for scale in scales:
            half_w = (width * scale - offset) / 2
            half_h = (height * scale - offset) / 2
            corners += [centre - half_w, centre - half_h, centre + half_w, centre + half_h]
    return tuple(corners)


_COUNTS: dict[str, Any] = {"pre_nms": integer("pre_nms_topn"), "post_nms": integer("post_nms_topn")}


def _is_tensorflow(site: LayerSite) -> bool:
    return site.word("framework", "", "tensorflow", "caffe") == "tensorflow"


def _pixel_offset(site: LayerSite) -> float:
    """Return 1.0 if the corners of a box are its first and its last pixel, otherwise 0.0."""
    return 0.0 if _is_tensorflow(site) else 1.0


def _declared_anchors(site: LayerSite) -> tuple[float, ...]:
    """Return the corners of the boxes that the attributes `base_size`, `ratio` and `scale` declare.

    The corners are in pixels relative to a point.
    """
    base = site.int("base_size", 16)
    return _anchors(base, site.numbers("ratio"), site.numbers("scale"), _pixel_offset(site))


operator("Proposal")(
    operation(
        "proposal", *_INPUTS, anchors=_declared_anchors, feature_stride=integer("feat_stride", 16),
        min_size=number("min_size", 16), nms_threshold=number("nms_thresh"),
        coordinate_scale=number("box_coordinate_scale", 1), size_scale=number("box_size_scale", 1),
        pixel_offset=_pixel_offset, clips_before=flag("clip_before_nms", True),
        clips_after=flag("clip_after_nms"), clips_anchors=_is_tensorflow, swaps=_is_tensorflow,
        normalizes=flag("normalize"), **_COUNTS,
    )
)  # fmt: skip

# The anchors are boxes of 16 x 16 pixels, in three ratios and in all scales.
_SIMPLER = operation(
    "proposal", *_INPUTS,
    anchors=lambda site: _anchors(16, (0.5, 1, 2), site.numbers("scale"), offset=1.0),
    feature_stride=integer("feat_stride"), truncates=True, min_size=number("min_bbox_size"),
    nms_threshold=number("iou_threshold"), later_ties=True, **_COUNTS,
)  # fmt: skip
legacy("SimplerNMS")(lambda site: _SIMPLER(site)[0])


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
    """Place a copy of each box of `priors` at each position of a feature map.

    `priors` has shape (priors, 4). The result has shape (height * width * priors, 4) if `flattens`,
    otherwise (height, width, priors, 4). Input 1 is the feature map, and input 2 is the image. If
    `h` or `w` is 0, the extent of the feature map is used instead. If a stride is 0, the extent of
    the image divided by the extent of the feature map is used instead.
    """
    height = h if h != 0 else site.known_shape(1)[2]
    width = w if w != 0 else site.known_shape(1)[3]
    step_y = stride_y if stride_y != 0 else site.known_shape(2)[2] / height
    step_x = stride_x if stride_x != 0 else site.known_shape(2)[3] / width
    site.spend(4 * height * width)
    rows = step_y * (np.arange(height) + 0.5)
    columns = step_x * (np.arange(width) + 0.5)
    y, x = np.meshgrid(rows, columns, indexing="ij")
    # The centres have shape (height * width, 1, 4), and the priors get shape (1, priors, 4).
    centres = np.stack([x, y, x, y], axis=-1).reshape(-1, 1, 4).astype(np.float32)
    centred_priors = site.unsqueezed(priors, (0,))
    boxes = site.step.add(derived(centres), centred_priors)
    if not flattens:
        return site.reshaped(boxes, [height, width, priors.type.shape[0], 4])
    return site.flattened(boxes, first=0, last=1)


def _limits(site: LayerSite) -> dict[str, Any]:
    """Return the limits of a layer that proposes regions, as a dict from names to numbers.

    The layer leaves out boxes beyond the limits.
    """
    return {
        "min_size": site.number("min_size"), "nms_threshold": site.number("nms_threshold"),
        "pre_nms": site.int("pre_nms_count"), "post_nms": site.int("post_nms_count"),
    }  # fmt: skip


@opsets("ExperimentalDetectronGenerateProposalsSingleImage", limits=_limits)
def _proposals_of_image(site: LayerSite, *, limits: dict[str, Any]) -> Any:
    """Return the best regions of an image, of shape (n, 4), and their scores, of shape (n,).

    n is the attribute `post_nms_count`. If there are fewer than n regions, the regions and the
    scores are padded with zeros.
    """
    image_size, anchors, deltas, scores = site.first_inputs(4)
    count, height, width = site.known_shape(scores)
    # The operation `anchored_proposals` takes a batch of images. Here the batch is one image.
    operands = [
        site.reshaped(image_size, [1, *image_size.type.shape]),
        site.reshaped(anchors, [height, width, count, 4]),
        site.reshaped(deltas, [1, 4 * count, height, width]),
        site.reshaped(scores, [1, count, height, width]),
    ]
    regions, region_scores, _ = site.last.anchored_proposals(
        *operands, scales=False, pixel_offset=1.0, overlap_offset=0.0, **limits
    )
    return [regions, region_scores]


@opsets("GenerateProposals", limits=_limits)
def _proposals(
    site: LayerSite,
    *,
    limits: dict[str, Any],
    is_normal: bool = flag("normalized", True),
    dtype: str = dtype("roi_num_type"),
) -> Any:
    """Return the best regions of all images, their scores, and the number of regions in each image.

    The regions have shape (n, 4) and the scores (n,), where n is the largest possible number of
    regions. If there are fewer than n regions, the regions and the scores are padded with zeros.
    """
    offset = 0.0 if is_normal else 1.0  # boxes in pixels include their last pixel
    regions, scores, counts = site.last.anchored_proposals(
        *site.first_inputs(4), scales=True, pixel_offset=offset, overlap_offset=offset, **limits
    )
    return [regions, scores, site.cast(counts, dtype)]
