"""Finds the logits behind an output that is a softmax or sigmoid."""

from __future__ import annotations

import warnings

from lowering.graph import Graph, Operation, Value
from nnef_jax.analysis.differentiability import QUANTIZES

# If the network is certain, the derivatives of these kinds of operations are about 0.
_SATURATES = ("softmax", "log_softmax", "sigmoid")
# Operations of these kinds may be between a softmax or sigmoid and the output.
_PASSES = ("copy", "log", "reshape", "squeeze", "unsqueeze", *QUANTIZES)
Makers = dict[Value, Operation]  # For each tensor, this is the operation that computes the tensor.


def name_of_logits(graph: Graph, output: str, *, stacklevel: int) -> str:
    """Return the name of the logits if an output is a softmax or sigmoid, else the output's name.

    If the output is a softmax or sigmoid, but the graph has no logits with an entry for each class
    of the output, the result is the output's name, with a warning. `stacklevel` is the level of the
    warning, as in `warnings.warn`.
    """
    makers: Makers = {}
    for operation in graph.operations:
        makers.update(dict.fromkeys(operation.writes(), operation))
    output_by_name = dict(zip(graph.output_names, graph.outputs, strict=True))
    output_value = output_by_name[output]
    saturated = _before_passes(output_value, makers)
    maker = makers.get(saturated)
    logits = None if maker is None else _operand_of_saturation(maker, makers)
    if logits is None:
        return output
    has_same_classes = _batch_and_classes(logits) == _batch_and_classes(output_value)
    has_name = graph.values.get(logits.name) is logits
    if has_name and has_same_classes:
        return logits.name
    message = f"'{output}' saturates by '{saturated.name}', its gradients vanish"
    warnings.warn(f"{message}: name a tensor before it by output=", stacklevel=stacklevel)
    return output


def _before_passes(value: Value, makers: Makers) -> Value:
    """Follow a value back through operations such as a reshape, to the operand of the first one."""
    maker = makers.get(value)
    while maker is not None and maker.kind in _PASSES:
        value = next(maker.reads())
        maker = makers.get(value)
    return value


def _batch_and_classes(value: Value) -> tuple[int, ...]:
    """Return the first two extents of a tensor, the batch and the number of classes.

    The extent of a missing axis is 1: the result for the shape [8] is (8, 1).
    """
    return (*value.type.shape, 1, 1)[:2]


def _operand_of_saturation(operation: Operation, makers: Makers) -> Value | None:
    """Return the operand of a softmax or sigmoid, or None for another operation."""
    if operation.kind in _SATURATES:
        return next(operation.reads())
    return _operand_of_softmax_by_division(operation, makers)


def _operand_of_softmax_by_division(operation: Operation, makers: Makers) -> Value | None:
    """Return x if an operation is the division in exp(x) / sum(exp(x)), and otherwise None.

    The exponent may also be x - max(x) instead of x. The result is then also x.
    """
    reads = list(operation.reads())
    if operation.kind != "div" or len(reads) != 2:
        return None
    numerator, denominator = reads
    numerator_maker = makers.get(numerator)
    denominator_maker = makers.get(denominator)
    if numerator_maker is None or numerator_maker.kind != "exp":
        return None
    if denominator_maker is None or denominator_maker.kind != "sum_reduce":
        return None
    is_sum_of_numerator = next(denominator_maker.reads()) is numerator
    if not is_sum_of_numerator:
        return None
    exponent = next(numerator_maker.reads())
    exponent_maker = makers.get(exponent)
    if exponent_maker is not None and exponent_maker.kind == "sub":
        # The exponent is x - max(x), whose first operand is x.
        return next(exponent_maker.reads())
    return exponent
