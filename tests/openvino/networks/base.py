"""Networks: a module, its inputs, which extents are open, how it is packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Input:
    """The shape of an input; items below `below` are whole numbers, otherwise real ones."""

    shape: tuple[int, ...]
    below: int = 0

    def sample(self, rng: np.random.Generator) -> Array:
        if self.below:
            return rng.integers(0, self.below, self.shape)
        return rng.uniform(-1, 1, self.shape).astype(np.float32)


@dataclass(frozen=True)
class Network:
    """A module of PyTorch and how it is converted and called.

    `changed` takes OpenVINO's model and returns another: with states, packed weights, layers that
    PyTorch has not.
    """

    build: Callable[[], nn.Module]
    inputs: tuple[Input, ...]
    open: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # axes by input
    again: tuple[Input, ...] = ()  # inputs of other extents
    changed: Callable[[Any], Any] | None = None
    steps: int = 0  # calls of one with states
    levels: int = 0  # of what is rounded: results within one level of their range
    has_gradient: bool = True
    is_nnef: bool = False  # NNEF can say it
    is_batched: bool = True  # vmap may add an axis

    def module(self) -> nn.Module:
        """Return the module, its weights and statistics of one seed."""
        torch.manual_seed(0)
        module = self.build().eval()
        for part in module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                nn.init.uniform_(part.running_mean, -0.5, 0.5)
                nn.init.uniform_(part.running_var, 0.5, 1.5)
                nn.init.uniform_(part.weight, 0.5, 1.5)
                nn.init.uniform_(part.bias, -0.5, 0.5)
        return module

    def arrays(self, inputs: tuple[Input, ...] = (), seed: int = 1) -> list[Array]:
        """Return inputs of one seed."""
        rng = np.random.default_rng(seed)
        return [x.sample(rng) for x in inputs or self.inputs]


NETWORKS: dict[str, Network] = {}


def real(*shape: int) -> Input:
    """Return an input of real numbers."""
    return Input(shape)


def codes(*shape: int, below: int) -> Input:
    """Return an input of whole numbers."""
    return Input(shape, below)


def network(*inputs: Input, name: str = "", **options: Any) -> Callable[[Any], Any]:
    """Register what builds a module, under its own name unless another is given."""

    def register(build: Any) -> Any:
        known = name or build.__name__
        assert known not in NETWORKS
        NETWORKS[known] = Network(build, inputs, **options)
        return build

    return register
