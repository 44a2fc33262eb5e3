"""Slow, plain numpy of the kinds that NNEF lacks, written from OpenVINO's specification of each."""

from __future__ import annotations

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


def _overlap(a: Array, b: Array, offset: float) -> float:
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    shared = float(np.prod(np.maximum(high - low + offset, 0)))
    area = sum(float(np.prod(box[2:] - box[:2] + offset)) for box in (a, b))
    return shared / (area - shared) if shared > 0 else 0.0


def greedy(
    boxes: Array, order: list[int], most: int, threshold: float, offset: float = 0
) -> list[int]:
    kept: list[int] = []
    for i in order:
        if len(kept) < most and all(
            _overlap(boxes[i], boxes[k], offset) <= threshold for k in kept
        ):
            kept.append(i)
    return kept


def sorted_suppression(
    boxes: Array, scores: Array, max_output_boxes_per_class: int, iou_threshold: float,
    score_threshold: float, center_point_box: bool, sorts: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    if center_point_box:
        corners = np.concatenate(
            [boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1
        )
    else:
        a, b = boxes[..., :2], boxes[..., 2:]
        corners = np.concatenate([np.minimum(a, b), np.maximum(a, b)], -1)
    rows = []
    for n, c in np.ndindex(*scores.shape[:2]):
        order = [
            i for i in np.argsort(-scores[n, c], kind="stable") if scores[n, c, i] > score_threshold
        ]
        kept = greedy(corners[n], order, max_output_boxes_per_class, iou_threshold)
        rows += [(n, c, i, scores[n, c, i]) for i in kept]
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
    mode: str, bins: tuple[int, int],
) -> Array:  # fmt: skip
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
    assert not (clips_anchors or swaps or truncates or later_ties or normalizes or clips_after)
    around = np.array(anchors).reshape(-1, 4)
    height, width = scores.shape[2:]
    limit = np.array([image[0, 1], image[0, 0]] * 2) - pixel_offset
    rows, values = [], []
    for n in range(len(scores)):
        boxes, ranked = [], []
        for y, x, a in np.ndindex(height, width, len(around)):
            start = around[a] + feature_stride * np.array([x, y, x, y])
            move = deltas[n, 4 * a : 4 * a + 4, y, x]
            extent = start[2:] - start[:2] + pixel_offset
            centre = start[:2] + extent / 2 + move[:2] / coordinate_scale * extent
            extent = extent * np.exp(move[2:] / size_scale)
            box = np.concatenate([centre - extent / 2, centre + extent / 2])
            box = np.clip(box, 0, limit) if clips_before else box
            sizes = box[2:] - box[:2] + pixel_offset
            large = np.all(sizes >= min_size * image[0, 2])
            boxes.append(box)
            ranked.append(scores[n, len(around) + a, y, x] if large else 0.0)
        order = list(np.argsort(-np.array(ranked), kind="stable"))[:pre_nms]
        kept = greedy(np.array(boxes), order, post_nms, nms_threshold, pixel_offset)
        mine = [[n, *boxes[i]] for i in kept] + [[-1, 0, 0, 0, 0]] + [[0] * 5] * post_nms
        rows += mine[:post_nms]
        values += ([ranked[i] for i in kept] + [0.0] * post_nms)[:post_nms]
    return np.array(rows, float), np.array(values)
