"""Heads of detectors: features at several scales, boxes of anchors, the best of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.openvino.networks.base import network, real
from tests.openvino.networks.convolutional import conv


class CrossStage(nn.Module):
    """Convolutions whose intermediate results are all joined (YOLO's C2f)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.first = conv(channels, channels, 1, activation=nn.SiLU)
        self.inside = conv(half, half, 3, activation=nn.SiLU)
        self.last = conv(channels + half, channels, 1, activation=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.first(x).chunk(2, 1))
        parts.append(parts[-1] + self.inside(parts[-1]))
        return self.last(torch.cat(parts, 1))


def centres(x: Tensor) -> Tensor:
    """Return the middles of the cells of a map, of shape (2, cells)."""
    h, w = x.shape[-2:]
    y = torch.arange(h, dtype=torch.float32) + 0.5
    x = torch.arange(w, dtype=torch.float32) + 0.5
    y, x = torch.meshgrid(y, x, indexing="ij")
    return torch.stack([x.reshape(-1), y.reshape(-1)])


@network(real(1, 3, 32, 32), open={0: (0, 2, 3)}, again=(real(2, 3, 32, 48),), is_nnef=True)
class yolo(nn.Module):
    """Two scales, distances to the sides of a box as means of distributions over 4 bins."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 8, 3, 2, activation=nn.SiLU), CrossStage(8))
        self.down = conv(8, 8, 3, 2, activation=nn.SiLU)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.joined = conv(32, 8, 1, activation=nn.SiLU)
        self.up, self.merged = nn.Upsample(scale_factor=2), conv(16, 8, 1, activation=nn.SiLU)
        self.boxes = nn.ModuleList(nn.Conv2d(8, 16, 1) for _ in range(2))
        self.scores = nn.ModuleList(nn.Conv2d(8, 3, 1) for _ in range(2))
        self.register_buffer("bins", torch.arange(4.0).reshape(1, 4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        fine = self.stem(x)
        coarse = self.down(fine)
        pools = [coarse]
        for _ in range(3):
            pools.append(self.pool(pools[-1]))
        coarse = self.joined(torch.cat(pools, 1))
        fine = self.merged(torch.cat([self.up(coarse), fine], 1))
        found = []
        for i, (y, stride) in enumerate(((fine, 2.0), (coarse, 4.0))):
            distances = self.boxes[i](y).flatten(2).unflatten(1, (4, 4)).transpose(1, 2)
            distances = F.conv2d(distances.softmax(1), self.bins).squeeze(1)
            before, after = distances.split(2, 1)
            middle = centres(y)
            low, high = middle - before, middle + after
            box = torch.cat([(low + high) / 2, high - low], 1) * stride
            found.append(torch.cat([box, self.scores[i](y).flatten(2).sigmoid()], 1))
        return torch.cat(found, 2)


@network(real(1, 3, 32, 32), is_nnef=True)
class anchors(nn.Module):
    """A pyramid whose cells move and scale anchors, boxes kept within the picture (RetinaNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = conv(3, 6, 3, 4), conv(6, 6, 3, 2)
        self.sides = nn.ModuleList(nn.Conv2d(6, 6, 1) for _ in range(2))
        self.deltas, self.scores = nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.register_buffer("sizes", torch.tensor([[4.0, 6.0], [6.0, 3.0]]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = self.first(x)
        second = self.second(first)
        top = self.sides[1](second)
        low = self.sides[0](first) + F.interpolate(top, size=first.shape[-2:], mode="nearest")
        boxes, scores = [], []
        for y, stride in ((low, 4), (top, 8)):
            delta = self.deltas(y).reshape(y.shape[0], 2, 4, -1).permute(0, 3, 1, 2)
            middle = centres(y).t()[None, :, None] * stride
            size = self.sizes * (stride / 4) * delta[..., 2:].clamp(max=4.135).exp()
            middle = middle + delta[..., :2] * self.sizes
            box = torch.cat([middle - size / 2, middle + size / 2], -1)
            boxes.append(box.clamp(0, 32).reshape(y.shape[0], -1, 4))
            score = self.scores(y).reshape(y.shape[0], 2, 3, -1).permute(0, 2, 3, 1)
            scores.append(score.reshape(y.shape[0], 3, -1).sigmoid())
        return torch.cat(boxes, 1), torch.cat(scores, 2)


def suppressed(model: Any) -> Any:
    """Return a detector with its boxes suppressed: class and box of each that stays."""
    import openvino
    from openvino import opset9

    boxes, scores = (result.input_value(0) for result in model.get_results())
    kept = opset9.non_max_suppression(
        boxes, scores, opset9.constant([5]), *map(opset9.constant, map(np.float32, (0.4, 0.3))),
        box_encoding="corner", sort_result_descending=True, output_type="i32",
    )  # fmt: skip
    return openvino.Model([kept.output(0), kept.output(1), kept.output(2)], model.get_parameters())


network(
    real(1, 3, 32, 32), name="suppression", changed=suppressed, has_gradient=False,
    is_batched=False,
)(anchors)  # fmt: skip


@network(real(2, 3, 16, 16), has_gradient=False)
class peaks(nn.Module):
    """The best local maxima of a map of scores, with features there (CenterNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.heat, self.size = conv(3, 8), nn.Conv2d(8, 2, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.trunk(x)
        heat = self.heat(y).sigmoid()
        heat = heat * (F.max_pool2d(heat, 3, 1, 1) == heat).float()
        score, place = heat.flatten(1).topk(4)
        cell = place % (16 * 16)
        sizes = self.size(y).flatten(2).gather(2, cell[:, None].expand(-1, 2, -1))
        return score, torch.div(place, 16 * 16, rounding_mode="floor"), sizes


@network(real(2, 3, 12, 12))
class warped(nn.Module):
    """A picture, warped by an affine map from the network (spatial transformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Sequential(conv(3, 4, 3, 2), nn.Flatten(), nn.Linear(144, 6))
        y, x = torch.meshgrid(torch.linspace(-1, 1, 10), torch.linspace(-1, 1, 14), indexing="ij")
        self.register_buffer("grid", torch.stack([x, y, torch.ones_like(x)], -1).reshape(-1, 3))

    def forward(self, x: Tensor) -> Tensor:
        turn = self.where(x).reshape(-1, 2, 3)
        grid = (self.grid @ turn.transpose(1, 2)).reshape(-1, 10, 14, 2)
        return F.grid_sample(x, grid, padding_mode="border", align_corners=False)
