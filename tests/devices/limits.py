"""What compilers of devices refuse in plain jax, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Limit:
    """Rows that a compiler refuses, and a line of plain jax that it refuses for the same reason.

    Args:
        topology: the devices.
        rows: the beginnings of the rows' names.
        plain: a function of plain jax.
        types: the types of its arguments.
        reason: a part of the compiler's message.
    """

    topology: str
    rows: tuple[str, ...]
    plain: Callable[..., Any]
    types: tuple[jax.ShapeDtypeStruct, ...]
    reason: str

    def covers(self, topology: str, name: str, reason: str) -> bool:
        """Tell whether this is the reason why a row is refused."""
        is_of_row = topology == self.topology and name.startswith(self.rows)
        return is_of_row and self.reason in reason


LIMITS = [
    # XLA's fusions by Triton, for a product of which no axis is a power of two.
    Limit(
        "h100",
        ("tract/resize_", "tract/onnx_resize_"),
        lambda x, w: jnp.einsum("nchw,hH->ncwH", x, w, precision="highest"),
        (
            jax.ShapeDtypeStruct((2, 3, 6, 4), "float32"),
            jax.ShapeDtypeStruct((6, 12), "float32"),
        ),
        "Couldn't find output tile sizes",
    ),
]


def unexpected(topology: str, reasons: dict[str, str]) -> dict[str, str]:
    """Return the refusals that are no limit of the compiler in plain jax."""
    return {
        name: reason
        for name, reason in reasons.items()
        if not any(limit.covers(topology, name, reason) for limit in LIMITS)
    }
