"""The compiler's options for what is optimised."""

from __future__ import annotations

from functools import cache

import jax

# XLA's other library for products and convolutions, YNNPACK, runs many of them on one thread. On
# two cores networks take, in its place, Eigen's time times 1.3 (MobileNetV2, ResNet-50, U-Net), 1.5
# (ResNet-18), 1.05 (transformers, LSTM).
_CPU = {"xla_cpu_experimental_ynn_fusion_type": ""}


# YNNPACK starts faster: of 100 products of 8x8 items it computes 8 rows in 0.20 ms, Eigen in 0.30.
_TINY = 256 << 10  # bytes of parameters


def compiler_options(parameters: int) -> dict[str, str]:
    """Options for CPUs as `jax.jit` takes them, for a network with so many bytes of parameters.

    There are none where this jaxlib does not know them.
    """
    return _CPU if parameters >= _TINY and _is_known() else {}


@cache
def _is_known() -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=_CPU).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
