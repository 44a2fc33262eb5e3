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
    """The state of the evaluation of a body, which is the body of the graph or of a fragment.

    `fragment` is None for the graph. `values` has the values of names. The names of the body's
    tensors begin with `prefix`. `calls` are the calls that lead to the body, and `generic` is the
    type that `?` stands for in the body.
    """

    fragment: s.Fragment | None
    source: Source
    values: dict[str, Any]
    prefix: str = ""
    calls: tuple[Call, ...] = ()
    generic: str | None = None


class CallPlace(NamedTuple):
    """The place of an expression that is evaluated.

    It consists of the node, the frame of the node, and the names for the results of the expression.
    """

    node: s.SyntaxNode
    frame: Frame
    names: Sequence[str]


class Poisoned(Exception):
    """An expression reads a name whose assignment has an error. The error is already reported."""


_LONGEST_NAME = 400  # the largest number of characters of a name


class Emitter(Emission):
    """A graph under construction to which the operations of a text are added.

    Errors have the place in the text.
    """

    def error(
        self, message: str, node: s.SyntaxNode, frame: Frame, hint: str = ""
    ) -> SemanticError:
        """Return a semantic error at a node."""
        span = s.span_in(frame.source, node)
        return SemanticError(message, span=span, calls=frame.calls, hint=hint)

    def spend(self, steps: int, node: s.SyntaxNode, frame: Frame) -> None:
        """Count steps of evaluation.

        If there are too many, raise LimitError with the place of a node.
        """
        self.meter.steps += steps
        if self.meter.steps > self.limits.steps:
            self.meter.spend(0, "the network", s.span_in(frame.source, node), frame.calls)

    def local(self, name: str) -> str:
        """Return a free name like `name` for a tensor in a fragment.

        `name` is the tensor's name in the fragment, with the prefix of the frame. Names that the
        document itself uses are not free.
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
        """Add an operation to the graph and return a tuple of its results.

        A result that is an array of tensors is a list. `rule` is the user's rule for the operation,
        if there is one. Raises NnefError with the place of the call.
        """
        node, frame, names = place
        span = s.span_in(frame.source, node)
        names = names or [self.builder.unreserved(frame.prefix + kind)]
        try:
            return self.add(kind, operands, attributes, names, span, frame.calls, rule=rule)
        except InvalidOperation as error:
            raise self.invalid(error, kind, operands, node, frame) from None

    def unpacked(self, target: s.Expression, value: object, frame: Frame) -> list[tuple[str, Any]]:
        """Return each name in the target of an assignment with the part of `value` for it."""
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
        """Return `value`, or raise NnefError if it is larger than the limits allow.

        The error has the place of a node.
        """
        self.require_bounds(value, s.span_in(frame.source, node), frame.calls)
        return value

    def invalid(
        self, error: InvalidOperation, kind: str, operands: ByName, node: s.SyntaxNode, frame: Frame
    ) -> NnefError:
        """Return the error of an operation that refuses its arguments, with the place of a node."""
        return refused(error, kind, operands, s.span_in(frame.source, node), frame.calls)
