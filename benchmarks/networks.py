"""The networks, each described once for all engines; sizes can be reduced for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

from benchmarks.builders.base import Builder

T = TypeVar("T")

# Expansion, channels, blocks and stride of MobileNetV2's stages (Sandler et al. 2018, table 2).
_MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_BRANCH = 0.5  # scale of a residual branch, so that sums of many stay of order 1


def mobilenet_v2(
    b: Builder[T],
    batch: int,
    *,
    extent: int = 224,
    stages: Sequence[tuple[int, int, int, int]] = _MOBILENET_STAGES,
    last: int = 1280,
    classes: int = 1000,
) -> T:
    """Inverted residuals of depthwise convolutions."""

    def block(name: str, x: T, inputs: int, outputs: int, expansion: int, stride: int) -> T:
        hidden, y = inputs * expansion, x
        if expansion > 1:
            y = b.relu6(_conv_norm(b, f"{name}.expand", y, inputs, hidden, 1))
        y = _conv_norm(b, f"{name}.depthwise", y, hidden, hidden, stride=stride, groups=hidden)
        keeps_shape = stride == 1 and inputs == outputs
        gain = _BRANCH if keeps_shape else 1.0
        y = _conv_norm(b, f"{name}.project", b.relu6(y), hidden, outputs, 1, gain=gain)
        return b.add(x, y) if keeps_shape else y

    x = b.input("image", batch, 3, extent, extent)
    x = b.relu6(_conv_norm(b, "stem", x, 3, 32, stride=2))
    channels = 32
    for stage, (expansion, outputs, blocks, stride) in enumerate(stages):
        for index in range(blocks):
            step = stride if index == 0 else 1
            x = block(f"stage{stage}.{index}", x, channels, outputs, expansion, step)
            channels = outputs
    x = b.global_average(b.relu6(_conv_norm(b, "last", x, channels, last, 1)))
    return b.dense_layer("classifier", x, last, classes)


def resnet18(b: Builder[T], batch: int) -> T:
    """Two 3x3 convolutions a block."""
    return resnet(b, batch, (2, 2, 2, 2), bottleneck=False)


def resnet50(b: Builder[T], batch: int) -> T:
    """Blocks of 1x1, 3x3 and 1x1 convolutions, the 3x3 one strided (v1.5)."""
    return resnet(b, batch, (3, 4, 6, 3), bottleneck=True)


def resnet(
    b: Builder[T],
    batch: int,
    blocks: Sequence[int],
    *,
    bottleneck: bool,
    extent: int = 224,
    width: int = 64,
    classes: int = 1000,
) -> T:
    """A residual network of He et al. 2015 as torchvision has it."""

    def block(name: str, x: T, inputs: int, middle: int, outputs: int, stride: int) -> T:
        y = x
        if bottleneck:
            y = b.relu(_conv_norm(b, f"{name}.reduce", y, inputs, middle, 1))
        taken = middle if bottleneck else inputs
        y = b.relu(_conv_norm(b, f"{name}.conv", y, taken, middle, stride=stride))
        y = _conv_norm(
            b, f"{name}.expand", y, middle, outputs, 1 if bottleneck else 3, gain=_BRANCH
        )
        if inputs != outputs or stride != 1:
            x = _conv_norm(b, f"{name}.shortcut", x, inputs, outputs, 1, stride=stride)
        return b.relu(b.add(y, x))

    x = b.input("image", batch, 3, extent, extent)
    x = b.relu(_conv_norm(b, "stem", x, 3, width, 7, stride=2))
    x = b.max_pool(x, size=3, stride=2, padding=1)
    channels = width
    for stage, count in enumerate(blocks):
        middle = width * 2**stage
        outputs = 4 * middle if bottleneck else middle
        for index in range(count):
            stride = 2 if stage and index == 0 else 1
            x = block(f"stage{stage}.{index}", x, channels, middle, outputs, stride)
            channels = outputs
    return b.dense_layer("classifier", b.global_average(x), channels, classes)


def unet(b: Builder[T], batch: int, *, extent: int = 128, width: int = 32, depth: int = 3) -> T:
    """A U-Net (Ronneberger et al. 2015) with batch normalisation and 2x2 deconvolutions."""

    def double(name: str, x: T, inputs: int, outputs: int) -> T:
        x = b.relu(_conv_norm(b, f"{name}.0", x, inputs, outputs))
        return b.relu(_conv_norm(b, f"{name}.1", x, outputs, outputs))

    x = b.input("image", batch, 3, extent, extent)
    channels, skipped = 3, list[T]()
    for level in range(depth):
        outputs = width * 2**level
        x = double(f"down{level}", x, channels, outputs)
        skipped.append(x)
        x = b.max_pool(x, size=2, stride=2, padding=0)
        channels = outputs
    x = double("bottom", x, channels, 2 * channels)
    for level in reversed(range(depth)):
        outputs = width * 2**level
        up = b.deconv_layer(f"up{level}.deconv", x, 2 * outputs, outputs, 2)
        x = double(f"up{level}", b.concat([skipped[level], up], axis=1), 2 * outputs, outputs)
    return b.conv_layer("last", x, width, 2, 1, bias=True)


def vit_s(
    b: Builder[T],
    batch: int,
    *,
    extent: int = 224,
    patch: int = 16,
    width: int = 384,
    layers: int = 12,
    heads: int = 6,
    classes: int = 1000,
) -> T:
    """A vision transformer (Dosovitskiy et al. 2020): attention kept whole, norms before."""
    count = (extent // patch) ** 2

    def attention(name: str, x: T) -> T:
        joined = b.dense_layer(f"{name}.qkv", x, width, 3 * width)
        parts = [b.slice(joined, 2, i * width, (i + 1) * width) for i in range(3)]
        y = _attend(b, parts, (batch, count + 1, width), heads, whole=True)
        return b.dense_layer(f"{name}.output", y, width, width)

    x = b.input("image", batch, 3, extent, extent)
    x = b.conv_layer("patches", x, 3, width, patch, stride=patch, padding=0, bias=True)
    x = b.transpose(b.reshape(x, (batch, width, count)), (0, 2, 1))
    token = b.parameter("class_token", b.normal(1, 1, width))
    x = b.concat([b.repeat(token, batch), x], axis=1)
    x = b.add(x, b.parameter("positions", b.normal(1, count + 1, width, deviation=0.2)))
    for layer in range(layers):
        name = f"layer{layer}"
        x = b.add(x, attention(name, b.layer_norm_layer(f"{name}.norm1", x, width)))
        y = b.layer_norm_layer(f"{name}.norm2", x, width)
        x = b.add(x, _feed_forward(b, name, y, width))
    x = b.layer_norm_layer("norm", x, width)
    x = b.reshape(b.slice(x, 1, 0, 1), (batch, width))
    return b.dense_layer("classifier", x, width, classes)


def bert(
    b: Builder[T],
    batch: int,
    *,
    tokens: int = 128,
    width: int = 384,
    layers: int = 6,
    heads: int = 6,
) -> T:
    """An encoder like BERT's on tokens already embedded: attention spelled out, norms after."""
    x = b.input("embeddings", batch, tokens, width)
    for layer in range(layers):
        name = f"layer{layer}"
        parts = [b.dense_layer(f"{name}.{part}", x, width, width) for part in "qkv"]
        y = _attend(b, parts, (batch, tokens, width), heads, whole=False)
        y = b.dense_layer(f"{name}.output", y, width, width)
        x = b.layer_norm_layer(f"{name}.norm1", b.add(x, y), width)
        y = _feed_forward(b, name, x, width)
        x = b.layer_norm_layer(f"{name}.norm2", b.add(x, y), width)
    return x


