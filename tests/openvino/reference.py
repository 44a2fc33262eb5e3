"""The kinds that NNEF lacks in slow, plain numpy, written from OpenVINO's specifications."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

Array = np.ndarray


def fake_quantize(
    x: Array, input_low: Any, input_high: Any, output_low: Any, output_high: Any, levels: int
) -> Array:
    ends = np.broadcast_arrays(x, input_low, input_high, output_low, output_high)
    out = np.empty(x.shape)
    for i, (v, lo, hi, first, last) in enumerate(zip(*(e.reshape(-1) for e in ends), strict=True)):
        if v <= min(lo, hi):
            found = first
        elif v > max(lo, hi):
            found = last
        else:
            found = np.rint((v - lo) / (hi - lo) * (levels - 1)) / (levels - 1) * (last - first)
            found += first
        out.reshape(-1)[i] = found
    return out


def gather_in_batches(input: Array, indices: Array, axis: int, batch_dims: int) -> Array:
    if batch_dims == 0:
        return np.take(input, indices, axis)
    parts = [
        gather_in_batches(x, i, axis - 1, batch_dims - 1)
        for x, i in zip(input, indices, strict=True)
    ]
    return np.stack(parts)


def reverse_sequence(input: Array, lengths: Array, batch_axis: int, time_axis: int) -> Array:
    x = np.moveaxis(input, (batch_axis, time_axis), (0, 1)).copy()
    for row, length in zip(x, lengths, strict=True):
        row[:length] = row[:length][::-1].copy()
    return np.moveaxis(x, (0, 1), (batch_axis, time_axis))


def _cells(extent: int, count: int) -> list[range]:
    return [
        range(int(np.floor(i * extent / count)), int(np.ceil((i + 1) * extent / count)))
        for i in range(count)
    ]


def adaptive_avg_pool(input: Array, output_size: tuple[int, int]) -> Array:
    rows, columns = (_cells(n, m) for n, m in zip(input.shape[2:], output_size, strict=True))
    means = [
        [input[:, :, r.start : r.stop, c.start : c.stop].mean((2, 3)) for c in columns]
        for r in rows
    ]
    return np.moveaxis(np.array(means), (0, 1), (2, 3))


def adaptive_max_pool(input: Array, output_size: tuple[int, int]) -> tuple[Array, Array]:
    rows, columns = (_cells(n, m) for n, m in zip(input.shape[2:], output_size, strict=True))
    width = input.shape[3]
    values = np.empty((*input.shape[:2], *output_size))
    places = np.empty(values.shape, int)
    for b, c, i, j in np.ndindex(*values.shape):
        cells = [(y, x) for y in rows[i] for x in columns[j]]
        best = max(cells, key=lambda cell: (input[b, c, cell[0], cell[1]], -cell[0], -cell[1]))
        values[b, c, i, j], places[b, c, i, j] = input[(b, c, *best)], best[0] * width + best[1]
    return values, places


def deformable_conv(
    input: Array, offsets: Array, filter: Array, mask: Any, groups: int, offset_groups: int,
    padded_bilinear: bool, padding: Any, stride: Any, dilation: Any,
) -> Array:  # fmt: skip
    batch, channels, height, width = input.shape
    outputs, per_group, rows, columns = filter.shape
    out = np.zeros((batch, outputs, *offsets.shape[2:]))

    def item(plane: Array, y: float, x: float) -> float:
        if not padded_bilinear and not (0 <= y < height and 0 <= x < width):
            return 0.0
        low_y, low_x, total = int(np.floor(y)), int(np.floor(x)), 0.0
        for r, c in ((0, 0), (0, 1), (1, 0), (1, 1)):
            at_y, at_x = low_y + r, low_x + c
            share = (1 - abs(y - at_y)) * (1 - abs(x - at_x))
            if padded_bilinear and not (0 <= at_y < height and 0 <= at_x < width):
                continue
            total += share * plane[min(at_y, height - 1), min(at_x, width - 1)]
        return total

    for b, o, i, j in np.ndindex(*out.shape):
        group = o // (outputs // groups)
        for c, r, s in np.ndindex(per_group, rows, columns):
            channel = group * per_group + c
            part = channel // (channels // offset_groups)
            cell = (part * rows + r) * columns + s
            dy, dx = offsets[b, 2 * cell, i, j], offsets[b, 2 * cell + 1, i, j]
            y = i * stride[0] - padding[0][0] + r * dilation[0] + dy
            x = j * stride[1] - padding[1][0] + s * dilation[1] + dx
            value = item(input[b, channel], y, x)
            if mask is not False:
                value *= mask[b, cell, i, j]
            out[b, o, i, j] += value * filter[o, c, r, s]
    return out


def _overlap(a: Array, b: Array, offset: float, touches: bool = True) -> float:
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    if not touches and np.any(low > high):
        return 0.0
    shared = float(np.prod(np.maximum(high - low + offset, 0)))
    area = sum(float(np.prod(box[2:] - box[:2] + offset)) for box in (a, b))
    return shared / (area - shared) if shared > 0 else 0.0


def greedy(
    boxes: Array, order: list[int], most: int, threshold: float, offset: float = 0,
    touches: bool = True,
) -> list[int]:  # fmt: skip
    kept: list[int] = []
    for i in order:
        if len(kept) < most and all(
            _overlap(boxes[i], boxes[k], offset, touches) <= threshold for k in kept
        ):
            kept.append(i)
    return kept


def sorted_suppression(
    boxes: Array, scores: Array, max_output_boxes_per_class: int, iou_threshold: float,
    score_threshold: float, center_point_box: bool, sorts: bool, sigma: float = 0.0,
    rotation: str = "none",
) -> tuple[Array, Array, Array]:  # fmt: skip
    if rotation != "none":
        corners = boxes * np.array([1, 1, 1, 1, 1 if rotation == "clockwise" else -1])
    elif center_point_box:
        corners = np.concatenate(
            [boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1
        )
    else:
        a, b = boxes[..., :2], boxes[..., 2:]
        corners = np.concatenate([np.minimum(a, b), np.maximum(a, b)], -1)
    rows = []
    for n, c in np.ndindex(*scores.shape[:2]):
        left = {i: s for i, s in enumerate(scores[n, c]) if s > score_threshold}
        kept: list[int] = []
        while left and len(kept) < max_output_boxes_per_class:
            best = max(left, key=lambda i: (left[i], -i))
            rows.append((n, c, best, left.pop(best)))
            kept.append(best)
            for i in list(left):
                pair = corners[n, best], corners[n, i]
                shared = _overlap(*pair, 0) if rotation == "none" else rotated_overlap(*pair)
                if sigma:
                    left[i] *= np.exp(-(shared**2) / (2 * sigma))
                if left[i] <= score_threshold if sigma else shared > iou_threshold:
                    del left[i]
    if sorts:
        rows.sort(key=lambda row: -row[3])
    count = scores.shape[0] * scores.shape[1] * min(max_output_boxes_per_class, boxes.shape[1])
    indices, values = np.full((count, 3), -1), np.full((count, 3), -1.0)
    for i, (n, c, box, score) in enumerate(rows):
        indices[i], values[i] = (n, c, box), (n, c, score)
    return indices, values, np.array([len(rows)])


def ctc_greedy_decoder(probabilities: Array, mask: Array, merges: bool) -> Array:
    time, batch, classes = probabilities.shape
    out = np.full((batch, time, 1, 1), -1.0)
    for b in range(batch):
        found, before = [], -1
        for t in range(time):
            if t > 0 and mask[t, b] == 0:
                break
            best = int(probabilities[t, b].argmax())
            if best != classes - 1 and not (merges and best == before):
                found.append(best)
            before = best
        out[b, : len(found), 0, 0] = found
    return out


def position_sensitive_roi_pool(
    input: Array, rois: Array, output_channels: int, group_size: int, spatial_scale: float,
    mode: str, bins: tuple[int, int], offsets: Any = False, offset_scale: float = 0.0,
) -> Array:  # fmt: skip
    if mode == "deformable":
        return _deformed(
            input, rois, output_channels, group_size, spatial_scale, bins, offsets, offset_scale
        )
    assert mode == "average"
    height, width = input.shape[2:]
    out = np.zeros((len(rois), output_channels, group_size, group_size))
    for n, (image, *box) in enumerate(rois):
        if image < 0:
            break
        x1, y1 = (np.floor(v + 0.5) * spatial_scale for v in box[:2])
        x2, y2 = ((np.floor(v + 0.5) + 1) * spatial_scale for v in box[2:])
        size_y, size_x = max(y2 - y1, 0.1) / group_size, max(x2 - x1, 0.1) / group_size
        for c, i, j in np.ndindex(output_channels, group_size, group_size):
            top, left = (
                max(int(np.floor(k * s + o)), 0) for k, s, o in ((i, size_y, y1), (j, size_x, x1))
            )
            bottom = min(int(np.ceil((i + 1) * size_y + y1)), height)
            right = min(int(np.ceil((j + 1) * size_x + x1)), width)
            cell = input[int(image), (c * group_size + i) * group_size + j, top:bottom, left:right]
            out[n, c, i, j] = cell.mean() if cell.size else 0
    return out


def _deformed(
    input: Array, rois: Array, output_channels: int, group: int, scale: float,
    bins: tuple[int, int], offsets: Any, offset_scale: float,
) -> Array:  # fmt: skip
    height, width = input.shape[2:]
    out = np.zeros((len(rois), output_channels, group, group))
    for n, c, i, j in np.ndindex(*out.shape):
        image, *box = rois[n]
        if np.any(rois[: n + 1, 0] < 0):
            continue
        x1, y1 = (np.floor(v + 0.5) * scale - 0.5 for v in box[:2])
        x2, y2 = ((np.floor(v + 0.5) + 1) * scale - 0.5 for v in box[2:])
        size_x, size_y = max(x2 - x1, 0.1), max(y2 - y1, 0.1)
        move_x = move_y = 0.0
        if offsets is not False:
            kind = c // (output_channels // (offsets.shape[1] // 2))
            row, column = i * offsets.shape[2] // group, j * offsets.shape[3] // group
            move_x, move_y = offsets[n, 2 * kind : 2 * kind + 2, row, column] * offset_scale
        samples = []
        for r, s in np.ndindex(*bins):
            y = y1 + (i + r / bins[0]) * size_y / group + move_y * size_y
            x = x1 + (j + s / bins[1]) * size_x / group + move_x * size_x
            if -0.5 <= y <= height - 0.5 and -0.5 <= x <= width - 0.5:
                plane = input[int(image), (c * group + i) * group + j]
                samples.append(_between(plane[None], y, x)[0])
        out[n, c, i, j] = np.mean(samples) if samples else 0
    return out


def _decode(prior: Array, variance: Array, move: Array, center_size: bool) -> Array:
    if not center_size:
        return prior + variance * move
    extent, centre = prior[2:] - prior[:2], (prior[2:] + prior[:2]) / 2
    centre = centre + variance[:2] * move[:2] * extent
    extent = extent * np.exp(variance[2:] * move[2:])
    return np.concatenate([centre - extent / 2, centre + extent / 2])


def detection_output(
    locations: Array, confidences: Array, priors: Array, anchor_confidences: Any,
    anchor_locations: Any, num_classes: int, background_label: int, top_k: int, keep_top_k: int,
    share_location: bool, variance_encoded: bool, center_size: bool, nms_threshold: float,
    confidence_threshold: float, clip_before: bool, clip_after: bool, decrease_label: bool,
    normalized: bool, input_size: Any, objectness_threshold: float,
) -> Array:  # fmt: skip
    assert share_location and normalized and not decrease_label and anchor_confidences is False
    batch, count = len(locations), priors.shape[-1] // 4
    rows = []
    for n in range(batch):
        prior = priors[n % len(priors)].reshape(-1, count, 4)
        variance = np.ones((count, 4)) if variance_encoded else prior[1]
        moves = locations[n].reshape(count, 4)
        boxes = np.array(
            [_decode(*x, center_size) for x in zip(prior[0], variance, moves, strict=True)]
        )
        boxes = np.clip(boxes, 0, 1) if clip_before else boxes
        scores = confidences[n].reshape(count, num_classes)
        found = []
        for c in range(num_classes):
            if c == background_label:
                continue
            order = [
                i
                for i in np.argsort(-scores[:, c], kind="stable")
                if scores[i, c] > confidence_threshold
            ]
            order = order[:top_k] if top_k > 0 else order
            found += [(c, i, scores[i, c]) for i in greedy(boxes, order, count, nms_threshold)]
        if 0 < keep_top_k < len(found):
            best = sorted(range(len(found)), key=lambda k: -found[k][2])[:keep_top_k]
            found = [found[k] for k in sorted(best)]
        for c, i, score in found:
            box = np.clip(boxes[i], 0, 1) if clip_after else boxes[i]
            rows.append([n, c, score, *box])
    room = batch * (
        keep_top_k if keep_top_k > 0 else num_classes * (min(top_k, count) if top_k > 0 else count)
    )
    out = np.zeros((room, 7))
    out[: len(rows)] = np.array(rows).reshape(-1, 7)
    if len(rows) < room:
        out[len(rows), 0] = -1
    return out.reshape(1, 1, room, 7)


def proposal(
    scores: Array, deltas: Array, image: Array, anchors: Any, feature_stride: int, min_size: float,
    pre_nms: int, post_nms: int, nms_threshold: float, coordinate_scale: float, size_scale: float,
    pixel_offset: float, clips_before: bool, clips_after: bool, clips_anchors: bool, swaps: bool,
    truncates: bool, normalizes: bool, later_ties: bool,
) -> tuple[Array, Array]:  # fmt: skip
    assert not (truncates or later_ties)
    around = np.array(anchors).reshape(-1, 4)
    height, width = scores.shape[2:]
    limit = np.array([image[0, 0], image[0, 1]] if swaps else [image[0, 1], image[0, 0]])
    limit = np.concatenate([limit, limit])
    least = min_size * np.array([image[0, -1], image[0, 2]])
    rows, values = [], []
    for n in range(len(scores)):
        boxes, ranked = [], []
        for y, x, a in np.ndindex(height, width, len(around)):
            start = around[a] + feature_stride * np.array([y, x, y, x] if swaps else [x, y, x, y])
            start = np.clip(start, 0, limit) if clips_anchors else start
            move = deltas[n, 4 * a : 4 * a + 4, y, x]
            extent = start[2:] - start[:2] + pixel_offset
            centre = start[:2] + extent / 2 + move[:2] / coordinate_scale * extent
            extent = extent * np.exp(move[2:] / size_scale)
            box = np.concatenate([centre - extent / 2, centre + extent / 2])
            box = np.clip(box, 0, limit - pixel_offset) if clips_before else box
            large = np.all(box[2:] - box[:2] + pixel_offset >= least)
            boxes.append(box)
            ranked.append(scores[n, len(around) + a, y, x] if large else 0.0)
        order = list(np.argsort(-np.array(ranked), kind="stable"))[:pre_nms]
        kept = greedy(np.array(boxes), order, post_nms, nms_threshold, pixel_offset)
        ends = [np.clip(box, 0, limit) if clips_after else box for box in boxes]
        ends = [box / limit if normalizes else box for box in ends]
        mine = [[n, *ends[i]] for i in kept] + [[-1, 0, 0, 0, 0]] + [[0] * 5] * post_nms
        rows += mine[:post_nms]
        values += ([ranked[i] for i in kept] + [0.0] * post_nms)[:post_nms]
    return np.array(rows, float), np.array(values)


def _quadrilateral(box: Array) -> list[tuple[float, float]]:
    x, y, width, height, angle = box
    cos, sin = np.cos(angle), np.sin(angle)
    corners = [(width, height), (-width, height), (-width, -height), (width, -height)]
    return [(x + (w * cos - h * sin) / 2, y + (w * sin + h * cos) / 2) for w, h in corners]


def rotated_overlap(a: Array, b: Array) -> float:
    """Cut one polygon along each side of the other (Sutherland and Hodgman 1974)."""
    polygon, frame = _quadrilateral(a), _quadrilateral(b)
    for (x0, y0), (x1, y1) in zip(frame, frame[1:] + frame[:1], strict=True):

        def left(point: tuple[float, float], x0=x0, y0=y0, x1=x1, y1=y1) -> float:
            return (x1 - x0) * (point[1] - y0) - (y1 - y0) * (point[0] - x0)

        cut = []
        for p, q in zip(polygon, polygon[1:] + polygon[:1], strict=True):
            if left(p) >= 0:
                cut.append(p)
            if left(p) * left(q) < 0:
                t = left(p) / (left(p) - left(q))
                cut.append((p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])))
        polygon = cut
    pairs = zip(polygon, polygon[1:] + polygon[:1], strict=True)
    shared = sum(p[0] * q[1] - p[1] * q[0] for p, q in pairs) / 2
    return shared / (a[2] * a[3] + b[2] * b[3] - shared)


def _ranked(
    images: list[list[tuple[float, int, int, int, Array]]], keep: int, order: str, across: bool,
    room: int,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return rows (score, class, rank in its class, index, box) of images, the best first."""
    kept: list[Any] = []
    for n, found in enumerate(images):
        best = sorted(found, key=lambda f: (-f[0], f[1], f[2]))
        kept += [(n, *f) for f in (best[:keep] if keep >= 0 else best)]
    counts = [sum(1 for f in kept if f[0] == n) for n in range(len(images))]
    if order == "class":
        kept.sort(key=lambda f: (f[2], f[0], -f[1]) if across else (f[0], f[2], -f[1]))
    elif order == "score" and across:
        kept.sort(key=lambda f: (-f[1], f[0]))
    rows, indices = np.full((room, 6), -1.0), np.full((room, 1), -1)
    for i, (_, score, label, _, index, box) in enumerate(kept):
        rows[i], indices[i] = (label, score, *box), index
    return rows, indices, np.array(counts)


