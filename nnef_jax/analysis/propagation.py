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
        is_affine = self.operation.kind == "div" and self.operation.operands[0][1] in self.reads
        keeps_shape = self.reads[0].type.shape == self.writes[0].type.shape
        return keeps_shape and not is_affine

    def run(self, tensors: Tensors, *reads: Array) -> list[Array]:
        """Return the results for these values of `reads`.

        Other operands are taken from `tensors`.
        """
        values = {**tensors, **dict(zip(self.reads, reads, strict=True))}
        inputs = [values[v] for v in self.graph.inputs]
        results = self.evaluate(self.graph, {}, {}, inputs)
        return [jnp.asarray(results[v]) for v in self.writes]

    def pull(self, tensors: Tensors, scores: Sequence[Array]) -> list[Array]:
        """Return the gradients at `reads` from those at `writes`: the transposed derivative."""
        reads = [jnp.asarray(tensors[v]) for v in self.reads]
        _, pull = jax.vjp(lambda *xs: self.run(tensors, *xs), *reads)
        return list(pull(list(scores)))


# A function from a step and the relevances of its `writes` to the relevances of its `reads`.
Rule = Callable[[OperationStep, list[Array]], list[Array]]


def tensors_at(question: Question, x: Array) -> dict[Value, Any]:
    """Return the tensors of a network by value. `x` replaces the tensor `wrt`."""
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
    labels = [p.label for p in graph.parameters if p.value in needed]
    arrays = stored(model)
    params = {label: arrays[label] for label in labels}
    return evaluation(model)(graph, params, model.init_state(*inputs), inputs, results, edits)


def score_of(question: Question, tensors: Tensors) -> Array:
    """Return the score of each item, [batch], from the tensors of a network."""
    return _score(question, [tensors[v] for v in _scored(question)])


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
    first = jax.grad(lambda ys: _score(question, ys).sum())([start[v] for v in outputs])
    if times_output:
        first = [g * start[v] for g, v in zip(first, outputs, strict=True)]
    relevances = dict(zip(outputs, first, strict=True))
    for step in reversed(_steps(evaluation(question.model), graph, wrt)):
        if relevances.keys() & step.writes:
            of_results = [relevances.pop(v, jnp.zeros_like(start[v])) for v in step.writes]
            for v, part in zip(step.reads, rule(step, of_results), strict=True):
                relevances[v] = relevances[v] + part if v in relevances else part
    return relevances.get(wrt, jnp.zeros_like(start[wrt]))


def _scored(question: Question) -> list[Value]:
    """Return the tensors from which scores are computed: `output`, or all outputs."""
    graph = question.graph
    named = graph.values | dict(zip(graph.output_names, graph.outputs, strict=True))
    return [named[question.output]] if question.output else list(dict.fromkeys(graph.outputs))


def _score(question: Question, arrays: Sequence[Array]) -> Array:
    if question.output:
        return question.scores(arrays[0])
    by_value = dict(zip(_scored(question), arrays, strict=True))
    outputs = [by_value[v] for v in question.graph.outputs]
    return question.scores(packed(question.model, outputs))


def _steps(evaluate: Evaluation, graph: Graph, wrt: Value) -> list[OperationStep]:
    """Return the operations that depend on a tensor by floating-point operands, in order."""
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
            output_names=tuple(v.name for v in writes),
            operations=(operation,),
            parameters=(),
            states=(),
            aliases={},
        )
        real_reads = tuple(v for v in reads if v in varies and is_float(v.type.dtype))
        real_writes = tuple(v for v in writes if is_float(v.type.dtype))
        if real_reads and real_writes:
            steps.append(OperationStep(operation, real_reads, real_writes, single, evaluate))
    return steps
