"""The nodes of the syntax tree.

Nodes are compared by content, without their offsets in the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from lowering.location import Source, Span
from nnef_jax.formats.syntax.types import Type


@dataclass(slots=True)
class SyntaxNode:
    """A node of the syntax tree, with its offset in the text.

    `depth` is the number of levels of expressions in the node. It is set while the tree is built.
    """

    offset: int = field(compare=False, repr=False)
    depth: int = field(init=False, compare=False, repr=False)


@dataclass(slots=True)
class Literal(SyntaxNode):
    """A number, string or logical value. A number without point and exponent is an int."""

    value: float | int | bool | str


@dataclass(slots=True)
class Identifier(SyntaxNode):
    """A name that stands for a value."""

    name: str


@dataclass(slots=True)
class Array(SyntaxNode):
    """An array `[a, b]`, as an expression or as the target of an assignment."""

    items: tuple[Expression, ...]


@dataclass(slots=True)
class Tuple(SyntaxNode):
    """A tuple `(a, b)`, as an expression or as the target of an assignment."""

    items: tuple[Expression, ...]


@dataclass(slots=True)
class Subscript(SyntaxNode):
    """An item of an array, tuple or string: `sequence[index]`."""

    sequence: Expression
    index: Expression


@dataclass(slots=True)
class Subrange(SyntaxNode):
    """A range of items: `sequence[begin:end]`, where both bounds are optional."""

    sequence: Expression
    begin: Expression | None
    end: Expression | None


@dataclass(slots=True)
class Unary(SyntaxNode):
    """An operator before its operand: `-x`, `+x` or `!x`."""

    operator: str
    operand: Expression


@dataclass(slots=True)
class Binary(SyntaxNode):
    """An operator between two operands: `left operator right`."""

    operator: str
    left: Expression
    right: Expression


@dataclass(slots=True)
class Select(SyntaxNode):
    """A choice of two values: `true_value if condition else false_value`."""

    condition: Expression
    true_value: Expression
    false_value: Expression


@dataclass(slots=True)
class Loop(SyntaxNode):
    """A loop of a comprehension: `name in iterable`."""

    name: str
    iterable: Expression


@dataclass(slots=True)
class Comprehension(SyntaxNode):
    """An array comprehension: `[for loops if condition yield item]`."""

    loops: tuple[Loop, ...]
    condition: Expression | None
    item: Expression


@dataclass(slots=True)
class Builtin(SyntaxNode):
    """A built-in function such as `length_of(x)`, or a cast such as `scalar(x)`."""

    function: str
    argument: Expression


@dataclass(slots=True)
class Argument(SyntaxNode):
    """An argument of an invocation. `name` is None for a positional argument."""

    name: str | None
    value: Expression


@dataclass(slots=True)
class Invocation(SyntaxNode):
    """An invocation of an operation: `operation<generic>(arguments)`."""

    operation: str
    generic: str | None
    arguments: tuple[Argument, ...]


_Operation = Subscript | Subrange | Unary | Binary | Select | Comprehension | Builtin | Invocation
Expression = Literal | Identifier | Array | Tuple | _Operation
Target = Identifier | Array | Tuple


@dataclass(slots=True)
class Assignment(SyntaxNode):
    """An assignment statement: `target = value;`."""

    target: Target
    value: Expression


@dataclass(slots=True)
class FormalParameter(SyntaxNode):
    """A formal parameter of a fragment."""

    name: str
    type: Type
    default: Expression | None


@dataclass(slots=True)
class ResultDeclaration(SyntaxNode):
    """A declared result of a fragment."""

    name: str
    type: Type


@dataclass(slots=True)
class Fragment(SyntaxNode):
    """The declaration of an operation. `body` is None for a primitive operation.

    `generic` tells whether the fragment declares `<?>`. `generic_default` is the type of `?` in
    invocations that do not determine the type.
    """

    name: str
    generic: bool
    generic_default: str | None
    parameters: tuple[FormalParameter, ...]
    results: tuple[ResultDeclaration, ...]
    body: tuple[Assignment, ...] | None
    source: Source = field(compare=False, repr=False)


@dataclass(slots=True)
class GraphDefinition(SyntaxNode):
    """The graph: the names of its inputs and outputs, and its body."""

    name: str
    parameters: tuple[Identifier, ...]
    results: tuple[Identifier, ...]
    body: tuple[Assignment, ...]


@dataclass(slots=True)
class Document:
    """A parsed text. Its dialect is NNEF 1.0 provisional if `provisional`, otherwise 1.0 final."""

    source: Source = field(compare=False, repr=False)
    version: str
    provisional: bool
    extensions: tuple[str, ...]
    fragments: tuple[Fragment, ...]
    graph: GraphDefinition


def span_in(source: Source, node: SyntaxNode) -> Span:
    """Return the place of a node: the name at its beginning, or else its first character."""
    match node:
        case (
            Invocation(operation=name)
            | Identifier(name=name)
            | Builtin(function=name)
            | FormalParameter(name=name)
            | ResultDeclaration(name=name)
            | Argument(name=str(name))
        ):
            return Span(source, node.offset, len(name))
        case _:
            return Span(source, node.offset)


_LEAVES = frozenset({Literal, Identifier, int, str, NoneType})
_SEQUENCES = frozenset({Array, Tuple})


def invocations(expressions: Iterable[Expression]) -> Iterator[Invocation]:
    """Yield all invocations that occur in expressions, at any depth and in any order."""
    return (node for node in _parts(expressions) if type(node) is Invocation)


def names_in(expression: Expression) -> Iterator[str]:
    """Yield the names that an expression reads, at any depth and in any order."""
    return (node.name for node in _parts([expression]) if type(node) is Identifier)


def _parts(expressions: Iterable[Expression]) -> Iterator[Invocation | Identifier]:
    """Yield all invocations and identifiers in expressions, at any depth and in any order."""
    pending: list[Any] = [*expressions]
    while pending:
        node = pending.pop()
        kind = type(node)
        if kind in _LEAVES:  # most nodes are leaves
            if kind is Identifier:
                yield node
            continue
        if kind is Invocation:
            yield node
            pending += [argument.value for argument in node.arguments]
        elif kind in _SEQUENCES:
            pending += node.items
        elif kind is tuple:
            pending += node
        else:  # `__match_args__` names the fields: the offset, the parts, and tuples of parts
            pending += [getattr(node, name) for name in node.__match_args__]


def is_literal(expression: Expression) -> bool:
    """Tell whether an expression is a literal, or an array or tuple of literals."""
    if isinstance(expression, Array | Tuple):
        return all(map(is_literal, expression.items))
    return isinstance(expression, Literal)


def identifiers(target: Expression) -> Sequence[Identifier]:
    """Return the identifiers in the target of an assignment, in order."""
    if isinstance(target, Identifier):
        return (target,)
    assert isinstance(target, Array | Tuple)
    inner_identifiers: list[Identifier] = []
    for item in target.items:
        inner_identifiers += identifiers(item)
    return inner_identifiers
