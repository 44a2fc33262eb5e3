"""The table that `model.summary()` and `nnef-jax summary` show."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from lowering import multiply_adds
from lowering.extents import is_known, known, show, volume
from lowering.graph import UNTYPED
from nnef_jax.limits import ROW, Meter
from nnef_jax.module_names import ModuleNames
from nnef_jax.network import Network
from nnef_jax.printable import printable

_Row = tuple[str, str, str, str, str, str, str]
_HEAD: _Row = ("name", "operation", "shape", "dtype", "parameters", "MACs", "module")
_SIDES = "<<<<>><"  # to which columns are aligned
_WIDEST = 60  # that a column is made; what is longer in it stays as it is


def summarise(
    network: Network, in_integers: Collection[str] = (), remarks: Iterable[str] = ()
) -> str:
    """Return a table with a line for each operation, then one for each unused parameter.

    Operations of the names `in_integers` are marked. Remarks are the last lines. The last column
    has modules, where names tell them.

    Multiply-adds count an unknown extent as 1: for one item of an open batch. Raises LimitError for
    more rows than the network's limits allow.
    """
    graph, unused = network.graph, network.unused
    meter = Meter(network.options.meter.limits)
    rows: list[Sequence[str]] = []
    work = [multiply_adds(operation) for operation in graph.operations]
    for row in _rows(network, work, in_integers):
        meter.spend(ROW, graph.name)
        rows.append([*map(printable, row)])
    head: Sequence[str] = _HEAD
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(head, *rows, strict=True)]
    lines = [_line(head, widths), _line(["-" * width for width in widths], widths)]
    lines += [_line(row, widths) for row in rows]
    sizes = {p.label: volume(known(p.value.type.shape)) for p in graph.parameters}
    spare = sum(size for label, size in sizes.items() if label in unused)
    state = sum(volume(known(s.value.type.shape)) for s in graph.states)
    parts = [f"{sum(sizes.values()) - spare:,} parameters"]
    parts += [f"{spare:,} unused"] if spare else []
    parts += [f"{state:,} state"] if state else []
    is_open = any(not is_known(value.type.shape) for value in graph.inputs)
    parts += [f"{sum(work):,} multiply-adds" + (" with open extents 1" if is_open else "")]
    return "\n".join([printable(graph.name), "", *lines, "", ", ".join(parts), *remarks])


def _rows(network: Network, counts: Iterable[int], in_integers: Collection[str]) -> Iterator[_Row]:
    graph, unused = network.graph, network.unused
    for value in graph.inputs:
        yield (value.name, "external", network.shape_of(value), value.type.dtype, "", "", "")
    names = ModuleNames(graph)
    read = (p.value for p in graph.parameters if p.label not in unused)
    sizes = {value: volume(known(value.type.shape)) for value in read}
    for operation, work in zip(graph.operations, counts, strict=True):
        # A parameter counts for the first operation that reads it.
        count = sum(sizes.pop(value, 0) for value in operation.reads())
        kind, numbers = operation.kind, (_number(count), _number(work))
        kind += " (int8)" if operation.name in in_integers else ""
        module = ".".join(names.of_operation(operation))
        for value in operation.writes():
            dtype = value.type.dtype
            shape = "" if dtype == UNTYPED.dtype else show(value.type.shape)
            yield (value.name, kind, shape, dtype, *numbers, module)
            kind, numbers = "", ("", "")
    for parameter in graph.parameters:
        if parameter.label in unused:
            type = parameter.value.type
            size = _number(volume(known(type.shape)))
            yield (parameter.label, "unused variable", show(type.shape), type.dtype, size, "", "")


def _line(cells: Sequence[str], widths: Iterable[int]) -> str:
    columns = zip(cells, _SIDES, widths, strict=False)
    return "  ".join([f"{cell:{side}{width}}" for cell, side, width in columns]).rstrip()


def _number(count: int) -> str:
    return f"{count:,}" if count else ""
