"""The target for CPUs: its passes in order, and the kernels that they choose."""

from __future__ import annotations

from typing import NamedTuple

from lowering.cpu import (
    attention,
    chunks,
    graphs,
    integers,
    layouts,
    rates,
    shared_updates,
    widening,
    xla_options,
)
from lowering.passes import folding, gates, inlining, siblings, sums
from lowering.targets.target import Target

CPU = Target(
    platform="cpu",
    passes=(
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
        shared_updates.run,
    ),
    options=xla_options.of_program,
    candidates=xla_options.candidates,
    least_memory=xla_options.least_memory,
    in_integers=graphs.in_integers,
    measure=rates.measured,
    has_kernels=True,
)


class Choice(NamedTuple):
    """The purpose and the gain of a kernel or pass.

    The gain is a ratio of two times: the time of a call without the kernel or pass, divided by the
    time with all kernels and passes. The gain was measured on two cores with AVX-512. If a network
    has a second figure, that figure is from another machine.
    """

    purpose: str
    gain: str


# This dict maps the names of kernels and of the last passes to their choices. `python -m benchmarks
# --passes` measures each gain by leaving out one choice after another.
KERNELS: dict[str, Choice] = {
    # The batch
    "chunks": Choice(
        "computes a large batch a few items at a time, so that their tensors fit the caches",
        "MobileNetV2, batch 8: 1.59",
    ),
    "stages": Choice(
        "computes more items at a time in later layers, with small tensors and large matrices",
        "MobileNetV2, batch 8: 1.12",
    ),
    # Layouts and fusions
    "layouts": Choice(
        "chooses all kernels, and delays transpositions until a kernel needs them",
        "ResNet-18, batch 8: 1.98",
    ),
    "attention": Choice(
        "lays out scores of attention for softmax, divides by the sums last, and computes scores "
        "that exceed the caches by blocks",
        "12 heads of 64 items, 1024 tokens: 2.9; 128 tokens: 1.3",
    ),
    "shared_updates": Choice(
        "updates a cache once for all its readers, in place",
        "a token of a Llama of 12 layers of 768, 128 places: 1.12; as ONNX: 1.05",
    ),
    "hidden": Choice(
        "skips keys that masks hide from all queries, if they are many",
        "causal, 12 heads of 64 items, 2048 tokens: 1.23; GPT's step in bfloat16: 1.19",
    ),
    "scan": Choice(
        "lays out loops and branches, and computes values of parameters alone before them",
        "LSTM, batch 1: 7.2; batch 8: 1.8; a branch with a 3x3 window on 64 channels: 100",
    ),
    "items": Choice(
        "reads an item of a loop once, before the kernels that slice it, which are then vectorised",
        "LSTM as OpenVINO saves it, batch 8: 1.7",
    ),
    # Kernels
    "turned": Choice(
        "transposes a product of 32 to 160 rows and more columns",
        "ResNet-18, batch 1: 1.10; MobileNetV2, batch 1: 1.08 and 1.04",
    ),
    "pairs": Choice(
        "computes a product of one row on two threads, on machines that are faster with it",
        "LSTM, batch 1: 1.25; on a machine that is slower with it LSTM and GRU: 0.95",
    ),
    "pointwise": Choice(
        "makes a convolution of one cell a product",
        "ResNet-18, batch 1: 1.06; MobileNetV2, batch 8: 1.04",
    ),
    "patches": Choice(
        "multiplies filters that are not prepared by the patches of the input, if these are few",
        "ResNet-50, batch 1, with parameters as arguments: 2.3",
    ),
    "depthwise": Choice(
        "makes a convolution with a group for each channel a sum of shifted inputs",
        "MobileNetV2, batch 8: 15",
    ),
    "rows": Choice(
        "computes few channels of several positions as one long row, which is vectorised",
        "3x3 windows of 24 channels at 93x98 positions, with silu: 1.8",
    ),
    "grouped": Choice(
        "makes other groups separate convolutions, several narrow groups at a time",
        "ResNeXt-50, batch 8: 1.16",
    ),
    "tiled": Choice(
        "makes a transposed convolution without overlap a product",
        "U-Net, batch 1: 1.04 and 1.09",
    ),
    "narrow": Choice(
        "computes windows of bfloat16 by products with sums of 32 bits",
        "ResNet-50 in bfloat16, batch 8: 1.8",
    ),
    "winograd": Choice(
        "computes 3x3 windows by minimal filtering",
        "ResNet-18, batch 8: 1.22; U-Net, batch 1: 1.18",
    ),
    "summed": Choice(
        "makes a window of few cells a sum of shifted channels", "MobileNetV2, batch 8: 1.11"
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
        "makes windows of three axes windows of two, with the cells of the first as channels",
        "3x3x3 of 16 channels to 32 at 32x32x32 positions: 5.7",
    ),
    "lanes": Choice(
        "sums rows by parts, fused with the functions of the sums, as in a layer norm",
        "ConvNeXt-T, batch 1: 1.05 to 1.14; transformers: 1.0",
    ),
    "pooling": Choice(
        "makes small pooling windows shifted maxima and sums",
        "ResNet-50, batch 1: 1.06; ResNet-18, batch 1: 1.04; U-Net: 1.02",
    ),
    # Derivatives
    "gradients": Choice(
        "computes derivatives of windows and matrices, and sums over positions, by kernels",
        "training step of MobileNetV2: 1.9; of ResNet-18: 1.3; of ConvNeXt-T: 1.75; "
        "EfficientNet-B0, batch 1: 1.06",
    ),
    "in_memory": Choice(
        "keeps XLA from computing a value again in each loop that reads it",
        "training step of MobileNetV2: 1.80; of ConvNeXt-T: 1.2; batch 8: 1.07",
    ),
    # The compiler
    "eigen": Choice(
        "lets XLA call Eigen instead of YNNPACK, which runs many products on one thread",
        "MobileNetV2, batch 1: 1.34; ResNet-18, batch 8: 1.14",
    ),
}
