"""Says what is compiled and run, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax

from lowering.devices import on_cpu
from lowering.graph import Graph

Jit = Callable[[Callable[..., Any]], Any]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Says how a network is run: keywords of `nnef_jax.load`, which documents them."""

    precision: jax.lax.PrecisionLike = None
    optimize: bool | Literal["strict"] = True
    autotune: bool = False
    donate_state: bool = False
    unused: bool = False
    straight_through: bool = False

    @property
    def for_cpu(self) -> bool:
        """Tell whether what is traced now gets the layouts and kernels of `lowering.cpu`."""
        return bool(self.optimize) and on_cpu()


@dataclass(frozen=True, slots=True)
class Program:
    """A function to compile, and what it is compiled for."""

    name: str
    graph: Graph
    function: Callable[[Sequence[Any], Sequence[Any]], Any]  # of own arrays and those of a call
    result: Any  # the tree structure of what it returns
    own: list[jax.Array]
    arrays: Sequence[Any]  # of a call, as an example
    is_alone: bool  # on one device, so that nothing is sharded
    donated: int = 0  # arrays, the first, whose memory it may take for its results

    @property
    def arguments(self) -> tuple[list[Any], ...]:
        """Return what the compiled function takes beside what is prepared."""
        return parted(self.arrays, self.donated)


def title(graph: Graph, name: str) -> str:
    """Return what a way of running a graph is called in profiles and dumps: by the graph's name."""
    return graph.name if name == "outputs" else f"{graph.name}_{name}"


def is_watched() -> bool:
    """Tell whether the user has jax look for NaN or infinities, or compile nothing."""
    config: Any = jax.config
    return config.jax_disable_jit or config.jax_debug_nans or config.jax_debug_infs


def parted(arrays: Sequence[Any], donated: int) -> tuple[list[Any], ...]:
    """Return the arguments that hold the arrays, those that are donated apart."""
    return (list(arrays[donated:]), list(arrays[:donated])) if donated else (list(arrays),)
