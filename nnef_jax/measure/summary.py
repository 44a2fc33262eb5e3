"""Summarises a network: sizes, operations and variables, as `model.summary()` shows them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from lowering import multiply_adds
from lowering.extents import UNKNOWN, Shape, show, volume, with_ones
from lowering.graph import UNTYPED, Parameter, StateVariable, Value
from nnef_jax.flattening.outline import unknown_operators
from nnef_jax.limits import ROW_STEPS, Meter
from nnef_jax.measure.list_sizes import list_shapes
from nnef_jax.parameters.module_names import ModuleNames
from nnef_jax.reading.network import Network
from nnef_jax.results import Result, Table, number, table_of
from nnef_jax.tensor_spec import TensorSpec, spec_of
from nnef_jax.wording.printable import printable

_HEAD = ("name", "operation", "shape", "dtype", "parameters", "MACs", "module")
_ALIGNMENTS = (
    "<<<<>><"  # Columns of text are aligned to the left, and columns of numbers to the right.
)
_WIDEST_COLUMN = 60  # A column is at most this many characters wide. Longer cells overflow it.


@dataclass(frozen=True, slots=True)
class OperationSummary:
    """One operation of a network.

    Attributes:
        name, kind: the name and the kind of the operation.
        results: the tensors that the operation computes.
        parameters: the number of items of the parameters that the operation reads. A parameter
            that an earlier operation reads is left out.
        multiply_adds: the number of multiply-adds of a product or convolution; 0 for other kinds.
        module: the module in the source code, inferred from names, or "".
        int8: whether the operation computes in integers.
    """

    name: str
    kind: str
    results: tuple[TensorSpec, ...]
    parameters: int
    multiply_adds: int
    module: str
    int8: bool


@dataclass(frozen=True, slots=True)
class VariableSummary:
    """A parameter or a state of a network.

    Attributes:
        tensor: the spec of the variable, whose name is the variable's label.
        unused: whether no output and no state depends on the variable.
    """

    tensor: TensorSpec
    unused: bool


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Summary(Result):
    """The sizes and operations of a network.

    In `to_dict()` a tensor is `{"name", "shape", "dtype"}`, with "extents" if its extents have
    names. An open extent is None. The shape of a tensor without a type is None. A variable is
    `{"label", "shape", "dtype", "unused"}`.

    Attributes:
        name: the name of the network.
        dialect, extensions: the format of the document, and its extensions.
        inputs, outputs: inputs and outputs of a call.
        unknown: operators that are not supported.
        counts: a dict of numbers. "operations", "variables", "weight_bytes" and "multiply_adds" are
            numbers of operations, variables, bytes and multiply-adds. "parameters" (only used
            ones), "unused_parameters" and "state" are numbers of items. An open extent is taken
            as 1, so the numbers are for a batch of one item.
        operations: the operations in the order in which they are computed.
        variables: the parameters, followed by the states.
        remarks: lines about products that a CPU computes in another dtype.
    """

    name: str
    dialect: str
    extensions: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    unknown: tuple[str, ...]
    counts: Mapping[str, int]
    operations: tuple[OperationSummary, ...]
    variables: tuple[VariableSummary, ...]
    remarks: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Return the attributes as values that JSON can hold."""
        operations: list[dict[str, Any]] = []
        for operation in self.operations:
            fields = {name: getattr(operation, name) for name in OperationSummary.__slots__}
            fields["results"] = [*map(_plain, operation.results)]
            operations.append(fields)
        variables: list[dict[str, Any]] = []
        for variable in self.variables:
            fields = _plain(variable.tensor)
            label = fields.pop("name")
            variables.append({"label": label, **fields, "unused": variable.unused})
        return super().to_dict() | {
            "inputs": [*map(_plain, self.inputs)],
            "outputs": [*map(_plain, self.outputs)],
            "operations": operations,
            "variables": variables,
        }

    def table(self) -> Table:
        """Return a table with a line for each input, each result and each unused parameter."""
        heads, *rows = self._rows()
        sentences = [f"{self.name}: {self._totals()}", *self.remarks]
        return table_of(". ".join(sentences), heads, rows)

    def __str__(self) -> str:
        rows_of_texts: list[list[str]] = []
        for row in self._rows():
            rows_of_texts.append([printable(number(cell)) for cell in row])
        widths: list[int] = []
        for column in zip(*rows_of_texts, strict=True):
            widest = max(map(len, column))
            widths.append(min(_WIDEST_COLUMN, widest))
        heads, *rows = rows_of_texts
        rule = ["-" * width for width in widths]
        table = [_line(row, widths) for row in (heads, rule, *rows)]
        return "\n".join([printable(self.name), "", *table, "", self._totals(), *self.remarks])

    def _rows(self) -> list[Sequence[Any]]:
        """Return the heads of the columns, and the rows of the table.

        There is a column of modules only if at least one module is known.
        """
        rows: list[Sequence[Any]] = []
        rows += [_row(tensor, "external") for tensor in self.inputs]
        for operation in self.operations:
            kind = f"{operation.kind} (int8)" if operation.int8 else operation.kind
            module = operation.module
            # The figures of an operation are in the row of its first result.
            for index, result in enumerate(operation.results):
                if index == 0:
                    row = _row(
                        result,
                        kind,
                        parameters=operation.parameters,
                        multiply_adds=operation.multiply_adds,
                        module=module,
                    )
                else:
                    row = _row(result, "", module=module)
                rows.append(row)
        for variable in self.variables:
            if variable.unused:
                tensor = variable.tensor
                rows.append(_row(tensor, "unused variable", parameters=_items(tensor)))
        has_modules = any(row[-1] for row in rows)
        if has_modules:
            return [_HEAD, *rows]
        # Without modules, the last column is left out.
        return [row[:-1] for row in (_HEAD, *rows)]

    def _totals(self) -> str:
        """Return a text such as "1,000 parameters, 2,000 multiply-adds".

        The numbers of unused parameters and of items in states are left out if they are 0.
        """
        parts = [f"{self.counts['parameters']:,} parameters"]
        for key, word in (("unused_parameters", "unused"), ("state", "state")):
            count = self.counts[key]
            if count:
                parts.append(f"{count:,} {word}")
        multiply_adds_text = f"{self.counts['multiply_adds']:,} multiply-adds"
        has_open_extents = any(None in tensor.shape for tensor in self.inputs)
        if has_open_extents:
            multiply_adds_text += " with open extents 1"
        return ", ".join([*parts, multiply_adds_text])


