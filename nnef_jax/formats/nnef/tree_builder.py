"""The syntax tree, built from the productions of the grammar by lark's LALR parser as it goes."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput

from lowering.location import Source, Span
from nnef_jax.errors import LimitError, NnefSyntaxError, SemanticError
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.tokens import BUILTINS, KEYWORDS, PROVISIONAL_KEYWORDS
from nnef_jax.formats.syntax.types import (
    GENERIC,
    INTEGER,
    PRIMITIVES,
    TENSOR,
    ArrayOf,
    Primitive,
    Tensor,
    TupleOf,
    Type,
    nesting,
)
from nnef_jax.formats.syntax.unexpected import syntax_error
from nnef_jax.limits import raising

_LARGEST_INTEGER = 2**63 - 1
_LOCK = threading.Lock()


@cache
def _parser() -> tuple[Lark, _Builder]:
    grammar = files("nnef_jax.formats.nnef").joinpath("grammar.lark").read_text(encoding="utf-8")
    builder = _Builder()
    starts = ["document", "library", "quantization"]
    return Lark(grammar, parser="lalr", start=starts, transformer=builder), builder


def build(
    start: str, source: Source, text: str, nesting: int, provisional: bool = False
) -> tuple[Any, list[tuple[str, int]]]:
    """What the grammar makes of a text from one of its start symbols, and the features noted.

    Raises NnefSyntaxError, LimitError or SemanticError.
    """
    with _LOCK:  # the builder holds what it notes while one text is read
        lark, builder = _parser()
        builder.begin(source, nesting, provisional)
        try:
            return lark.parse(text, start=start), builder.features
        except UnexpectedInput as error:
            raise syntax_error(lark, source, text, error, provisional) from None
        finally:
            builder.end()


_GENERIC = re.compile(r"[A-Za-z_]+|\?")
_GENERIC_HINT = "the types are scalar, integer, logical and string"
_ESCAPE = re.compile(r"\\(.)")
_TYPES = {name: Primitive(name) for name in PRIMITIVES} | {"extent": INTEGER}


def _depth(items: Sequence[s.Node | None]) -> int:
    return 1 + max((item.depth for item in items if item is not None), default=0)


class _Builder(Transformer[Token, Any]):
    """Builds the syntax tree from the productions of the grammar; notes features of one dialect."""

    def __init__(self) -> None:
        super().__init__(visit_tokens=False)
        self.end()

    def begin(self, source: Source, nesting: int, provisional: bool) -> None:
        """Start on a new text."""
        self._source: Source = source
        self._nesting = nesting
        self._keywords = PROVISIONAL_KEYWORDS if provisional else KEYWORDS
        self.features: list[tuple[str, int]] = []
        self._operators: list[int] = []

    def end(self) -> None:
        """Forget the text."""
        self._source = Source("", "")

    def _fail(self, message: str, offset: int, hint: str = "", length: int = 1) -> NnefSyntaxError:
        return NnefSyntaxError(message, span=Span(self._source, offset, length), hint=hint)

    def _note(self, feature: str, offset: int) -> None:
        self.features.append((feature, offset))

    def _nested(self, items: Sequence[s.Node | None], offset: int) -> int:
        depth = _depth(items)
        self._check_nesting("expressions", depth, offset)
        return depth

    def _check_nesting(self, what: str, depth: int, offset: int) -> None:
        if depth > self._nesting:
            raise LimitError(
                f"{what} are nested more than {self._nesting} deep",
                span=Span(self._source, offset),
                hint=raising("nesting"),
            )

    def _name(self, token: Token) -> str:
        if token in self._keywords:
            offset = token.start_pos or 0
            raise self._fail(
                f"'{token}' is a keyword, it cannot be a name", offset, length=len(token)
            )
        return str(token)

    # Documents

    def document(self, items: list[Any]) -> tuple[Any, ...]:
        *definitions, graph = items
        return (*self._definitions(definitions), graph)

    def library(self, items: list[Any]) -> tuple[Any, ...]:
        return self._definitions(items)

    def _definitions(self, items: list[Any]) -> tuple[Any, ...]:
        version, *rest = items
        extensions = tuple(name for item in rest if isinstance(item, list) for name in item)
        return version, extensions, tuple(item for item in rest if isinstance(item, s.Fragment))

    def version(self, items: list[Token]) -> str:
        number = items[0]
        if "." not in number or "e" in number.lower():
            offset = number.start_pos or 0
            raise self._fail("a version is two numbers with a point between, as in 1.0", offset)
        if not re.fullmatch(r"1\.0", number):
            raise SemanticError(
                f"version {number} is not supported, only 1.0 is",
                span=Span(self._source, number.start_pos or 0, len(number)),
            )
        return str(number)

    def extension(self, items: list[Token]) -> list[str]:
        *names, _ = items
        self._note("extension", names[0].start_pos or 0)
        return [name.strip() for name in names]

    def fragment(self, items: list[Any]) -> s.Fragment:
        name, generic, opening, parameters, _, results, body = items
        default = None
        if generic:
            self._note("generic", generic.start_pos)
            words = _GENERIC.findall(generic)
            default = words[1] if len(words) > 1 else None
            if default and default not in PRIMITIVES:
                message, hint = f"'{default}' is not a type that '?' can stand for", _GENERIC_HINT
                raise self._fail(message, generic.start_pos, hint, len(generic))
        del opening
        for offset in self._operators:
            self._note("operator in fragment", offset)
        self._operators.clear()
        return s.Fragment(
            name.start_pos, self._name(name), generic is not None, default, parameters, results,
            None if isinstance(body, Token) else body, self._source,
        )  # fmt: skip

    def graph(self, items: list[Any]) -> s.GraphDefinition:
        name, _, parameters, _, results, body = items
        for offset in self._operators:
            self._note("operator in graph", offset)
        self._operators.clear()
        return s.GraphDefinition(name.start_pos, self._name(name), parameters, results, body)

    def parameters(self, items: list[s.Parameter | None]) -> tuple[s.Parameter, ...]:
        return tuple(item for item in items if item is not None)

    def parameter(self, items: list[Any]) -> s.Parameter:
        name, type, default = items
        self._check_nesting("types", nesting(type), name.start_pos)
        return s.Parameter(name.start_pos, self._name(name), type, default)

    def results(self, items: list[s.ResultDeclaration]) -> tuple[s.ResultDeclaration, ...]:
        return tuple(items)

    def result(self, items: list[Any]) -> s.ResultDeclaration:
        name, type = items
        self._check_nesting("types", nesting(type), name.start_pos)
        return s.ResultDeclaration(name.start_pos, self._name(name), type)

    def names(self, items: list[Token]) -> tuple[s.Identifier, ...]:
        return tuple(s.Identifier(item.start_pos or 0, self._name(item)) for item in items)

    def body(self, items: list[s.Assignment]) -> tuple[s.Assignment, ...]:
        return tuple(items)

    def assignment(self, items: list[Any]) -> s.Assignment:
        target, value = items[0], items[1]
        if not isinstance(value, s.Invocation):
            self._operators.append(value.offset)
        return s.Assignment(target.offset, target, value)

    def quantization(self, items: list[Any]) -> list[Any]:
        return items

    def quantization_entry(self, items: list[Any]) -> Any:
        return self.string(items), items[1]

    # Types

    def named_type(self, items: list[Any]) -> Type:
        name, generic = items
        word = str(name)
        if word == "tensor":
            self._note("typed tensor" if generic else "untyped tensor", name.start_pos)
            if generic is None:
                return TENSOR
            words = _GENERIC.findall(generic)
            if not words:
                return Tensor(None)
            if words[0] in ("scalar", "integer", "logical", "?"):
                return Tensor(words[0])
            message, hint = (
                f"a tensor cannot hold '{words[0]}'",
                "it holds scalar, integer or logical",
            )
            raise self._fail(message, generic.start_pos, hint, len(generic))
        if word in ("extent", "integer"):
            self._note(f"{word} type", name.start_pos)
        if word not in _TYPES or generic:
            raise self._fail(f"'{word}' is not a type", name.start_pos, length=len(word))
        return _TYPES[word]

    def generic_type(self, items: list[Any]) -> Type:
        return GENERIC

    def array_type(self, items: list[Any]) -> Type:
        return ArrayOf(items[0])

    def tuple_type(self, items: list[Any]) -> Type:
        return TupleOf(tuple(items[1:]))

    # Expressions

    def number(self, items: list[Token]) -> s.Literal:
        text, offset = items[0], items[0].start_pos or 0
        if text.isdigit():
            if len(text) > 19 or int(text) > _LARGEST_INTEGER:
                raise self._fail("an integer must fit 64 bits", offset, length=len(text))
            return s.Literal(offset, int(text))
        value = float(text)
        if value == float("inf"):
            raise self._fail("the number is too large for a double", offset, length=len(text))
        return s.Literal(offset, value)

    def string(self, items: list[Token]) -> s.Literal:
        text, offset = items[0], items[0].start_pos or 0
        value = _ESCAPE.sub(r"\1", text[1:-1])
        if not value.isprintable():
            raise self._fail("a string must not hold control characters", offset, length=len(text))
        return s.Literal(offset, value)

    def true(self, items: list[Token]) -> s.Literal:
        return s.Literal(items[0].start_pos or 0, True)

    def false(self, items: list[Token]) -> s.Literal:
        return s.Literal(items[0].start_pos or 0, False)

    def identifier(self, items: list[Token]) -> s.Identifier:
        return s.Identifier(items[0].start_pos or 0, self._name(items[0]))

    def array_expression(self, items: list[Any]) -> s.Array:
        opening, *rest = items
        found = tuple(item for item in rest if item is not None)
        return s.Array(opening.start_pos, found, depth=self._nested(found, opening.start_pos))

    def tuple_expression(self, items: list[Any]) -> s.Tuple:
        opening, *rest = items
        return s.Tuple(opening.start_pos, tuple(rest), depth=self._nested(rest, opening.start_pos))

    def bare_tuple(self, items: list[Any]) -> s.Tuple:
        self._note("tuple without parentheses", items[0].offset)
        return s.Tuple(items[0].offset, tuple(items), depth=self._nested(items, items[0].offset))

    def bare_tuple_lvalue(self, items: list[Any]) -> s.Tuple:
        return s.Tuple(items[0].offset, tuple(items), depth=self._nested(items, items[0].offset))

    def parenthesised(self, items: list[Any]) -> s.Expression:
        opening, inner = items
        self._operators.append(opening.start_pos)
        inner.depth = self._nested([inner], opening.start_pos)
        return inner

    def select(self, items: list[Any]) -> s.Select:
        true_value, condition, false_value = items
        offset = true_value.offset
        self._operators.append(offset)
        return s.Select(
            offset, condition, true_value, false_value, depth=self._nested(items, offset)
        )

    def binary(self, items: list[Any]) -> s.Binary:
        left, operator, right = items
        offset = operator.start_pos
        self._operators.append(offset)
        return s.Binary(
            offset, str(operator), left, right, depth=self._nested([left, right], offset)
        )

    def unary(self, items: list[Any]) -> s.Expression:
        operator, operand = items
        offset = operator.start_pos
        match operand:
            case s.Literal(value=int() | float() as value) if operator != "!" and not isinstance(
                value, bool
            ):
                return s.Literal(offset, -value if operator == "-" else value)
            case _:
                self._operators.append(offset)
                return s.Unary(
                    offset, str(operator), operand, depth=self._nested([operand], offset)
                )

    def subscript(self, items: list[Any]) -> s.Subscript:
        sequence, _, index = items
        self._operators.append(sequence.offset)
        depth = self._nested([sequence, index], sequence.offset)
        return s.Subscript(sequence.offset, sequence, index, depth=depth)

    def subrange(self, items: list[Any]) -> s.Subrange:
        sequence, _, begin, end = items
        self._operators.append(sequence.offset)
        depth = self._nested([sequence, begin, end], sequence.offset)
        return s.Subrange(sequence.offset, sequence, begin, end, depth=depth)

    def loops(self, items: list[s.Loop]) -> list[s.Loop]:
        return items

    def loop(self, items: list[Any]) -> s.Loop:
        name, _, iterable = items
        return s.Loop(name.start_pos, self._name(name), iterable, depth=iterable.depth)

    def comprehension(self, items: list[Any]) -> s.Comprehension:
        opening, loops, condition, item = items
        self._note("yield", opening.start_pos)
        return self._comprehension(opening, loops, condition, item)

    def provisional_comprehension(self, items: list[Any]) -> s.Comprehension:
        opening, item, loop, condition = items
        self._note("comprehension without yield", opening.start_pos)
        return self._comprehension(opening, [loop], condition, item)

    def _comprehension(
        self,
        opening: Token,
        loops: list[s.Loop],
        condition: s.Expression | None,
        item: s.Expression,
    ) -> s.Comprehension:
        offset = opening.start_pos or 0
        self._operators.append(offset)
        depth = self._nested([*loops, condition, item], offset)
        return s.Comprehension(offset, tuple(loops), condition, item, depth=depth)

    def argument(self, items: list[Any]) -> s.Argument:
        return s.Argument(items[0].offset, None, items[0], depth=items[0].depth)

    def named_argument(self, items: list[Any]) -> s.Argument:
        name, value = items
        return s.Argument(name.start_pos, str(name), value, depth=value.depth)

    def invocation(self, items: list[Any]) -> s.Expression:
        name, generic, _, *rest = items
        offset = name.start_pos
        arguments = tuple(item for item in rest if item is not None)
        depth = self._nested(arguments, offset)
        if name in BUILTINS:
            if generic or len(arguments) != 1 or arguments[0].name is not None:
                raise self._fail(
                    f"'{name}' takes one positional argument", offset, length=len(name)
                )
            if name == "shape_of":
                self._note("shape_of", offset)
            if name == "extent":
                self._note("extent type", offset)
            self._operators.append(offset)
            return s.Builtin(offset, str(name), arguments[0].value, depth=depth)
        if name == "tensor":  # chapter 7 of the provisional text calls 'external' so
            self._note("tensor()", offset)
            return s.Invocation(offset, "external", None, arguments, depth=depth)
        type = None
        if generic:
            self._note("generic", generic.start_pos)
            type = (_GENERIC.findall(generic) or [""])[0]
            if type not in (*PRIMITIVES, "?"):
                message = f"'{generic}' does not name a type"
                raise self._fail(message, generic.start_pos, _GENERIC_HINT, len(generic))
        return s.Invocation(offset, self._name(name), type, arguments, depth=depth)
