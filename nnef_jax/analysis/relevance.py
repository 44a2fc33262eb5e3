"""Attribution by rules for operations: layer-wise relevance, guided gradients."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lowering.graph import Operation, Value, is_float, values_of
from lowering.ops import rules
from nnef_jax.analysis.attribution import Attribution, attributed, sums
from nnef_jax.analysis.layer_attribution import grad_cam
from nnef_jax.analysis.propagation import OperationStep, Tensors, propagated, score_of, tensors_at
from nnef_jax.analysis.question import Question, QuestionOptions, ask, require_real
from nnef_jax.calls.arguments import Input
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.options import require

_RULES = ("epsilon", "gamma", "alpha1_beta0")
_RECTIFIERS = ("relu", "clamp")
_PRODUCTS = ("mul", "matmul", "linear", "einsum", "conv", "deconv")
Chosen = tuple[tuple[str, str], ...]


def lrp(
    model: Model,
    *inputs: Input,
    rule: str | Mapping[str, str] = "epsilon",
    epsilon: float = 1e-9,
    gamma: float = 0.25,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Share out a score, layer by layer (Bach et al. 2015; Montavon et al. 2019).

    What an operation computes is shared out among its operands by what each adds to it. What bends
    a tensor item by item passes all on. The values of an item add up to its score but for `gap`,
    what biases and `epsilon` keep.

    >>> nnef_jax.analysis.lrp(model, images, rule={"conv": "gamma", "linear": "epsilon"})

    Args:
        rule: "epsilon" adds `epsilon` to what is divided by, away from 0. "gamma" adds `gamma`
            times the positive weights of a product to these, "alpha1_beta0" takes positive ones
            alone. A dict has rules by patterns of `fnmatch`, of names of tensors or kinds of
            operations: the first that fits counts, "epsilon" where none does.
        epsilon: of all rules.
        gamma: of "gamma".

    The other arguments, and errors, are those of `saliency`.
    """
    require("rule", rule, str | Mapping, "a name or a dict of names")
    named = {"*": rule} if isinstance(rule, str) else dict(rule)
    wrong = [name for name in named.values() if name not in _RULES]
    if wrong:
        raise InputError(f"rule {wrong[0]!r} is none of {', '.join(_RULES)}")
    numbers = np.array([require_real("epsilon", epsilon), require_real("gamma", gamma)])
    question = ask("lrp", model, inputs, options)
    for pattern in named:
        if not any(_fits(pattern, x) for x in question.graph.operations):
            raise InputError(f"rule: no tensor or operation has the name '{pattern}'")
    return _lrp(question, numbers, rule=tuple(named.items()))


@partial(jax.jit, static_argnames="rule")
def _lrp(question: Question, numbers: Array, *, rule: Chosen) -> Attribution:
    x = question.value()
    question, (epsilon, gamma) = question.settled(x), numbers.astype(x.dtype)
    tensors = tensors_at(question, x)

    def shares(step: OperationStep, relevances: list[Array]) -> list[Array]:
        if step.is_curve:
            return relevances
        given, kind = tensors, step.operation.kind
        chosen = next((r for pattern, r in rule if _fits(pattern, step.operation)), "epsilon")
        if chosen != "epsilon":
            all_of, positive = (1.0, gamma) if chosen == "gamma" else (0.0, 1.0)
            weights = _weights(step, tensors)
            weights = {v: all_of * w + positive * jnp.maximum(w, 0) for v, w in weights.items()}
            given = {**tensors, **weights}
        results = step.run(given, *[tensors[v] for v in step.reads])
        quotients = [
            r / (y + jnp.where(y < 0, -epsilon, epsilon))
            for r, y in zip(relevances, results, strict=True)
        ]
        factors = len(step.reads) if kind in _PRODUCTS else 1  # each has an equal share
        pulled = step.pull(given, quotients)
        return [tensors[v] * g / factors for v, g in zip(step.reads, pulled, strict=True)]

    values = propagated(question, shares, tensors, times_output=True)
    scores = score_of(question, tensors)
    return attributed(question, "relevance", values, scores, x, sums(values) - scores)


def guided_backprop(
    model: Model,
    *inputs: Input,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Compute a gradient that leaves out what speaks against a rectified unit (arXiv:1412.6806).

    >>> nnef_jax.analysis.guided_backprop(model, images).plot()

    The arguments, and errors, are those of `saliency`.
    """
    question = _rectified(ask("guided_backprop", model, inputs, options))
    return _guided(question, method="guided backpropagation")


def deconvolution(
    model: Model,
    *inputs: Input,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Rectify the gradient instead of the unit (Zeiler and Fergus 2013, arXiv:1311.2901).

    The arguments, and errors, are those of `saliency`.
    """
    question = _rectified(ask("deconvolution", model, inputs, options))
    return _guided(question, method="deconvolution")


def guided_grad_cam(
    model: Model,
    *inputs: Input,
    layer: str,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Multiply `guided_backprop` by what `grad_cam` finds at its place (arXiv:1610.02391).

    The arguments, and errors, are those of `grad_cam`.
    """
    cam = grad_cam(model, *inputs, layer=layer, **options)
    question = _rectified(ask("guided_grad_cam", model, inputs, options))
    return _guided(question, cam.values[:, None], method="guided Grad-CAM")


@partial(jax.jit, static_argnames="method")
def _guided(question: Question, factor: Array | float = 1.0, *, method: str) -> Attribution:
    x = question.value()
    question = question.settled(x)
    tensors = tensors_at(question, x)

    def rule(step: OperationStep, pulled: list[Array]) -> list[Array]:
        if step.operation.kind in _RECTIFIERS:
            pulled = [jnp.maximum(g, 0) for g in pulled]
            if method == "deconvolution":
                return pulled
        return step.pull(tensors, pulled)

    values = propagated(question, rule, tensors) * factor
    return attributed(question, method, values, score_of(question, tensors), x)


def _rectified(question: Question) -> Question:
    if not any(x.kind in _RECTIFIERS for x in question.graph.operations):
        hint = "saliency() is the gradient of any network"
        raise InputError(f"the network has no {' or '.join(_RECTIFIERS)}", hint=hint)
    question.require_derivative()
    return question


def _fits(pattern: str, operation: Operation) -> bool:
    return any(fnmatchcase(name, pattern) for name in (operation.name, operation.kind))


def _weights(step: OperationStep, tensors: Tensors) -> dict[Value, Any]:
    """Return the operands of a product that do not vary, without a bias."""
    operation = step.operation
    if (operation.rule or rules[operation.kind]).work is None:
        return {}
    found = [v for name, x in operation.operands if name != "bias" for v in values_of(x)]
    return {v: tensors[v] for v in found if v not in step.reads and is_float(v.type.dtype)}