def summarise(
    network: Network, in_integers: Collection[str] = (), remarks: Iterable[str] = ()
) -> Summary:
    """Return a summary of a network.

    `in_integers` has the names of operations that compute in integers, and `remarks` are lines
    below the table.

    Raises LimitError for more rows than the network's limits allow.
    """
    graph = network.graph
    meter = Meter(network.options.meter.limits)

    def variable_summary(variable: Parameter | StateVariable) -> VariableSummary:
        label = variable.label
        return VariableSummary(spec_of(label, variable.value), label in network.unused)

    parameters = [variable_summary(variable) for variable in graph.parameters]
    states = [variable_summary(variable) for variable in graph.states]
    unused_parameters = [parameter for parameter in parameters if parameter.unused]
    unused_items = sum(_items(parameter.tensor) for parameter in unused_parameters)
    all_items = sum(_items(parameter.tensor) for parameter in parameters)
    # A state whose initial value is a tensor of the graph is not stored.
    stored_states = [state for state in graph.states if state.initial is None]
    stored_variables = [*graph.parameters, *stored_states]
    # Inputs and unused parameters have a row each. `_operation_summaries` counts the rows of
    # operations.
    meter.spend(ROW_STEPS * (len(graph.inputs) + len(unused_parameters)), graph.name)
    shapes = list_shapes(graph)
    operations = _operation_summaries(network, in_integers, meter, shapes)
    return Summary(
        name=graph.name,
        dialect=network.frontend.dialect,
        extensions=tuple(network.frontend.extensions),
        inputs=network.specs(graph.inputs),
        outputs=network.specs(graph.outputs, graph.output_names),
        unknown=tuple(unknown_operators(graph)),
        counts={
            "operations": len(operations),
            "variables": len(parameters) + len(states),
            "parameters": all_items - unused_items,
            "unused_parameters": unused_items,
            "state": sum(_items(state.tensor) for state in states),
            "weight_bytes": sum(map(_bytes, stored_variables)),
            "multiply_adds": sum(operation.multiply_adds for operation in operations),
        },
        operations=tuple(operations),
        variables=(*parameters, *states),
        remarks=(*remarks, *_remarks_on_lists(shapes)),
    )


