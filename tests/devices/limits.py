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
        ended: the first version of jax whose compiler has no such limit.
    """

    topology: str
    rows: tuple[str, ...]
    plain: Callable[..., Any]
    types: tuple[jax.ShapeDtypeStruct, ...]
    reason: str
    ended: tuple[int, ...] = (99,)

    def covers(self, topology: str, name: str, reason: str) -> bool:
        """Tell whether this is the reason why a row is refused."""
        is_of_row = topology == self.topology and name.startswith(self.rows)
        return is_of_row and self.reason in reason


def _pooled(window: tuple[int, ...]) -> Callable[..., Any]:
    """Return the gradient of max-pooling."""
    return jax.grad(
        lambda x: jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, window, (1,) * len(window), "VALID"
        ).sum()
    )


_ALL = [
    # The gradient of max-pooling is a select-and-scatter. TPUs have it for windows along at most
    # all axes but two.
    Limit(
        "v5e:1",
        ("nnef/max_pool_rank2",),
        _pooled((2, 2)),
        (jax.ShapeDtypeStruct((4, 5), "float32"),),
        "select-and-scatter with a window bound",
    ),
    Limit(
        "v5e:1",
        ("nnef/max_pool_batch", "tract/max_pool_no_batch"),
        _pooled((2, 1, 2, 2)),
        (jax.ShapeDtypeStruct((2, 3, 4, 5), "float32"),),
        "Select and Scatter with less than 2 inactive dims",
    ),
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
        ended=(0, 12),
    ),
    # jax.export has no 2-bit integers, and libtpu aborts: `operand.span_size > 0`.
    *(
        Limit(
            topology,
            ("test_castlike_", "test_cast_"),
            lambda x: x.astype("uint2"),
            (jax.ShapeDtypeStruct((4,), "float32"),),
            "results of 2 bits",
        )
        for topology in ("v5e:1", "h100")
    ),
]

LIMITS = [limit for limit in _ALL if jax.__version_info__ < limit.ended]


def unexpected(topology: str, reasons: dict[str, str]) -> dict[str, str]:
    """Return the refusals that are no limit of the compiler in plain jax."""
    return {
        name: reason
        for name, reason in reasons.items()
        if not any(limit.covers(topology, name, reason) for limit in LIMITS)
    }
