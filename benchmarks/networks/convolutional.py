"""Descriptions of convolutional networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from benchmarks.builders.base import Builder
from benchmarks.networks.transformers import feed_forward

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

# Expansion, channels, blocks, stride and window of EfficientNet-B0's stages (Tan and Le 2019, table
# 1).
_EFFICIENTNET_STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
# Channels and window of the blocks of QuartzNet 5x5 (Kriman et al. 2019, table 1).
_QUARTZNET_BLOCKS = ((256, 33), (256, 39), (512, 51), (512, 63), (512, 75))

_BRANCH = 0.5  # scale of a residual branch, so that activations stay of order 1


def mobilenet_v2(
    b: Builder[T],
    batch: int,
    *,
    extent: int = 224,
    stages: Sequence[tuple[int, int, int, int]] = _MOBILENET_STAGES,
    last: int = 1280,
    classes: int = 1000,
) -> T:
    """Describe MobileNetV2: inverted residuals of depthwise convolutions."""
    x = b.input("image", batch, 3, extent, extent)
    x, channels = mobilenet_features(b, x, stages)[-1]
    x = b.global_average(b.relu6(_conv_norm(b, "last", x, channels, last, 1)))
    return b.dense_layer("classifier", x, last, classes)


def mobilenet_features(
    b: Builder[T], x: T, stages: Sequence[tuple[int, int, int, int]] = _MOBILENET_STAGES
) -> list[tuple[T, int]]:
    """Return the features of an image after each stage of MobileNetV2, with their channels."""

    def block(name: str, x: T, inputs: int, outputs: int, expansion: int, stride: int) -> T:
        hidden, y = inputs * expansion, x
        if expansion > 1:
            y = b.relu6(_conv_norm(b, f"{name}.expand", y, inputs, hidden, 1))
        y = _conv_norm(b, f"{name}.depthwise", y, hidden, hidden, stride=stride, groups=hidden)
        keeps_shape = stride == 1 and inputs == outputs
        gain = _BRANCH if keeps_shape else 1.0
        y = _conv_norm(b, f"{name}.project", b.relu6(y), hidden, outputs, 1, gain=gain)
        return b.add(x, y) if keeps_shape else y

    features: list[tuple[T, int]] = []
    x = b.relu6(_conv_norm(b, "stem", x, 3, 32, stride=2))
    channels = 32
    for stage, (expansion, outputs, blocks, stride) in enumerate(stages):
        for index in range(blocks):
            step = stride if index == 0 else 1
            x = block(f"stage{stage}.{index}", x, channels, outputs, expansion, step)
            channels = outputs
        features.append((x, channels))
    return features


def resnet18(b: Builder[T], batch: int) -> T:
    """Describe ResNet-18, whose blocks have two 3x3 convolutions."""
    return resnet(b, batch, (2, 2, 2, 2), bottleneck=False)


def resnet50(b: Builder[T], batch: int) -> T:
    """Describe ResNet-50 v1.5: blocks of 1x1, 3x3 (with the stride) and 1x1 convolutions."""
    return resnet(b, batch, (3, 4, 6, 3), bottleneck=True)


def resnext50(b: Builder[T], batch: int) -> T:
    """Describe ResNeXt-50: bottlenecks of 32 groups, with 4 channels each in the first stage.

    See Xie et al. 2016.
    """
    return resnet(b, batch, (3, 4, 6, 3), bottleneck=True, groups=32, widening=2)


def resnet(
    b: Builder[T],
    batch: int,
    blocks: Sequence[int],
    *,
    bottleneck: bool,
    extent: int = 224,
    width: int = 64,
    groups: int = 1,
    widening: int = 1,
    classes: int = 1000,
) -> T:
    """Describe a residual network (He et al. 2015) in the form of torchvision."""

    def block(name: str, x: T, inputs: int, middle: int, outputs: int, stride: int) -> T:
        y = x
        if bottleneck:
            y = b.relu(_conv_norm(b, f"{name}.reduce", y, inputs, middle, 1))
        taken = middle if bottleneck else inputs
        y = _conv_norm(b, f"{name}.conv", y, taken, middle, stride=stride, groups=groups)
        y = b.relu(y)
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
        outputs = width * 2**stage * (4 if bottleneck else 1)
        middle = width * 2**stage * widening
        for index in range(count):
            stride = 2 if stage and index == 0 else 1
            x = block(f"stage{stage}.{index}", x, channels, middle, outputs, stride)
            channels = outputs
    return b.dense_layer("classifier", b.global_average(x), channels, classes)


def efficientnet_b0(
    b: Builder[T],
    batch: int,
    *,
    extent: int = 224,
    stages: Sequence[tuple[int, int, int, int, int]] = _EFFICIENTNET_STAGES,
    last: int = 1280,
    classes: int = 1000,
) -> T:
    """Describe EfficientNet-B0: inverted residuals with squeeze and excitation of channels."""

    def excited(name: str, x: T, channels: int, squeezed: int) -> T:
        y = b.silu(b.dense_layer(f"{name}.squeeze", b.global_average(x), channels, squeezed))
        y = b.sigmoid(b.dense_layer(f"{name}.excite", y, squeezed, channels))
        return b.multiply(x, b.reshape(y, (batch, channels, 1, 1)))

    def block(
        name: str, x: T, inputs: int, outputs: int, expansion: int, stride: int, size: int
    ) -> T:
        hidden, y = inputs * expansion, x
        if expansion > 1:
            y = b.silu(_conv_norm(b, f"{name}.expand", y, inputs, hidden, 1))
        y = _conv_norm(
            b, f"{name}.depthwise", y, hidden, hidden, size, stride=stride, groups=hidden
        )
        y = excited(name, b.silu(y), hidden, max(inputs // 4, 1))
        keeps_shape = stride == 1 and inputs == outputs
        gain = _BRANCH if keeps_shape else 1.0
        y = _conv_norm(b, f"{name}.project", y, hidden, outputs, 1, gain=gain)
        return b.add(x, y) if keeps_shape else y

    x = b.input("image", batch, 3, extent, extent)
    x = b.silu(_conv_norm(b, "stem", x, 3, 32, stride=2))
    channels = 32
    for stage, (expansion, outputs, blocks, stride, size) in enumerate(stages):
        for index in range(blocks):
            step = stride if index == 0 else 1
            x = block(f"stage{stage}.{index}", x, channels, outputs, expansion, step, size)
            channels = outputs
    x = b.global_average(b.silu(_conv_norm(b, "last", x, channels, last, 1)))
    return b.dense_layer("classifier", x, last, classes)


def densenet121(
    b: Builder[T],
    batch: int,
    *,
    extent: int = 224,
    blocks: Sequence[int] = (6, 12, 24, 16),
    growth: int = 32,
    classes: int = 1000,
) -> T:
    """Describe DenseNet-121, whose layers read the results of all earlier layers of their block.

    See Huang et al. 2016.
    """

    def norm_conv(name: str, x: T, inputs: int, outputs: int, size: int) -> T:
        x = b.relu(b.batch_norm_layer(f"{name}.norm", x, inputs))
        return b.conv_layer(f"{name}.conv", x, inputs, outputs, size)

    channels = 2 * growth
    x = b.input("image", batch, 3, extent, extent)
    x = b.relu(_conv_norm(b, "stem", x, 3, channels, 7, stride=2))
    x = b.max_pool(x, size=3, stride=2, padding=1)
    for stage, count in enumerate(blocks):
        if stage:
            x = norm_conv(f"transition{stage}", x, channels, channels // 2, 1)
            x = b.average_pool(x, size=2)
            channels //= 2
        for index in range(count):
            name = f"stage{stage}.{index}"
            y = norm_conv(f"{name}.0", x, channels, 4 * growth, 1)
            x = b.concat([x, norm_conv(f"{name}.1", y, 4 * growth, growth, 3)], axis=1)
            channels += growth
    x = b.relu(b.batch_norm_layer("last", x, channels))
    return b.dense_layer("classifier", b.global_average(x), channels, classes)


def convnext_t(
    b: Builder[T],
    batch: int,
    *,
    extent: int = 224,
    width: int = 96,
    blocks: Sequence[int] = (3, 3, 9, 3),
    classes: int = 1000,
) -> T:
    """Describe ConvNeXt-T: 7x7 depthwise convolutions, feed-forward layers (Liu et al. 2022)."""

    def last(x: T) -> T:
        return b.transpose(x, (0, 2, 3, 1))

    def first(x: T) -> T:
        return b.transpose(x, (0, 3, 1, 2))

    def norm(name: str, x: T, channels: int) -> T:
        return first(b.layer_norm_layer(name, last(x), channels))

    def block(name: str, x: T, channels: int) -> T:
        y = b.conv_layer(f"{name}.conv", x, channels, channels, 7, groups=channels, bias=True)
        y = feed_forward(b, name, b.layer_norm_layer(f"{name}.norm", last(y), channels), channels)
        scale = b.uniform(1, 1, 1, channels, low=0.3, high=0.7)
        return b.add(x, first(b.multiply(y, b.parameter(f"{name}.scale", scale))))

    x = b.input("image", batch, 3, extent, extent)
    x = b.conv_layer("stem", x, 3, width, 4, stride=4, padding=0, bias=True)
    x = norm("stem.norm", x, width)
    for stage, count in enumerate(blocks):
        if stage:
            x = norm(f"down{stage}.norm", x, width)
            x = b.conv_layer(f"down{stage}", x, width, 2 * width, 2, stride=2, padding=0, bias=True)
            width *= 2
        for index in range(count):
            x = block(f"stage{stage}.{index}", x, width)
    x = b.layer_norm_layer("norm", b.global_average(x), width)
    return b.dense_layer("classifier", x, width, classes)


def unet(b: Builder[T], batch: int, *, extent: int = 128, width: int = 32, depth: int = 3) -> T:
    """Describe a U-Net (Ronneberger et al. 2015) with batch norms and 2x2 deconvolutions."""

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


def unet_512(b: Builder[T], batch: int) -> T:
    """Describe the U-Net for pictures of 512x512."""
    return unet(b, batch, extent=512)


def quartznet(
    b: Builder[T],
    batch: int,
    *,
    features: int = 64,
    times: int = 400,
    blocks: Sequence[tuple[int, int]] = _QUARTZNET_BLOCKS,
    repeats: int = 5,
    last: tuple[int, int, int] = (512, 87, 1024),
    letters: int = 29,
) -> T:
    """Describe QuartzNet 5x5: it reads the letters of 4 s of speech by separable convolutions.

    See Kriman et al. 2019.
    """

    def separable(
        name: str, x: T, inputs: int, outputs: int, size: int, stride: int = 1, dilation: int = 1
    ) -> T:
        x = b.conv_layer(
            f"{name}.depthwise",
            x,
            inputs,
            inputs,
            size,
            stride=stride,
            dilation=dilation,
            groups=inputs,
            axes=1,
        )
        return _conv_norm(b, f"{name}.pointwise", x, inputs, outputs, 1, axes=1)

    x = b.input("features", batch, features, times)
    channels, size = blocks[0]
    x = b.relu(separable("first", x, features, channels, size, stride=2))
    for index, (outputs, size) in enumerate(blocks):
        name, y, inputs = f"block{index}", x, channels
        for repeat in range(repeats):
            y = b.relu(y) if repeat else y
            y = separable(f"{name}.{repeat}", y, inputs, outputs, size)
            inputs = outputs
        x = _conv_norm(b, f"{name}.shortcut", x, channels, outputs, 1, gain=_BRANCH, axes=1)
        x, channels = b.relu(b.add(x, y)), outputs
    outputs, size, wide = last
    x = b.relu(separable("last", x, channels, outputs, size, dilation=2))
    x = b.relu(_conv_norm(b, "wide", x, outputs, wide, 1, axes=1))
    return b.conv_layer("letters", x, wide, letters, 1, bias=True, axes=1)


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
    axes: int = 2,
) -> T:
    x = b.conv_layer(
        f"{name}.conv", x, inputs, outputs, size, stride=stride, groups=groups, axes=axes
    )
    return b.batch_norm_layer(f"{name}.norm", x, outputs, gain)


def c3d(
    b: Builder[T],
    batch: int,
    *,
    frames: int = 16,
    extent: int = 112,
    channels: Sequence[int] = (64, 128, 256, 256, 512, 512),
    classes: int = 101,
) -> T:
    """Describe C3D: convolutions over time and space, with a pooling after every second one.

    It follows Tran et al. 2015.
    """
    x, inputs = b.input("volume", batch, 3, frames, extent, extent), 3
    for layer, outputs in enumerate(channels):
        x = b.conv_layer(f"layer{layer}", x, inputs, outputs, axes=3)
        x = b.relu(b.batch_norm_layer(f"layer{layer}.norm", x, outputs))
        if layer % 2:
            x = b.max_pool(x, size=2, stride=2, padding=0)
        inputs = outputs
    return b.dense_layer("classifier", b.global_average(x), inputs, classes)
