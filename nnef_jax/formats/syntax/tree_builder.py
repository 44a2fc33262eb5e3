"""Builds the syntax tree. Both readers call a method of the builder for each production."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from lowering.location import Source, Span
from nnef_jax.errors import LimitError, NnefSyntaxError, SemanticError
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax import types as t
from nnef_jax.formats.syntax.tokens import (
    BUILTINS,
    KEYWORDS,
    PROVISIONAL_KEYWORDS,
    Token,
    unescaped,
)
from nnef_jax.limits import raising

_LARGEST_INTEGER = 2**63 - 1
_INFINITY = float("inf")
_GENERIC = frozenset({*t.PRIMITIVES, "?"})
_GENERIC_HINT = "the types are scalar, integer, logical and string"
_TENSORS = {"": t.TENSOR} | {i: t.Tensor(i) for i in ("scalar", "integer", "logical", "?")}
_TYPES = {name: t.Primitive(name) for name in t.PRIMITIVES} | {"extent": t.INTEGER}
_Expression = TypeVar("_Expression", bound=s.Expression)


def nodes_of(items: Sequence[object]) -> tuple[Any, ...]:
    """Return the nodes among the arguments of a production. Tokens and None are left out."""
    return tuple([item for item in items if isinstance(item, s.SyntaxNode)])


class TreeBuilder:
    """Builds the syntax tree of a text in NNEF's language.

    A method has the name of a production of the grammar. Its arguments are the parts of the
    production: nodes of inner productions, named tokens, and None for an optional token that is
    absent. `features` lists, with their offsets, the constructions that only one dialect has or
    that need an extension.
    """

    def __init__(self, source: Source, nesting: int, provisional: bool = False) -> None:
        self.source = source
        self.provisional = provisional
        self.keywords: frozenset[str] = PROVISIONAL_KEYWORDS if provisional else KEYWORDS
        self.features: list[tuple[str, int]] = []
        self.nesting = nesting
        self._operators: list[int] = []  # the offsets of expressions that compute

    def _fail(self, message: str, token: Token, hint: str = "") -> NnefSyntaxError:
        span = Span(self.source, token.start_pos, len(token))
        return NnefSyntaxError(message, span=span, hint=hint)

    def _note(self, feature: str, offset: int) -> None:
        self.features.append((feature, offset))

    def _note_operators(self, body: str) -> None:
        self.features += [(f"operator in {body}", offset) for offset in self._operators]
        self._operators.clear()

    def name(self, token: Token) -> str:
        """Return the identifier in a token. Raises NnefSyntaxError if the token is a keyword."""
        if token in self.keywords:
            raise self._fail(f"'{token}' is a keyword, it cannot be a name", token)
        return str(token)

    def _check_nesting(self, nodes: str, depth: int, offset: int) -> None:
        if depth > self.nesting:
            raise LimitError(
                f"{nodes} are nested more than {self.nesting} deep",
                span=Span(self.source, offset),
                hint=raising("nesting"),
            )

    def _nested(
        self, node: _Expression, inner: Sequence[s.SyntaxNode | None], offset: int
    ) -> _Expression:
        """Set the depth of an expression from the depths of the nodes `inner`, and return it.

        Raises LimitError if the expression is nested too deeply.
        """
        node.depth = 1 + max([getattr(item, "depth", 0) for item in inner], default=0)
        self._check_nesting("expressions", node.depth, offset)
        return node

    def _computed(self, node: _Expression, *inner: s.Expression | None) -> _Expression:
        """Set the depth of an expression that computes with operators, and return the expression.

        `inner` are the operands of the expression. Its offset is noted in the list of operators.
        """
        self._operators.append(node.offset)
        return self._nested(node, inner, node.offset)

    # Documents

    def document(self, version: str, *items: Any) -> Any:
        *definitions, graph = items
        extensions = tuple(name for x in definitions if isinstance(x, list) for name in x)
        fragments = nodes_of(definitions)
        document = s.Document(self.source, version, self.provisional, extensions, fragments, graph)
        return document, self.features

    def library(self, version: str, *items: object) -> dict[str, s.Fragment]:
        return {fragment.name: fragment for fragment in nodes_of(items)}

    def version(self, number: Token, end: Token | None) -> str:
        if "." not in number or "e" in number.lower():
            raise self._fail("a version is two numbers with a point between, as in 1.0", number)
        if number != "1.0":
            message = f"version {number} is not supported, only 1.0 is"
            span = Span(self.source, number.start_pos, len(number))
            raise SemanticError(message, span=span)
        return str(number)

    def extension(self, name: Token, *names: Token | None) -> Any:
        self._note("extension", name.start_pos)
        return [name.strip() for item in (name, *names[:-1]) for name in str(item).split(",")]

    def fragment(self, name: Token, generic: Token | None, *items: Any) -> s.Fragment:
        _, parameters, _, results, body = items
        default = None
        if generic:
            self._note("generic", generic.start_pos)
            default = generic[1:-1].partition("=")[2].strip() or None
            if default and default not in t.PRIMITIVES:
                message = f"'?' cannot stand for '{default}', which is not a type"
                raise self._fail(message, generic, _GENERIC_HINT)
        self._note("fragment", name.start_pos)
        self._note_operators("fragment")
        if isinstance(body, str):  # a semicolon is in the place of the body
            body = None
        return s.Fragment(
            name.start_pos, self.name(name), generic is not None, default, parameters, results,
            body, self.source,
        )  # fmt: skip

    def parameter(
        self, name: Token, type: t.Type, default: s.Expression | None
    ) -> s.FormalParameter:
        return s.FormalParameter(name.start_pos, self._declared(name, type), type, default)

    def result(self, name: Token, type: t.Type) -> s.ResultDeclaration:
        return s.ResultDeclaration(name.start_pos, self._declared(name, type), type)

    def _declared(self, name: Token, type: t.Type) -> str:
        if isinstance(type, t.ArrayOf | t.TupleOf):
            self._check_nesting("types", t.nesting(type), name.start_pos)
        return self.name(name)

    def graph(self, *items: Any) -> s.GraphDefinition:
        name, _, parameters, _, results, body = items
        self._note_operators("graph")
        return s.GraphDefinition(name.start_pos, self.name(name), parameters, results, body)

    def names(self, *items: Token | None) -> tuple[s.Identifier, ...]:
        return tuple(self.identifier(item) for item in items if item is not None)

    def assignment(self, target: s.Target, value: s.Expression, end: Token | None) -> s.Assignment:
        if not isinstance(value, s.Invocation):
            self._operators.append(value.offset)
        return s.Assignment(target.offset, target, value)

    # Types

    def named_type(self, name: Token, generic: Token | None) -> t.Type:
        if name == "tensor":
            feature = "typed tensor" if generic else "untyped tensor"
            self._note(feature, name.start_pos)
            item = generic[1:-1].strip() if generic else ""
            if generic is None or item in _TENSORS:
                return _TENSORS[item]
            message = f"a tensor cannot hold '{item}'"
            raise self._fail(message, generic, "it holds scalar, integer or logical")
        if name in ("extent", "integer"):
            self._note(f"{name} type", name.start_pos)
        if name not in _TYPES or generic:
            raise self._fail(f"'{name}' is not a type", name)
        return _TYPES[name]

    def generic_type(self) -> t.Type:
        return t.GENERIC

    def array_type(self, item: t.Type, bracket: Token) -> t.Type:
        return t.ArrayOf(item)

    def tuple_type(self, opening: Token, *items: t.Type) -> t.Type:
        return t.TupleOf(items)

    # Atoms

    def number(self, token: Token) -> s.Literal:
        is_integer = token.isdigit()
        if is_integer and (len(token) > 19 or int(token) > _LARGEST_INTEGER):
            raise self._fail("an integer must fit 64 bits", token)
        value = int(token) if is_integer else float(token)
        if value == _INFINITY:
            raise self._fail("the number is too large for a double", token)
        return s.Literal(token.start_pos, value)

    def string(self, token: Token) -> s.Literal:
        value = unescaped(token[1:-1])
        if not value.isprintable():
            raise self._fail("a string must not hold control characters", token)
        return s.Literal(token.start_pos, value)

    def logical(self, token: Token) -> s.Literal:
        return s.Literal(token.start_pos, token == "true")

    def identifier(self, token: Token) -> s.Identifier:
        return s.Identifier(token.start_pos, self.name(token))

    # Expressions

    def array_expression(self, opening: Token, *items: s.Expression | None) -> s.Array:
        node = s.Array(opening.start_pos, nodes_of(items))
        return self._nested(node, node.items, node.offset)

    def tuple_expression(self, opening: Token, *items: s.Expression | None) -> s.Tuple:
        node = s.Tuple(opening.start_pos, nodes_of(items))
        return self._nested(node, node.items, node.offset)

    def bare_tuple(self, *items: s.Expression) -> s.Tuple:
        return self._nested(s.Tuple(items[0].offset, items), items, items[0].offset)

    def bare_value(self, *items: s.Expression) -> s.Tuple:
        self._note("tuple without parentheses", items[0].offset)
        return self.bare_tuple(*items)

    def parenthesised(self, opening: Token, inner: s.Expression) -> s.Expression:
        self._operators.append(opening.start_pos)
        return self._nested(inner, [inner], opening.start_pos)

    def select(self, value: s.Expression, condition: s.Expression, other: s.Expression) -> s.Select:
        node = s.Select(value.offset, condition, value, other)
        return self._computed(node, value, condition, other)

    def binary(self, left: s.Expression, operator: Token, right: s.Expression) -> s.Binary:
        node = s.Binary(operator.start_pos, str(operator), left, right)
        return self._computed(node, left, right)

    def unary(self, operator: Token, operand: s.Expression) -> s.Expression:
        value = operand.value if isinstance(operand, s.Literal) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            if operator == "-":
                return s.Literal(operator.start_pos, -value)
            if operator == "+":
                return s.Literal(operator.start_pos, value)
        return self._computed(s.Unary(operator.start_pos, str(operator), operand), operand)

    def subscript(
        self, sequence: s.Expression, _: Token | None, index: s.Expression
    ) -> s.Subscript:
        return self._computed(s.Subscript(sequence.offset, sequence, index), sequence, index)

    def subrange(
        self, sequence: s.Expression, _: Token | None, *ends: s.Expression | None
    ) -> s.Subrange:
        return self._computed(s.Subrange(sequence.offset, sequence, *ends), sequence, *ends)

    def loop(self, name: Token, operator: Token, iterable: s.Expression) -> s.Loop:
        return s.Loop(name.start_pos, self.name(name), iterable)

    def comprehension(
        self,
        opening: Token,
        loops: Sequence[s.Loop],
        condition: s.Expression | None,
        item: s.Expression,
        feature: str = "yield",
    ) -> s.Comprehension:
        self._note(feature, opening.start_pos)
        node = s.Comprehension(opening.start_pos, tuple(loops), condition, item)
        return self._computed(node, *(loop.iterable for loop in loops), condition, item)

    def provisional_comprehension(self, *items: Any) -> s.Comprehension:
        opening, item, loop, condition = items
        feature = "comprehension without yield"
        return self.comprehension(opening, [loop], condition, item, feature)

    def argument(self, value: s.Expression) -> s.Argument:
        return s.Argument(value.offset, None, value)

    def named_argument(self, name: Token, value: s.Expression) -> s.Argument:
        return s.Argument(name.start_pos, str(name), value)

    def invocation(
        self, name: Token, generic: Token | None, opening: Token, *items: s.Argument | None
    ) -> s.Expression:
        arguments: tuple[s.Argument, ...] = nodes_of(items)
        values = [argument.value for argument in arguments]
        if name in BUILTINS:
            if generic or len(arguments) != 1 or arguments[0].name is not None:
                raise self._fail(f"'{name}' takes one positional argument", name)
            if name in ("shape_of", "extent"):
                feature = "shape_of" if name == "shape_of" else "extent type"
                self._note(feature, name.start_pos)
            return self._computed(s.Builtin(name.start_pos, str(name), *values), *values)
        if name == "tensor":  # the name that chapter 7 of the provisional text has for 'external'
            self._note("tensor()", name.start_pos)
            node = s.Invocation(name.start_pos, "external", None, arguments)
        else:
            type = self.generic(generic) if generic else None
            node = s.Invocation(name.start_pos, self.name(name), type, arguments)
        return self._nested(node, values, node.offset)

    def generic(self, token: Token) -> str:
        """Return the type in a token such as `<scalar>`.

        Raises NnefSyntaxError if the token does not name a type.
        """
        self._note("generic", token.start_pos)
        type = token[1:-1].strip()
        if type not in _GENERIC:
            raise self._fail(f"'{token}' does not name a type", token, _GENERIC_HINT)
        return type

    # Others

    def items(self, *items: object) -> tuple[Any, ...]:
        return tuple([item for item in items if item is not None])

    def quantization_entry(self, name: Token, quantizer: s.Expression, end: Token | None) -> Any:
        return self.string(name), quantizer
