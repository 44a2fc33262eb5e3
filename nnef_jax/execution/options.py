"""How a network is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.devices import on_cpu

if TYPE_CHECKING:
    from nnef_jax.execution.disk_cache import DiskCache


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a network is run: keywords of `nnef_jax.load`, which documents them."""

    optimize: bool = True
    autotune: bool = False
    donate_state: bool = False
    unused: bool = False
    cache: DiskCache | None = None

    @property
    def for_cpu(self) -> bool:
        """Whether what is traced now gets the layouts and kernels of `lowering.cpu`."""
        return self.optimize and on_cpu()
