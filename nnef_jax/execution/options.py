"""Says how a network is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax

from lowering.devices import on_cpu


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


def is_watched() -> bool:
    """Tell whether the user has jax look for NaN or infinities, or compile nothing."""
    config: Any = jax.config
    return config.jax_disable_jit or config.jax_debug_nans or config.jax_debug_infs
