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
from nnef_jax.formats.syntax import tree


@dataclass(slots=True)
class Frame:
    """The state while a body is evaluated. The body is that of the graph or of a fragment.

    `fragment` is None for the graph. `values` has the values of names. The names of the body's
    tensors begin with `prefix`. `calls` are the calls that lead to the body, and `generic` is the
    type that `?` stands for in the body.
    """

    fragment: tree.Fragment | None
    source: Source
    values: dict[str, Any]
    prefix: str = ""
    calls: tuple[Call, ...] = ()
    generic: str | None = None


class CallPlace(NamedTuple):
    """The place of an expression that is evaluated.

    The place consists of a node, the frame of the node, and the names for the expression's results.
    """

    node: tree.SyntaxNode
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
        self, message: str, node: tree.SyntaxNode, frame: Frame, hint: str = ""
    ) -> SemanticError:
        """Return a semantic error at a node."""
        span = tree.span_in(frame.source, node)
        return SemanticError(message, span=span, calls=frame.calls, hint=hint)

    def spend(self, steps: int, node: tree.SyntaxNode, frame: Frame) -> None:
        """Count steps of evaluation.

        Raises LimitError with the place of a node if there are too many steps.
        """
        self.meter.steps += steps
        if self.meter.steps > self.limits.steps:
            # The steps are already counted, so no more are added. This call raises LimitError.
            self.meter.spend(0, "the network", tree.span_in(frame.source, node), frame.calls)

    def local(self, name: str) -> str:
        """Return a free name like `name` for a tensor in a fragment.

        `name` is the tensor's name in the fragment, with the prefix of the frame. A name is free if
        the document itself does not use it.
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

        In the tuple, an array of tensors is a list. `rule` is the user's rule for the operation, if
        there is one. If the place has no names for the results, the results get names that begin
        with the kind. Raises NnefError with the place of the call.
        """
        node, frame, names = place
        span = tree.span_in(frame.source, node)
        names = names or [self.builder.unreserved(frame.prefix + kind)]
        try:
            return self.add(kind, operands, attributes, names, span, frame.calls, rule=rule)
        except InvalidOperation as error:
            raise self.invalid(error, kind, operands, node, frame) from None

    def unpacked(
        self, target: tree.Expression, value: object, frame: Frame
    ) -> list[tuple[str, Any]]:
        """Return a pair for each name in the target of an assignment: (name, part of `value`).

        For example, the target `[a, (b, c)]` and the value [1, (2, 3)] have the pairs ("a", 1),
        ("b", 2) and ("c", 3).
        """
        if isinstance(target, tree.Identifier):
            return [(target.name, value)]
        assert isinstance(target, tree.Array | tree.Tuple)
        self.spend(len(target.items), target, frame)
        is_sequence = isinstance(value, list | tuple)
        parts = cast("Sequence[object]", value) if is_sequence else [value]
        if len(target.items) != len(parts):
            message = f"{len(parts)} results cannot be assigned to {len(target.items)} names"
            raise self.error(message, target, frame)
        unpacked: list[tuple[str, Any]] = []
        for item, part in zip(target.items, parts, strict=True):
            unpacked += self.unpacked(item, part, frame)
        return unpacked

    def bound(self, value: Value, node: tree.SyntaxNode, frame: Frame) -> Value:
        """Return `value`, or raise NnefError if the tensor is larger than the limits allow.

        The error has the place of a node.
        """
        self.require_bounds(value, tree.span_in(frame.source, node), frame.calls)
        return value

    def invalid(
        self,
        error: InvalidOperation,
        kind: str,
        operands: ByName,
        node: tree.SyntaxNode,
        frame: Frame,
    ) -> NnefError:
        """Return the error at `node` for an operation that refuses its arguments."""
        span = tree.span_in(frame.source, node)
        return refused(error, kind, operands, span, frame.calls)
