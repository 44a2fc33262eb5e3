"""Networks of the common kinds in PyTorch: each has the parts of the real one, at a small size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """He et al. 2016: images to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = ResidualBlock(16, 16, 1)
        self.layer2 = ResidualBlock(16, 32, 2)
        self.fc = nn.Linear(32, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(image))), 3, 2, 1)
        x = F.adaptive_avg_pool2d(self.layer2(self.layer1(x)), 1)
        return self.fc(torch.flatten(x, 1))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet50(nn.Module):
    """He et al. 2016: images to logits, of any width; 64 is that of the paper."""

    def __init__(self, width: int = 64, blocks: Sequence[int] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage, count in enumerate(blocks, 1):
            layer: list[nn.Module] = []
            for index in range(count):
                layer.append(Bottleneck(inputs, width, 2 if stage > 1 and not index else 1))
                inputs = 4 * width
            self.add_module(f"layer{stage}", nn.Sequential(*layer))
            width *= 2
        self.fc = nn.Linear(inputs, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(image))), 3, 2, 1)
        for name, layer in self.named_children():
            x = layer(x) if name.startswith("layer") else x
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class VisionBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Dosovitskiy et al. 2021: images to logits through patches, of any batch."""

    def __init__(self, width: int = 32, depth: int = 2, patch: int = 8, side: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, (side // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(VisionBlock(width, 4) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        token = self.class_token.expand(x.shape[0], -1, -1)
        x = torch.cat([token, x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width, eps=1e-12)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.output(y))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """Devlin et al. 2019: ids and a mask of padding to states and a pooled state."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(60, width)
        self.positions = nn.Embedding(24, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.blocks = nn.ModuleList([EncoderBlock(width, 4), EncoderBlock(width, 4)])
        self.pooler = nn.Linear(width, width)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.words(ids) + self.positions(positions))
        bias = (1.0 - mask.to(x.dtype)[:, None, None, :]) * -1e4
        for block in self.blocks:
            x = block(x, bias)
        return x, torch.tanh(self.pooler(x[:, 0]))


class DecoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(
        self, x: Tensor, mask: Tensor, extend: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        k, v = extend(k, v)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.output(y.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x, k, v


class Gpt(nn.Module):
    """Radford et al. 2019: new ids and the keys and values of the past to logits and new ones.

    Keys and values are [layer, batch, head, time, channel]; a past of no time starts a text.
    """

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(50, width)
        self.positions = nn.Embedding(64, width)
        self.blocks = nn.ModuleList([DecoderBlock(width, heads), DecoderBlock(width, heads)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 50, bias=False)

    def forward(self, ids: Tensor, past_k: Tensor, past_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        past, new = past_k.shape[3], ids.shape[1]
        positions = torch.arange(past, past + new)
        mask = torch.arange(past + new)[None, :] <= positions[:, None]

        def extend(layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return torch.cat([past_k[layer], k], 2), torch.cat([past_v[layer], v], 2)

        return self.decode(ids, positions, mask, extend)

    def decode(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor,
        extend: Callable[..., tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = self.words(ids) + self.positions(positions)
        keys, values = [], []
        for layer, block in enumerate(self.blocks):
            x, k, v = block(x, mask, partial(extend, layer))
            keys.append(k)
            values.append(v)
        return self.head(self.norm(x)), torch.stack(keys), torch.stack(values)


class FixedCacheGpt(Gpt):
    """One id at a position, and a cache of fixed size that is filled up to there."""

    def forward(
        self, ids: Tensor, position: Tensor, cache_k: Tensor, cache_v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        places = torch.arange(cache_k.shape[3])
        here = (places == position)[:, None]

        def extend(layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return torch.where(here, k, cache_k[layer]), torch.where(here, v, cache_v[layer])

        return self.decode(ids, position, (places <= position)[None, :], extend)


class Lstm(nn.Module):
    """Two layers, [time, batch, channel], with the states before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 20, num_layers=2)
        self.head = nn.Linear(20, 8)

    def forward(self, x: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.lstm(x, (h0, c0))
        return self.head(y), h, c


class Gru(nn.Module):
    """Two layers in both directions, [batch, time, channel], from zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(12, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, h = self.gru(x)
        return self.head(y), h


class QuantisedDecoder(nn.Module):
    """A Llama-like block: RMS norms, grouped queries, a gated MLP; its weights become Q4_0."""

    def __init__(self, width: int = 64, heads: int = 4, shared: int = 2) -> None:
        super().__init__()
        self.sizes = (heads, shared, width // heads)
        self.norm1 = nn.RMSNorm(width, eps=1e-6)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width // heads * shared, bias=False)
        self.value = nn.Linear(width, width // heads * shared, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.norm2 = nn.RMSNorm(width, eps=1e-6)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads, shared, size = self.sizes
        y = self.norm1(x)
        q = self.query(y).unflatten(-1, (heads, size)).transpose(1, 2)
        k = self.key(y).unflatten(-1, (shared, size)).transpose(1, 2)
        v = self.value(y).unflatten(-1, (shared, size)).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.output(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class ImageClassifier(nn.Module):
    """Convolutions with a skip, of what 8-bit kernels are made for."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16)
        self.conv3 = nn.Conv2d(16, 16, 3, 1, 1)
        self.fc = nn.Linear(16, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(image)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.max_pool2d(x + F.relu(self.conv3(x)), 2)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class TemporalConvolutions(nn.Module):
    """Bai et al. 2018: causal dilated convolutions, of any length."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv1d(8, channels, 1)
        self.layers = nn.ModuleList(
            [nn.Conv1d(channels, channels, 3, dilation=2**i) for i in range(4)]
        )
        self.norms = nn.ModuleList([nn.BatchNorm1d(channels) for _ in range(4)])
        self.last = nn.Conv1d(channels, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for index, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            x = x + F.leaky_relu(norm(layer(F.pad(x, (2 ** (index + 1), 0)))), 0.1)
        return self.last(x)


class UNet(nn.Module):
    """Ronneberger et al. 2015: down, up by transposed convolutions, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.norm1 = nn.Conv2d(3, 8, 3, 1, 1), nn.GroupNorm(4, 8)
        self.down2, self.norm2 = nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16)
        self.down3, self.norm3 = nn.Conv2d(16, 24, 3, 2, 1), nn.GroupNorm(4, 24)
        self.up2 = nn.ConvTranspose2d(24, 16, 2, 2)
        self.mix2 = nn.Conv2d(32, 16, 3, 1, 1)
        self.up1 = nn.ConvTranspose2d(16, 8, 4, 2, 1)
        self.mix1 = nn.Conv2d(16, 8, 3, 1, 1)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        a = F.silu(self.norm1(self.down1(image)))
        b = F.silu(self.norm2(self.down2(a)))
        c = F.silu(self.norm3(self.down3(b)))
        b = F.silu(self.mix2(torch.cat([self.up2(c), b], 1)))
        a = F.silu(self.mix1(torch.cat([self.up1(b), a], 1)))
        return torch.sigmoid(self.last(a))
