"""Attribution by a backward rule for each operation: layer-wise relevance, guided gradients."""

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
from nnef_jax.analysis.argument_checks import require_real
from nnef_jax.analysis.attribution import Attribution, attributed, sums
from nnef_jax.analysis.layer_attribution import grad_cam
from nnef_jax.analysis.propagation import OperationStep, Tensors, propagated, score_of, tensors_at
from nnef_jax.analysis.question import Question, QuestionOptions, ask
from nnef_jax.calls.arguments import Input
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.options import require

_RULES = ("epsilon", "gamma", "alpha1_beta0")
_RECTIFIERS = ("relu", "clamp")
_PRODUCTS = ("mul", "matmul", "linear", "einsum", "conv", "deconv")
RuleNames = tuple[tuple[str, str], ...]  # A pair is a pattern and the name of a rule.


def lrp(
    model: Model,
    *inputs: Input,
    rule: str | Mapping[str, str] = "epsilon",
    epsilon: float = 1e-9,
    gamma: float = 0.25,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Propagate a score back as relevance, layer by layer (Bach et al. 2015; Montavon et al. 2019).

    Each operation divides the relevance of its result among its operands, in proportion to their
    contributions to the result. An elementwise nonlinearity passes all relevance to its operand.
    The values of an item add up to its score plus `gap`. The gap comes from the relevance of biases
    and from `epsilon`.

    >>> nnef_jax.analysis.lrp(model, images, rule={"conv": "gamma", "linear": "epsilon"})

    Args:
        rule: a rule for all operations, or a dict from patterns of `fnmatch` to rules. A pattern
            matches names of tensors or kinds of operations. If several patterns match an operation,
            the first of them gives the rule. If none matches, the rule is "epsilon". The rule
            "gamma" replaces the weights w of a product by w + gamma * max(w, 0). The rule
            "alpha1_beta0" replaces them by max(w, 0).
        epsilon: a number by which all rules increase the absolute value of a denominator.
        gamma: the factor of the positive part of the weights in the rule "gamma".

    All other arguments, and the errors, are as in `saliency`.
    """
    require("rule", rule, str | Mapping, "a name or a dict of names")
    by_pattern = {"*": rule} if isinstance(rule, str) else dict(rule)
    wrong = [name for name in by_pattern.values() if name not in _RULES]
    if wrong:
        raise InputError(f"rule {wrong[0]!r} is none of {', '.join(_RULES)}")
    epsilon_and_gamma = np.array([require_real("epsilon", epsilon), require_real("gamma", gamma)])
    question = ask("lrp", model, inputs, options)
    for pattern in by_pattern:
        fits_any = any(_fits(pattern, operation) for operation in question.graph.operations)
        if not fits_any:
            raise InputError(f"rule: no tensor or operation has the name '{pattern}'")
    return _lrp(question, epsilon_and_gamma, rules_by_pattern=tuple(by_pattern.items()))


@partial(jax.jit, static_argnames="rules_by_pattern")
def _lrp(
    question: Question, epsilon_and_gamma: Array, *, rules_by_pattern: RuleNames
) -> Attribution:
    """Propagate relevance back. The first pattern that matches an operation gives its rule."""
    x = question.value()
    question = question.with_classes(x)
    epsilon, gamma = epsilon_and_gamma.astype(x.dtype)
    tensors = tensors_at(question, x)

    def with_changed_weights(step: OperationStep, rule: str) -> dict[Value, Any]:
        """Return the tensors, after a rule has changed the weights of an operation."""
        changed = dict(tensors)
        if rule == "epsilon":
            return changed
        for value, weight in _weights(step, tensors).items():
            positive = jnp.maximum(weight, 0)
            if rule == "gamma":
                changed[value] = weight + gamma * positive
            else:
                # The rule is "alpha1_beta0".
                changed[value] = positive
        return changed

    def operand_relevances(step: OperationStep, relevances: list[Array]) -> list[Array]:
        """Divide the relevances of an operation's results among its operands.

        Let result = sum(w * operand), where w is the derivative of the result by an operand. The
        operand gets this share of the result's relevance: w * operand / (result + epsilon).
        """
        if step.is_curve:
            # The only operand gets all relevance of the result.
            return relevances
        operation = step.operation
        changed = with_changed_weights(step, _rule_for(operation, rules_by_pattern))
        operands = [tensors[value] for value in step.reads]
        results = step.run(changed, *operands)
        quotients: list[Array] = []
        for relevance, result in zip(relevances, results, strict=True):
            signed_epsilon = jnp.where(result < 0, -epsilon, epsilon)
            quotients.append(relevance / (result + signed_epsilon))
        # The factors of a product get equal shares of the relevance.
        factor_count = len(step.reads) if operation.kind in _PRODUCTS else 1
        gradients = step.pull(changed, quotients)
        return [
            operand * gradient / factor_count
            for operand, gradient in zip(operands, gradients, strict=True)
        ]

    values = propagated(question, operand_relevances, tensors, times_output=True)
    scores = score_of(question, tensors)
    gap = sums(values) - scores
    return attributed(question, "relevance", values, scores=scores, x=x, gap=gap)


def guided_backprop(
    model: Model,
    *inputs: Input,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Compute a gradient whose negative entries are set to 0 at each rectifier (arXiv:1412.6806).

    The rectifiers are the operations `relu` and `clamp`.

    >>> nnef_jax.analysis.guided_backprop(model, images).plot()

    The arguments, and the errors, are as in `saliency`.
    """
    question = ask("guided_backprop", model, inputs, options)
    _require_rectifier(question)
    return _guided(question, method="guided backpropagation")


def deconvolution(
    model: Model,
    *inputs: Input,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Compute a gradient by the deconvolution rule of rectifiers (Zeiler 2013, arXiv:1311.2901).

    At a rectifier such as ReLU, the backward pass sets negative entries of the gradient to 0, and
    ignores the derivative of the rectifier. The arguments, and the errors, are as in `saliency`.
    """
    question = ask("deconvolution", model, inputs, options)
    _require_rectifier(question)
    return _guided(question, method="deconvolution")


def guided_grad_cam(
    model: Model,
    *inputs: Input,
    layer: str,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Multiply `guided_backprop` by `grad_cam` of a layer, position by position (arXiv:1610.02391).

    The arguments, and the errors, are as in `grad_cam`.
    """
    cam = grad_cam(model, *inputs, layer=layer, **options)
    question = ask("guided_grad_cam", model, inputs, options)
    _require_rectifier(question)
    cam_of_channels = cam.values[:, None]  # [batch, 1, *positions]
    return _guided(question, cam_of_channels, method="guided Grad-CAM")


@partial(jax.jit, static_argnames="method")
def _guided(question: Question, factor: Array | float = 1.0, *, method: str) -> Attribution:
    """Return the gradient times a factor. A rectifier sets negative entries of the gradient to 0.

    If `method` is "deconvolution", the derivative of the rectifier is ignored.
    """
    x = question.value()
    question = question.with_classes(x)
    tensors = tensors_at(question, x)

    def rule(step: OperationStep, gradients: list[Array]) -> list[Array]:
        """Compute the gradients at an operation's operands from the gradients at its results."""
        is_rectifier = step.operation.kind in _RECTIFIERS
        if not is_rectifier:
            return step.pull(tensors, gradients)
        positive = [jnp.maximum(gradient, 0) for gradient in gradients]
        if method == "deconvolution":
            return positive
        return step.pull(tensors, positive)

    values = propagated(question, rule, tensors) * factor
    return attributed(question, method, values, scores=score_of(question, tensors), x=x)


def _require_rectifier(question: Question) -> None:
    """Raise InputError unless a question's network has a rectifier and a derivative."""
    has_rectifier = any(x.kind in _RECTIFIERS for x in question.graph.operations)
    if not has_rectifier:
        hint = "saliency() is the gradient of any network"
        raise InputError(f"the network has no {' or '.join(_RECTIFIERS)}", hint=hint)
    question.require_derivative()


def _fits(pattern: str, operation: Operation) -> bool:
    return fnmatchcase(operation.name, pattern) or fnmatchcase(operation.kind, pattern)


def _rule_for(operation: Operation, rules_by_pattern: RuleNames) -> str:
    """Return the name of an operation's rule. The first pattern that matches gives the rule."""
    for pattern, rule in rules_by_pattern:
        if _fits(pattern, operation):
            return rule
    return "epsilon"


def _weights(step: OperationStep, tensors: Tensors) -> dict[Value, Any]:
    """Return the weights of a product, in a dict from values of the graph to arrays.

    Weights are operands that do not depend on `wrt`. A bias is no weight. The dict is empty for an
    operation that is not a product.
    """
    operation = step.operation
    rule = operation.rule or rules[operation.kind]
    is_product = rule.work is not None
    weights: dict[Value, Any] = {}
    if not is_product:
        return weights
    for name, operand in operation.operands:
        if name == "bias":
            continue
        for value in values_of(operand):
            if value not in step.reads and is_float(value.type.dtype):
                weights[value] = tensors[value]
    return weights
