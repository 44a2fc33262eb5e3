"""Rules of the kinds that tract alone has: running averages, and the mask of a stream."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering import rounding, signal_axis, widened
from lowering.extents import show, with_extent
from lowering.graph import TensorType
from lowering.ops import require, rules
from lowering.ops.require import normal_axis


def _average_type(
    input: TensorType, state: TensorType, axis: int, skip: int, complex: bool
) -> TensorType:
    if complex:
        axis = signal_axis(input, axis)
    axis = normal_axis(axis, len(input.shape))
    require.same_dtype(require.real, input=input, state=state)
    require.not_negative(skip=skip)
    why = f"it is 'input' {show(input.shape)} without axis {axis}"
    wanted = with_extent(input.shape, axis)
    if complex:
        why, wanted = f"{why} and without the last one", wanted[:-1]
    require.shape("state", state, wanted, why)
    return input


def _averages(x: Array, state: Any, alpha: float, skip: int) -> Array:
    """Return s <- (1 - alpha) x + alpha s along the first axis, s unchanged for `skip` items."""
    items = x[skip:] * (1 - alpha)
    decays = jnp.full((items.shape[0],) + (1,) * (x.ndim - 1), alpha, x.dtype)

    def after(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
        return first[0] * second[0], second[0] * first[1] + second[1]

    decays, sums = lax.associative_scan(after, (decays, items))
    start = jnp.asarray(state, x.dtype)[None]
    idle = jnp.broadcast_to(start, (min(skip, x.shape[0]), *start.shape[1:]))
    return jnp.concatenate([idle, decays * start + sums])


@rules.rule("tract.exp_unit_norm", _average_type)
def exp_unit_norm(
    input: Any, state: Any, axis: int, alpha: float, skip: int, complex: bool, epsilon: float
) -> Array:
    """Return x / sqrt(s) along the axis, where s <- (1 - alpha) max(|x|, epsilon) + alpha s.

    s begins with the state; `skip` items leave it. If `complex` |x| is that of pairs [re,im].
    """
    x = jnp.moveaxis(widened(jnp.asarray(input)), axis, 0)
    if complex:
        squares = jnp.sum(jnp.square(x), axis=-1)
        # sqrt has no finite derivative at 0, not even where it is not selected.
        small = squares <= epsilon * epsilon
        sizes = jnp.where(small, epsilon, jnp.sqrt(jnp.where(small, 1.0, squares)))
    else:
        sizes = jnp.maximum(jnp.abs(x), epsilon)
    roots = jnp.sqrt(_averages(sizes, state, alpha, skip))
    result = x / (roots[..., None] if complex else roots)
    return jnp.moveaxis(result, 0, axis).astype(input.dtype)


def _mean_type(input: TensorType, state: TensorType, axis: int, skip: int) -> TensorType:
    return _average_type(input, state, axis, skip, complex=False)


@rules.rule("tract.exp_mean_norm", _mean_type)
def exp_mean_norm(
    input: Any, state: Any, axis: int, alpha: float, skip: int, scaling_factor: float
) -> Array:
    """Return (x - s) / scaling_factor; s averages x itself, as in `exp_unit_norm`."""
    x = jnp.moveaxis(widened(jnp.asarray(input)), axis, 0)
    result = (x - _averages(x, state, alpha, skip)) / scaling_factor
    return jnp.moveaxis(result, 0, axis).astype(input.dtype)


def _pulse_mask_type(input: TensorType, axis: int) -> TensorType:
    normal_axis(axis, len(input.shape))
    return input


@rules.rule("tract.pulse_mask", _pulse_mask_type)
def pulse_mask(input: Any, position: Any, axis: int, begin: int, end: int, value: float) -> Array:
    """Return the input in begin ... end - 1 of the stream, from `position` on, else the value."""
    x = jnp.asarray(input)
    places = position + lax.broadcasted_iota(position.dtype, x.shape, normal_axis(axis, x.ndim))
    return jnp.where((places >= begin) & (places < end), x, rounding.saturated(value, x.dtype))
