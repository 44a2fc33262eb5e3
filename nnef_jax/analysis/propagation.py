"""Propagates scores back through a network by rules for operations, instead of derivatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from lowering.graph import Graph, Operation, Value, is_float
from lowering.ops import BY_ITEM
from nnef_jax.analysis.question import Question
from nnef_jax.workings import Evaluation, evaluation, packed, stored

Tensors = Mapping[Value, Any]

# Elementwise operations that are not affine in an operand.
_CURVES = BY_ITEM - {"add", "cast", "copy", "mul", "neg", "select", "sub"}


@dataclass(frozen=True)
class OperationStep:
    """An operation as a function of its floating-point operands that depend on the tensor `wrt`.

    Args:
        operation: the operation.
        reads: the operands that the function takes.
        writes: the floating-point results that the function returns.
        graph: a graph of this single operation, whose inputs are all of its operands.
        evaluate: a function that computes the tensors of a graph.
    """

    operation: Operation
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    graph: Graph
    evaluate: Evaluation

    @property
    def is_curve(self) -> bool:
        """Tell whether the operation is a nonlinear elementwise function of one operand."""
        is_unary = len(self.reads) == len(self.writes) == 1
        if self.operation.kind not in _CURVES or not is_unary:
            return False
        # A division is affine in its numerator.
        _, first_operand = self.operation.operands[0]
        is_affine = self.operation.kind == "div" and first_operand in self.reads
        keeps_shape = self.reads[0].type.shape == self.writes[0].type.shape
        return keeps_shape and not is_affine

    def run(self, tensors: Tensors, *reads: Array) -> list[Array]:
        """Return the results of the operation for the values `reads` of its operands.

        Operands that are not in the field `reads` are taken from `tensors`.
        """
        values = {**tensors, **dict(zip(self.reads, reads, strict=True))}
        inputs = [values[value] for value in self.graph.inputs]
        results = self.evaluate(self.graph, {}, {}, inputs)
        return [jnp.asarray(results[value]) for value in self.writes]

    def pull(self, tensors: Tensors, scores: Sequence[Array]) -> list[Array]:
        """Return the gradients at the operands `reads` from gradients at the results `writes`.

        This multiplies `scores`, the gradients at the results, by the transposed derivative.
        """
        reads = [jnp.asarray(tensors[value]) for value in self.reads]
        _, pull = jax.vjp(lambda *xs: self.run(tensors, *xs), *reads)
        return list(pull(list(scores)))


# A function from a step and the relevances of its `writes` to the relevances of its `reads`.
Rule = Callable[[OperationStep, list[Array]], list[Array]]


def tensors_at(question: Question, x: Array) -> dict[Value, Any]:
    """Return the tensors of a network by value, computed with `x` as the tensor `wrt`."""
    graph = question.graph
    model = question.model
    wrt = graph.values[question.wrt]
    inputs = list(question.inputs)
    edits: dict[Value, Callable[[Any], Any]] = {}
    if question.position is None:
        edits[wrt] = lambda _: x
    else:
        inputs[question.position] = x
    results = [*_scored(question), wrt]
    needed = graph.dependencies(results)
    labels = [parameter.label for parameter in graph.parameters if parameter.value in needed]
    arrays = stored(model)
    params = {label: arrays[label] for label in labels}
    return evaluation(model)(graph, params, model.init_state(*inputs), inputs, results, edits)


def score_of(question: Question, tensors: Tensors) -> Array:
    """Return the score of each item, [batch], from the tensors of a network."""
    return _score(question, [tensors[value] for value in _scored(question)])


def propagated(
    question: Question, rule: Rule, start: Tensors, *, times_output: bool = False
) -> Array:
    """Return the relevance of the tensor `wrt`, propagated back by a rule for each operation.

    Args:
        question: the question.
        rule: a function that returns the relevances of the operands of a step, from the relevances
            of its results.
        start: the tensors at which the gradient of the score is taken. This gradient gives the
            first relevances.
        times_output: whether this gradient is multiplied by the outputs, so that relevances add up
            to the score.
    """
    graph = question.graph
    wrt = graph.values[question.wrt]
    outputs = _scored(question)
    arrays = [start[value] for value in outputs]
    gradients = jax.grad(lambda arrays: _score(question, arrays).sum())(arrays)
    if times_output:
        gradients = [gradient * x for gradient, x in zip(gradients, arrays, strict=True)]
    relevances = dict(zip(outputs, gradients, strict=True))
    for step in reversed(_steps(evaluation(question.model), graph, wrt)):
        has_relevance = any(value in relevances for value in step.writes)
        if not has_relevance:
            continue
        of_results = [relevances.pop(value, jnp.zeros_like(start[value])) for value in step.writes]
        of_operands = rule(step, of_results)
        for value, relevance in zip(step.reads, of_operands, strict=True):
            earlier = relevances.get(value)
            relevances[value] = relevance if earlier is None else earlier + relevance
    return relevances.get(wrt, jnp.zeros_like(start[wrt]))


def _scored(question: Question) -> list[Value]:
    """Return the tensors from which scores are computed: the tensor `output`, or all outputs."""
    graph = question.graph
    named = graph.values | dict(zip(graph.output_names, graph.outputs, strict=True))
    return [named[question.output]] if question.output else list(dict.fromkeys(graph.outputs))


def _score(question: Question, arrays: Sequence[Array]) -> Array:
    if question.output:
        return question.scores(arrays[0])
    by_value = dict(zip(_scored(question), arrays, strict=True))
    outputs = [by_value[value] for value in question.graph.outputs]
    return question.scores(packed(question.model, outputs))


def _steps(evaluate: Evaluation, graph: Graph, wrt: Value) -> list[OperationStep]:
    """Return a step for each operation that depends on a tensor by floating-point operands.

    The steps are in order of computation. `wrt` is the tensor, and `evaluate` computes the tensors
    of a graph.
    """
    varies = {wrt}
    steps: list[OperationStep] = []
    for operation in graph.operations:
        reads = tuple(dict.fromkeys(operation.reads()))
        writes = tuple(operation.writes())
        if varies.isdisjoint(reads):
            continue
        varies.update(writes)
        single = replace(
            graph,
            inputs=reads,
            outputs=writes,
            output_names=tuple(value.name for value in writes),
            operations=(operation,),
            parameters=(),
            states=(),
            aliases={},
        )
        real_reads = tuple(
            value for value in reads if value in varies and is_float(value.type.dtype)
        )
        real_writes = tuple(value for value in writes if is_float(value.type.dtype))
        if real_reads and real_writes:
            steps.append(OperationStep(operation, real_reads, real_writes, single, evaluate))
    return steps
