"""From the dialect's text to a `Document`: lark reads what a fast reader leaves over.

Sources: tract's documentation of the format, and files of its writer and of torch_to_nnef.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from lark import Token

from lowering.location import Source, Span
from nnef_jax.errors import NnefError, NnefSyntaxError, SemanticError
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.flat_statements import FlatReader, NotFlat
from nnef_jax.formats.syntax.tokens import count_tokens
from nnef_jax.formats.syntax.tree_builder import (
    GrammarReader,
    TreeBuilder,
    at,
    present,
)
from nnef_jax.formats.syntax.types import ANY
from nnef_jax.formats.tract.document import Assertion, Document
from nnef_jax.formats.tract.recognition import STRING, signs
from nnef_jax.limits import TOKEN, Meter, within_memory

# The graph's header; comments and strings, in which it means nothing, are skipped.
_GRAPH = re.compile(
    rf"\#[^\n\f]*+|{STRING}|\b(graph\s+\w+\s*\([^()\#]*+\)\s*->\s*\([^()\#]*+\)\s*\{{)"
)
_STATEMENT = re.compile(rf"""(?:[^;"'\#{{}}]++|\#[^\n\f]*+|{STRING})*+;""")
_LINE = re.compile(r"extension\s++(\w*+)\s*+(.*);", re.DOTALL)
_RUN_ON = re.compile(
    r"^[ \t]*+extension\s[^;\n]*+\n\s*+(extension|fragment|graph)\b(?!\s*=)", re.MULTILINE
)
_PROPERTIES = re.compile(
    r"fragment\s.*?\]\s*;\s*\}(?=\s*(?:\#|extension\b|fragment\b|graph\b|\Z))", re.DOTALL
)
_KEY = re.compile(r"""\(\s*(?:"([^"\n]*)"|'([^'\n]*)')\s*,\s*(["']?)""")
_END = {quote: re.compile(rf"{quote}\s*+\)\s*+[,\]]") for quote in "\"'"}
_END[""] = re.compile(r"\)\s*+[,\]]")  # white space in front would be scanned again and again
_BLANKS_PER_STEP = 100
_TEMPLATE = re.compile(r"\{\{|\{%")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def parse(source: Source, meter: Meter) -> Document:
    """Return the document of a text. Raises NnefSyntaxError or LimitError."""
    text, properties = without_properties(source.text)
    template = _TEMPLATE.search(text)
    if template is not None:
        raise NnefSyntaxError(
            "the text is a template",
            span=Span(source, template.start(), 2),
            hint="render it first: nothing here fills in values of JSON resources",
        )
    run_on = _RUN_ON.search(text)
    if run_on is not None:
        raise NnefSyntaxError(
            f"unexpected '{run_on[1]}' in an extension line",
            span=Span(source, run_on.start(1), len(run_on[1])),
            hint="a semicolon may be missing before this",
        )
    lines, fragments, graph = _read(source, text, meter)
    known: dict[str, s.Fragment] = {}
    for fragment in fragments:
        if fragment.name in known:
            raise SemanticError(
                f"fragment '{fragment.name}' is defined twice", span=s.span_in(source, fragment)
            )
        known[fragment.name] = fragment

    def values(kind: str) -> tuple[str, ...]:
        return tuple(line.value for line in lines if line.kind == kind)

    streaming = ("S",) if values("tract_pulse_streaming_symbol") else ()
    assertions = [line for line in lines if line.kind == "tract_assert"]
    return Document(
        source,
        tuple(f"{line.kind} {line.value}".strip() for line in lines),
        values("tract_registry"),
        values("tract_symbol") + streaming,
        tuple(_assertion(source, line, meter) for line in assertions),
        properties,
        known,
        graph,
    )


def without_properties(text: str) -> tuple[str, dict[str, str]]:
    """Blank out the properties, whose quotes tract does not escape; return the text and them."""
    start = next((x.start() for x in signs(text) if x[1].startswith("fragment")), None)
    found = _PROPERTIES.match(text, start) if start is not None else None
    if found is None:
        return text, {}
    blank = re.sub(r"[^\n]", " ", found[0])
    return text[: found.start()] + blank + text[found.end() :], dict(_pairs(found[0]))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    key = _KEY.search(text)
    while key is not None:
        end = _END[key[3]].search(text, key.end())
        if end is None:
            return
        yield key[1] or key[2] or "", text[key.end() : end.start()].rstrip()
        key = _KEY.search(text, end.end())


@dataclass(frozen=True, slots=True)
class _Line:
    """An extension line: its first word, what follows, and where that starts."""

    kind: str
    value: str
    offset: int


def _assertion(source: Source, line: _Line, meter: Meter) -> Assertion:
    meter.spend(line.offset // _BLANKS_PER_STEP, source.name)
    blank = " " * line.offset + line.value  # so that offsets are those of the document
    scenario, condition = _run("assertion", source, blank, meter)
    return Assertion(scenario, condition, line.value, line.offset)


def _read(source: Source, text: str, meter: Meter) -> Any:
    """Return the grammar's result for a text, but for flat statements, which need no grammar."""
    left, read = flat_statements(text, meter.limits.nesting)
    try:
        lines, fragments, graph = _run("document", source, left, meter)
    except NnefError:
        if not read:
            raise
        return _run("document", source, text, meter)  # its errors are those of the whole text
    body = sorted((*graph.body, *read), key=lambda assignment: assignment.offset)
    return lines, fragments, replace(graph, body=tuple(body))


def flat_statements(text: str, nesting: int) -> tuple[str, list[s.Assignment]]:
    """Blank out the flat statements of a graph, and return both; none if its body is unclear."""
    start = next((found.end() for found in _GRAPH.finditer(text) if found[1]), None)
    if start is None:
        return text, []
    reader = FlatReader(text, start, nesting)
    read: list[s.Assignment] = []
    left = [text[:start]]
    while not reader.ends():
        at = reader.at
        try:
            statement = reader.assignment()
            if isinstance(statement.target, s.Array):  # the dialect's grammar makes a tuple of it
                raise NotFlat
            read.append(statement)
            left.append(" " * (reader.at - at))
        except (NotFlat, RecursionError):
            skipped = _STATEMENT.match(text, at)
            if skipped is None:
                return text, []
            left.append(skipped[0])
            reader.at = skipped.end()
    return "".join(left) + text[reader.at :], read


@cache
def _grammar_reader() -> GrammarReader:
    return GrammarReader("nnef_jax.formats.tract", ["document", "assertion"], _Builder())


def _run(start: str, source: Source, text: str, meter: Meter) -> Any:
    meter.spend(TOKEN * count_tokens(text), source.name)
    with within_memory("the text"):
        return _grammar_reader().read(start, source, text, meter.limits.nesting)


class _Builder(TreeBuilder):
    """Builds the syntax tree of what the dialect has beside expressions."""

    def _name(self, token: Token) -> str:
        if token[-1] not in "\"'":
            return str(token)
        name = _ESCAPE.sub(r"\1", token[2:-1])
        if not name or not name.isprintable():
            raise self._fail("an identifier must not be empty or hold control characters", token)
        return name

    # Documents

    def document(self, version: None, *items: Any) -> Any:
        *rest, graph = items
        lines = [item for item in rest if isinstance(item, _Line)]
        return lines, present(rest), graph

    def version(self, number: Token, end: Token) -> None:
        if number != "1.0":
            raise self._fail(f"version {number} is not supported, only 1.0 is", number)

    def extension(self, line: Token) -> _Line:
        found = _LINE.fullmatch(line)
        assert found is not None
        return _Line(found[1], found[2].rstrip(), at(line) + found.start(2))

    def fragment(self, name: Token, *items: Any) -> s.Fragment:
        parameters = tuple(item for item in items if isinstance(item, s.Parameter))
        results = tuple(item for item in items if isinstance(item, s.ResultDeclaration))
        return s.Fragment(
            at(name), self._name(name), False, None, parameters, results, items[-1], self._source
        )

    def parameter(self, name: Token, type: None, default: s.Expression | None) -> s.Parameter:
        return s.Parameter(at(name), self._name(name), ANY, default)

    def result(self, name: Token, type: None) -> s.ResultDeclaration:
        return s.ResultDeclaration(at(name), self._name(name), ANY)

    def type(self, *items: Any) -> None:
        return None

    def assertion(
        self, scenario: Token | None, condition: s.Expression
    ) -> tuple[str, s.Expression]:
        return self._name(scenario) if scenario else "", condition

    # Expressions

    def number(self, token: Token) -> s.Literal:
        if token.isdigit() and len(token) > 20:
            raise self._fail("an integer must fit 64 bits", token)
        return super().number(token)

    def named_argument(self, name: Token, value: s.Expression) -> s.Argument:
        return s.Argument(at(name), self._name(name), value)

    def invocation(
        self, name: Token, generic: Token | None, opening: Token, *items: Any
    ) -> s.Invocation:
        arguments: tuple[s.Argument, ...] = present(items)
        kind = generic.strip("<>").strip() if generic else None
        node = s.Invocation(at(name), self._name(name), kind, arguments)
        return self._nested(node, *(argument.value for argument in arguments))
