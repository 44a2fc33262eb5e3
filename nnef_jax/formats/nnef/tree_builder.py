"""Builds what the grammar has beside expressions, and the features of each dialect."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from lark import Token

from lowering.location import Source, Span
from nnef_jax.errors import SemanticError
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax import types as t
from nnef_jax.formats.syntax.tokens import BUILTINS, KEYWORDS, PROVISIONAL_KEYWORDS
from nnef_jax.formats.syntax.tree_builder import (
    GrammarReader,
    TreeBuilder,
    at,
    present,
)

_LARGEST_INTEGER = 2**63 - 1
_GENERIC = re.compile(r"[A-Za-z_]+|\?")
_GENERIC_HINT = "the types are scalar, integer, logical and string"
_TYPES = {name: t.Primitive(name) for name in t.PRIMITIVES} | {"extent": t.INTEGER}


@cache
def grammar_reader() -> GrammarReader:
    """Return the reader of documents, of libraries of declarations, and of graph.quant."""
    starts = ["document", "library", "quantization"]
    return GrammarReader("nnef_jax.formats.nnef", starts, _Builder())


class _Builder(TreeBuilder):
    """Builds the syntax tree; notes the features that only one dialect has, with their places."""

    def begin(self, source: Source, nesting: int, provisional: bool) -> None:
        super().begin(source, nesting, provisional)
        self._keywords = PROVISIONAL_KEYWORDS if provisional else KEYWORDS
        self._features: list[tuple[str, int]] = []

    def _note(self, feature: str, offset: int) -> None:
        self._features.append((feature, offset))

    def _note_operators(self, body: str) -> None:
        self._features += [(f"operator in {body}", offset) for offset in self._operators]
        self._operators.clear()

    def _name(self, token: Token) -> str:
        if token in self._keywords:
            raise self._fail(f"'{token}' is a keyword, it cannot be a name", token)
        return str(token)

    # Documents

    def document(self, version: str, *items: Any) -> tuple[Any, ...]:
        *definitions, graph = items
        return (*self.library(version, *definitions), graph, self._features)

    def library(self, version: str, *items: Any) -> tuple[Any, ...]:
        extensions = tuple(name for item in items if isinstance(item, list) for name in item)
        return version, extensions, present(items)

    def version(self, number: Token, end: Token | None) -> str:
        if "." not in number or "e" in number.lower():
            raise self._fail("a version is two numbers with a point between, as in 1.0", number)
        if number != "1.0":
            message = f"version {number} is not supported, only 1.0 is"
            raise SemanticError(message, span=Span(self._source, at(number), len(number)))
        return str(number)

    def extension(self, *items: Token) -> list[str]:
        *names, _ = items
        self._note("extension", at(names[0]))
        return [name.strip() for name in names]

    def fragment(self, *items: Any) -> s.Fragment:
        name, generic, _, parameters, _, results, body = items
        default = None
        if generic:
            self._note("generic", at(generic))
            _, default, *_ = [*_GENERIC.findall(generic), None]
            if default and default not in t.PRIMITIVES:
                message = f"'{default}' is not a type that '?' can stand for"
                raise self._fail(message, generic, _GENERIC_HINT)
        self._note("fragment", at(name))
        self._note_operators("fragment")
        return s.Fragment(
            at(name), self._name(name), generic is not None, default, parameters, results,
            None if isinstance(body, Token) else body, self._source,
        )  # fmt: skip

    def graph(self, *items: Any) -> s.GraphDefinition:
        self._note_operators("graph")
        return super().graph(*items)

    def parameters(self, *items: s.Parameter | None) -> tuple[s.Parameter, ...]:
        return present(items)

    def parameter(self, name: Token, type: t.Type, default: s.Expression | None) -> s.Parameter:
        self._check_nesting("types", t.nesting(type), at(name))
        return s.Parameter(at(name), self._name(name), type, default)

    def results(self, *items: s.ResultDeclaration) -> tuple[s.ResultDeclaration, ...]:
        return items

    def result(self, name: Token, type: t.Type) -> s.ResultDeclaration:
        self._check_nesting("types", t.nesting(type), at(name))
        return s.ResultDeclaration(at(name), self._name(name), type)

    def assignment(self, target: s.Target, value: s.Expression, end: Token) -> s.Assignment:
        if not isinstance(value, s.Invocation):
            self._operators.append(value.offset)
        return super().assignment(target, value, end)

    def quantization(self, *items: Any) -> Sequence[Any]:
        return items

    def quantization_entry(self, name: Token, quantizer: s.Expression, end: Token | None) -> Any:
        return self.string(name), quantizer

    # Types

    def named_type(self, name: Token, generic: Token | None) -> t.Type:
        if name == "tensor":
            self._note("typed tensor" if generic else "untyped tensor", at(name))
            item = _GENERIC.search(generic or "")
            if generic is None or item is None:
                return t.TENSOR
            if item[0] in ("scalar", "integer", "logical", "?"):
                return t.Tensor(item[0])
            message = f"a tensor cannot hold '{item[0]}'"
            raise self._fail(message, generic, "it holds scalar, integer or logical")
        if name in ("extent", "integer"):
            self._note(f"{name} type", at(name))
        if name not in _TYPES or generic:
            raise self._fail(f"'{name}' is not a type", name)
        return _TYPES[name]

    def generic_type(self) -> t.Type:
        return t.GENERIC

    def array_type(self, item: t.Type, bracket: Token) -> t.Type:
        return t.ArrayOf(item)

    def tuple_type(self, opening: Token, *items: t.Type) -> t.Type:
        return t.TupleOf(items)

    # Expressions

    def number(self, token: Token) -> s.Literal:
        if token.isdigit() and (len(token) > 19 or int(token) > _LARGEST_INTEGER):
            raise self._fail("an integer must fit 64 bits", token)
        literal = super().number(token)
        if literal.value == float("inf"):
            raise self._fail("the number is too large for a double", token)
        return literal

    def string(self, token: Token) -> s.Literal:
        literal = super().string(token)
        if not str(literal.value).isprintable():
            raise self._fail("a string must not hold control characters", token)
        return literal

    def bare_value(self, *items: s.Expression) -> s.Tuple:
        self._note("tuple without parentheses", items[0].offset)
        return self.bare_tuple(*items)

    def select(self, value: s.Expression, condition: s.Expression, other: s.Expression) -> s.Select:
        node = s.Select(value.offset, condition, value, other)
        return self._computed(node, value, condition, other)

    def subrange(self, *items: Any) -> s.Subrange:
        sequence, _, begin, end = items
        node = s.Subrange(sequence.offset, sequence, begin, end)
        return self._computed(node, sequence, begin, end)

    def loops(self, *items: s.Loop) -> Sequence[s.Loop]:
        return items

    def loop(self, name: Token, operator: Token, iterable: s.Expression) -> s.Loop:
        return s.Loop(at(name), self._name(name), iterable)

    def comprehension(self, *items: Any) -> s.Comprehension:
        return self._comprehension("yield", *items)

    def provisional_comprehension(self, *items: Any) -> s.Comprehension:
        opening, item, loop, condition = items
        return self._comprehension("comprehension without yield", opening, [loop], condition, item)

    def _comprehension(self, feature: str, *items: Any) -> s.Comprehension:
        opening, loops, condition, item = items
        self._note(feature, at(opening))
        node = s.Comprehension(at(opening), tuple(loops), condition, item)
        return self._computed(node, *(loop.iterable for loop in loops), condition, item)

    def invocation(
        self, name: Token, generic: Token | None, opening: Token, *items: s.Argument | None
    ) -> s.Expression:
        arguments: tuple[s.Argument, ...] = present(items)
        values = [argument.value for argument in arguments]
        if name in BUILTINS:
            if generic or len(arguments) != 1 or arguments[0].name is not None:
                raise self._fail(f"'{name}' takes one positional argument", name)
            if name in ("shape_of", "extent"):
                self._note("shape_of" if name == "shape_of" else "extent type", at(name))
            return self._computed(s.Builtin(at(name), str(name), *values), *values)
        if name == "tensor":  # chapter 7 of the provisional text calls 'external' so
            self._note("tensor()", at(name))
            return self._nested(s.Invocation(at(name), "external", None, arguments), *values)
        type = None
        if generic:
            self._note("generic", at(generic))
            type = "".join(_GENERIC.findall(generic))
            if type not in (*t.PRIMITIVES, "?"):
                raise self._fail(f"'{generic}' does not name a type", generic, _GENERIC_HINT)
        return self._nested(s.Invocation(at(name), self._name(name), type, arguments), *values)
