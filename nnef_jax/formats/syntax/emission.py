"""Shares what all flattening does: operations into the graph, located errors, bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from lowering.builder import GraphBuilder
from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import MAX_RANK, UNKNOWN, Shape, volume
from lowering.graph import Call, Rule, Value
from lowering.location import Source
from nnef_jax.errors import LimitError, NnefError, SemanticError, ShapeError, UnsupportedError
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.tensors import show_operand
from nnef_jax.limits import EXTENT, OPERATION, Meter, raising


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


Given = Mapping[str, Any]  # by parameter


class Site(NamedTuple):
    """A place in the text that is evaluated, and the names wanted for its results."""

    node: s.SyntaxNode
    frame: Frame
    names: Sequence[str]


_LONGEST_NAME = 400
_ARRAYS = frozenset({list, tuple})
_SEQUENCES = _ARRAYS | {str}


def _extents(values: Sequence[Any]) -> int:
    """Return the steps for operands that are in an array: their shapes are compared."""
    return len(values) + sum([EXTENT * len(x.type.shape) for x in values if isinstance(x, Value)])


def _frozen(array: Sequence[Any]) -> tuple[Any, ...]:
    """Return an array as a tuple, hashable."""
    return tuple([_frozen(x) if type(x) in _ARRAYS else x for x in array])


class Emitter:
    """Adds operations to a graph within limits; says where in the text something is wrong."""

    def __init__(self, builder: GraphBuilder, meter: Meter) -> None:
        self.builder = builder
        self.meter = meter
        self.limits = meter.limits
        self._within: set[Shape] = set()  # shapes that `bound` has let pass

    def error(
        self, message: str, node: s.SyntaxNode, frame: Frame, hint: str = ""
    ) -> SemanticError:
        """Return a semantic error at a node."""
        span = s.span_in(frame.source, node)
        return SemanticError(message, span=span, calls=frame.calls, hint=hint)

    def beyond(self, message: str, limit: str, node: s.SyntaxNode, frame: Frame) -> LimitError:
        """Return the error of what is beyond a limit."""
        endless = "is the recursion endless? " if limit == "call_depth" else ""
        span = s.span_in(frame.source, node)
        return LimitError(message, span=span, calls=frame.calls, hint=endless + raising(limit))

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
        operands: Given,
        attributes: Given,
        node: s.SyntaxNode,
        frame: Frame,
        names: Sequence[str],
        rule: Rule | None = None,
        *,
        inserted: bool = False,
        shown: str = "",
    ) -> tuple[Any, ...]:
        """Add an operation to the graph; its results, result arrays as lists.

        `rule` is a user's own, errors say `shown` for the kind. For `inserted` see `Value`.
        """
        if len(self.builder.operations) >= self.limits.operations:
            message = f"the flat graph has more than {self.limits.operations} operations"
            raise self.beyond(message, "operations", node, frame)
        arrays = [len(x) for x in attributes.values() if type(x) in _SEQUENCES]
        arrays += [_extents(x) for x in operands.values() if type(x) in _SEQUENCES]
        self.spend(OPERATION + sum(arrays), node, frame)
        operands = {k: _frozen(x) if type(x) in _ARRAYS else x for k, x in operands.items()}
        attributes = {k: _frozen(x) if type(x) in _ARRAYS else x for k, x in attributes.items()}
        wanted = names or [self.builder.unreserved(frame.prefix + (shown or kind))]
        try:
            results = self.builder.operation(
                kind, operands, attributes, wanted, s.span_in(frame.source, node), frame.calls,
                rule=rule, inserted=inserted,
            )  # fmt: skip
        except InvalidOperation as error:
            raise self.invalid(error, shown or kind, operands, node, frame) from None
        for result in results:
            for value in result if isinstance(result, tuple) else (result,):
                self.bound(value, node, frame)
        return tuple([list(result) if isinstance(result, tuple) else result for result in results])

    def bound(self, value: Value, node: s.SyntaxNode, frame: Frame) -> Value:
        """Return the tensor, unless it is larger than any may be; extents open or 0 count as 1."""
        shape = value.type.shape
        rank = len(shape)
        self.meter.steps += EXTENT * rank
        if shape in self._within:
            return value
        if rank > MAX_RANK:
            message = f"'{value.name}' has {rank} axes, arrays have at most {MAX_RANK}"
            span = s.span_in(frame.source, node)
            raise UnsupportedError(message, span=span, calls=frame.calls)
        items = volume([1 if extent is UNKNOWN else extent or 1 for extent in shape])
        if items > self.limits.tensor_items:
            message = f"'{value.name}' has {items} items, more than {self.limits.tensor_items}"
            raise self.beyond(message, "tensor_items", node, frame)
        self._within.add(shape)
        return value

    def invalid(
        self, error: InvalidOperation, kind: str, operands: Given, node: s.SyntaxNode, frame: Frame
    ) -> NnefError:
        """Return the located error of an operation that refuses its arguments."""
        said = partial(self.in_document, kind)
        pairs = [(said(f"'{name}'")[1:-1], show_operand(x)) for name, x in operands.items()]
        shown = f" ({', '.join(map(' '.join, pairs))})" if pairs else ""
        message = f"'{kind}': {said(error.message)}{shown}"
        family = ShapeError if isinstance(error, InvalidShape) else SemanticError
        span = s.span_in(frame.source, node)
        return family(message, span=span, calls=frame.calls, hint=said(error.hint))

    def in_document(self, kind: str, text: str) -> str:
        """Return a text with the document's names of a kind's arguments, which are in quotes."""
        return text
