"""The passes over a traced function, in order; `python -m benchmarks --passes` measures them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Pass(NamedTuple):
    """What a pass does, and what it earned: milliseconds without and with it, on two cores."""

    does: str
    earns: str


PASSES = {
    # The batch
    "chunks": Pass(
        "computes a large batch a few items at a time, so that all of one fits the caches",
        "batches of 8: MobileNetV2 72, 48; U-Net 328, 198; ResNet-18 159, 135; ResNet-50 400, 381",
    ),
    "stages": Pass(
        "lets later layers, which have little memory and large matrices, take more items at a time",
        "batches of 8: ResNet-18 222, 196; MobileNetV2 76, 61",
    ),
    # Layouts, and what they let become one
    "layouts": Pass("leaves transpositions pending until a consumer needs them done", ""),
    "folding": Pass("makes scales and offsets after a convolution part of its filter and bias", ""),
    "siblings": Pass(
        "makes one product of those of one input with several matrices",
        "LSTM and GRU, batch 8: about 2 times as fast",
    ),
    "scan": Pass(
        "lays out the body of a loop, and computes before it what depends on parameters alone",
        "LSTM and GRU: about 8 times as fast for batch 1, 1.8 for 8",
    ),
    # Kernels
    "turned": Pass(
        "transposes a product of few rows and many columns",
        "GFLOP/s of 49x320x1280: 90, 130",
    ),
    "pairs": Pass("computes a product of one row on two threads", "LSTM, batch 1: 2.5, 2.0"),
    "pointwise": Pass("makes a convolution of one cell a product", ""),
    "depthwise": Pass(
        "makes a convolution with a group for each channel a sum of shifted inputs",
        "XLA's own takes 10 to 30 times as long",
    ),
    "grouped": Pass(
        "makes other groups convolutions of their own",
        "8 items of 28x28: 4 groups of 64 channels 26, 18; of 14x14: 32 of 16 11, 7",
    ),
    "tiled": Pass("makes a transposed convolution without overlap a product", ""),
    "winograd": Pass(
        "computes 3x3 windows by minimal filtering",
        "64 channels to 64 on 128x128: 8.0, 6.0",
    ),
    "summed": Pass(
        "makes a window of few items a sum of shifted channels",
        "3x3 of 3 channels to 32 on 256x256: 5.4, 3.3; 5x5 of one on 224x224: 4.6, 1.7",
    ),
    "pooling": Pass(
        "makes small pooling windows shifted maxima and sums",
        "XLA's own takes 2 to 10 times as long",
    ),
    # Derivatives
    "extrema": Pass("makes the derivative of a maximum with a constant a selection", ""),
    "tangents": Pass(
        "gives kernels derivatives of their own",
        "3x3 of 64 channels on 56x56, gradient in the input: 44, 13",
    ),
    "stored": Pass("keeps XLA from computing in each loop anew what several read", ""),
    # What is traced then, and split by `prepare`
    "repeats": Pass("makes equal small layers a loop", "100 dense layers of 8: 0.20, 0.08"),
    "eigen": Pass(
        "lets the compiler call Eigen instead of YNNPACK, which runs many products on one thread",
        "as fast: MobileNetV2, ResNet-50, U-Net 1.3 times; ResNet-18 1.5; transformers, LSTM 1.05",
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
