"""Holds the place where a document calls an operation, and applies it there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from jax.errors import InconclusiveDimensionOperation
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.graph import TensorType, Value
from lowering.location import Span
from nnef_jax.errors import NnefError, UnsupportedError
from nnef_jax.flattening.emission import Given
from nnef_jax.flattening.hostvalues import host, is_plain
from nnef_jax.formats.base import EXPORT_KNOWN, GIVE_SHAPES, ExtentNeeded
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.emitter import CallPlace, Frame
from nnef_jax.formats.syntax.types import STRING
from nnef_jax.formats.tract.attributes import attribute, known_integer
from nnef_jax.formats.tract.dtypes import converted, own_dtype
from nnef_jax.formats.tract.flat_graph import FlatGraph
from nnef_jax.formats.tract.tensor_file import LARGEST_ATTRIBUTE
from nnef_jax.formats.tract.unit import Unit

_NOTHING: Given = {}
# What `CallSite.located` gives a place in the text.
REFUSALS = (NnefError, InvalidOperation, InconclusiveDimensionOperation, ExtentNeeded)


class _Evaluator(Protocol):
    """The part of the evaluation of a unit into a graph (`flatten`) that intrinsics need."""

    unit: Unit
    graph: FlatGraph
    inputs: Given  # of the unit's header, with what they are given

    def into(self, graph: FlatGraph) -> _Evaluator: ...

    def submodel(self, unit: Unit, extents: Given, inputs: Given, frame: Frame) -> list[Value]: ...

    def evaluate(self, node: s.Expression, frame: Frame, names: Sequence[str] = ()) -> Any: ...

    def lookup(self, node: s.Identifier, frame: Frame) -> Any: ...

    def enter(self, fragment: s.Fragment, arguments: Given, site: CallSite) -> Frame:
        """Evaluate the body of a fragment, and return its frame."""
        ...


@dataclass(slots=True)
class CallSite:
    """A place in the text that calls an operation, and the names wanted for its results."""

    evaluator: _Evaluator
    node: s.SyntaxNode
    frame: Frame
    names: Sequence[str] = ()
    arguments: Given = field(default_factory=dict[str, Any])

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
    def kind(self) -> str:
        """Return the operation or operator as it is written, '' for other expressions."""
        return getattr(self.node, "operation", "") or getattr(self.node, "operator", "")

    @property
    def generic(self) -> str:
        """Return the generic argument, '' without one."""
        return getattr(self.node, "generic", "") or ""

    @property
    def name(self) -> str:
        """Return the name for the result."""
        return self.names[0] if self.names else self.frame.prefix + self.kind

    def named(self, *names: str) -> CallSite:
        """Return the same call with other names for its results."""
        return replace(self, names=names)

    def into(self, graph: FlatGraph) -> CallSite:
        """Return the same call in another graph."""
        return replace(self, evaluator=self.evaluator.into(graph))

    # Given

    def string(self, name: str) -> str:
        """Return an argument that is a string."""
        return attribute(self.arguments[name], STRING)

    def integer(self, name: str) -> int:
        """Return an argument that is an integer and decides the structure of the graph."""
        return known_integer(self.arguments[name], name)

    # Errors

    def error(self, message: str, hint: str = "") -> NnefError:
        """Return an error located here."""
        return self.graph.error(message, self.node, self.frame, hint)

    def located(self, error: Exception) -> NnefError:
        """Return one of `REFUSALS` with its place: here, if it has none."""
        if isinstance(error, ExtentNeeded):
            message = "how many results it has depends on an open extent"
            error = InvalidOperation(message, GIVE_SHAPES)
        if isinstance(error, InvalidOperation):
            if not self.kind:
                return self.error(error.message, error.hint)
            return self.invalid(error, self.kind)
        if isinstance(error, NnefError):
            if error.span is None:
                error.span, error.calls = self.span, self.frame.calls
            return error
        return UnsupportedError(
            f"'{self.kind}' depends on more of an extent than is known while it is symbolic",
            span=self.span,
            calls=self.frame.calls,
            hint=EXPORT_KNOWN,
        )

    def invalid(self, error: InvalidOperation, kind: str, operands: Given = _NOTHING) -> NnefError:
        """Return the located error of an operation that refuses its arguments."""
        return self.graph.invalid(error, kind, operands, self.node, self.frame)

    # Values

    def emit(
        self, kind: str, operands: Given, attributes: Given, names: Sequence[str], **options: Any
    ) -> tuple[Any, ...]:
        """Add an operation to the graph; the options are those of `Emitter.emit`."""
        place = CallPlace(self.node, self.frame, names)
        return self.graph.emit(kind, operands, attributes, place, **options)

    def cast(self, x: Value, dtype: str, *names: str) -> Value:
        """Return a tensor in a dtype."""
        if x.type.dtype == dtype:
            return x
        graph = self.graph
        wanted = names or [graph.builder.unreserved(f"{x.name}_{dtype}")]
        (result,) = self.emit("cast", {"input": x}, {"dtype": dtype}, wanted)
        stored = graph.constants.get(x)
        if stored is not None:  # still known when the document is flattened
            is_small = stored.size <= LARGEST_ATTRIBUTE
            graph.constants[result] = converted(stored, dtype) if is_small else stored
        return result

    def constant(self, value: Any, dtype: str, *names: str) -> Value:
        """Return a known value as a tensor of a dtype; '' keeps its own."""
        graph = self.graph
        try:
            known = host(value)
            dtype = dtype or own_dtype(known, graph.defaults)
            items = tuple(known.ravel().tolist())
            graph.require_known(items)
            if is_plain(items):
                items = graph.literals(known, dtype)
        except InvalidOperation as error:
            raise self.invalid(error, "constant") from None
        attributes = {"shape": known.shape, "value": items, "dtype": dtype}
        return self.emit("constant", {}, attributes, names)[0]

    def state(self, type: TensorType, name: str, initial: NDArray[Any] | None = None) -> Value:
        """Add a variable that the graph keeps from call to call."""
        return self.graph.state(type, name, self.unit.labels + name, self.span, initial)
