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
    """Return exp(x) divided by its sum over all the axes together, in float32 at least."""
    x = jnp.asarray(x)
    return jax.nn.softmax(widened(x), axis=axes).astype(x.dtype)


@rules.rule("log_softmax", _softmax_type)
def log_softmax(x: Array, axes: Ints) -> Array:
    """Return the logarithm of `softmax`, which is finite even where `softmax` underflows."""
    return jax.nn.log_softmax(jnp.asarray(x), axis=axes)
