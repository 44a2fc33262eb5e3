"""Holds a graph that is repeated while it is made: the body of a scan or of a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lowering.graph import TensorType, Value
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite

Outputs = Sequence[tuple[str, int, int]]  # as the kinds `scan` and `loop` have them
LAST = ("last", 0, 1)


class NodeBody:
    """The graph of a body; what it reads of around is whole in every iteration. `at` adds to it."""

    def __init__(self, site: NodeSite) -> None:
        self.site = site
        self.graph = site.graph.body()
        self.at = replace(site, graph=self.graph)
        self.heads: list[Value] = []
        self.before: list[Value] = []
        self.initial: list[Value] = []
        self._scanned: list[tuple[Value, int, int]] = []  # with axis and chunk

    def _enter(self, name: str, shape: Sequence[int], dtype: str) -> Value:
        return self.graph.builder.input(name, TensorType(tuple(shape), dtype))

    def seen(self, x: Tensor) -> Tensor:
        """Return what a tensor of around is inside."""
        return self.graph.entered(x) if isinstance(x, Value) else x

    def item(self, x: Tensor, axis: int, *, reverse: bool = False) -> Value:
        """Cut a tensor along an axis; return the item of an iteration, without the axis."""
        value = self.site.tensor(x)
        shape = list(value.type.shape)
        shape[axis] = 1
        self._scanned.append((value, axis, -1 if reverse else 1))
        self.heads.append(self._enter(f"part_{len(self.heads)}", shape, value.type.dtype))
        return self.at.insert("squeeze", {"input": self.heads[-1]}, axes=(axis,))

    def turn(self, count: int | None) -> Value:
        """Return the number of the iteration, of a scan of a known number of them or of a loop."""
        if count is None:
            self.heads.append(self._enter("turn", (), self.graph.builder.integer))
            return self.heads[-1]
        self.site.spend(count)
        numbers = Constant(np.arange(count, dtype=np.int64), "int64", derived=True)
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
        scanned, axes, chunks = zip(*self._scanned, strict=True)
        attributes = {"axes": axes, "chunks": chunks, "skip": 0}
        return self._emit("scan", [], after, values, how, {"scanned": scanned}, attributes)

    def loop(
        self,
        going: Tensor,
        after: Sequence[Tensor],
        values: Sequence[Tensor],
        how: Outputs,
        given: Mapping[str, Any],
        limit: int,
    ) -> list[Value]:
        """Add a loop that goes on while a logical scalar holds; return as `scan` does."""
        return self._emit("loop", [going], after, values, how, given, {"limit": limit})

    def _emit(
        self,
        kind: str,
        first: Sequence[Tensor],
        after: Sequence[Tensor],
        values: Sequence[Tensor],
        how: Outputs,
        given: Mapping[str, Any],
        attributes: Mapping[str, Any],
    ) -> list[Value]:
        ends = [self.at.tensor(x) for x in (*first, *after, *after, *values)]
        captured = self.graph.captured
        order = [*self.heads, *captured, *self.before]
        outputs = (*[LAST] * len(after), *how)
        operands = {**given, "full": [*captured.values()], "initial": self.initial}
        body = graph_of(self.graph, order, ends)
        made = self.site.emit(kind, operands, body=body, outputs=outputs, **attributes)
        return list(made) if isinstance(made, list | tuple) else [made]


def graph_of(graph: Any, inputs: Sequence[Value], outputs: Sequence[Value]) -> Any:
    """Return the graph of a body."""
    names = [f"{i}_{value.name}" for i, value in enumerate(outputs)]
    return graph.builder.graph("body", outputs, names, [value.name for value in inputs])
