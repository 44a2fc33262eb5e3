"""Finds along which axes each kind of operations computes lists, for docs/list_kinds.md.

A list is a tensor with as many items along an axis as values tell. For each kind, an operation of
the tests is traced again with a symbolic extent in place of each extent of its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from lowering import Dimensions, GraphBuilder
from lowering.extents import UNKNOWN, Extent
from lowering.graph import Operation, TensorType, Value
from lowering.ops import rules
from nnef_jax.flattening.symbolic import SymbolicShapes
from tests.helpers import model_of
from tests.op_cases import NNEF, TRACT, document
from tests.openvino.test_kinds import CASES
from tests.operation_checks import tract_kind

_SYMBOL = "n"
_MOST_AXES = 6  # of all operands of the operation that stands for a kind
_MOST_CASES = 3  # of an operation of a format
# Kinds without operands that have axes, and kinds of the structure of a graph.
STRUCTURE = frozenset({"branch", "constant", "counted", "filled", "loop", "range", "scan"})


@dataclass
class ListAxes:
    """The axes of a kind's operands that can be lists, and those that cannot.

    An axis is named by the operand and its number, such as "input 0".
    """

    lists: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])


@cache
def list_axes() -> dict[str, ListAxes]:
    """Return the axes for each kind that an operation of the tests uses."""
    axes: dict[str, ListAxes] = {}
    for operation in _operations(axes):
        if not _has_lists(axes, operation.kind):
            axes[operation.kind] = _axes_of(operation)
    return axes


def _has_lists(axes: Mapping[str, ListAxes], kind: str) -> bool:
    """Tell whether an operation of a kind that computes lists was found."""
    return kind in axes and bool(axes[kind].lists)


def _operations(axes: Mapping[str, ListAxes]) -> Iterator[Operation]:
    """Yield operations of the tables of tests, for kinds that do not have lists in `axes`."""
    for case in CASES:
        builder = GraphBuilder()
        operands: dict[str, Any] = {}
        for name, x in case.operands.items():
            operands[name] = x
            if isinstance(x, np.ndarray):
                operands[name] = builder.input(name, TensorType(x.shape, x.dtype.name))
        builder.operation(case.kind, operands, case.attributes, ["y"])
        yield builder.operations[0]
    counts: dict[str, int] = {}
    for case in (*NNEF, *TRACT):
        name = case.operation
        kind = tract_kind(name) if case in TRACT else name
        counts[name] = counts.get(name, 0) + 1
        if counts[name] <= _MOST_CASES and not _has_lists(axes, kind):
            yield from model_of(document(case)).graph.operations


def _axes_of(operation: Operation) -> ListAxes:
    axes = ListAxes()
    operands = _tensors(operation)
    for name, x in operands.items():
        for axis, extent in enumerate(x.type.shape):
            if extent is UNKNOWN or extent < 2 or len(axes.lists) + len(axes.refused) > _MOST_AXES:
                continue
            alone = {name: axis}
            together = {
                other: axis
                for other, y in operands.items()
                if y.type.shape[axis : axis + 1] == (extent,)
            }
            is_list = any(_computes(operation, choice, extent) for choice in (alone, together))
            (axes.lists if is_list else axes.refused).append(f"{name} {axis}")
    return axes


def _tensors(operation: Operation) -> dict[str, Value]:
    """Return the operands that are tensors, by name. Tensors of an array have names "values[0]"."""
    tensors: dict[str, Value] = {}
    for name, x in operation.operands:
        if isinstance(x, Value):
            tensors[name] = x
        for i, item in enumerate(x if isinstance(x, tuple) else ()):
            if isinstance(item, Value):
                tensors[f"{name}[{i}]"] = item
    return tensors


def _computes(operation: Operation, axes: Mapping[str, int], extent: int) -> bool:
    """Tell whether an operation can be computed if these axes of its operands are lists."""
    builder = GraphBuilder()
    symbolic = SymbolicShapes(builder, Dimensions(), {_SYMBOL: extent})
    inputs: dict[Value, Value] = {}
    symbol = symbolic.dimensions.of(Extent(_SYMBOL))
    list_values = {x: axes[name] for name, x in _tensors(operation).items() if name in axes}
    for x in dict.fromkeys(operation.reads()):
        shape: list[Any] = list(x.type.shape)
        types = list(shape)
        if x in list_values:
            shape[list_values[x]] = symbol
            types[list_values[x]] = UNKNOWN
        inputs[x] = builder.input(x.name, TensorType(tuple(types), x.type.dtype))
        symbolic.declare(inputs[x], shape)
    try:
        operands = {name: _with_inputs(x, inputs) for name, x in operation.operands}
        names = [x.name for x in operation.writes()]
        builder.operation(operation.kind, operands, dict(operation.attributes), names)
        for value in builder.operations[0].writes():
            symbolic.shape_of(value)
    except Exception:  # of jax, of a rule, or of a primitive without a rule
        return False
    return True


def _with_inputs(operand: Any, inputs: Mapping[Value, Value]) -> Any:
    """Return an operand with inputs in place of tensors."""
    if isinstance(operand, tuple):
        return tuple([_with_inputs(item, inputs) for item in operand])
    return inputs[operand] if isinstance(operand, Value) else operand


PAGE = """\
# Lists by kind

This page says for each kind of operations along which axes of its operands it computes
[lists](lists.md), whose number of items depends on values. `python docs/generate.py` writes the
table: it traces one operation of the tests of each kind with a list along each axis.

- **lists**: axes that can be lists. "input 0" is axis 0 of the operand `input`.
- **refused**: axes of the same operation that are refused when a network is read. An axis may be
  refused only for the attributes of this operation, such as a window along the axis.

{refusing} of {count} kinds refuse lists along every axis, or have no operation with axes among the
tests: {names}.

{table}"""


def page(table: Callable[[Sequence[Sequence[str]]], str]) -> str:
    """Return the text of the page. `table` writes a table of rows, of which the first are heads."""
    axes = list_axes()
    kinds = sorted(set(rules) - STRUCTURE)
    rows: list[Sequence[str]] = [("kind", "lists", "refused")]
    for kind in kinds:
        result = axes.get(kind, ListAxes())
        lists, refused = (", ".join(x) or "-" for x in (result.lists, result.refused))
        rows.append((f"`{kind}`", lists, refused))
    names = [f"`{kind}`" for kind in kinds if not _has_lists(axes, kind)]
    return PAGE.format(
        refusing=len(names), count=len(kinds), names=", ".join(names), table=table(rows)
    )
