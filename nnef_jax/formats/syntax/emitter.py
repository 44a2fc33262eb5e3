"""Adds operations of a text to a graph. Errors have the place in the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from lowering.errors import InvalidOperation
from lowering.graph import Call, Rule, Value
from lowering.location import Source
from nnef_jax.errors import NnefError, SemanticError
from nnef_jax.flattening.emission import ByName, Emission, refused
from nnef_jax.formats.syntax import tree as s


@dataclass(slots=True)
class Frame:
    """The state of a body while it is evaluated. The body is that of the graph or of a fragment.

    `fragment` is None for the graph. The names of the body's tensors begin with `prefix`. `calls`
    are the nested calls that lead to the body, and `generic` is the type of `?` in the body.
    """

    fragment: s.Fragment | None
    source: Source
    values: dict[str, Any]
    prefix: str = ""
    calls: tuple[Call, ...] = ()
    generic: str | None = None


class CallPlace(NamedTuple):
    """A node that is being evaluated, the frame of the node, and the names for its results."""

    node: s.SyntaxNode
    frame: Frame
    names: Sequence[str]


class Poisoned(Exception):
    """An expression reads a name whose assignment has an error. The error is already reported."""


_LONGEST_NAME = 400  # the largest number of characters of a name


class Emitter(Emission):
    """A graph under construction from a text. Errors have the span of the node in the text."""

    def error(
        self, message: str, node: s.SyntaxNode, frame: Frame, hint: str = ""
    ) -> SemanticError:
        """Return a semantic error at a node."""
        span = s.span_in(frame.source, node)
        return SemanticError(message, span=span, calls=frame.calls, hint=hint)

    def spend(self, steps: int, node: s.SyntaxNode, frame: Frame) -> None:
        """Count steps of evaluation. If there are too many, raises LimitError at the node."""
        self.meter.steps += steps
        if self.meter.steps > self.limits.steps:
            self.meter.spend(0, "the network", s.span_in(frame.source, node), frame.calls)

    def local(self, name: str) -> str:
        """Return a name for a tensor in a fragment that is not reserved.

        `name` is the name of the tensor with the prefix of the frame.
        """
        return self.builder.unreserved(name[:_LONGEST_NAME])

    def emit(
        self,
        kind: str,
        operands: ByName,
        attributes: ByName,
        place: CallPlace,
        rule: Rule | None = None,
    ) -> tuple[Any, ...]:
        """Add an operation to the graph and return its results. A result array is a list.

        `rule` is the user's rule for the operation, if there is one. Raises NnefError with the span
        of the call.
        """
        node, frame, names = place
        span = s.span_in(frame.source, node)
        names = names or [self.builder.unreserved(frame.prefix + kind)]
        try:
            return self.add(kind, operands, attributes, names, span, frame.calls, rule=rule)
        except InvalidOperation as error:
            raise self.invalid(error, kind, operands, node, frame) from None

    def unpacked(self, target: s.Expression, value: object, frame: Frame) -> list[tuple[str, Any]]:
        """Pair the names in the target of an assignment with their values."""
        if isinstance(target, s.Identifier):
            return [(target.name, value)]
        assert isinstance(target, s.Array | s.Tuple)
        self.spend(len(target.items), target, frame)
        is_sequence = isinstance(value, list | tuple)
        parts = cast("Sequence[object]", value) if is_sequence else [value]
        if len(target.items) != len(parts):
            message = f"{len(parts)} results cannot be assigned to {len(target.items)} names"
            raise self.error(message, target, frame)
        pairs = zip(target.items, parts, strict=True)
        return [named for item, part in pairs for named in self.unpacked(item, part, frame)]

    def bound(self, value: Value, node: s.SyntaxNode, frame: Frame) -> Value:
        """Return a tensor. Raises NnefError if the tensor is larger than the limits allow."""
        self.require_bounds(value, s.span_in(frame.source, node), frame.calls)
        return value

    def invalid(
        self, error: InvalidOperation, kind: str, operands: ByName, node: s.SyntaxNode, frame: Frame
    ) -> NnefError:
        """Return the error of an operation that refuses its arguments, with the place of a node."""
        return refused(error, kind, operands, s.span_in(frame.source, node), frame.calls)
