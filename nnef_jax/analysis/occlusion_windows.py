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

    The value of a position is the mean over all windows that cover it. The values are an array
    [batch, *positions]. Windows begin at each multiple of the stride, until every position is
    covered. The windows are computed one after the other.

    >>> nnef_jax.analysis.occlusion(model, images, window=(2, 2), target=3)

    Args:
        window: extents of the window along the last axes. An integer is the extent along all axes
            after batch and channel, or along the only axis after the batch. Other axes are covered
            completely.
        stride: steps between windows, by default half the window, rounded up.
        baseline: the values inside a window, as in `integrated_gradients`.

    The other arguments, and the errors, are those of `saliency`.
    """
    question = ask("occlusion", model, inputs, options)
    shape = [int(extent) for extent in question.graph.values[question.wrt].type.shape]
    windows = _extents("window", window, max(1, len(shape) - 2))
    if len(windows) >= len(shape):
        message = f"window has {len(windows)} extents, an item of '{question.wrt}' {len(shape) - 1}"
        raise InputError(message)
    if stride is None:
        stride = [ceil(extent / 2) for extent in windows]
    strides = _extents("stride", stride, len(windows))
    if len(strides) != len(windows):
        raise InputError(f"stride has {len(strides)} extents, window {len(windows)}")
    gaps = [step for step, extent in zip(strides, windows, strict=True) if step > extent]
    if gaps:
        raise InputError(f"stride {gaps[0]} is longer than the window, it would leave gaps")
    baseline = array_of("baseline", baseline)
    return _occlusion(question, baseline, windows=windows, strides=strides)


@partial(jax.jit, static_argnames=("windows", "strides"))
def _occlusion(
    question: Question, baseline: Array, *, windows: tuple[int, ...], strides: tuple[int, ...]
) -> Attribution:
    x, question, cover = line_from(question, baseline)
    extents = x.shape[x.ndim - len(windows) :]
    counts: list[int] = []  # the number of windows along each axis
    for extent, window, stride in zip(extents, windows, strides, strict=True):
        steps = ceil((extent - window) / stride)
        counts.append(max(0, steps) + 1)
    scores = question.scores_at(x)

    def add_window(carry: tuple[Array, Array], index: Array) -> tuple[tuple[Array, Array], None]:
        total, window_counts = carry
        covered = jnp.ones(extents, bool)
        for axis, window_index in enumerate(jnp.unravel_index(index, counts)):
            start = window_index * strides[axis]
            position = lax.broadcasted_iota(jnp.int32, extents, axis) - start
            covered &= (position >= 0) & (position < windows[axis])
        other_axes = x.ndim - len(extents)
        mask = covered.reshape(*[1] * other_axes, *extents)
        fall = scores - question.scores_at(jnp.where(mask, cover, x))
        fall_by_item = fall.astype(total.dtype).reshape(-1, *[1] * len(extents))
        total += jnp.where(covered[None], fall_by_item, 0)
        return (total, window_counts + covered.astype(jnp.int32)), None

    empty = jnp.zeros((x.shape[0], *extents), zeros(x).dtype), jnp.zeros(extents, jnp.int32)
    (total, window_counts), _ = lax.scan(add_window, empty, jnp.arange(int(np.prod(counts))))
    values = total / window_counts[None].astype(total.dtype)
    return attributed(question, "occlusion", values, scores, x)


def _extents(name: str, value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    extents = [value] * rank if isinstance(value, int | np.integer) else value
    require(name, extents, list | tuple, "an integer or a tuple of integers")
    return tuple([require_count(name, n) for n in extents])
