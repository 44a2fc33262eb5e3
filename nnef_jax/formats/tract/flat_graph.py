"""The flat graph while it is built: its values, what is known of them, and its stored data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.extents import is_known, show, volume
from lowering.graph import Graph, TensorType, Value
from lowering.trace import Context, trace
from nnef_jax.formats.base import Options
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.emission import Frame
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.tract.emission import TractEmitter


class FlatGraph(TractEmitter):
    """A graph that operations are added to.

    `data` collects the arrays of variables and states by label. A scan's body is a graph of its
    own, with variables passed from `outer`. `entries` are graph.quant's for tensors that have
    codes, `decoded` the variables that are stored as codes.
    """

    def __init__(
        self,
        options: Options,
        data: dict[str, NDArray[Any]],
        *,
        is_open: bool,
        outer: FlatGraph | None = None,
    ) -> None:
        super().__init__(options)
        self.options = options
        self.data = data
        self.is_open = is_open
        self.outer = outer
        self.entries: dict[Value, Quantizer] = {}
        self.decoded: set[Value] = set()
        self._shapes: dict[Value, Sequence[Any]] = {}  # with symbolic extents
        self._captured: dict[Value, Value] = {}  # variables around a scan, as its body has them
        self._states: dict[str, int] = {}  # labels, each with how many were made of it

    def body(self) -> FlatGraph:
        """Return a graph for the body of a scan in this one."""
        return FlatGraph(self.options, self.data, is_open=self.is_open, outer=self)

    def input(
        self,
        name: str,
        type: TensorType,
        shape: Sequence[Any],
        stored: NDArray[Any] | None = None,
    ) -> Value:
        """Add an input; `shape` has symbolic extents, `stored` is the value of a constant."""
        value = self.builder.input(name, type)
        self._shapes[value] = shape
        if stored is not None:
            self.constants[value] = stored
        return value

    def variable(
        self, name: str, label: str, stored: NDArray[Any], dtype: str, node: s.Node, frame: Frame
    ) -> Value:
        """Add a parameter, whose data is in `data`."""
        type = TensorType(stored.shape, dtype)
        value = self.builder.variable(name, label, type, s.span_in(frame.source, node))
        self.constants[value] = stored
        return self.bound(value, node, frame)

    def capture(self, variable: Value) -> Value:
        """Return a variable of the graph around a scan, as the scan's body has it."""
        assert self.outer is not None
        if variable not in self._captured:
            name, stored = self.builder.unreserved(variable.name), self.outer.constants[variable]
            self._captured[variable] = self.input(name, variable.type, variable.type.shape, stored)
        return self._captured[variable]

    @property
    def captured(self) -> Mapping[Value, Value]:
        """Return the variables that it reads of the graph around it, with its inputs for them."""
        return self._captured

    def state(
        self,
        type: TensorType,
        name: str,
        label: str,
        node: s.Node,
        frame: Frame,
        initial: NDArray[Any] | None = None,
    ) -> Value:
        """Add a variable that starts with an array, or zeros: `builder.update` changes it."""
        if self.outer is not None:
            raise InvalidOperation("the body of a scan cannot keep a state from call to call")
        if not is_known(type.shape):
            raise InvalidOperation(
                f"a state must have a known shape, it is {show(type.shape)}",
                hint="give the shapes of the inputs by load(..., input_shapes=...)",
            )
        wanted = label
        while label in self._states:
            self._states[wanted] += 1
            label = f"{wanted}_{self._states[wanted]}"
        self._states[label] = 0
        items = volume(type.shape)
        if items > self.limits.tensor_items:
            raise self.beyond(f"a state of {items} items", "tensor_items", node, frame)
        self.meter.expand(items * np.dtype(type.dtype).itemsize, f"state '{name}'")
        data = np.zeros(type.shape, type.dtype) if initial is None else initial.astype(type.dtype)
        self.data.setdefault(label, data)
        span = s.span_in(frame.source, node)
        return self.builder.variable(self.builder.unreserved(name), label, type, span)

    def shape_of(self, value: Value) -> Sequence[Any]:
        """Return the shape of a tensor, with the extents that `jax.export` keeps symbolic."""
        if is_known(value.type.shape) or not self.options.symbolic_shapes:
            return value.type.shape
        if value not in self._shapes:
            graph = self.builder.graph("", [value], [value.name])
            self._shapes[value] = _symbolic_shape(graph, self._shapes)
        return self._shapes[value]


def _symbolic_shape(graph: Graph, shapes: Mapping[Value, Sequence[Any]]) -> tuple[Any, ...]:
    """Return the shape of a graph's only output, given those of its inputs."""

    def struct(value: Value) -> jax.ShapeDtypeStruct:
        shape = tuple(shapes.get(value, value.type.shape))
        return jax.ShapeDtypeStruct(shape, jnp.dtype(value.type.dtype))

    def output(parameters: Any, states: Any, inputs: Sequence[Any]) -> Any:
        values = trace(graph, Context(), parameters, states, inputs)
        return jnp.asarray(values[graph.outputs[0]])

    parameters = {p.label: struct(p.value) for p in graph.parameters}
    states = {s.label: struct(s.value) for s in graph.states}
    return jax.eval_shape(output, parameters, states, [struct(x) for x in graph.inputs]).shape
