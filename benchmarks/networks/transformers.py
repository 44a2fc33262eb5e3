"""Descriptions of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from benchmarks.builders.base import Builder

T = TypeVar("T")


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
    """Describe a vision transformer (Dosovitskiy et al. 2020), with norms before each branch.

    Attention is one operation in the NNEF archive.
    """
    count = (extent // patch) ** 2

    def attention(name: str, x: T) -> T:
        joined = b.dense_layer(f"{name}.qkv", x, width, 3 * width)
        parts = [b.slice(joined, 2, i * width, (i + 1) * width) for i in range(3)]
        y = attend(b, parts, (batch, count + 1, width), heads, whole=True)
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
        x = b.add(x, feed_forward(b, name, y, width))
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
    """Describe an encoder like BERT's, with norms after each sum. The input is embedded tokens.

    Attention is several operations in the NNEF archive.
    """
    x = b.input("embeddings", batch, tokens, width)
    for layer in range(layers):
        name = f"layer{layer}"
        parts = [b.dense_layer(f"{name}.{part}", x, width, width) for part in "qkv"]
        y = attend(b, parts, (batch, tokens, width), heads, whole=False)
        y = b.dense_layer(f"{name}.output", y, width, width)
        x = b.layer_norm_layer(f"{name}.norm1", b.add(x, y), width)
        y = feed_forward(b, name, x, width)
        x = b.layer_norm_layer(f"{name}.norm2", b.add(x, y), width)
    return x


def swin_t(
    b: Builder[T],
    batch: int,
    *,
    extent: int = 224,
    patch: int = 4,
    window: int = 7,
    width: int = 96,
    blocks: Sequence[int] = (2, 2, 6, 2),
    heads: int = 3,
    classes: int = 1000,
) -> T:
    """Describe Swin-T: attention within windows, which every second layer shifts (Liu et al. 2021).

    Shifts wrap around the border of the picture. Unlike in the paper, nothing is masked there.
    """
    count = window**2

    def shifted(x: T, by: int, extent: int) -> T:
        for axis in (1, 2):
            x = b.concat([b.slice(x, axis, by, extent), b.slice(x, axis, 0, by)], axis)
        return x

    def attention(name: str, x: T, extent: int, width: int, heads: int) -> T:
        """Compute attention within the windows of pictures (batch, height, width, channels)."""
        rows = extent // window
        x = b.reshape(x, (batch, rows, window, rows, window, width))
        shape = (batch * rows**2, count, width)
        x = b.reshape(b.transpose(x, (0, 1, 3, 2, 4, 5)), shape)
        joined = b.dense_layer(f"{name}.qkv", x, width, 3 * width)
        parts = [b.slice(joined, 2, i * width, (i + 1) * width) for i in range(3)]
        bias = b.parameter(f"{name}.bias", b.normal(1, heads, count, count, deviation=0.2))
        x = attend(b, parts, shape, heads, whole=False, bias=bias)
        x = b.dense_layer(f"{name}.output", x, width, width)
        x = b.reshape(x, (batch, rows, rows, window, window, width))
        return b.reshape(b.transpose(x, (0, 1, 3, 2, 4, 5)), (batch, extent, extent, width))

    def block(name: str, x: T, extent: int, width: int, heads: int, shift: int) -> T:
        y = b.layer_norm_layer(f"{name}.norm1", x, width)
        y = shifted(y, shift, extent) if shift else y
        y = attention(name, y, extent, width, heads)
        x = b.add(x, shifted(y, extent - shift, extent) if shift else y)
        y = b.layer_norm_layer(f"{name}.norm2", x, width)
        return b.add(x, feed_forward(b, name, y, width))

    x = b.input("image", batch, 3, extent, extent)
    x = b.conv_layer("patches", x, 3, width, patch, stride=patch, padding=0, bias=True)
    x = b.layer_norm_layer("patches.norm", b.transpose(x, (0, 2, 3, 1)), width)
    extent //= patch
    for stage, number in enumerate(blocks):
        if stage:
            extent //= 2
            x = b.transpose(b.reshape(x, (batch, extent, 2, extent, 2, width)), (0, 1, 3, 2, 4, 5))
            x = b.reshape(x, (batch, extent, extent, 4 * width))
            x = b.layer_norm_layer(f"merge{stage}.norm", x, 4 * width)
            x = b.dense_layer(f"merge{stage}", x, 4 * width, 2 * width)
            width, heads = 2 * width, 2 * heads
        for index in range(number):
            shift = window // 2 if index % 2 and extent > window else 0
            x = block(f"stage{stage}.{index}", x, extent, width, heads, shift)
    x = b.transpose(b.layer_norm_layer("norm", x, width), (0, 3, 1, 2))
    return b.dense_layer("classifier", b.global_average(x), width, classes)


def attend(
    b: Builder[T],
    parts: Sequence[T],
    shape: tuple[int, int, int],
    heads: int,
    *,
    whole: bool,
    bias: T | None = None,
) -> T:
    """Compute attention with several heads, from queries, keys and values."""
    batch, tokens, width = shape
    size = width // heads

    def split(x: T) -> T:
        return b.transpose(b.reshape(x, (batch, tokens, heads, size)), (0, 2, 1, 3))

    q, k, v = map(split, parts)
    y = b.attention(q, k, v, size, whole=whole, bias=bias)
    return b.reshape(b.transpose(y, (0, 2, 1, 3)), shape)


def feed_forward(b: Builder[T], name: str, x: T, width: int) -> T:
    """Add a feed-forward layer, whose hidden layer has four times the width."""
    x = b.gelu(b.dense_layer(f"{name}.up", x, width, 4 * width))
    return b.dense_layer(f"{name}.down", x, 4 * width, width)
