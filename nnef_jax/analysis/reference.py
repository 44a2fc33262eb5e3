"""Attribution by differences from a reference: DeepLift."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax import Array, lax
from numpy.typing import ArrayLike

from lowering.extents import show
from nnef_jax.analysis.attribution import Attribution, array_of, attributed, sums, zeros
from nnef_jax.analysis.propagation import (
    OperationStep,
    Rule,
    Tensors,
    propagated,
    score_of,
    tensors_at,
)
from nnef_jax.analysis.question import Question, QuestionOptions, ask
from nnef_jax.calls.arguments import Input
from nnef_jax.errors import InputError
from nnef_jax.model import Model

_SMALLEST_DIVISOR = 1e-10  # No number is divided by a difference below this limit.
_EXTREMES = {
    **dict.fromkeys(("max", "max_pool", "max_reduce", "adaptive_max_pool"), jnp.maximum),
    **dict.fromkeys(("min", "min_reduce"), jnp.minimum),
}


def deep_lift(
    model: Model,
    *inputs: Input,
    baseline: ArrayLike = 0.0,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Attribute the change of a score from a baseline (Shrikumar et al. 2017, arXiv:1704.02685).

    Each operation multiplies the attributions by a multiplier. For a nonlinear function of one
    tensor, the multiplier is the change of the result divided by the change of the operand (the
    rescale rule). In a product of two tensors x and y, the multiplier of x is the mean of y at the
    baseline and y at the item. A maximum passes its change to the positions of the maxima at the
    baseline and at the item. The values of an item add up to the change of its score plus `gap`. If
    the network has other nonlinear operations, `gap` is not 0.

    >>> attribution = nnef_jax.analysis.deep_lift(model, images)

    Args:
        baseline: the reference, as in `integrated_gradients`.

    All other arguments, and the errors, are as in `saliency`.
    """
    question = ask("deep_lift", model, inputs, options)
    single_baseline = array_of("baseline", baseline)[None]
    return _deep_lift(question, single_baseline, "DeepLift")


def deep_lift_shap(
    model: Model,
    *inputs: Input,
    baselines: ArrayLike,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Average DeepLift over baselines (Lundberg and Lee 2017, arXiv:1705.07874).

    >>> attribution = nnef_jax.analysis.deep_lift_shap(model, images, baselines=images[:10])

    Args:
        baselines: an array whose first axis counts baselines. Each baseline is used for all items.

    All other arguments, and the errors, are as in `saliency`.
    """
    question = ask("deep_lift_shap", model, inputs, options)
    return _deep_lift(question, several("baselines", baselines), "DeepLift SHAP")


def several(name: str, value: object) -> Any:
    """Return an argument as an array with one item or more along axis 0.

    `name` is the name of the argument in errors. Raises InputError if the argument is a single
    number, or has no item.
    """
    array = array_of(name, value)
    if not array.ndim or not len(array):
        message = f"{name} is {show(array.shape)}, it needs a first axis with an item or more"
        raise InputError(message)
    return array


@partial(jax.jit, static_argnames="method")
def _deep_lift(question: Question, baselines: Array, method: str) -> Attribution:
    """Return the mean of DeepLift's attributions over baselines.

    `baselines` is an array [baseline, ...].
    """
    x = question.value()
    question = question.with_classes(x)
    values = tensors_at(question, x)
    scores = score_of(question, values)

    def add_baseline(
        state: tuple[Array, Array], baseline: Array
    ) -> tuple[tuple[Array, Array], None]:
        """Add the attributions and the scores for one baseline to the sums in `state`."""
        total, total_scores = state
        x0 = question.value_at_baseline(baseline)
        start = tensors_at(question, x0)
        middle = {value: _mean(values[value], start[value]) for value in values}
        rule = _rescaled(values, start, middle)
        multipliers = propagated(question, rule, middle)
        attributions = multipliers * (x - x0)
        start_scores = score_of(question, start)
        total += attributions.astype(total.dtype)
        total_scores += start_scores.astype(total_scores.dtype)
        return (total, total_scores), None

    initial_state = (zeros(x), zeros(scores))
    (total, total_start_scores), _ = lax.scan(add_baseline, initial_state, baselines)
    mean = total / len(baselines)
    mean_start_scores = total_start_scores / len(baselines)
    score_change = scores.astype(mean_start_scores.dtype) - mean_start_scores
    gap = sums(mean) - score_change
    return attributed(question, method, mean, scores=scores, x=x, gap=gap)


def _mean(a: Array, b: Array) -> Array:
    """Return the mean of two tensors, or the first tensor if they are not floating-point."""
    return (a + b) / 2 if jnp.issubdtype(a.dtype, jnp.floating) else a


def _rescaled(values: Tensors, start: Tensors, middle: Tensors) -> Rule:
    """Return DeepLift's rule, which compares the tensors at the item and at the baseline.

    The attribution of a tensor is its multiplier times its change from the baseline to the item.

    Args:
        values: the tensors at the item.
        start: the tensors at the baseline.
        middle: the means of `values` and `start`.
    """

    def rule(step: OperationStep, result_multipliers: list[Array]) -> list[Array]:
        """Compute the multipliers of a step's operands from the multipliers of its results."""
        extreme = _EXTREMES.get(step.operation.kind)
        if not step.is_curve and extreme is None:
            # The function is affine in each of its operands, as a product of two tensors is. The
            # derivative is taken at `middle`, between baseline and item. This derivative multiplied
            # by the changes of the operands is exactly the change of the result.
            return step.pull(middle, result_multipliers)
        multiplier = result_multipliers[0]
        if extreme is None or step.is_curve:
            # The only operand gets the same attribution as the result.
            result = step.writes[0]
            attributions = [multiplier * (values[result] - start[result])]
        else:
            attributions = _extreme_attributions(step, values, start, extreme, multiplier)
        # If an operand hardly changes, its multiplier is the derivative, and not a quotient.
        derivatives = step.pull(values, result_multipliers)
        multipliers: list[Array] = []
        for operand, attribution, derivative in zip(
            step.reads, attributions, derivatives, strict=True
        ):
            change = values[operand] - start[operand]
            is_small = jnp.abs(change) < _SMALLEST_DIVISOR
            quotient = attribution / jnp.where(is_small, 1, change)
            multipliers.append(jnp.where(is_small, derivative, quotient))
        return multipliers

    return rule


def _extreme_attributions(
    step: OperationStep,
    values: Tensors,
    start: Tensors,
    extreme: Callable[[Array, Array], Array],
    multiplier: Array,
) -> list[Array]:
    """Return the attributions of the operands of a maximum or minimum.

    The result changes from y0 at the baseline to y at the item. For a maximum, this change is
    divided into two changes: from y0 to max(y0, y), and from max(y0, y) to y. A minimum is
    analogous.

    Args:
        step: the maximum or minimum.
        values: the tensors at the item.
        start: the tensors at the baseline.
        extreme: `jnp.maximum` or `jnp.minimum`.
        multiplier: the multiplier of the result.
    """
    result = step.writes[0]
    y = values[result]
    y0 = start[result]
    extreme_of_both = extreme(y, y0)
    at_values = step.pull(values, [multiplier * (extreme_of_both - y0)])
    at_start = step.pull(start, [multiplier * (y - extreme_of_both)])
    return [a + b for a, b in zip(at_values, at_start, strict=True)]
