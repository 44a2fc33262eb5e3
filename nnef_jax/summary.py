"""The table that `model.summary()` and `nnef-jax info` show."""

from __future__ import annotations

import io
from collections.abc import Mapping

from lowering.extents import UNKNOWN, Shape, is_known, show, volume
from lowering.graph import Graph, Operation, Value

_WIDTH = 1000  # no table is as wide: lines are never folded


def summarise(graph: Graph) -> str:
    """A table with a line for each operation: name, kind, shape, dtype, parameters, multiply-adds.

    Multiply-adds are counted with 1 for each extent that is not known: for one item of an open
    batch.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, title=Text(graph.name), title_justify="left")
    table.add_column("name", overflow="fold")
    table.add_column("operation")
    table.add_column("shape")
    table.add_column("dtype")
    table.add_column("parameters", justify="right")
    table.add_column("MACs", justify="right")
    for value in graph.inputs:
        table.add_row(value.name, "external", show(value.type.shape), value.type.dtype, "", "")
    sizes: dict[Value, int] = {p.value: volume(p.value.type.shape) for p in graph.parameters}
    counted: set[Value] = set()
    total = 0
    for operation in graph.operations:
        read = [value for value in operation.reads() if value in sizes and value not in counted]
        counted.update(read)
        count = sum(sizes[value] for value in read)
        work = multiply_adds(operation)
        total = total + work
        for position, value in enumerate(operation.writes()):
            first = position == 0
            table.add_row(
                value.name,
                operation.kind if first else "",
                show(value.type.shape),
                value.type.dtype,
                _number(count) if first and count else "",
                _number(work) if first and work else "",
            )
    state = sum(volume(s.value.type.shape) for s in graph.states)
    parts = [f"{_number(sum(sizes.values()))} parameters"]
    parts += [f"{_number(state)} state"] if state else []
    is_open = any(not is_known(value.type.shape) for value in graph.inputs)
    parts += [f"{_number(total)} multiply-adds" + (" with open extents 1" if is_open else "")]
    table.caption = ", ".join(parts)
    table.caption_justify = "left"
    out = io.StringIO()
    Console(file=out, width=_WIDTH, no_color=True, markup=False, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")


def multiply_adds(operation: Operation) -> int:
    """The multiply-adds of a convolution or matrix product, else 0; unknown extents are 1."""
    result = next(operation.writes(), None)
    operands = {name: x.type.shape for name, x in operation.operands if isinstance(x, Value)}
    attributes: Mapping[str, object] = dict(operation.attributes)
    if result is None:
        return 0
    match operation.kind:
        case "conv" | "linear" if "filter" in operands:
            return _size(result.type.shape) * _size(operands["filter"][1:])
        case "deconv" if "filter" in operands:
            return _size(operands["input"]) * _size(operands["filter"][1:])
        case "matmul" if "A" in operands:
            inner = operands["A"][-2 if attributes["transposeA"] else -1]
            return _size((*result.type.shape, inner))
        case _:
            return 0


def _size(shape: Shape) -> int:
    return volume(1 if extent is UNKNOWN else extent for extent in shape)


def _number(count: int) -> str:
    return f"{count:,}"
