"""The targets that programs are lowered for. Each target has a list of passes.

Which passes run for CPUs, for TPUs, for GPUs of CUDA? `cpu`, `tpu`, `cuda`
Which passes run for other platforms, and before derivatives? `portable`
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.machine import MachineProfile
from lowering.targets.target import Target

if TYPE_CHECKING:
    from lowering.parallel import Divided


def target_of(
    platform: str,
    devices: int | None = 1,
    rates: MachineProfile | None = None,
    *,
    is_open: bool = False,
    in_function: bool = False,
) -> Target:
    """Return the target for devices of a platform.

    Args:
        platform: jax's name of the platform, such as "cpu".
        devices: the number of devices, or None if it is unknown. The number is needed if arguments
            are sharded.
        rates: the machine's rates; None for the profile that is current when a program is lowered.
        is_open: whether programs for other shapes of the inputs read the same parameters.
        in_function: whether the program is a part of a user's function.
    """
    if platform == "cpu":
        from lowering.targets.cpu import CPU as base
    elif platform == "cuda":
        from lowering.targets.cuda import CUDA as base
    elif platform == "tpu":
        from lowering.targets.tpu import TPU as base
    else:
        from lowering.targets.portable import PLAIN as base
    passes = base.passes
    if in_function and base.passes_in_functions is not None:
        passes = base.passes_in_functions
    return replace(
        base, platform=platform, passes=passes, devices=devices, rates=rates, is_open=is_open
    )


def mesh_target(platform: str, divided: Divided | None = None) -> Target:
    """Return the target for a mesh of devices.

    The target is an argument of `differentiable`. The docstring of `Divided` has an example. The
    program that `differentiable` makes must be called under `jax.jit`.
    """
    from lowering.passes import inlining, patches, spread, updates

    # `spread` can follow axes neither through choices between platforms nor through scatters.
    # Therefore `inlining` and `updates` run first: choices are inlined, and scatters that write one
    # slice become updates of the slice.
    # Derivatives over a mesh reach no later pass, so TPUs get products for patch embeddings here.
    before = (patches.run,) if platform == "tpu" else ()
    passes = inlining.run, updates.run, *before, spread.run
    count = None if divided is None else divided.mesh.size
    return Target(platform, passes, keeps_derivatives=True, devices=count, divided=divided)
