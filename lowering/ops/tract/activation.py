"""Activation functions of registry tract_core: finite value and gradient for finite inputs."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation
from lowering.graph import TensorType
from lowering.kernels.broadcast import align, broadcast_shapes
from lowering.kernels.precision import wide_dtype, widened
from lowering.ops import rules
from lowering.ops.tract.elementwise import clamp
from lowering.ops.typing import require_real, require_same_dtype

rules.rule("tract_core_silu", rules["silu"].infer)(rules["silu"].lower)


def _unary_type(x: TensorType) -> TensorType:
    require_real(x=x)
    return x


@rules.rule("tract_core_erf", _unary_type)
def erf(x: Any) -> Array:
    """The error function: 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    return lax.erf(jnp.asarray(x))


@rules.rule("tract_core_hard_swish", _unary_type)
def hard_swish(x: Any) -> Array:
    """x * min(max(x + 3, 0), 6) / 6 (ONNX HardSwish); the derivative at -3 and 3 is the inner one.

    So it is in PyTorch.
    """
    x = jnp.asarray(x)
    return x * jnp.where(x < -3, 0.0, jnp.where(x > 3, 1.0, (x + 3) / 6))


def _gelu_type(input: TensorType, fast_impl: bool) -> TensorType:
    require_real(input=input)
    return input


@rules.rule("tract_core_gelu_approx", _gelu_type)
def gelu_approx(input: Any, fast_impl: bool) -> Array:
    """x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3))) / 2 (Hendrycks and Gimpel 2016).

    `fast_impl` has x^2 in the place of x^3, which is another function.
    """
    x = jnp.asarray(input)
    wide = widened(x)
    inner = wide + 0.044715 * lax.integer_pow(wide, 2 if fast_impl else 3)
    # (1 + tanh(u)) / 2 is the logistic function of 2u, which keeps its digits where it is small.
    return (wide * lax.logistic(math.sqrt(8 / math.pi) * inner)).astype(x.dtype)


def _swiglu_type(gate: TensorType, up: TensorType, alpha: float, limit: float) -> TensorType:
    require_real(gate=gate, up=up)
    require_same_dtype(gate=gate, up=up)
    if limit <= 0:
        raise InvalidOperation(f"'limit' must be positive, it is {limit}")
    return TensorType(broadcast_shapes(gate.shape, up.shape), wide_dtype(gate, up).name)


@rules.rule("tract_core_clamped_swiglu", _swiglu_type)
def clamped_swiglu(gate: Any, up: Any, alpha: float, limit: float) -> Array:
    """gate * sigmoid(alpha * gate) * (up + 1), as gpt-oss has it, with at least 32 bits.

    The gate is at most `limit` before that, and `up` between -limit and limit.
    """
    gate, up = (widened(jnp.asarray(x)) for x in align(gate, up))
    gate = clamp(gate, -jnp.inf, limit)
    up = clamp(up, -limit, limit)
    return gate * lax.logistic(alpha * gate) * (up + 1)
