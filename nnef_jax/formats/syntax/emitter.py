"""Flattens texts: places in them, located errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lowering.errors import InvalidOperation
from lowering.graph import Call, Rule, Value
from lowering.location import Source
from nnef_jax.errors import NnefError, SemanticError
from nnef_jax.flattening.emission import ByName, Emission, refused
from nnef_jax.formats.syntax import tree as s


@dataclass(slots=True)
class Frame:
    """One body being evaluated: the graph's, or a fragment's.

    `prefix` is what the names of its tensors start with, `calls` led to it, and `generic` is what
    `?` stands for in it.
    """

    fragment: s.Fragment | None
    source: Source
    values: dict[str, Any]
    prefix: str = ""
    calls: tuple[Call, ...] = ()
    generic: str | None = None


class CallPlace(NamedTuple):
    """A place in the text that is evaluated, and the names wanted for its results."""

    node: s.SyntaxNode
    frame: Frame
    names: Sequence[str]


class Poisoned(Exception):
    """An expression reads a name whose own error is already reported."""


_LONGEST_NAME = 400


class Emitter(Emission):
    """Adds operations of a text to a graph; says where in the text something is wrong."""

    def error(
        self, message: str, node: s.SyntaxNode, frame: Frame, hint: str = ""
    ) -> SemanticError:
        """Return a semantic error at a node."""
        span = s.span_in(frame.source, node)
        return SemanticError(message, span=span, calls=frame.calls, hint=hint)

    def spend(self, steps: int, node: s.SyntaxNode, frame: Frame) -> None:
        """Count steps of evaluation."""
        self.meter.steps += steps
        if self.meter.steps > self.limits.steps:
            self.meter.spend(0, "the network", s.span_in(frame.source, node), frame.calls)

    def local(self, name: str) -> str:
        """Return the name of a tensor in a fragment's body: a prefix and its name in the text."""
        return self.builder.unreserved(name[:_LONGEST_NAME])

    def emit(
        self,
        kind: str,
        operands: ByName,
        attributes: ByName,
        place: CallPlace,
        rule: Rule | None = None,
    ) -> tuple[Any, ...]:
        """Add an operation to the graph; its results, result arrays as lists.

        `rule` is a user's own.
        """
        node, frame, names = place
        span = s.span_in(frame.source, node)
        wanted = names or [self.builder.unreserved(frame.prefix + kind)]
        try:
            return self.add(kind, operands, attributes, wanted, span, frame.calls, rule=rule)
        except InvalidOperation as error:
            raise self.invalid(error, kind, operands, node, frame) from None

    def unpacked(self, target: s.Expression, value: Any, frame: Frame) -> list[tuple[str, Any]]:
        """Return the names of a target with what they stand for."""
        if isinstance(target, s.Identifier):
            return [(target.name, value)]
        assert isinstance(target, s.Array | s.Tuple)
        self.spend(len(target.items), target, frame)
        parts: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
        if len(target.items) != len(parts):
            message = f"{len(parts)} results cannot be assigned to {len(target.items)} names"
            raise self.error(message, target, frame)
        pairs = zip(target.items, parts, strict=True)
        return [found for item, part in pairs for found in self.unpacked(item, part, frame)]

    def bound(self, value: Value, node: s.SyntaxNode, frame: Frame) -> Value:
        """Return the tensor, unless it is larger than any may be."""
        self.require_bounds(value, s.span_in(frame.source, node), frame.calls)
        return value

    def invalid(
        self, error: InvalidOperation, kind: str, operands: ByName, node: s.SyntaxNode, frame: Frame
    ) -> NnefError:
        """Return the located error of an operation that refuses its arguments."""
        return refused(error, kind, operands, s.span_in(frame.source, node), frame.calls)
