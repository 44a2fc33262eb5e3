"""A detector of one stage: boxes and scores from features at two scales, then suppression.

The features are MobileNetV2's, as in SSDLite (Sandler et al. 2018, section 6.2). Boxes are decoded
as in YOLOv5, without exponentials.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.builders.jax_builder import JaxBuilder, Tensor
from benchmarks.builders.nnef_builder import NnefBuilder
from benchmarks.networks.convolutional import mobilenet_features

ANCHORS, CLASSES = 6, 20
MOST = 100  # selected boxes of a class
OVERLAP, SCORE = 0.5, 0.3
_STAGES = (4, 6)  # of MobileNetV2, with strides 16 and 32


def detector(b: Any, batch: int, *, extent: int = 320) -> Any:
    """Describe the detector for a builder that also has `suppress`.

    Its output has the rows (batch, class, box) of the selected boxes, -1 after the last.
    """

    def head(name: str, x: Any, channels: int, values: int, cells: int) -> Any:
        """Return (batch, cells * cells * anchors, values)."""
        x = b.conv_layer(name, x, channels, ANCHORS * values, 3, bias=True)
        return b.reshape(b.transpose(x, (0, 2, 3, 1)), (batch, cells**2 * ANCHORS, values))

    features = mobilenet_features(b, b.input("image", batch, 3, extent, extent))
    boxes: list[Any] = []
    scores: list[Any] = []
    anchors: list[Any] = []
    for stage, stride in zip(_STAGES, (16, 32), strict=True):
        x, channels = features[stage]
        cells = extent // stride
        boxes.append(head(f"boxes{stage}", x, channels, 4, cells))
        scores.append(head(f"scores{stage}", x, channels, CLASSES, cells))
        anchors.append(_anchors(cells, stride))
    centres, sizes = np.split(np.concatenate(anchors)[None], 2, axis=-1)
    predicted = b.sigmoid(b.concat(boxes, axis=1))
    offsets = b.scale(b.slice(predicted, 2, 0, 2), 2.0)
    scales = b.scale(b.slice(predicted, 2, 2, 4), 2.0)
    centre = b.add(offsets, b.parameter("centres", centres))
    size = b.multiply(b.multiply(scales, scales), b.parameter("sizes", sizes))
    probabilities = b.sigmoid(b.transpose(b.concat(scores, axis=1), (0, 2, 1)))
    return b.suppress(b.concat([centre, size], axis=2), probabilities)


def _anchors(cells: int, stride: int) -> Any:
    """Return rows (x, y, width, height) of a square grid, in pixels."""
    y, x, anchor = np.meshgrid(range(cells), range(cells), range(ANCHORS), indexing="ij")
    size = stride * (1 + anchor)
    rows = np.stack([stride * x, stride * y, size, size], -1)
    return rows.reshape(-1, 4).astype(np.float32)


class DetectorNnefBuilder(NnefBuilder):
    """Has suppression as tract spells it."""

    def suppress(self, boxes: str, scores: str) -> str:
        """Select boxes greedily by score, class by class."""
        self._need("tract_onnx")
        return self._add(
            f"tract_onnx_non_max_suppression({boxes}, {scores}, {MOST}, {OVERLAP}, {SCORE}, "
            "center_point_box = 1)",
            2,
        )


class DetectorJaxBuilder(JaxBuilder):
    """Selects the best box in each turn of a loop, and clears the scores of those that overlap."""

    def suppress(self, boxes: Tensor, scores: Tensor) -> Tensor:
        """Select boxes greedily by score, class by class."""

        def make() -> Any:
            wide = boxes.array.astype(jnp.float32)
            half = wide[..., 2:] / 2
            corners = jnp.concatenate([wide[..., :2] - half, wide[..., :2] + half], -1)
            by_class = jax.vmap(_selected, (None, 0))
            chosen = jax.vmap(by_class)(corners, scores.array.astype(jnp.float32))
            rows = [lax.broadcasted_iota(jnp.int32, chosen.shape, axis) for axis in (0, 1)]
            table = jnp.stack([*rows, chosen], -1).reshape(-1, 3)
            is_empty = table[:, 2] < 0
            order = jnp.argsort(is_empty, stable=True)
            return jnp.where(is_empty[:, None], -1, table)[order]

        return Tensor(make)


def _selected(corners: Any, scores: Any) -> Any:
    """Return the indices of selected boxes (MOST,), -1 after the last."""
    low, high = corners[:, :2], corners[:, 2:]
    areas = (high - low).prod(-1)

    def has_more(state: Any) -> Any:
        count, scores, _ = state
        return (count < MOST) & (scores.max() > 0)

    def select(state: Any) -> Any:
        count, scores, chosen = state
        best = scores.argmax()
        extent = jnp.minimum(high, high[best]) - jnp.maximum(low, low[best])
        shared = jnp.maximum(extent, 0).prod(-1)
        overlaps = shared > OVERLAP * (areas + areas[best] - shared)
        scores = jnp.where(overlaps, 0, scores).at[best].set(0)
        return count + 1, scores, chosen.at[count].set(best.astype(jnp.int32))

    start = (jnp.int32(0), jnp.where(scores > SCORE, scores, 0), jnp.full(MOST, -1, jnp.int32))
    return lax.while_loop(has_more, select, start)[2]
