"""What programs are lowered for: a list of passes for each kind of device."""

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
) -> Target:
    """Return the target for devices of a platform, by jax's name, as `Target` says.

    `devices` is their number: give it where arguments are sharded. Platforms without passes of
    their own share some; a name that jax does not know is one of these.
    """
    if platform == "cpu":
        from lowering.targets.cpu import CPU

        return replace(CPU, devices=devices, rates=rates, is_open=is_open)
    from lowering.targets.portable import PLAIN

    return replace(PLAIN, platform=platform, devices=devices, rates=rates)


def mesh_target(platform: str, divided: Divided | None = None) -> Target:
    """Return the target for a mesh of such devices, over which arguments are divided if they are.

    It is for `differentiable`, as `Divided` shows; what that returns is called under `jax.jit`.
    Choices of platforms are made first, since they would hide axes from the pass that follows them.
    """
    from lowering.passes import inlining, spread

    passes, count = (inlining.run, spread.run), divided and divided.mesh.size
    return Target(platform, passes, keeps_derivatives=True, devices=count, divided=divided)
