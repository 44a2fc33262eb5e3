"""Attribution by gradients: saliency, integrated gradients."""

from __future__ import annotations

from functools import partial
from typing import Unpack

import jax
from jax import Array, lax
from numpy.typing import ArrayLike

from nnef_jax.analysis.argument_checks import require_count
from nnef_jax.analysis.attribution import (
    Attribution,
    array_of,
    attributed,
    line_from,
    quadrature,
    require_method,
    sums,
    zeros,
)
from nnef_jax.analysis.question import Question, QuestionOptions, Target, ask
from nnef_jax.calls.arguments import Input, Params
from nnef_jax.model import Model
from nnef_jax.options import require_flags


def saliency(
    model: Model,
    *inputs: Input,
    target: Target = None,
    output: str | None = None,
    wrt: str | None = None,
    params: Params | None = None,
    times_input: bool = False,
) -> Attribution:
    """Compute the signed gradient of a score (Simonyan et al. 2013, arXiv:1312.6034).

    >>> nnef_jax.analysis.saliency(model, images, target=3).plot()

    Args:
        model: any network; a network with state runs one cycle from its initial state.
        inputs: the inputs of a call, in order, or one dict from names to inputs. The first axis of
            an input is the batch.
        target: the class whose score is explained: an integer, or an integer for each item. By
            default the target is the class with the highest score. The score is the mean of
            `output[:, target]`. The target may also be a function that returns scores [batch] from
            the outputs; each function object is compiled anew.
        output: the name of an output, or of a tensor inside the network. The default is the only
            output; if the only output is the softmax or sigmoid of logits, the default is the
            logits. The field `output` of the result has the name of the tensor. A function as
            target gets all outputs by default.
        wrt: the name of the tensor by which the score is explained: an input, or the result of an
            operation, such as the embeddings of integer ids. The default is the first
            floating-point input.
        params: a dict from labels to arrays, used instead of `model.params`. The arrays may be
            traced.
        times_input: whether the gradient is multiplied by the tensor (Shrikumar et al. 2016,
            arXiv:1605.01713).

    Raises InputError for names that the graph lacks, and for tensors without a derivative.
    """
    require_flags(times_input=times_input)
    options = {"target": target, "output": output, "wrt": wrt, "params": params}
    return _saliency(ask("saliency", model, inputs, options), times_input=times_input)


@partial(jax.jit, static_argnames="times_input")
def _saliency(question: Question, *, times_input: bool) -> Attribution:
    """Compute the gradient of the scores. If `times_input`, multiply it by the tensor `wrt`."""
    x = question.value()
    question = question.with_classes(x)
    scores, gradient = question.gradient(x)
    if times_input:
        return attributed(question, "saliency times input", gradient * x, scores=scores, x=x)
    return attributed(question, "saliency", gradient, scores=scores, x=x)


def integrated_gradients(
    model: Model,
    *inputs: Input,
    baseline: ArrayLike = 0.0,
    steps: int = 50,
    method: str = "riemann_middle",
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Integrate gradients along a line from a baseline (Sundararajan 2017, arXiv:1703.01365).

    The values of an item add up to its score minus the score of the baseline, plus `gap`, which is
    the error of the quadrature rule. Only one gradient is in memory at a time.

    >>> attribution = nnef_jax.analysis.integrated_gradients(model, images)

    Args:
        baseline: the start of the line: a number, or an array that broadcasts to the tensor `wrt`.
            If the tensor `wrt` is inside the network and depends on floating-point inputs, the
            baseline replaces these inputs.
        steps: the number of gradients.
        method: the quadrature rule: "riemann_middle", "riemann_left", "riemann_right",
            "riemann_trapezoid" (which includes both ends of the line), or "gausslegendre".

    All other arguments, and the errors, are as in `saliency`.
    """
    require_count("steps", steps)
    require_method(method)
    question = ask("integrated_gradients", model, inputs, options)
    return _integrated_gradients(question, array_of("baseline", baseline), steps, method)


@partial(jax.jit, static_argnames=("steps", "method"))
def _integrated_gradients(
    question: Question, baseline: Array, steps: int, method: str
) -> Attribution:
    """Return the mean gradient on the line from the baseline, times the change along the line.

    The mean is a weighted sum of the gradients at points of the line.
    """
    x, question, x0 = line_from(question, baseline)
    change = x - x0

    def add_gradient(total: Array, point: tuple[Array, Array]) -> tuple[Array, None]:
        share, weight = point
        _scores, gradient = question.gradient(x0 + share * change)
        return total + weight * gradient.astype(total.dtype), None

    points_and_weights = quadrature(method, steps, x)
    mean_gradient, _ = lax.scan(add_gradient, zeros(x), points_and_weights)
    values = mean_gradient * change.astype(mean_gradient.dtype)
    scores = question.scores_at(x)
    score_change = scores - question.scores_at(x0)
    gap = sums(values) - score_change.astype(values.dtype)
    return attributed(question, "integrated gradients", values, scores=scores, x=x, gap=gap)
