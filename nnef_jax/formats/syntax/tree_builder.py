"""Builds the syntax tree. A reader calls a method of the builder for each production."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from lowering.location import Source, Span
from nnef_jax.errors import LimitError, NnefSyntaxError, SemanticError
from nnef_jax.formats.syntax import tree
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
_DIGITS_OF_INTEGER = 19  # the number of digits of the largest integer
_INFINITY = float("inf")
_GENERIC = frozenset({*t.PRIMITIVES, "?"})
_GENERIC_HINT = "the types are scalar, integer, logical and string"
_TENSORS = {"": t.TENSOR} | {i: t.Tensor(i) for i in ("scalar", "integer", "logical", "?")}
_TYPES = {name: t.Primitive(name) for name in t.PRIMITIVES} | {"extent": t.INTEGER}
_Expression = TypeVar("_Expression", bound=tree.Expression)


def nodes_of(items: Sequence[object]) -> tuple[Any, ...]:
    """Return the nodes among the arguments of a production. Tokens and None are left out."""
    return tuple([item for item in items if isinstance(item, tree.SyntaxNode)])


class TreeBuilder:
    """Builds the syntax tree of a text in NNEF's language.

    A method has the name of a production of the grammar. Its arguments are the parts of the
    production: nodes of inner productions, named tokens, and None for an optional token that is
    absent. `features` has the constructions that only one dialect has or that need an extension,
    each with its offset. `nesting` is the largest depth of expressions.
    """

    def __init__(self, source: Source, nesting: int, provisional: bool = False) -> None:
        self.source = source
        self.provisional = provisional
        self.keywords: frozenset[str] = PROVISIONAL_KEYWORDS if provisional else KEYWORDS
        self.features: list[tuple[str, int]] = []
        self.nesting = nesting
        self._operators: list[int] = []  # the offsets of expressions that count as operators

    def _fail(self, message: str, token: Token, hint: str = "") -> NnefSyntaxError:
        """Return an error with the place of a token."""
        span = Span(self.source, token.start_pos, len(token))
        return NnefSyntaxError(message, span=span, hint=hint)

    def _note(self, feature: str, offset: int) -> None:
        """Add the use of a feature at an offset to `features`."""
        self.features.append((feature, offset))

    def _note_operators(self, body: str) -> None:
        """Note the operators that were read since the last call as features of a body.

        `body` is "fragment" or "graph". The feature is "operator in fragment" or "operator in
        graph".
        """
        self.features += [(f"operator in {body}", offset) for offset in self._operators]
        self._operators.clear()

    def name(self, token: Token) -> str:
        """Return the identifier in a token. Raises NnefSyntaxError if the token is a keyword."""
        if token in self.keywords:
            raise self._fail(f"'{token}' is a keyword, it cannot be a name", token)
        return str(token)

    def _check_nesting(self, nodes: str, depth: int, offset: int) -> None:
        """Raise LimitError if `nodes`, such as "expressions", are nested too deeply."""
        if depth > self.nesting:
            raise LimitError(
                f"{nodes} are nested more than {self.nesting} deep",
                span=Span(self.source, offset),
                hint=raising("nesting"),
            )

    def _nested(
        self, node: _Expression, inner: Sequence[tree.SyntaxNode | None], offset: int
    ) -> _Expression:
        """Set the depth of an expression, and return the expression.

        The depth is 1 more than the largest depth of the nodes in `inner`. Raises LimitError if the
        expression is nested too deeply.
        """
        inner_depths = [getattr(item, "depth", 0) for item in inner]
        node.depth = 1 + max(inner_depths, default=0)
        self._check_nesting("expressions", node.depth, offset)
        return node

    def _computed(self, node: _Expression, *inner: tree.Expression | None) -> _Expression:
        """Set the depth of an expression that computes, and return the expression.

        `inner` are the operands of the expression. The expression counts as an operator.
        """
        self._operators.append(node.offset)
        return self._nested(node, inner, node.offset)

    # Documents

    def document(self, version: str, *items: Any) -> Any:
        """Return a document and its features. The last item is the graph."""
        *definitions, graph = items
        extensions: list[str] = []
        for definition in definitions:
            # A list has the names of an extension line. Other definitions are nodes of fragments.
            if isinstance(definition, list):
                extensions += cast("list[str]", definition)
        fragments = nodes_of(definitions)
        document = tree.Document(
            self.source, version, self.provisional, tuple(extensions), fragments, graph
        )
        return document, self.features

    def library(self, version: str, *items: object) -> dict[str, tree.Fragment]:
        """Return the fragments of a library by name."""
        return {fragment.name: fragment for fragment in nodes_of(items)}

    def version(self, number: Token, end: Token | None) -> str:
        """Return the version of a document. Raises SemanticError if it is not 1.0."""
        if "." not in number or "e" in number.lower():
            raise self._fail("a version is two numbers with a point between, as in 1.0", number)
        if number != "1.0":
            message = f"version {number} is not supported, only 1.0 is"
            span = Span(self.source, number.start_pos, len(number))
            raise SemanticError(message, span=span)
        return str(number)

    def extension(self, name: Token, *names: Token | None) -> Any:
        """Return the names in an extension line. The last item in `names` ends the line."""
        self._note("extension", name.start_pos)
        extensions: list[str] = []
        for item in (name, *names[:-1]):
            extensions += [extension.strip() for extension in str(item).split(",")]
        return extensions

    def fragment(self, name: Token, generic: Token | None, *items: Any) -> tree.Fragment:
        """Return a fragment. `generic` is a token such as `<?>` or `<? = scalar>`, or None."""
        _, parameters, _, results, body = items  # without the opening parentheses
        default = None
        if generic:
            self._note("generic", generic.start_pos)
            _, _, text_after_equals = generic[1:-1].partition("=")
            default = text_after_equals.strip() or None
            if default and default not in t.PRIMITIVES:
                message = f"'?' cannot stand for '{default}', which is not a type"
                raise self._fail(message, generic, _GENERIC_HINT)
        self._note("fragment", name.start_pos)
        self._note_operators("fragment")
        has_no_body = isinstance(body, str)  # there is the token of a semicolon instead
        if has_no_body:
            body = None
        return tree.Fragment(
            name.start_pos, self.name(name), generic is not None, default, parameters, results,
            body, self.source,
        )  # fmt: skip

    def parameter(
        self, name: Token, type: t.Type, default: tree.Expression | None
    ) -> tree.FormalParameter:
        """Return a parameter of a fragment."""
        return tree.FormalParameter(name.start_pos, self._declared(name, type), type, default)

    def result(self, name: Token, type: t.Type) -> tree.ResultDeclaration:
        """Return a declared result of a fragment."""
        return tree.ResultDeclaration(name.start_pos, self._declared(name, type), type)

    def _declared(self, name: Token, type: t.Type) -> str:
        """Return a declared name. Raises LimitError if its type is nested too deeply."""
        if isinstance(type, t.ArrayOf | t.TupleOf):
            self._check_nesting("types", t.nesting(type), name.start_pos)
        return self.name(name)

    def graph(self, *items: Any) -> tree.GraphDefinition:
        """Return the graph of a document."""
        name, _, parameters, _, results, body = items  # without the opening parentheses
        self._note_operators("graph")
        return tree.GraphDefinition(name.start_pos, self.name(name), parameters, results, body)

    def names(self, *items: Token | None) -> tuple[tree.Identifier, ...]:
        """Return the identifiers in a list of names."""
        return tuple(self.identifier(item) for item in items if item is not None)

    def assignment(
        self, target: tree.Target, value: tree.Expression, end: Token | None
    ) -> tree.Assignment:
        """Return a statement.

        A flat statement has an invocation as its value. Any other value counts as an operator.
        """
        if not isinstance(value, tree.Invocation):
            self._operators.append(value.offset)
        return tree.Assignment(target.offset, target, value)

    # Types

    def named_type(self, name: Token, generic: Token | None) -> t.Type:
        """Return the type `name<generic>`, or `name` if `generic` is None."""
        if name == "tensor":
            if generic is None:
                self._note("untyped tensor", name.start_pos)
                return t.TENSOR
            self._note("typed tensor", name.start_pos)
            item = generic[1:-1].strip()
            if item not in _TENSORS:
                message = f"a tensor cannot hold '{item}'"
                raise self._fail(message, generic, "it holds scalar, integer or logical")
            return _TENSORS[item]
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

    def number(self, token: Token) -> tree.Literal:
        """Return a number as a literal. A number of digits only is an integer."""
        is_integer = token.isdigit()
        has_many_digits = len(token) > _DIGITS_OF_INTEGER
        # A number of many digits is not converted, since this may take long.
        if is_integer and (has_many_digits or int(token) > _LARGEST_INTEGER):
            raise self._fail("an integer must fit 64 bits", token)
        value = int(token) if is_integer else float(token)
        if value == _INFINITY:
            raise self._fail("the number is too large for a double", token)
        return tree.Literal(token.start_pos, value)

    def string(self, token: Token) -> tree.Literal:
        """Return a string as a literal, without quotes and escapes."""
        value = unescaped(token[1:-1])
        if not value.isprintable():
            raise self._fail("a string must not hold control characters", token)
        return tree.Literal(token.start_pos, value)

    def logical(self, token: Token) -> tree.Literal:
        return tree.Literal(token.start_pos, token == "true")

    def identifier(self, token: Token) -> tree.Identifier:
        return tree.Identifier(token.start_pos, self.name(token))

    # Expressions

    def array_expression(self, opening: Token, *items: tree.Expression | None) -> tree.Array:
        """Return an array."""
        node = tree.Array(opening.start_pos, nodes_of(items))
        return self._nested(node, node.items, node.offset)

    def tuple_expression(self, opening: Token, *items: tree.Expression | None) -> tree.Tuple:
        """Return a tuple."""
        node = tree.Tuple(opening.start_pos, nodes_of(items))
        return self._nested(node, node.items, node.offset)

    def bare_tuple(self, *items: tree.Expression) -> tree.Tuple:
        """Return a tuple that is written without parentheses."""
        return self._nested(tree.Tuple(items[0].offset, items), items, items[0].offset)

    def bare_value(self, *items: tree.Expression) -> tree.Tuple:
        """Return a tuple without parentheses that is the value of an assignment."""
        self._note("tuple without parentheses", items[0].offset)
        return self.bare_tuple(*items)

    def parenthesised(self, opening: Token, inner: tree.Expression) -> tree.Expression:
        """Return an expression in parentheses, which counts as an operator."""
        self._operators.append(opening.start_pos)
        return self._nested(inner, [inner], opening.start_pos)

    def select(
        self, true_value: tree.Expression, condition: tree.Expression, false_value: tree.Expression
    ) -> tree.Select:
        """Return the expression `true_value if condition else false_value`."""
        node = tree.Select(true_value.offset, condition, true_value, false_value)
        return self._computed(node, true_value, condition, false_value)

    def binary(self, left: tree.Expression, operator: Token, right: tree.Expression) -> tree.Binary:
        node = tree.Binary(operator.start_pos, str(operator), left, right)
        return self._computed(node, left, right)

    def unary(self, operator: Token, operand: tree.Expression) -> tree.Expression:
        """Return the expression of a unary operator.

        A sign before a number becomes part of the number.
        """
        value = operand.value if isinstance(operand, tree.Literal) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            if operator == "-":
                return tree.Literal(operator.start_pos, -value)
            if operator == "+":
                return tree.Literal(operator.start_pos, value)
        node = tree.Unary(operator.start_pos, str(operator), operand)
        return self._computed(node, operand)

    def subscript(
        self, sequence: tree.Expression, _: Token | None, index: tree.Expression
    ) -> tree.Subscript:
        """Return the expression `sequence[index]`."""
        node = tree.Subscript(sequence.offset, sequence, index)
        return self._computed(node, sequence, index)

    def subrange(
        self, sequence: tree.Expression, _: Token | None, *bounds: tree.Expression | None
    ) -> tree.Subrange:
        """Return the expression `sequence[begin:end]`. `bounds` are `begin` and `end`."""
        node = tree.Subrange(sequence.offset, sequence, *bounds)
        return self._computed(node, sequence, *bounds)

    def loop(self, name: Token, operator: Token, iterable: tree.Expression) -> tree.Loop:
        return tree.Loop(name.start_pos, self.name(name), iterable)

    def comprehension(
        self,
        opening: Token,
        loops: Sequence[tree.Loop],
        condition: tree.Expression | None,
        item: tree.Expression,
        feature: str = "yield",
    ) -> tree.Comprehension:
        """Return an array comprehension, and record the use of the syntax `feature`."""
        self._note(feature, opening.start_pos)
        node = tree.Comprehension(opening.start_pos, tuple(loops), condition, item)
        iterables = [loop.iterable for loop in loops]
        return self._computed(node, *iterables, condition, item)

    def provisional_comprehension(self, *items: Any) -> tree.Comprehension:
        """Return an array comprehension in the syntax of 1.0 provisional, without `yield`."""
        opening, item, loop, condition = items
        feature = "comprehension without yield"
        return self.comprehension(opening, [loop], condition, item, feature)

    def argument(self, value: tree.Expression) -> tree.Argument:
        return tree.Argument(value.offset, None, value)

    def named_argument(self, name: Token, value: tree.Expression) -> tree.Argument:
        return tree.Argument(name.start_pos, str(name), value)

    def invocation(
        self, name: Token, generic: Token | None, opening: Token, *items: tree.Argument | None
    ) -> tree.Expression:
        """Return an invocation, or a call of a built-in function."""
        arguments: tuple[tree.Argument, ...] = nodes_of(items)
        values = [argument.value for argument in arguments]
        if name in BUILTINS:
            has_one_positional = len(arguments) == 1 and arguments[0].name is None
            if generic or not has_one_positional:
                raise self._fail(f"'{name}' takes one positional argument", name)
            if name == "shape_of":
                self._note("shape_of", name.start_pos)
            elif name == "extent":
                self._note("extent type", name.start_pos)
            (value,) = values
            return self._computed(tree.Builtin(name.start_pos, str(name), value), value)
        if name == "tensor":  # chapter 7 of the provisional text has this name for 'external'
            self._note("tensor()", name.start_pos)
            node = tree.Invocation(name.start_pos, "external", None, arguments)
        else:
            type = self.generic(generic) if generic else None
            node = tree.Invocation(name.start_pos, self.name(name), type, arguments)
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
        """Return the parts of a list without the optional tokens that are absent."""
        return tuple([item for item in items if item is not None])

    def quantization_entry(self, name: Token, quantizer: tree.Expression, end: Token | None) -> Any:
        """Return the name and the invocation in an entry of graph.quant."""
        return self.string(name), quantizer
