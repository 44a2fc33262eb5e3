"""Activation maximisation: computes inputs that excite a unit most."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from nnef_jax.analysis.argument_checks import (
    require_bounds,
    require_count,
    require_key,
    require_model,
    require_real,
)
from nnef_jax.analysis.attack import Bounds
from nnef_jax.analysis.question import Question, Target, TensorOptions, ask
from nnef_jax.calls.arguments import Input
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.results import Axes, Result, Table, result, static, table_of


@result
class Maximised(Result):
    """The inputs with the largest activations of units.

    Args:
        x: the inputs, [batch, ...].
        scores: the activation of the unit of each item, [batch].
        history: the scores before each step, [steps, batch].
        classes: the unit of each item, int32 [batch]; None if the target is a function.
        output: the name of the tensor with the units.
        of: the name of the input.
    """

    x: Array
    scores: Array
    history: Array
    classes: Array | None
    output: str = static()
    of: str = static()

    def table(self) -> Table:
        """Return a table with a row for each item: unit, score at the start and at the end."""
        count = len(self.scores)
        units: Any = [None] * count
        if self.classes is not None:
            units = np.asarray(self.classes)
        first_scores = self.history[0]
        rows = zip(range(count), units, first_scores, self.scores, strict=True)
        heads = ("item", "unit", "start", "score")
        return table_of(f"{self.of} that excites {self.output}", heads, rows)

    def plot(self, ax: Axes | None = None, *, items: int = 16) -> Axes:
        """Draw the first inputs, each on a scale from its smallest to its largest value.

        Return the axes of matplotlib.
        """
        from nnef_jax.analysis.tiles import in_rows, picture

        x = np.asarray(self.x[:items], np.float64)
        tiles = [picture(item, item.min(), item.max()) for item in x]
        titles = [f"{score:.3g}" for score in np.asarray(self.scores[:items], np.float64)]
        if self.classes is not None:
            classes = np.asarray(self.classes[:items])
            titles = [f"{class_}: {text}" for class_, text in zip(classes, titles, strict=True)]
        return in_rows(ax, tiles, titles)


def activation_maximisation(
    model: Model,
    *inputs: Input,
    target: Target,
    key: Array,
    output: str | None = None,
    bounds: Bounds | None = None,
    steps: int = 256,
    step: float = 0.05,
    l2: float = 0.0,
    total_variation: float = 0.0,
    **tensor: Unpack[TensorOptions],
) -> Maximised:
    """Maximise an activation by gradient ascent from noise (Olah 2017, doi:10.23915/distill.00007).

    All items take steps of equal length. The steps get shorter towards the end. Lengths and costs
    are relative to the range of the bounds; without bounds they are in units of the input. Equal
    keys give equal results.

    >>> nnef_jax.analysis.activation_maximisation(
    ...     model, output="conv2", target=[0, 1, 2], key=jax.random.key(0), bounds=(0, 255)).plot()

    Args:
        inputs: the start, to which a little noise is added. By default the start is noise of the
            declared shape, with an item for each target.
        target: a channel (an index along axis 1 of `output`), or a channel for each item. The mean
            of the channel is maximised. The target may also be a function that returns scores
            [batch] from the outputs, such as the activations of single units.
        key: a key of `jax.random`, for the noise.
        output: the name of an output or of a tensor inside.
        bounds: the least and the largest value of an entry. Without bounds the noise has mean 0.
        steps: the number of gradients.
        step: the root mean square of the first change of an item.
        l2: the weight of the cost |x - m|^2 / 2, where m is the middle of the bounds.
        total_variation: the weight of the sum of absolute differences of neighbours, along all axes
            after the first two.
        tensor: `wrt` and `params`, as in `saliency`.

    Raises the errors of `saliency`.
    """
    require_count("steps", steps)
    require_key(key)
    options_of_ascent = {"step": step, "l2": l2, "total_variation": total_variation}
    numbers = {name: require_real(name, value) for name, value in options_of_ascent.items()}
    ends = None if bounds is None else require_bounds(bounds)
    if target is None:
        raise InputError("target is missing", hint="give the channel to maximise by target=")
    starts = inputs or _middle_input(model, target, ends)
    options = {"target": target, "output": output, **tensor}
    question = ask("activation_maximisation", model, starts, options)
    question.require_derivative()
    return _maximised(question, key, numbers, ends, steps=steps)


@partial(jax.jit, static_argnames="steps")
def _maximised(
    question: Question, key: Array, numbers: dict[str, float], bounds: Bounds | None, *, steps: int
) -> Maximised:
    """Add noise to the start, and climb along the gradient of (scores - costs).

    `numbers` has the arguments `step`, `l2` and `total_variation` of `activation_maximisation`.
    """
    start = question.value()
    in_dtype = partial(jnp.asarray, dtype=start.dtype)
    step_length = in_dtype(numbers["step"])
    l2_weight = in_dtype(numbers["l2"])
    variation_weight = in_dtype(numbers["total_variation"])
    # `scale` is the unit of lengths and costs: the range of the bounds, or 1 without bounds.
    low, high = map(in_dtype, bounds or (-inf, inf))
    middle = (low + high) / 2 if bounds else in_dtype(0)
    scale = high - low if bounds else in_dtype(1)
    axes = tuple(range(1, start.ndim))

    def objective(x: Array) -> tuple[Array, Array]:
        """Return the sum of the scores minus the costs, and the scores."""
        scores = question.scores_at(x)
        scaled = (x - middle) / scale
        cost = l2_weight * jnp.square(scaled).sum() / 2
        for axis in range(2, x.ndim):
            variation = jnp.abs(jnp.diff(scaled, axis=axis)).sum()
            cost += variation_weight * variation
        return scores.sum() - cost, scores

    def climb(x: Array, decay: Array) -> tuple[Array, Array]:
        """Return the tensor after a step, and the scores before the step."""
        gradient, scores = jax.grad(objective, has_aux=True)(x)
        root_mean_square = jnp.sqrt(jnp.square(gradient).mean(axes, keepdims=True))
        direction = gradient / jnp.where(root_mean_square > 0, root_mean_square, 1)
        moved = x + step_length * decay * scale * direction
        return jnp.clip(moved, low, high), scores

    noise = step_length * scale * jax.random.normal(key, start.shape, start.dtype)
    noisy_start = jnp.clip(start + noise, low, high)
    # The length of a step falls linearly: for 4 steps, the factors are 1, 0.75, 0.5 and 0.25.
    decays = (1 - jnp.arange(steps, dtype=jnp.float32) / steps).astype(start.dtype)
    x, history = lax.scan(climb, noisy_start, decays)
    return Maximised(
        x=x,
        scores=question.scores_at(x),
        history=history,
        classes=question.classes,
        output=question.output or "outputs",
        of=question.wrt,
    )


def _middle_input(model: Model, target: Target, bounds: Bounds | None) -> tuple[Any, ...]:
    """Return a tuple of one input, filled with the middle of the bounds.

    The input has the declared shape. If its batch is open, it has an item for each target.
    """
    require_model(model)
    names = [spec.name for spec in model.inputs]
    if len(names) != 1:
        message = f"the network has inputs {', '.join(names)}, one alone has a default"
        raise InputError(message, hint="give them all; the input `wrt` is the start")
    (spec,) = model.inputs
    batch = 1
    if target is not None and not callable(target):
        batch = max(1, int(np.size(target)))
    declared_batch, *item_shape = spec.shape or (None,)
    extents = [extent for extent in item_shape if extent is not None]
    has_open_extents = len(extents) < len(item_shape)
    if has_open_extents:
        raise InputError(f"the shape of input '{spec}' is open", hint="give an input to start from")
    low, high = bounds or (0, 0)
    middle = (low + high) / 2
    shape = (declared_batch or batch, *extents)
    return (np.full(shape, middle, np.float32),)
