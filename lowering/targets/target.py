"""What programs are compiled for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """A kind of device: the passes for it, in order.

    Args:
        platform: as jax names it; None for a network whose platform is not known yet.
        passes: functions `run(program, target)`.
        has_kernels: whether it has kernels of its own: parameters are prepared for them, and they
            need items and extents that are numbers.
    """

    platform: str | None
    passes: Sequence[Callable[..., Any]]
    has_kernels: bool = False
