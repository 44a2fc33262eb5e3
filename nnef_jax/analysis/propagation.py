"""Pulls scores back through a network, operation by operation, by rules other than derivatives."""

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

# What is affine in each tensor that it reads is no curve.
_CURVES = BY_ITEM - {"add", "cast", "copy", "mul", "neg", "select", "sub"}


@dataclass(frozen=True)
class OperationStep:
    """An operation, as a function of the real tensors that it reads and that vary.

    Args:
        operation: what is computed.
        reads: the tensors that the function takes.
        writes: the tensors that it returns.
        graph: one of this operation alone, whose inputs are all that it reads.
        evaluate: computes the tensors of the graph.
    """

    operation: Operation
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    graph: Graph
    evaluate: Evaluation

    @property
    def is_curve(self) -> bool:
        """Tell whether it bends one tensor, item by item; what is a line too is none."""
        is_affine = self.operation.kind == "div" and self.operation.operands[0][1] in self.reads
        one = len(self.reads) == len(self.writes) == 1 and not is_affine
        same = one and self.reads[0].type.shape == self.writes[0].type.shape
        return same and self.operation.kind in _CURVES

    def run(self, tensors: Tensors, *reads: Array) -> list[Array]:
        """Compute the operation, of `reads` that vary and the others among `tensors`."""
        given = {**tensors, **dict(zip(self.reads, reads, strict=True))}
        inputs = [given[v] for v in self.graph.inputs]
        values = self.evaluate(self.graph, {}, {}, inputs)
        return [jnp.asarray(values[v]) for v in self.writes]

    def pull(self, tensors: Tensors, scores: Sequence[Array]) -> list[Array]:
        """Return the gradients of what it reads, given those of what it writes."""
        reads = [jnp.asarray(tensors[v]) for v in self.reads]
        _, pull = jax.vjp(lambda *xs: self.run(tensors, *xs), *reads)
        return list(pull(list(scores)))


# Makes of a step, and of what speaks for each tensor that it writes, what speaks for its reads.
Rule = Callable[[OperationStep, list[Array]], list[Array]]


def tensors_at(question: Question, x: Array) -> dict[Value, Any]:
    """Return all tensors of a network for one value of the tensor that explains."""
    graph, model, inputs = question.graph, question.model, list(question.inputs)
    explains, edits = graph.values[question.wrt], {}
    if question.position is None:
        edits = {explains: lambda _: x}
    else:
        inputs[question.position] = x
    wanted = [*_scored(question), explains]
    needed = graph.dependencies(wanted)
    labels = [p.label for p in graph.parameters if p.value in needed]
    arrays = stored(model)
    params = {label: arrays[label] for label in labels}
    return evaluation(model)(graph, params, model.init_state(*inputs), inputs, wanted, edits)


def score_of(question: Question, tensors: Tensors) -> Array:
    """Return the score of each item, given all tensors."""
    return _score(question, [tensors[v] for v in _scored(question)])


def propagated(
    question: Question, rule: Rule, start: Tensors, *, times_output: bool = False
) -> Array:
    """Return the relevance of the tensor that explains, by a rule for each operation.

    Args:
        question: what is asked.
        rule: of a step and what speaks for its results, what speaks for its operands.
        start: tensors at which the score has its gradient, where rules begin.
        times_output: begin with the products of that and the output, which add up to the score.
    """
    graph = question.graph
    explains, outputs = graph.values[question.wrt], _scored(question)
    found = jax.grad(lambda ys: _score(question, ys).sum())([start[v] for v in outputs])
    if times_output:
        found = [g * start[v] for g, v in zip(found, outputs, strict=True)]
    pulled = dict(zip(outputs, found, strict=True))
    for step in reversed(_steps(evaluation(question.model), graph, explains)):
        if pulled.keys() & step.writes:
            given = [pulled.pop(v, jnp.zeros_like(start[v])) for v in step.writes]
            for v, part in zip(step.reads, rule(step, given), strict=True):
                pulled[v] = pulled[v] + part if v in pulled else part
    return pulled.get(explains, jnp.zeros_like(start[explains]))


def _scored(question: Question) -> list[Value]:
    """Return the tensors that scores are of."""
    graph = question.graph
    named = graph.values | dict(zip(graph.output_names, graph.outputs, strict=True))
    return [named[question.output]] if question.output else list(dict.fromkeys(graph.outputs))


def _score(question: Question, arrays: Sequence[Array]) -> Array:
    if question.output:
        return question.scores(arrays[0])
    by_value = dict(zip(_scored(question), arrays, strict=True))
    outputs = [by_value[v] for v in question.graph.outputs]
    return question.scores(packed(question.model, outputs))


def _steps(evaluate: Evaluation, graph: Graph, explains: Value) -> list[OperationStep]:
    """Return the operations that the tensor reaches."""
    varies, steps = {explains}, list[OperationStep]()
    for operation in graph.operations:
        reads, writes = tuple(dict.fromkeys(operation.reads())), tuple(operation.writes())
        if varies.isdisjoint(reads):
            continue
        varies.update(writes)
        own = replace(
            graph,
            inputs=reads,
            outputs=writes,
            output_names=tuple(v.name for v in writes),
            operations=(operation,),
            parameters=(),
            states=(),
            aliases={},
        )
        real = [
            tuple(v for v in vs if v in varies and is_float(v.type.dtype)) for vs in (reads, writes)
        ]
        if all(real):
            steps.append(OperationStep(operation, real[0], real[1], own, evaluate))
    return steps
