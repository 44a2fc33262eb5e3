"""The networks of the benchmarks. Each is described once for all engines.

Tests describe smaller networks by passing other sizes.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from benchmarks.builders.base import Builder
from benchmarks.networks import drawn
from benchmarks.networks.convolutional import (
    convnext_t,
    densenet121,
    efficientnet_b0,
    mobilenet_v2,
    quartznet,
    resnet,
    resnet18,
    resnet50,
    resnext50,
    unet,
    unet_512,
)
from benchmarks.networks.small import gru, lstm, mlp
from benchmarks.networks.transformers import bert, swin_t, vit_s

__all__ = ["NETWORKS", "Describe", "described", "resnet"]

T = TypeVar("T")


class Describe(Protocol):
    """A function that describes a network with a batch of this size to a builder.

    It returns the output of the network.
    """

    def __call__(self, b: Builder[T], batch: int, /) -> T: ...


NETWORKS: dict[str, Describe] = {
    "mobilenet_v2": mobilenet_v2,
    "efficientnet_b0": efficientnet_b0,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "resnext50": resnext50,
    "densenet121": densenet121,
    "convnext_t": convnext_t,
    "unet": unet,
    "unet_512": unet_512,
    "quartznet": quartznet,
    "vit_s": vit_s,
    "swin_t": swin_t,
    "bert": bert,
    "lstm": lstm,
    "gru": gru,
    "mlp": mlp,
}


def described(name: str) -> Describe:
    """Return the function that describes a network of this package, or of `drawn`.

    Raises KeyError if there is no network of this name.
    """
    return NETWORKS[name] if name in NETWORKS else drawn.described(name)
