"""What programs are lowered for: a list of passes for each kind of device."""

from __future__ import annotations

from dataclasses import replace

from lowering.machine import MachineProfile
from lowering.targets.target import Target


def target_of(
    platform: str,
    devices: int | None = 1,
    rates: MachineProfile | None = None,
    *,
    is_open: bool = False,
) -> Target:
    """Return the target for devices of a platform, by jax's name, as `Target` says.

    Platforms without passes of their own share some.
    """
    if platform == "cpu":
        from lowering.targets.cpu import CPU

        return replace(CPU, devices=devices, rates=rates, is_open=is_open)
    from lowering.targets.portable import PLAIN

    return replace(PLAIN, platform=platform, devices=devices, rates=rates)