def lstm(b: Builder[T], batch: int, *, steps: int = 128, inputs: int = 256, hidden: int = 256) -> T:
    """One LSTM over a sequence, all of its hidden states."""
    return b.lstm_layer("lstm", b.input("x", steps, batch, inputs), batch, inputs, hidden)


def mlp(b: Builder[T], batch: int, *, layers: int = 100, width: int = 8) -> T:
    """Many tiny dense layers, two parameters each: what a call costs beside the arithmetic."""
    x = b.input("x", batch, width)
    for layer in range(layers):
        # Near the identity, so that the last layer still depends on the input.
        weight = np.eye(width, dtype=np.float32) + b.normal(width, width, deviation=0.05)
        bias = b.parameter(f"layer{layer}.bias", b.normal(width, deviation=0.1))
        x = b.relu(b.dense(x, b.parameter(f"layer{layer}.weight", weight), bias))
    return x


class Describe(Protocol):
    """Describes a network to a builder, for a number of items in a batch; returns its output."""

    def __call__(self, b: Builder[T], batch: int, /) -> T: ...


NETWORKS: dict[str, Describe] = {
    "mobilenet_v2": mobilenet_v2,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "unet": unet,
    "vit_s": vit_s,
    "bert": bert,
    "lstm": lstm,
    "mlp": mlp,
}


def _conv_norm(
    b: Builder[T],
    name: str,
    x: T,
    inputs: int,
    outputs: int,
    size: int = 3,
    *,
    stride: int = 1,
    groups: int = 1,
    gain: float = 1.0,
) -> T:
    x = b.conv_layer(f"{name}.conv", x, inputs, outputs, size, stride=stride, groups=groups)
    return b.batch_norm_layer(f"{name}.norm", x, outputs, gain)


def _attend(
    b: Builder[T], parts: Sequence[T], shape: tuple[int, int, int], heads: int, *, whole: bool
) -> T:
    """Attention over several heads; the parts are queries, keys and values."""
    batch, tokens, width = shape
    size = width // heads

    def split(x: T) -> T:
        return b.transpose(b.reshape(x, (batch, tokens, heads, size)), (0, 2, 1, 3))

    q, k, v = map(split, parts)
    y = b.attention(q, k, v, size, whole=whole)
    return b.reshape(b.transpose(y, (0, 2, 1, 3)), shape)


def _feed_forward(b: Builder[T], name: str, x: T, width: int) -> T:
    x = b.gelu(b.dense_layer(f"{name}.up", x, width, 4 * width))
    return b.dense_layer(f"{name}.down", x, 4 * width, width)