def _operation_summaries(
    network: Network, in_integers: Collection[str], meter: Meter, shapes: Mapping[Value, Shape]
) -> list[OperationSummary]:
    """Return the summary of each operation, in the order in which operations are computed.

    `in_integers` has the names of operations that compute in integers. `shapes` has the largest
    shape of each list. The meter counts the rows of the table.
    """
    graph = network.graph
    names = ModuleNames(graph)
    # Maps each parameter that the loop below has not met yet to a number of items. An open extent
    # is taken as 1. Unused parameters are left out.
    unread_sizes: dict[Value, int] = {}
    for parameter in graph.parameters:
        if parameter.label not in network.unused:
            unread_sizes[parameter.value] = volume(with_ones(parameter.value.type.shape))
    summaries: list[OperationSummary] = []
    for operation in graph.operations:
        results = tuple(_result_spec(value, shapes) for value in operation.writes())
        meter.spend(ROW_STEPS * len(results), graph.name)
        # Only the first operation that reads a parameter counts the parameter's items.
        parameter_items = sum(unread_sizes.pop(value, 0) for value in operation.reads())
        summary = OperationSummary(
            name=operation.name,
            kind=operation.kind,
            results=results,
            parameters=parameter_items,
            multiply_adds=multiply_adds(operation),
            module=".".join(names.of_operation(operation)),
            int8=operation.name in in_integers,
        )
        summaries.append(summary)
    return summaries


def _result_spec(value: Value, shapes: Mapping[Value, Shape]) -> TensorSpec:
    """Return the spec of a result. An extent of a list gets a name such as "<=100".

    `shapes` has the largest shape of each list.
    """
    names: list[str] = []
    if value in shapes:
        for extent, largest_extent in zip(value.type.shape, shapes[value], strict=False):
            names.append(f"<={largest_extent}" if extent is UNKNOWN else "")
    return spec_of(value.name, value, names)


def _remarks_on_lists(shapes: Mapping[Value, Shape]) -> list[str]:
    """Return a line about the largest list, or no line if there is none."""
    if not shapes:
        return []
    bytes_of_lists: dict[Value, int] = {}
    for value, shape in shapes.items():
        bytes_of_lists[value] = volume(shape) * jnp.dtype(value.type.dtype).itemsize
    largest = max(bytes_of_lists, key=bytes_of_lists.__getitem__)
    room = f"{show(shapes[largest])} items, {bytes_of_lists[largest]:,} bytes"
    return [f"the largest of {len(shapes)} lists is '{largest.name}', with room for {room}"]


def _row(
    tensor: TensorSpec,
    kind: str,
    *,
    parameters: int = 0,
    multiply_adds: int = 0,
    module: str = "",
) -> Sequence[Any]:
    """Return the row of a table for a tensor. If a number is 0, the row has None instead."""
    shape = "" if _is_untyped(tensor) else show(tensor.shape, tensor.extents)
    figures = parameters or None, multiply_adds or None
    return (tensor.name, kind, shape, tensor.dtype, *figures, module)


def _line(cells: Sequence[str], widths: Iterable[int]) -> str:
    """Return a line of a table, whose cells are padded to the widths of their columns."""
    # A table without modules has one column fewer than there are alignments.
    columns = zip(cells, _ALIGNMENTS, widths, strict=False)
    padded = [f"{cell:{alignment}{width}}" for cell, alignment, width in columns]
    return "  ".join(padded).rstrip()


def _is_untyped(tensor: TensorSpec) -> bool:
    """Tell whether the type of a tensor is not known."""
    return tensor.dtype == UNTYPED.dtype


def _items(tensor: TensorSpec) -> int:
    """Return the number of items in a tensor. An open extent counts as 1."""
    extents = [1 if extent is None else extent for extent in tensor.shape]
    return volume(extents)


def _bytes(variable: Parameter | StateVariable) -> int:
    """Return the number of bytes of a variable, or 0 if its type is not known."""
    tensor_type = variable.value.type
    if tensor_type.dtype == UNTYPED.dtype:
        return 0
    return volume(with_ones(tensor_type.shape)) * jnp.dtype(tensor_type.dtype).itemsize


def _plain(tensor: TensorSpec) -> dict[str, Any]:
    """Return the description of a tensor as values that JSON can hold."""
    shape = None if _is_untyped(tensor) else list(tensor.shape)
    fields: dict[str, Any] = {"name": tensor.name, "shape": shape, "dtype": tensor.dtype}
    if any(tensor.extents):
        fields["extents"] = list(tensor.extents)
    return fields
