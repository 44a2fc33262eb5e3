"""Summarises a network: sizes, operations and variables, as `model.summary()` shows them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from lowering import multiply_adds
from lowering.extents import show, volume, with_ones
from lowering.graph import UNTYPED, Parameter, StateVariable
from nnef_jax.flattening.outline import unknown_operators
from nnef_jax.limits import ROW_STEPS, Meter
from nnef_jax.parameters.module_names import ModuleNames
from nnef_jax.reading.network import Network
from nnef_jax.results import Result, Table, number, table_of
from nnef_jax.tensor_spec import TensorSpec, spec_of
from nnef_jax.wording.printable import printable

_HEAD = ("name", "operation", "shape", "dtype", "parameters", "MACs", "module")
_ALIGNMENTS = "<<<<>><"  # of each column
_WIDEST = 60  # in characters; longer cells overflow their column


@dataclass(frozen=True, slots=True)
class OperationSummary:
    """One operation of a network.

    Attributes:
        name, kind: the name and the kind of the operation.
        results: the tensors that the operation computes.
        parameters: the number of items in parameters that no earlier operation reads.
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

    The name of `tensor` is the label of the variable. `unused` says that no output and no state
    depends on the variable.
    """

    tensor: TensorSpec
    unused: bool


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Summary(Result):
    """The sizes and operations of a network.

    In `to_dict()` a tensor is `{"name", "shape", "dtype"}`, with "extents" if its extents have
    names. An open extent is None, and the shape of a tensor without a type is None too. A variable
    is `{"label", "shape", "dtype", "unused"}`.

    Attributes:
        name: the name of the network.
        dialect, extensions: the format of the document, and its extensions.
        inputs, outputs: inputs and outputs of a call.
        unknown: operators that are not supported.
        counts: a dict of numbers. "operations" and "variables" are counted; "parameters",
            "unused_parameters" and "state" are numbers of items; "weight_bytes" and "multiply_adds"
            are sums over the network. An open extent counts as 1, so an open batch counts as one
            item.
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
            operations.append({**fields, "results": [*map(_plain, operation.results)]})
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
        return table_of(". ".join([f"{self.name}: {self._totals()}", *self.remarks]), heads, rows)

    def __str__(self) -> str:
        texts: list[list[str]] = []
        for row in self._rows():
            texts.append([printable(number(cell)) for cell in row])
        heads, *rows = texts
        widths = [min(_WIDEST, max(map(len, column))) for column in zip(*texts, strict=True)]
        rule = ["-" * width for width in widths]
        lines = [_line(row, widths) for row in (heads, rule, *rows)]
        return "\n".join([printable(self.name), "", *lines, "", self._totals(), *self.remarks])

    def _rows(self) -> list[Sequence[Any]]:
        """Return the heads of the columns, and the rows of the table.

        There is a column of modules only if at least one module is known.
        """
        rows: list[Sequence[Any]] = [_HEAD]
        rows += [_row(x, "external") for x in self.inputs]
        for x in self.operations:
            kind = f"{x.kind} (int8)" if x.int8 else x.kind
            figures = x.parameters, x.multiply_adds
            rows += [_row(result, kind, *figures, x.module) for result in x.results[:1]]
            rows += [_row(result, "", module=x.module) for result in x.results[1:]]
        unused = [x.tensor for x in self.variables if x.unused]
        rows += [_row(x, "unused variable", _items(x)) for x in unused]
        has_modules = any(row[-1] for row in rows[1:])
        return rows if has_modules else [row[:-1] for row in rows]

    def _totals(self) -> str:
        words = {"parameters": "parameters", "unused_parameters": "unused", "state": "state"}
        counts = {word: self.counts[name] for name, word in words.items()}
        parts: list[str] = []
        for word, count in counts.items():
            if count or word == "parameters":
                parts.append(f"{count:,} {word}")
        work = f"{self.counts['multiply_adds']:,} multiply-adds"
        if any(None in x.shape for x in self.inputs):
            work += " with open extents 1"
        return ", ".join([*parts, work])


def summarise(
    network: Network, in_integers: Collection[str] = (), remarks: Iterable[str] = ()
) -> Summary:
    """Return a summary of a network.

    `in_integers` has the names of operations that compute in integers, and `remarks` are lines
    below the table.

    Raises LimitError for more rows than the network's limits allow.
    """
    graph = network.graph
    names = ModuleNames(graph)
    meter = Meter(network.options.meter.limits)

    def variable_summary(variable: Parameter | StateVariable) -> VariableSummary:
        label = variable.label
        return VariableSummary(spec_of(label, variable.value), label in network.unused)

    parameters = [variable_summary(x) for x in graph.parameters]
    states = [variable_summary(x) for x in graph.states]
    stored = [*graph.parameters, *(x for x in graph.states if x.initial is None)]
    unused_items = sum(_items(x.tensor) for x in parameters if x.unused)
    read = [x.value for x in graph.parameters if x.label not in network.unused]
    sizes = {value: volume(with_ones(value.type.shape)) for value in read}
    unused_count = sum(x.unused for x in parameters)
    meter.spend(ROW_STEPS * (len(graph.inputs) + unused_count), graph.name)
    operations: list[OperationSummary] = []
    for operation in graph.operations:
        results = tuple(spec_of(value.name, value) for value in operation.writes())
        meter.spend(ROW_STEPS * len(results), graph.name)
        # A parameter counts for the first operation that reads it.
        size = sum(sizes.pop(value, 0) for value in operation.reads())
        work = multiply_adds(operation)
        module = ".".join(names.of_operation(operation))
        is_int8 = operation.name in in_integers
        operations.append(
            OperationSummary(operation.name, operation.kind, results, size, work, module, is_int8)
        )
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
            "parameters": sum(_items(x.tensor) for x in parameters) - unused_items,
            "unused_parameters": unused_items,
            "state": sum(_items(x.tensor) for x in states),
            "weight_bytes": sum(map(_bytes, stored)),
            "multiply_adds": sum(x.multiply_adds for x in operations),
        },
        operations=tuple(operations),
        variables=(*parameters, *states),
        remarks=tuple(remarks),
    )


def _row(
    tensor: TensorSpec, kind: str, parameters: int = 0, work: int = 0, module: str = ""
) -> Sequence[Any]:
    shape = "" if _is_untyped(tensor) else show(tensor.shape, tensor.extents)
    return (tensor.name, kind, shape, tensor.dtype, parameters or None, work or None, module)


def _line(cells: Sequence[str], widths: Iterable[int]) -> str:
    # The column of modules, which is the last one, may be left out.
    columns = zip(cells, _ALIGNMENTS, widths, strict=False)
    padded = [f"{cell:{alignment}{width}}" for cell, alignment, width in columns]
    return "  ".join(padded).rstrip()


def _is_untyped(tensor: TensorSpec) -> bool:
    return tensor.dtype == UNTYPED.dtype


def _items(tensor: TensorSpec) -> int:
    extents = [1 if extent is None else extent for extent in tensor.shape]
    return volume(extents)


def _bytes(variable: Parameter | StateVariable) -> int:
    type = variable.value.type
    size = 0 if type.dtype == UNTYPED.dtype else jnp.dtype(type.dtype).itemsize
    return volume(with_ones(type.shape)) * size


def _plain(tensor: TensorSpec) -> dict[str, Any]:
    shape = None if _is_untyped(tensor) else list(tensor.shape)
    fields: dict[str, Any] = {"name": tensor.name, "shape": shape, "dtype": tensor.dtype}
    if any(tensor.extents):
        fields["extents"] = list(tensor.extents)
    return fields
