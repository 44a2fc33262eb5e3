"""Softmax over axes, and its logarithm."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from lowering.extents import Ints
from lowering.graph import TensorType
from lowering.kernels.precision import widened
from lowering.ops import require, rules


def _softmax_type(x: TensorType, axes: Ints) -> TensorType:
    require.floating(x=x)
    require.axes(axes, len(x.shape))
    return x


@rules.rule("softmax", _softmax_type)
def softmax(x: Array, axes: Ints) -> Array:
    """Return exp(x) divided by the sum of exp(x) over all the axes together.

    The result is computed in float32 or a wider dtype, and has the dtype of x.
    """
    x = jnp.asarray(x)
    return jax.nn.softmax(widened(x), axis=axes).astype(x.dtype)


@rules.rule("log_softmax", _softmax_type)
def log_softmax(x: Array, axes: Ints) -> Array:
    """Return the logarithm of the softmax of x, which is finite even where the softmax underflows.

    The softmax is over all the axes together.
    """
    return jax.nn.log_softmax(jnp.asarray(x), axis=axes)
