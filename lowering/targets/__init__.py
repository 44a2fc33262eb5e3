"""What programs are compiled for: a list of passes for each kind of device."""

from __future__ import annotations

from lowering.targets.target import Target

UNCHANGED = Target(None, ())


def target_of(platform: str) -> Target:
    """Return the target for a platform, by jax's name; those without one of their own share one."""
    if platform == "cpu":
        from lowering.targets.cpu import CPU

        return CPU
    from lowering.targets.portable import PLAIN

    return PLAIN
