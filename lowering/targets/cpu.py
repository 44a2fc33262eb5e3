"""A CPU: the passes that make a network fast there, in order."""

from __future__ import annotations

from typing import NamedTuple

from lowering.cpu import (
    attention,
    chunks,
    graphs,
    integers,
    layouts,
    rates,
    widening,
    xla_options,
)
from lowering.passes import folding, gates, inlining, siblings, sums
from lowering.targets.target import Target

CPU = Target(
    "cpu",
    (
        inlining.run,
        integers.run,
        widening.run,
        folding.run,
        gates.run,
        siblings.run,
        sums.run,
        chunks.run,
        attention.run,
        layouts.run,
    ),
    options=xla_options.of_program,
    candidates=xla_options.candidates,
    in_order=xla_options.in_order,
    in_integers=graphs.in_integers,
    measure=rates.measured,
    has_kernels=True,
)


class Choice(NamedTuple):
    """A kernel's purpose, and its gain: a call's time without it, divided by that with all.

    Two cores with AVX-512 ran these calls; further figures are of other machines.
    """

    does: str
    earns: str


# What the last passes do and choose; `python -m benchmarks --passes` leaves each out in turn.
KERNELS: dict[str, Choice] = {
    # The batch
    "chunks": Choice(
        "computes a large batch a few items at a time, so that all of one fits the caches",
        "MobileNetV2, batch 8: 1.59",
    ),
    "stages": Choice(
        "lets later layers, which have little memory and large matrices, take more items at a time",
        "MobileNetV2, batch 8: 1.12",
    ),
    # Layouts, and what they let become one
    "layouts": Choice(
        "chooses all kernels, and leaves transpositions pending until one needs them done",
        "ResNet-18, batch 8: 1.98",
    ),
    "attention": Choice(
        "lays out scores of attention for softmax, divides by its sums last, and takes those that "
        "leave the caches by blocks",
        "12 heads of 64 items, 1024 tokens: 2.9; 128 tokens: 1.3",
    ),
    "hidden": Choice(
        "reads no keys that masks hide from all queries, if they are many",
        "causal, 12 heads of 64 items, 2048 tokens: 1.23; GPT's step in bfloat16: 1.19",
    ),
    "scan": Choice(
        "lays out the body of a loop, and computes before it what depends on parameters alone",
        "LSTM, batch 1: 7.2; batch 8: 1.8",
    ),
    "items": Choice(
        "reads an item of a loop before the kernels that read parts of it, which are vectors then",
        "LSTM as OpenVINO saves it, batch 8: 1.7",
    ),
    # Kernels
    "turned": Choice(
        "transposes a product of 32 to 160 rows and more columns",
        "ResNet-18, batch 1: 1.10; MobileNetV2, batch 1: 1.08 and 1.04",
    ),
    "pairs": Choice(
        "computes a product of one row on two threads, where the machine gains by it",
        "LSTM, batch 1: 1.25; on a machine that loses by it LSTM and GRU: 0.95",
    ),
    "pointwise": Choice(
        "makes a convolution of one cell a product",
        "ResNet-18, batch 1: 1.06; MobileNetV2, batch 8: 1.04",
    ),
    "patches": Choice(
        "multiplies filters that vary, as they lie, by what their windows cover, if these are few",
        "ResNet-50, batch 1, its parameters being arguments: 2.3",
    ),
    "depthwise": Choice(
        "makes a convolution with a group for each channel a sum of shifted inputs",
        "MobileNetV2, batch 8: 15",
    ),
    "rows": Choice(
        "computes narrow channels of several positions as one long row, which makes vectors",
        "of 24 channels at 93x98 positions 3x3 windows with silu: 1.8",
    ),
    "grouped": Choice(
        "makes other groups convolutions of their own, narrow ones several at a time",
        "ResNeXt-50, batch 8: 1.16",
    ),
    "tiled": Choice(
        "makes a transposed convolution without overlap a product",
        "U-Net, batch 1: 1.04 and 1.09",
    ),
    "narrow": Choice(
        "computes windows of bfloat16 by products with sums of 32 bits",
        "in bfloat16 ResNet-50, batch 8: 1.8",
    ),
    "winograd": Choice(
        "computes 3x3 windows by minimal filtering",
        "ResNet-18, batch 8: 1.22; U-Net, batch 1: 1.18",
    ),
    "summed": Choice(
        "makes a window of few items a sum of shifted channels", "MobileNetV2, batch 8: 1.11"
    ),
    "stacked": Choice(
        "makes a window of many channels to few one product with all its cells",
        "DenseNet-121, batch 1: 1.29",
    ),
    "bordered": Choice(
        "pads an input of fewer positions than a window before XLA's own convolution",
        "3x3 at 2x2 positions of 512 channels, 32 items: 41",
    ),
    "sliced": Choice(
        "makes windows of three axes ones of two, whose channels are those of all cells before",
        "3x3x3 of 16 channels to 32 at 32x32x32 positions: 5.7",
    ),
    "lanes": Choice(
        "sums rows by parts, with what is computed of them, as in a layer norm",
        "ConvNeXt-T, batch 1: 1.05 to 1.14; transformers: 1.0",
    ),
    "pooling": Choice(
        "makes small pooling windows shifted maxima and sums",
        "ResNet-50, batch 1: 1.06; ResNet-18, batch 1: 1.04; U-Net: 1.02",
    ),
    # Derivatives
    "gradients": Choice(
        "gives derivatives of windows and matrices, and sums over positions, kernels of their own",
        "training step of MobileNetV2: 1.9; of ResNet-18: 1.3; of ConvNeXt-T: 1.75; "
        "EfficientNet-B0, batch 1: 1.06",
    ),
    "in_memory": Choice(
        "keeps XLA from computing in each loop anew what several read",
        "training step of MobileNetV2: 1.80; of ConvNeXt-T: 1.2; batch 8: 1.07",
    ),
    # The compiler
    "eigen": Choice(
        "lets the compiler call Eigen instead of YNNPACK, which runs many products on one thread",
        "MobileNetV2, batch 1: 1.34; ResNet-18, batch 8: 1.14",
    ),
}
