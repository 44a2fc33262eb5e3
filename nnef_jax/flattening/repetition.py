"""Graphs in layers and nodes while they are made: the body of a scan or of a loop, of a branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import TensorType, Value
from nnef_jax.errors import LimitError, NnefError
from nnef_jax.flattening.emission import ByName
from nnef_jax.flattening.site import Site, Tensor
from nnef_jax.flattening.tensor_graph import Constant

Outputs = Sequence[tuple[str, int, int]]  # as the kinds `scan` and `loop` have them
LAST = ("last", 0, 1)
_Made = TypeVar("_Made")


class RepeatedBody:
    """The graph of a body; what it reads of around is whole in every iteration. `at` adds to it."""

    def __init__(self, site: Site[Any]) -> None:
        self.site = site
        self.graph = site.graph.body()
        self.at: Any = replace(cast("Any", site), graph=self.graph)
        self.heads: list[Value] = []
        self.before: list[Value] = []
        self.initial: list[Value] = []
        self.scanned: list[tuple[Value, int, int]] = []  # with axis and chunk

    def _enter(self, name: str, shape: Sequence[int], dtype: str) -> Value:
        return self.graph.builder.input(name, TensorType(tuple(shape), dtype))

    def seen(self, x: Any) -> Any:
        """Return a tensor of the outer graph as it is inside, anything else as it is."""
        return self.graph.entered(x) if isinstance(x, Value) else x

    def part(self, x: Tensor, axis: int, chunk: int, name: str = "") -> Value:
        """Cut a tensor along an axis, from its end where the chunk is negative; return a part."""
        value = self.site.tensor(x)
        shape = list(value.type.shape)
        shape[axis] = abs(chunk)
        self.scanned.append((value, axis, chunk))
        name = name or f"part_{len(self.heads)}"
        self.heads.append(self._enter(name, shape, value.type.dtype))
        return self.heads[-1]

    def item(self, x: Tensor, axis: int, *, reverse: bool = False) -> Value:
        """Cut a tensor along an axis; return the item of an iteration, without the axis."""
        part = self.part(x, axis, -1 if reverse else 1)
        return self.at.insert("squeeze", {"input": part}, axes=(axis,))

    def turn(self, count: int | None) -> Value:
        """Return the number of the iteration, of a scan of a known number of them or of a loop."""
        if count is None:
            self.heads.append(self._enter("turn", (), self.graph.builder.integer))
            return self.heads[-1]
        self.site.spend(count)
        whole = self.graph.TYPES["i"]
        numbers = Constant(np.arange(count, dtype=np.int64), whole, derived=True)
        return self.item(numbers, 0)

    def state(self, x: Tensor) -> Value:
        """Return a state before an iteration, given that before the first."""
        value = self.site.tensor(x)
        self.initial.append(value)
        name = f"state_{len(self.before)}"
        self.before.append(self._enter(name, value.type.shape, value.type.dtype))
        return self.before[-1]

    def scan(self, after: Sequence[Tensor], values: Sequence[Tensor], how: Outputs) -> list[Value]:
        """Add a scan; return the last states, then results of values."""
        values, how = (*after, *values), (*[LAST] * len(after), *how)
        return self.add(self.site.emit, [], after, values, how)

    def add(
        self,
        add: Callable[..., Any],
        going: Sequence[Tensor],
        after: Sequence[Tensor],
        values: Sequence[Tensor],
        how: Outputs,
        given: ByName | None = None,
        limit: int = -1,
    ) -> list[Value]:
        """Add a scan, or a loop `given` what it starts with; return results of values.

        A loop goes on while a logical scalar holds.
        """
        ends = [self.at.tensor(x) for x in (*going, *after, *values)]
        captured = self.graph.captured
        body = closed(self.graph, [*self.heads, *captured, *self.before], ends)
        operands, kind, attributes = given, "loop", {"limit": limit}
        if given is None:
            scanned, axes, chunks = zip(*self.scanned, strict=True)
            operands, kind = {"scanned": scanned}, "scan"
            attributes = {"axes": axes, "chunks": chunks, "skip": 0}
        operands = {**(operands or {}), "full": [*captured.values()], "initial": self.initial}
        made = add(kind, operands, **attributes, body=body, outputs=tuple(how))
        return list(made) if isinstance(made, list | tuple) else [made]


def both(makes: Sequence[Callable[[], _Made]], fixing: str) -> list[_Made]:
    """Make both graphs of a choice.

    Where one of them cannot be made, its error has the hint `fixing`, which makes the condition
    known. Raises InvalidOperation, NnefError.
    """
    made: list[_Made] = []
    errors: list[InvalidOperation | NnefError] = []
    for make in makes:
        try:
            made.append(make())
        except LimitError:
            raise
        except (InvalidOperation, NnefError) as error:
            errors.append(error)
    if made and errors and fixing:
        why = f"the other branch fits, and the condition is computed: {fixing}"
        errors[0].hint = f"{why}; {errors[0].hint}" if errors[0].hint else why
    for error in errors:
        raise error
    return made


def branch(
    add: Callable[..., Any],
    condition: Value,
    graphs: Sequence[Any],
    results: Sequence[Sequence[Value]],
) -> Any:
    """Add the choice of one of two graphs, given what they have for results."""
    operands = list(dict.fromkeys(v for graph in graphs for v in graph.captured.values()))
    then_body, else_body = (
        closed(graph, [graph.entered(v, v.name) for v in operands], found)
        for graph, found in zip(graphs, results, strict=True)
    )
    given = {"condition": condition, "operands": operands}
    try:
        return add("branch", given, then_body=then_body, else_body=else_body)
    except InvalidOperation as error:
        error.hint = error.hint or graphs[0].outer.fixing(condition)
        raise


def closed(graph: Any, inputs: Sequence[Value], outputs: Sequence[Value]) -> Any:
    """Return the graph of a body."""
    names = [f"{i}_{value.name}" for i, value in enumerate(outputs)]
    return graph.builder.graph("body", outputs, names, [value.name for value in inputs])
