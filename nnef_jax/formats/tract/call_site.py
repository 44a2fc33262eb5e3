"""Intrinsics: operations that need their call site, as for an input, a shape, a state or a body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from numpy.typing import NDArray

from lowering.graph import TensorType, Value
from lowering.location import Span
from nnef_jax.errors import NnefError
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.emission import Frame
from nnef_jax.formats.syntax.types import STRING
from nnef_jax.formats.tract.arguments import attribute, known_integer
from nnef_jax.formats.tract.flat_graph import FlatGraph
from nnef_jax.formats.tract.unit import Unit


class _Evaluator(Protocol):
    """What intrinsics need of the evaluation of a unit into a graph (`flatten`)."""

    unit: Unit
    graph: FlatGraph
    inputs: Mapping[str, Value | None]  # of the unit's header, with what they are given

    def of(
        self, unit: Unit, extents: Mapping[str, Any], inputs: Mapping[str, Value]
    ) -> _Evaluator: ...

    def into(self, graph: FlatGraph) -> _Evaluator: ...

    def outputs(self, frame: Frame) -> list[Value]: ...

    def evaluate(self, node: s.Expression, frame: Frame, names: Sequence[str] = ()) -> Any: ...

    def lookup(self, node: s.Identifier, frame: Frame) -> Any: ...

    def enter(
        self,
        fragment: s.Fragment,
        arguments: Mapping[str, Any],
        node: s.Node,
        frame: Frame,
        names: Sequence[str],
    ) -> Frame: ...

    def refuse_recursion(self, fragment: s.Fragment, node: s.Node, frame: Frame) -> None: ...


@dataclass(slots=True)
class CallSite:
    """A call of an operation, its arguments, and the names wanted for its results."""

    evaluator: _Evaluator
    arguments: Mapping[str, Any]
    node: s.Node
    frame: Frame
    names: Sequence[str] = ()

    @property
    def graph(self) -> FlatGraph:
        """Return the graph that operations are added to."""
        return self.evaluator.graph

    @property
    def unit(self) -> Unit:
        """Return the network that the call is in."""
        return self.evaluator.unit

    @property
    def span(self) -> Span:
        """Return the place of the call in the text."""
        return s.span_in(self.frame.source, self.node)

    @property
    def invocation(self) -> s.Invocation:
        """Return the call as it is written."""
        assert isinstance(self.node, s.Invocation)
        return self.node

    @property
    def name(self) -> str:
        """Return the name for the result."""
        return self.names[0] if self.names else self.frame.prefix + self.invocation.operation

    def named(self, *names: str) -> CallSite:
        """Return the same call with other names for its results."""
        return replace(self, names=names)

    def into(self, graph: FlatGraph) -> CallSite:
        """Return the same call in another graph."""
        return replace(self, evaluator=self.evaluator.into(graph))

    # Arguments

    def tensor(self, value: Any) -> Value:
        """Return a value as a tensor of the graph."""
        return self.graph.tensor(value, "", self.node, self.frame)

    def string(self, name: str) -> str:
        """Return an argument that is a string."""
        return attribute(self.arguments[name], STRING)

    def integer(self, name: str) -> int:
        """Return an argument that is an integer and decides the structure of the graph."""
        return known_integer(self.arguments[name], name)

    # Operations

    def apply(self, kind: str, /, *names: str, **arguments: Any) -> Any:
        """Apply a declared operation, on the host or in the graph."""
        return self.graph.apply(kind, arguments, self.node, self.frame, names)

    def emit(
        self, kind: str, operands: Mapping[str, Any], attributes: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Add an operation to the graph; its results take the names wanted here."""
        return self.graph.emit(kind, operands, attributes, self.node, self.frame, self.names)

    def cast(self, value: Value, dtype: str, *names: str) -> Value:
        """Return a tensor in a dtype."""
        return self.graph.cast(value, dtype, self.node, self.frame, names)

    def state(self, type: TensorType, name: str, initial: NDArray[Any] | None = None) -> Value:
        """Add a variable that the graph keeps from call to call."""
        label = self.unit.labels + name
        return self.graph.state(type, name, label, self.node, self.frame, initial)

    # Bounds and errors

    def spend(self, steps: int) -> None:
        """Count steps of work."""
        self.graph.spend(steps, self.node, self.frame)

    def error(self, message: str, hint: str = "") -> NnefError:
        """Return an error located here."""
        return self.graph.error(message, self.node, self.frame, hint)


_Handler = Callable[[CallSite], Any]
INTRINSICS: dict[str, _Handler] = {}  # those registered so far: `intrinsics` has all


def intrinsic(*kinds: str) -> Callable[[_Handler], _Handler]:
    """Register the handler of operations. Raises TypeError where one has a handler already."""

    def register(handler: _Handler) -> _Handler:
        for kind in kinds:
            if INTRINSICS.setdefault(kind, handler) is not handler:
                raise TypeError(f"'{kind}' has a handler already")
        return handler

    return register
