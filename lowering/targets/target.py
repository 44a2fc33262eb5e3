"""What programs are lowered for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lowering.graph import Graph
from lowering.machine import MachineProfile

if TYPE_CHECKING:
    from lowering.parallel import Divided


@dataclass(frozen=True)
class Target:
    """Says for which devices a program is lowered: their platform, their number, their rates.

    Who lowers a program gives one: nobody asks jax for its device.

    Args:
        platform: as jax names it; None for a network whose platform is not known yet.
        passes: functions `run(program, target)`, in order.
        options: returns the compiler's options for a program before its passes, the call that is
            split of it, and whether this is all that is compiled; None where there are none.
        keeps_derivatives: whether derivatives are taken of what the passes give.
        has_kernels: whether it has kernels of its own: parameters are prepared for them, and they
            need items and extents that are numbers.
        devices: on how many a program runs; None where that is not known.
        is_open: whether programs of other shapes read the same parameters: then matrices are read
            as they lie, since each layout is one more copy.
        divided: how arguments are divided over a mesh of these devices; None where they are not.
        candidates: returns all options of the compiler that may be the best for a network.
        in_order: returns options for parameters that are gathered when they are read.
        in_integers: returns the names of a graph's operations that are computed in integers, if
            that gains something, or in any case.
        measure: measures the rates of the process's machine, by so many threads.
        rates: of the machine, by which kernels are chosen; None for those that hold already.
    """

    platform: str | None
    passes: Sequence[Callable[..., Any]]
    options: Callable[[Any, Any, bool], dict[str, str]] | None = None
    keeps_derivatives: bool = False
    has_kernels: bool = False
    devices: int | None = 1
    is_open: bool = False
    divided: Divided | None = None
    candidates: Callable[[], Sequence[dict[str, str]]] | None = None
    in_order: Callable[[], dict[str, str]] | None = None
    in_integers: Callable[[Graph, bool], frozenset[str]] | None = None
    measure: Callable[[int], MachineProfile] | None = None
    rates: MachineProfile | None = None