def matrix_suppression(
    boxes: Array, scores: Array, score_threshold: float, top_k: int, keep_top_k: int,
    background: int, decay: str, sigma: float, post_threshold: float, pixel_offset: float,
    order: str, across: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    batch, classes, count = scores.shape
    images: list[list[Any]] = [[] for _ in range(batch)]
    for n, c in np.ndindex(batch, classes):
        if c == background:
            continue
        best = [i for i in np.argsort(-scores[n, c], kind="stable")]
        best = [i for i in best if scores[n, c, i] > score_threshold]
        best = best[:top_k] if top_k >= 0 else best

        def shared(i: int, j: int, n: int = n) -> float:
            return _overlap(boxes[n, i], boxes[n, j], pixel_offset, False)

        for at, i in enumerate(best):
            score = scores[n, c, i]
            lowest = 1.0
            for before, j in enumerate(best[:at]):
                most = max([shared(j, k) for k in best[:before]], default=0.0)
                if decay == "linear":
                    fall = (1 - shared(i, j)) / (1 - most)
                else:
                    fall = np.exp(sigma * (most**2 - shared(i, j) ** 2))
                lowest = min(lowest, fall)
            if lowest * score > post_threshold:
                images[n].append((lowest * score, c, at, n * count + i, boxes[n, i]))
    most = classes * (min(top_k, count) if top_k >= 0 else count)
    room = batch * (min(keep_top_k, most) if keep_top_k >= 0 else most)
    return _ranked(images, keep_top_k, order, across, room)


def multiclass_suppression(
    boxes: Array, scores: Array, counts: Any, score_threshold: float, iou_threshold: float,
    top_k: int, keep_top_k: int, background: int, eta: float, pixel_offset: float, order: str,
    across: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    classes, count = scores.shape[-2:]
    batch = len(boxes) if counts is False else len(counts)
    images: list[list[Any]] = [[] for _ in range(batch)]
    for n, c in np.ndindex(batch, classes):
        if c == background:
            continue
        first = 0 if counts is False else counts[:n].sum()
        last = count if counts is False else first + counts[n]
        score = scores[n, c] if counts is False else scores[c]
        sides = boxes[n] if counts is False else boxes[c]
        best = [i for i in np.argsort(-score, kind="stable") if first <= i < last]
        best = [i for i in best if score[i] >= score_threshold]
        best = best[:top_k] if top_k >= 0 else best
        kept, limit = [], iou_threshold
        for i in best:
            if all(_overlap(sides[i], sides[k], pixel_offset) <= limit for k in kept):
                kept.append(i)
                limit = limit * eta if limit > 0.5 else limit
        for at, i in enumerate(kept):
            index = n * count + i if counts is False else i * classes + c
            images[n].append((score[i], c, at, index, sides[i]))
    most = classes * (min(top_k, count) if top_k >= 0 else count)
    room = batch * (min(keep_top_k, most) if keep_top_k >= 0 else most)
    return _ranked(images, keep_top_k, order, across, room)


def _moved(box: Array, move: Array, offset: float, largest: float) -> Array:
    extent = box[2:] - box[:2] + offset
    centre = box[:2] + extent / 2 + move[:2] * extent
    extent = extent * np.exp(np.minimum(move[2:], largest))
    return np.concatenate([centre - extent / 2, centre + extent / 2 - offset])


def anchored_proposals(
    image: Array, anchors: Array, deltas: Array, scores: Array, min_size: float, pre_nms: int,
    post_nms: int, nms_threshold: float, pixel_offset: float, overlap_offset: float, scales: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    batch, count = scores.shape[:2]
    rows, values, counts = [], [], []
    for n in range(batch):
        boxes, ranked = [], []
        for y, x, a in np.ndindex(*scores.shape[2:], count):
            box = _moved(
                anchors[y, x, a], deltas[n, 4 * a : 4 * a + 4, y, x], pixel_offset, np.log(62.5)
            )
            boxes.append(np.clip(box, 0, np.array([image[n, 1], image[n, 0]] * 2) - pixel_offset))
            ranked.append(scores[n, a, y, x])
        best = list(np.argsort(-np.array(ranked), kind="stable"))[:pre_nms]
        scale = image[n, [-1, 2]] if scales else np.ones(2)
        best = [
            i for i in best if all(boxes[i][2:] - boxes[i][:2] + pixel_offset >= min_size * scale)
        ]
        kept = greedy(np.array(boxes), best, post_nms, nms_threshold, overlap_offset, False)
        rows += [boxes[i] for i in kept]
        values += [ranked[i] for i in kept]
        counts.append(len(kept))
    out = np.zeros((batch * post_nms, 5))
    out[: len(rows), :4], out[: len(rows), 4] = rows, values
    return out[:, :4], out[:, 4], np.array(counts)


def refined_detections(
    rois: Array, deltas: Array, scores: Array, score_threshold: float, nms_threshold: float,
    keep_per_class: int, keep: int, largest: float, weights: tuple[float, ...],
) -> tuple[Array, Array, Array]:  # fmt: skip
    found: list[Any] = []
    for c in range(1, scores.shape[1]):
        moves = deltas[:, 4 * c : 4 * c + 4] / np.array(weights)
        moved = [_moved(*x, 1.0, largest) for x in zip(rois, moves, strict=True)]
        boxes = np.maximum(np.array(moved), 0)
        order = [
            i
            for i in np.argsort(-scores[:, c], kind="stable")
            if scores[i, c] > score_threshold and all(rois[i, 2:] > rois[i, :2])
        ]
        most = keep_per_class if keep_per_class >= 0 else len(rois)
        kept = greedy(boxes, order, most, nms_threshold, 1.0, False)
        found += [(scores[i, c], c, boxes[i]) for i in kept]
    if len(found) > keep:
        found = sorted(found, key=lambda f: -f[0])[:keep]
    boxes, labels, values = np.zeros((keep, 4)), np.zeros(keep), np.zeros(keep)
    for i, (score, label, box) in enumerate(found):
        boxes[i], labels[i], values[i] = box, label, score
    return boxes, labels, values


def _between(plane: Array, y: float, x: float) -> Array:
    """Interpolate in a plane (C,H,W) at a point, 0 further outside than 1."""
    height, width = plane.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return np.zeros(len(plane))
    y, x = float(np.clip(y, 0, height - 1)), float(np.clip(x, 0, width - 1))
    total = np.zeros(len(plane))
    for row, column in np.ndindex(height, width):
        total += max(1 - abs(y - row), 0) * max(1 - abs(x - column), 0) * plane[:, row, column]
    return total


def roi_align(
    input: Array, rois: Array, batch_index: Array, output_size: tuple[int, int],
    sampling_ratio: int, mode: str, least: float = 0.0,
) -> Array:  # fmt: skip
    rows, columns = output_size
    out = np.zeros((len(rois), input.shape[1], rows, columns))
    for n, roi in enumerate(rois):
        turned = len(roi) == 5
        width, height = roi[2:4] if turned else np.maximum(roi[2:] - roi[:2], least or -np.inf)
        left, top = (-width / 2, -height / 2) if turned else roi[:2]
        angle, centre = (roi[4], roi[:2]) if turned else (0.0, (0.0, 0.0))
        bin_y, bin_x = height / rows, width / columns
        many_y, many_x = (sampling_ratio or int(np.ceil(b)) for b in (bin_y, bin_x))
        for i, j in np.ndindex(rows, columns):
            samples = []
            for r, c in np.ndindex(many_y, many_x):
                y = top + (i + (r + 0.5) / many_y) * bin_y
                x = left + (j + (c + 0.5) / many_x) * bin_x
                at_x = x * np.cos(angle) - y * np.sin(angle) + centre[0]
                at_y = x * np.sin(angle) + y * np.cos(angle) + centre[1]
                samples.append(_between(input[batch_index[n]], at_y, at_x))
            if samples:
                out[n, :, i, j] = (
                    np.mean(samples, 0) if mode == "avg" else np.maximum(np.max(samples, 0), 0)
                )
    return out


def _paths_that_give(labels: list[int], steps: int, classes: int, blank: int, merges: bool) -> Any:
    for path in itertools.product(range(classes), repeat=steps):
        seen = [c for i, c in enumerate(path) if not (merges and i and path[i - 1] == c)]
        if [c for c in seen if c != blank] == labels:
            yield path


def ctc_loss(
    logits: Array, logit_lengths: Any, labels: Array, label_lengths: Any, blank: int,
    collapses: bool, merges: bool, unique: bool,
) -> Array:  # fmt: skip
    out = []
    for x, steps, row, count in zip(logits, logit_lengths, labels, label_lengths, strict=True):
        p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
        wanted = row[:count].tolist()
        if unique:
            wanted = list(dict.fromkeys(wanted))
        elif collapses:
            wanted = [c for c, _ in itertools.groupby(wanted)]
        paths = _paths_that_give(wanted, int(steps), p.shape[1], blank, merges)
        out.append(-np.log(sum(np.prod([p[t, c] for t, c in enumerate(path)]) for path in paths)))
    return np.array(out)


def gather_tree(tokens: Array, parents: Array, lengths: Any, end: Any) -> Array:
    out = np.full(tokens.shape, int(end))
    for b, w in np.ndindex(*tokens.shape[1:]):
        beam = w
        for t in reversed(range(min(int(lengths[b]), len(tokens)))):
            out[t, b, w], beam = tokens[t, b, beam], int(parents[t, b, beam])
        ends = np.flatnonzero(out[:, b, w] == end)
        out[ends[0] if len(ends) else len(tokens) :, b, w] = end
    return out


def inverse(input: Array) -> Array:
    return np.linalg.solve(input, np.broadcast_to(np.eye(input.shape[-1]), input.shape))


def unique(input: Array, axis: int, sorts: bool) -> tuple[Array, ...]:
    rows = [tuple(np.ravel(row)) for row in np.moveaxis(input, axis, 0)]
    kinds = list(dict.fromkeys(rows))
    kinds = sorted(kinds) if sorts else kinds
    missing = len(rows) - len(kinds)
    first = [rows.index(kind) for kind in kinds]
    places = np.array(first + first[-1:] * missing)
    often = [rows.count(kind) for kind in kinds] + [0] * missing
    inverse = [kinds.index(row) for row in rows]
    items = np.take(input, places, axis)
    return items, places, np.array(inverse), np.array(often), np.array([len(kinds)])


def determinant(input: Array) -> Array:
    return np.linalg.det(input)


def rfft(input: Array, axis: int) -> Array:
    """Sum by the definition, for frequencies up to a half."""
    x = np.moveaxis(input, axis, -1)
    n = x.shape[-1]
    angles = 2 * np.pi * np.outer(np.arange(n), np.arange(n // 2 + 1)) / n
    found = np.stack([x @ np.cos(angles), -(x @ np.sin(angles))], -1)
    return np.moveaxis(found, -2, axis if axis >= 0 else axis - 1)


def rem(x: Array, y: Array) -> Array:
    return np.where(y == 0, 0, np.fmod(x, np.where(y == 0, 1, y)))


def cumprod(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    items = np.moveaxis(x, axis, 0)
    items = items[::-1] if reverse else items
    found, product = np.empty_like(items), np.ones_like(items[0])
    for i, item in enumerate(items):
        found[i] = product if exclusive else product * item
        product = product * item
    return np.moveaxis(found[::-1] if reverse else found, 0, axis)


def bitcast(input: Array, dtype: str) -> Array:
    return input.astype(np.float32).view(dtype)
