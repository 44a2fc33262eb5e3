"""The networks of modules.py, each with the inputs that it is tested on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from modules import (
    Bert,
    FixedCacheGpt,
    Gpt,
    Gru,
    ImageClassifier,
    Lstm,
    QuantisedDecoder,
    ResNet,
    TemporalConvolutions,
    UNet,
    VisionTransformer,
)
from torch import Tensor, nn

Runs = Callable[[torch.Generator], list[tuple[Tensor, ...]]]


@dataclass(frozen=True)
class Network:
    """A network to export.

    Attributes:
        make: its module, the weights of which are replaced by `export.randomise`.
        runs: for each run the inputs, from a random generator; the first run is traced.
        inputs, outputs: their names in the graph.
        dynamic: symbols of the axes of inputs that are not fixed.
        quantised: "q40" stores the weights of linear layers as Q4_0, "int8" quantises everything.
    """

    make: Callable[[], nn.Module]
    runs: Runs
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dynamic: dict[str, dict[int, str]] = field(default_factory=dict)
    quantised: str = ""


def _images(*batches: int, size: int = 32) -> Runs:
    return lambda g: [(torch.randn(batch, 3, size, size, generator=g),) for batch in batches]


def _sequences(*shapes: tuple[int, ...]) -> Runs:
    return lambda g: [(torch.randn(shape, generator=g),) for shape in shapes]


def _texts(g: torch.Generator) -> list[tuple[Tensor, ...]]:
    """Return batches of texts of two sizes. Texts of a batch have different lengths."""
    runs = []
    for batch, length in ((2, 10), (3, 7)):
        ids = torch.randint(60, (batch, length), generator=g)
        positions = torch.arange(length).repeat(batch, 1)
        lengths = length - 2 * torch.arange(batch)
        runs.append((ids, positions, (positions < lengths[:, None]).long()))
    return runs


def _cached_texts(g: torch.Generator) -> list[tuple[Tensor, ...]]:
    """Return a piece of a text after a past, an id after a past, and the start of a text."""
    return [
        (
            torch.randint(50, (1, new), generator=g),
            torch.randn(2, 1, 4, past, 8, generator=g),
            torch.randn(2, 1, 4, past, 8, generator=g),
        )
        for new, past in ((5, 3), (1, 11), (4, 0))
    ]


def _single_id(g: torch.Generator) -> list[tuple[Tensor, ...]]:
    """Return an id at position 5 of a cache of 16, whose later entries are not read."""
    cache = [torch.randn(2, 1, 4, 16, 8, generator=g) for _ in range(2)]
    return [(torch.randint(50, (1, 1), generator=g), torch.tensor([5]), *cache)]


def _recurrent(g: torch.Generator) -> list[tuple[Tensor, ...]]:
    return [
        (
            torch.randn(length, 2, 12, generator=g),
            torch.randn(2, 2, 20, generator=g),
            torch.randn(2, 2, 20, generator=g),
        )
        for length in (6, 9)
    ]


NETWORKS = {
    "resnet": Network(ResNet, _images(2, 3), ("image",), ("logits",), dynamic={"image": {0: "B"}}),
    "vit": Network(
        VisionTransformer, _images(2, 1), ("image",), ("logits",), dynamic={"image": {0: "B"}}
    ),
    "bert": Network(
        Bert,
        _texts,
        ("ids", "positions", "mask"),
        ("states", "pooled"),
        dynamic={name: {0: "B", 1: "S"} for name in ("ids", "positions", "mask")},
    ),
    "gpt": Network(
        Gpt,
        _cached_texts,
        ("ids", "past_k", "past_v"),
        ("logits", "present_k", "present_v"),
        dynamic={"ids": {1: "S"}, "past_k": {3: "P"}, "past_v": {3: "P"}},
    ),
    "gpt_fixed": Network(
        FixedCacheGpt,
        _single_id,
        ("ids", "position", "cache_k", "cache_v"),
        ("logits", "next_k", "next_v"),
    ),
    "lstm": Network(Lstm, _recurrent, ("x", "h0", "c0"), ("y", "h", "c"), dynamic={"x": {0: "T"}}),
    "gru": Network(
        Gru, _sequences((2, 6, 12), (2, 11, 12)), ("x",), ("y", "h"), dynamic={"x": {1: "T"}}
    ),
    "tcn": Network(
        TemporalConvolutions,
        _sequences((2, 8, 20), (1, 8, 33)),
        ("x",),
        ("y",),
        dynamic={"x": {0: "B", 2: "T"}},
    ),
    "unet": Network(UNet, _images(2, size=16), ("image",), ("mask",)),
    "q40": Network(QuantisedDecoder, _sequences((1, 7, 64)), ("x",), ("y",), quantised="q40"),
    "int8": Network(
        ImageClassifier, _images(2, size=16), ("image",), ("logits",), quantised="int8"
    ),
}
