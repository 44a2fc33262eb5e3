"""The passes over a traced function, in order; `python -m benchmarks --passes` measures them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Pass(NamedTuple):
    """Says what a pass does, and earned: a call's time without it, divided by that with all.

    Two cores of a Xeon (family 6, model 167, AVX-512) ran these calls where no other is named.
    """

    does: str
    earns: str


PASSES = {
    # The batch
    "chunks": Pass(
        "computes a large batch a few items at a time, so that all of one fits the caches",
        "MobileNetV2, batch 8: 1.59",
    ),
    "stages": Pass(
        "lets later layers, which have little memory and large matrices, take more items at a time",
        "MobileNetV2, batch 8: 1.12",
    ),
    # Widths
    "integers": Pass(
        "computes products of what is rounded to 256 levels by their codes, in integers",
        "ResNet-50 in 8 bits, batch 8: 114 ms; in float32 274",
    ),
    "widened": Pass(
        "computes numbers of 16 bits in 32, but for what products read",
        "in bfloat16 MobileNetV2, batch 8: 1.76",
    ),
    # Layouts, and what they let become one
    "layouts": Pass(
        "leaves transpositions pending until a consumer needs them done", "ResNet-18, batch 8: 1.58"
    ),
    "folding": Pass(
        "makes scales and offsets after a convolution part of its filter and bias",
        "ResNet-18, batch 1: 1.07; MobileNetV2, batch 8: 1.05",
    ),
    "siblings": Pass(
        "makes one product of those of one input with several matrices",
        "GRU, batch 8: 3.8; LSTM, batch 8: 3.3",
    ),
    "attention": Pass(
        "lays out scores of attention for softmax, divides by its sums last, and takes those that "
        "leave the caches by blocks",
        "12 heads of 64 items, 1024 tokens: 2.9; 128 tokens: 1.3",
    ),
    "hidden": Pass(
        "reads no keys that masks hide from all queries, if they are many",
        "causal, 12 heads of 64 items, 2048 tokens: 1.23; GPT's step in bfloat16: 1.19",
    ),
    "scan": Pass(
        "lays out the body of a loop, and computes before it what depends on parameters alone",
        "LSTM, batch 1: 7.2; batch 8: 1.8",
    ),
    "items": Pass(
        "reads an item of a loop before the kernels that read parts of it, which are vectors then",
        "LSTM as OpenVINO saves it, batch 8: 1.7",
    ),
    # Kernels
    "turned": Pass(
        "transposes a product of few rows and many columns",
        "ResNet-18, batch 1: 1.10; MobileNetV2, batch 1: 1.08",
    ),
    "pairs": Pass(
        "computes a product of one row on two threads",
        "LSTM, batch 1, on Zen 3: 1.25; LSTM and GRU on the Xeon: 0.95",
    ),
    "pointwise": Pass(
        "makes a convolution of one cell a product",
        "ResNet-18, batch 1: 1.06; MobileNetV2, batch 8: 1.04",
    ),
    "depthwise": Pass(
        "makes a convolution with a group for each channel a sum of shifted inputs",
        "MobileNetV2, batch 8: 15",
    ),
    "grouped": Pass(
        "makes other groups convolutions of their own, narrow ones several at a time",
        "ResNeXt-50, batch 8: 1.16",
    ),
    "tiled": Pass(
        "makes a transposed convolution without overlap a product", "U-Net, batch 1: 1.04"
    ),
    "narrow": Pass(
        "computes windows of bfloat16 by products with sums of 32 bits",
        "in bfloat16 ResNet-50, batch 8: 1.8",
    ),
    "winograd": Pass(
        "computes 3x3 windows by minimal filtering",
        "ResNet-18, batch 8: 1.22; U-Net, batch 1: 1.18",
    ),
    "summed": Pass(
        "makes a window of few items a sum of shifted channels", "MobileNetV2, batch 8: 1.11"
    ),
    "stacked": Pass(
        "makes a window of many channels to few one product with all its cells",
        "DenseNet-121, batch 1, on 2 cores with AMX: 1.29",
    ),
    "bordered": Pass(
        "pads an input of fewer positions than a window before XLA's own convolution",
        "3x3 at 2x2 positions of 512 channels, 32 items: 41",
    ),
    "lanes": Pass(
        "sums rows by parts, with what is computed of them, as in a layer norm",
        "ConvNeXt-T, batch 1, on 2 cores with AMX: 1.05 to 1.14; transformers: 1.0",
    ),
    "gates": Pass(
        "divides by 1 + exp(-x) instead of multiplying with a logistic function of x",
        "EfficientNet-B0, batch 1: 1.03; LSTM, batch 8: 1.05",
    ),
    "pooling": Pass(
        "makes small pooling windows shifted maxima and sums",
        "U-Net, batch 1: 1.02",
    ),
    # Derivatives
    "gradients": Pass(
        "gives derivatives of windows and matrices, and sums over positions, kernels of their own",
        "training step of MobileNetV2: 1.9; of ResNet-18: 1.3; of ConvNeXt-T: 1.75; "
        "EfficientNet-B0, batch 1: 1.06",
    ),
    "sums": Pass(
        "takes sums of products out of a loop, and makes those of a step one product",
        "training step of LSTM, batch 1: 1.6; batch 8: 2.0; of GRU: 1.9",
    ),
    "stored": Pass(
        "keeps XLA from computing in each loop anew what several read",
        "training step of MobileNetV2: 1.80; of ConvNeXt-T: 1.2; batch 8: 1.07",
    ),
    # What is traced then, and split by `prepare`
    "repeats": Pass(
        "makes equal small layers a loop", "100 dense layers, batch 1: 11; batch 8: 2.1"
    ),
    "eigen": Pass(
        "lets the compiler call Eigen instead of YNNPACK, which runs many products on one thread",
        "MobileNetV2, batch 1: 1.34; ResNet-18, batch 8: 1.14",
    ),
}

_LEFT_OUT: ContextVar[frozenset[str]] = ContextVar("left_out", default=frozenset())


def runs(name: str) -> bool:
    """Tell whether a pass is part of what is traced at this moment."""
    assert name in PASSES, name
    return name not in _LEFT_OUT.get()


@contextmanager
def without(*names: str) -> Generator[None]:
    """Leave passes out of what is traced meanwhile. Use no `cache_dir`: its keys do not tell."""
    token = _LEFT_OUT.set(frozenset(names))
    try:
        yield
    finally:
        _LEFT_OUT.reset(token)
