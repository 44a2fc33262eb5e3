"""Defines a target: the devices that a program is lowered for, and their passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lowering.graph import Graph
from lowering.machine import MachineProfile

if TYPE_CHECKING:
    from lowering.jaxpr_types import Equation
    from lowering.parallel import Divided
    from lowering.program import Program


@dataclass(frozen=True)
class Target:
    """The devices that a program is lowered for: their platform, number, passes and speeds.

    The caller chooses the target. Lowering never asks jax for the devices of the process.

    Args:
        platform: jax's name of the platform; None if the platform is unknown.
        passes: functions `run(program, target)`, in the order in which they run.
        options: a function that returns the compiler's options. It takes three arguments: the
            program before its passes, the call that is split from the program, and whether the
            call is compiled alone. None stands for no options.
        keeps_derivatives: whether the program is differentiated after the passes.
        has_kernels: whether the platform has kernels of its own. These kernels read prepared
            parameters. They need extents that are numbers, and arguments that are not empty.
        devices: the number of devices; None if it is unknown.
        is_open: whether programs for other shapes read the same parameters. If so, kernels read
            matrices in the stored layout. A second layout would need a second copy in memory.
        divided: the division of arguments over a mesh of these devices; None for no division.
        candidates: a function that returns all sets of compiler options that may be the fastest for
            a network.
        least_memory: a function that returns the compiler's options for the schedule that needs the
            least memory. In this schedule a parameter is gathered from the devices just before an
            operation reads it.
        in_integers: a function that returns the names of a graph's operations that are computed in
            integers. Its second argument tells whether products of 8 bits are faster than those of
            float32.
        measure: a function that measures the rates of the process's machine, such as the
            multiply-adds per second. The function takes the number of threads.
        rates: the machine's rates, by which kernels are chosen; None for the current profile.
        is_in_call: a function that tells whether calls evaluate an equation that reads only
            parameters. The result of such an equation is not prepared once for all calls. The
            function takes the program and the equation. None stands for a function that is always
            false.
        drops_unit_axes: whether prepared values are stored without their axes of extent 1.
        passes_in_functions: the passes for a network within a user's function; None for `passes`.
            In such a function no parameters are prepared, arguments may be sharded in a way that is
            not known, and the program may be that of a derivative.
        compute_capability: the compute capability of GPUs of CUDA; None if it is unknown.
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
    least_memory: Callable[[], dict[str, str]] | None = None
    in_integers: Callable[[Graph, bool], frozenset[str]] | None = None
    measure: Callable[[int], MachineProfile] | None = None
    rates: MachineProfile | None = None
    is_in_call: Callable[[Program, Equation], bool] | None = None
    drops_unit_axes: bool = False
    passes_in_functions: Sequence[Callable[..., Any]] | None = None
    compute_capability: float | None = None
