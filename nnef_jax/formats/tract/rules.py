"""Rules of operation kinds that only tract has: running averages, and the mask of a stream."""

from __future__ import annotations

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
    """Return the type of a running average, which is the type of the input.

    If `complex`, the input has pairs [re, im] along its last axis. Raises InvalidOperation or
    InvalidShape if the arguments do not fit each other.
    """
    if complex:
        axis = signal_axis(input, axis)
    axis = normal_axis(axis, len(input.shape))
    require.same_dtype(require.floating, input=input, state=state)
    require.not_negative(skip=skip)
    reason = f"it is 'input' {show(input.shape)} without axis {axis}"
    shape = with_extent(input.shape, axis)  # without a new extent, the axis is left out
    if complex:
        shape = shape[:-1]
        reason = f"{reason} and without the last axis"
    require.shape("state", state, shape, reason)
    return input


def _averages(x: Array, state: Array, alpha: float, skip: int) -> Array:
    """Return the running average s after each item along axis 0.

    Each item x replaces s by (1 - alpha) x + alpha s. Before the first item, s is `state`. The
    first `skip` items do not change s.
    """
    terms = x[skip:] * (1 - alpha)
    factors = jnp.full((terms.shape[0], *[1] * (x.ndim - 1)), alpha, x.dtype)

    # A pair (factor, term) stands for the step that replaces s by factor * s + term. This function
    # returns the pair for the step `second` after the step `first`.
    def composed(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
        first_factor, first_term = first
        second_factor, second_term = second
        return first_factor * second_factor, second_factor * first_term + second_term

    # For each item, the scan composes all steps from the first item to this item. The average after
    # the item then is factor * state + term.
    factors, terms = lax.associative_scan(composed, (factors, terms))
    start = jnp.asarray(state, x.dtype)[None]
    skipped_count = min(skip, x.shape[0])
    skipped = jnp.broadcast_to(start, (skipped_count, *start.shape[1:]))
    return jnp.concatenate([skipped, factors * start + terms])


@rules.rule("tract.exp_unit_norm", _average_type)
def exp_unit_norm(
    input: Array,
    state: Array,
    axis: int,
    alpha: float,
    skip: int,
    complex: bool,
    epsilon: float,
) -> Array:
    """Compute x / sqrt(s) along an axis, where s is a running average of the magnitudes of x.

    Each item x replaces s by (1 - alpha) max(|x|, epsilon) + alpha s. The first value of s is
    `state`, and the first `skip` items do not change s. If `complex`, x has pairs [re, im] along
    its last axis, and |x| is the absolute value of a pair.
    """
    x = jnp.moveaxis(widened(jnp.asarray(input)), axis, 0)
    if complex:
        squares = jnp.sum(jnp.square(x), axis=-1)
        # The derivative of sqrt is infinite at 0. This would make the derivative of the magnitudes
        # NaN even where the root is not selected.
        is_small = squares <= epsilon * epsilon
        magnitudes = jnp.where(is_small, epsilon, jnp.sqrt(jnp.where(is_small, 1.0, squares)))
    else:
        magnitudes = jnp.maximum(jnp.abs(x), epsilon)
    roots = jnp.sqrt(_averages(magnitudes, state, alpha, skip))
    if complex:
        roots = roots[..., None]
    return jnp.moveaxis(x / roots, 0, axis).astype(input.dtype)


def _mean_type(input: TensorType, state: TensorType, axis: int, skip: int) -> TensorType:
    return _average_type(input, state, axis, skip, complex=False)


@rules.rule("tract.exp_mean_norm", _mean_type)
def exp_mean_norm(
    input: Array, state: Array, axis: int, alpha: float, skip: int, scaling_factor: float
) -> Array:
    """Compute (x - s) / scaling_factor along an axis, where s is a running average of x.

    Each item x replaces s by (1 - alpha) x + alpha s. The first value of s is `state`, and the
    first `skip` items do not change s.
    """
    x = jnp.moveaxis(widened(jnp.asarray(input)), axis, 0)
    result = (x - _averages(x, state, alpha, skip)) / scaling_factor
    return jnp.moveaxis(result, 0, axis).astype(input.dtype)


def _pulse_mask_type(input: TensorType, axis: int) -> TensorType:
    """Return the type of the result, which is that of the input. Raises an error for a bad axis."""
    normal_axis(axis, len(input.shape))
    return input


@rules.rule("tract.pulse_mask", _pulse_mask_type)
def pulse_mask(
    input: Array, position: Array, axis: int, begin: int, end: int, value: float
) -> Array:
    """Return a piece of a stream in which the items before `begin`, and from `end` on, are `value`.

    `begin` and `end` are indices in the stream. `position` is the stream's index of the first item
    of `input` along `axis`.
    """
    x = jnp.asarray(input)
    offsets = lax.broadcasted_iota(position.dtype, x.shape, normal_axis(axis, x.ndim))
    indices = position + offsets  # the index of each item in the stream
    is_between = (indices >= begin) & (indices < end)
    return jnp.where(is_between, x, rounding.saturated(value, x.dtype))
