"""Attribution by covering parts of an input."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from nnef_jax.analysis.argument_checks import require_count
from nnef_jax.analysis.attribution import Attribution, array_of, attributed, line_from, zeros
from nnef_jax.analysis.question import Question, QuestionOptions, ask
from nnef_jax.calls.arguments import Input
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.options import require


def occlusion(
    model: Model,
    *inputs: Input,
    window: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    baseline: ArrayLike = 0.0,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Compute how much a score falls if a window is covered (Zeiler 2013, arXiv:1311.2901).

    The value of a position is the mean over all windows that cover the position. The values are an
    array [batch, *positions]. Windows begin at each multiple of the stride, until every position is
    covered. The windows are computed one after the other.

    >>> nnef_jax.analysis.occlusion(model, images, window=(2, 2), target=3)

    Args:
        window: extents of the window along the last axes. An integer is the extent along all axes
            after batch and channel, or along the only axis after the batch. Other axes are covered
            completely.
        stride: steps between windows, by default half the window, rounded up.
        baseline: the values inside a window, as in `integrated_gradients`.

    All other arguments, and the errors, are as in `saliency`.
    """
    question = ask("occlusion", model, inputs, options)
    shape = [int(extent) for extent in question.graph.values[question.wrt].type.shape]
    axes_after_channels = max(1, len(shape) - 2)
    windows = _extents("window", window, axes_after_channels)
    if len(windows) >= len(shape):
        message = f"window has {len(windows)} extents, an item of '{question.wrt}' {len(shape) - 1}"
        raise InputError(message)
    if stride is None:
        stride = [ceil(extent / 2) for extent in windows]
    strides = _extents("stride", stride, len(windows))
    if len(strides) != len(windows):
        raise InputError(f"stride has {len(strides)} extents, window {len(windows)}")
    long_strides = [step for step, extent in zip(strides, windows, strict=True) if step > extent]
    if long_strides:
        message = f"stride {long_strides[0]} is longer than the window, it would leave gaps"
        raise InputError(message)
    baseline = array_of("baseline", baseline)
    return _occlusion(question, baseline, windows=windows, strides=strides)


@partial(jax.jit, static_argnames=("windows", "strides"))
def _occlusion(
    question: Question, baseline: Array, *, windows: tuple[int, ...], strides: tuple[int, ...]
) -> Attribution:
    """Return, for each position, the mean fall of the score over the windows that cover it.

    `windows` and `strides` have a number for each of the last axes, the axes of positions.
    """
    x, question, cover = line_from(question, baseline)
    extents = x.shape[x.ndim - len(windows) :]
    # This is the number of windows along each axis.
    window_counts: list[int] = []
    for extent, window, stride in zip(extents, windows, strides, strict=True):
        strides_to_end = ceil((extent - window) / stride)
        window_counts.append(max(0, strides_to_end) + 1)
    scores = question.scores_at(x)

    def add_window(state: tuple[Array, Array], index: Array) -> tuple[tuple[Array, Array], None]:
        """Cover a window, and add the fall of the score to all positions inside the window."""
        total_falls, cover_counts = state
        # Windows are numbered row by row. If there are 2 windows along axis 0, and 3 along axis 1,
        # window 5 has the index 1 along axis 0, and the index 2 along axis 1.
        indices_of_axes = jnp.unravel_index(index, window_counts)
        starts = [i * stride for i, stride in zip(indices_of_axes, strides, strict=True)]
        is_covered = _is_inside(extents, starts, windows)
        axes_before_positions = [1] * (x.ndim - len(extents))
        mask = is_covered.reshape(*axes_before_positions, *extents)
        fall = scores - question.scores_at(jnp.where(mask, cover, x))
        fall_by_item = fall.astype(total_falls.dtype).reshape(-1, *[1] * len(extents))
        total_falls += jnp.where(is_covered[None], fall_by_item, 0)  # [batch, *positions]
        return (total_falls, cover_counts + is_covered.astype(jnp.int32)), None

    no_falls = jnp.zeros((x.shape[0], *extents), zeros(x).dtype)
    no_windows = jnp.zeros(extents, jnp.int32)
    window_indices = jnp.arange(int(np.prod(window_counts)))
    (total_falls, cover_counts), _ = lax.scan(add_window, (no_falls, no_windows), window_indices)
    values = total_falls / cover_counts[None].astype(total_falls.dtype)
    return attributed(question, "occlusion", values, scores=scores, x=x)


def _is_inside(
    extents: tuple[int, ...], starts: Sequence[Array], windows: tuple[int, ...]
) -> Array:
    """Return the mask of the positions inside a window, bool [*positions].

    Args:
        extents: the number of positions along each axis.
        starts: the first position of the window along each axis.
        windows: the extent of the window along each axis.
    """
    is_inside = jnp.ones(extents, bool)
    for axis, start in enumerate(starts):
        offset = lax.broadcasted_iota(jnp.int32, extents, axis) - start
        is_inside &= (offset >= 0) & (offset < windows[axis])
    return is_inside


def _extents(name: str, value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Return an argument as a tuple of extents, one for each axis.

    An integer 3 becomes (3, 3) for `rank` = 2. `name` is the name of the argument in errors.
    """
    extents = [value] * rank if isinstance(value, int | np.integer) else value
    require(name, extents, list | tuple, "an integer or a tuple of integers")
    return tuple([require_count(name, extent) for extent in extents])
