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

# Kinds of elementwise operations that are nonlinear in an operand. For example, a division is
# nonlinear in its denominator.
_CURVES = BY_ITEM - {"add", "cast", "copy", "mul", "neg", "select", "sub"}


@dataclass(frozen=True)
class OperationStep:
    """An operation as a function of its floating-point operands that depend on the tensor `wrt`.

    Args:
        operation: the operation.
        reads: the operands that the function takes.
        writes: the floating-point results that the function returns.
        graph: a graph with this single operation. All operands are inputs of the graph.
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
        if self.operation.kind not in _CURVES:
            return False
        is_unary = len(self.reads) == 1 and len(self.writes) == 1
        if not is_unary:
            return False
        _, first_operand = self.operation.operands[0]
        is_affine_division = self.operation.kind == "div" and first_operand in self.reads
        if is_affine_division:
            # A division is affine in its numerator. As a function of the numerator, it is no curve.
            return False
        (operand,) = self.reads
        (result,) = self.writes
        return operand.type.shape == result.type.shape

    def run(self, tensors: Tensors, *reads: Array) -> list[Array]:
        """Return the results of the operation.

        The values of the operands in `self.reads` are the arguments `reads`. All other operands are
        taken from `tensors`.
        """
        values = dict(tensors)
        values.update(zip(self.reads, reads, strict=True))
        inputs = [values[value] for value in self.graph.inputs]
        # The operands are inputs of the graph, which has neither parameters nor states.
        params: dict[str, Any] = {}
        state: dict[str, Any] = {}
        results = self.evaluate(self.graph, params, state, inputs)
        return [jnp.asarray(results[value]) for value in self.writes]

    def pull(self, tensors: Tensors, gradients: Sequence[Array]) -> list[Array]:
        """Return the gradients at the operands in `self.reads`.

        `gradients` are the gradients at the results in `self.writes`. The derivative of the
        operation is taken at `tensors`.
        """
        operands = [jnp.asarray(tensors[value]) for value in self.reads]
        _results, pull_back = jax.vjp(lambda *values: self.run(tensors, *values), *operands)
        return list(pull_back(list(gradients)))


# A rule takes a step and the relevances of its `writes`, and returns the relevances of its `reads`.
Rule = Callable[[OperationStep, list[Array]], list[Array]]


def tensors_at(question: Question, x: Array) -> dict[Value, Any]:
    """Return a dict from values of the graph to tensors, computed with `x` as the tensor `wrt`."""
    graph = question.graph
    model = question.model
    wrt = graph.values[question.wrt]
    inputs = list(question.inputs)
    edits: dict[Value, Callable[[Any], Any]] = {}
    if question.input_position is None:
        edits[wrt] = lambda _: x
    else:
        inputs[question.input_position] = x
    results = [*_scored(question), wrt]
    needed = graph.dependencies(results)
    arrays = stored(model)
    params: dict[str, Any] = {}
    for parameter in graph.parameters:
        if parameter.value in needed:
            params[parameter.label] = arrays[parameter.label]
    evaluate = evaluation(model)
    return evaluate(graph, params, model.init_state(*inputs), inputs, results, edits)


def score_of(question: Question, tensors: Tensors) -> Array:
    """Return the score of each item, [batch], from the tensors of a network."""
    return _score(question, [tensors[value] for value in _scored(question)])


def propagated(
    question: Question, rule: Rule, tensors: Tensors, *, times_output: bool = False
) -> Array:
    """Propagate relevance from the outputs back to the tensor `wrt`. Return that relevance.

    Args:
        question: the question.
        rule: a function that propagates relevance through one operation. Its arguments are a step
            and the relevances of the results. It returns the relevances of the operands.
        tensors: the tensors of the network. The relevances of the outputs are the gradient of the
            score at these tensors.
        times_output: whether this gradient is multiplied by the outputs. The relevances then add up
            to the score.
    """
    graph = question.graph
    wrt = graph.values[question.wrt]
    outputs = _scored(question)
    arrays = [tensors[value] for value in outputs]

    def total_score(arrays: list[Array]) -> Array:
        return _score(question, arrays).sum()

    output_relevances = jax.grad(total_score)(arrays)
    if times_output:
        output_relevances = [
            gradient * x for gradient, x in zip(output_relevances, arrays, strict=True)
        ]
    relevances = dict(zip(outputs, output_relevances, strict=True))
    for step in reversed(_steps(evaluation(question.model), graph, wrt)):
        has_relevance = any(value in relevances for value in step.writes)
        if not has_relevance:
            continue
        result_relevances: list[Array] = []
        for value in step.writes:
            zeros = jnp.zeros_like(tensors[value])
            result_relevances.append(relevances.pop(value, zeros))
        operand_relevances = rule(step, result_relevances)
        for value, relevance in zip(step.reads, operand_relevances, strict=True):
            earlier = relevances.get(value)
            relevances[value] = relevance if earlier is None else earlier + relevance
    no_relevance = jnp.zeros_like(tensors[wrt])
    return relevances.get(wrt, no_relevance)


def _scored(question: Question) -> list[Value]:
    """Return the tensors from which scores are computed: the tensor `output`, or all outputs."""
    graph = question.graph
    if not question.output:
        distinct_outputs = dict.fromkeys(graph.outputs)
        return list(distinct_outputs)
    value_by_name = graph.values | dict(zip(graph.output_names, graph.outputs, strict=True))
    return [value_by_name[question.output]]


def _score(question: Question, arrays: Sequence[Array]) -> Array:
    """Return the score of each item, [batch], from the arrays of the tensors in `_scored`."""
    if question.output:
        return question.scores(arrays[0])
    array_by_value = dict(zip(_scored(question), arrays, strict=True))
    outputs = [array_by_value[value] for value in question.graph.outputs]
    return question.scores(packed(question.model, outputs))


def _steps(evaluate: Evaluation, graph: Graph, wrt: Value) -> list[OperationStep]:
    """Return a step for each operation that depends on the tensor `wrt`, in order of computation.

    An operation without floating-point results, or without floating-point operands that depend on
    `wrt`, has no step. `evaluate` is a function that computes the tensors of a graph.
    """
    varying = {wrt}
    steps: list[OperationStep] = []
    for operation in graph.operations:
        reads = tuple(dict.fromkeys(operation.reads()))
        writes = tuple(operation.writes())
        if varying.isdisjoint(reads):
            continue
        varying.update(writes)
        single_operation = replace(
            graph,
            inputs=reads,
            outputs=writes,
            output_names=tuple(value.name for value in writes),
            operations=(operation,),
            parameters=(),
            states=(),
            aliases={},
        )
        varying_reads = [value for value in reads if value in varying]
        real_reads = tuple(value for value in varying_reads if is_float(value.type.dtype))
        real_writes = tuple(value for value in writes if is_float(value.type.dtype))
        if real_reads and real_writes:
            step = OperationStep(operation, real_reads, real_writes, single_operation, evaluate)
            steps.append(step)
    return steps
