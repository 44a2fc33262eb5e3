"""Parses the text of a document in the dialect into a `TractDocument`.

The dialect is described at the end of the file. The sources are tract's documentation of the
format, and files written by tract and torch_to_nnef.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lowering.location import Source, Span
from nnef_jax.errors import NnefSyntaxError, SemanticError
from nnef_jax.formats import tract
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax import types as t
from nnef_jax.formats.syntax.parsing import Parser
from nnef_jax.formats.syntax.tokens import STRING, Language, Token, unescaped
from nnef_jax.formats.syntax.tree_builder import TreeBuilder, nodes_of
from nnef_jax.formats.tract.document import Assertion, TractDocument
from nnef_jax.limits import Meter

_LINE = re.compile(r"extension\s++(\w*+)\s*+(.*);", re.DOTALL)
# An extension line without a semicolon, followed by the keyword of the next definition.
_RUN_ON = re.compile(
    r"^[ \t]*+extension\s[^;\n]*+\n\s*+(extension|fragment|graph)\b(?!\s*=)", re.MULTILINE
)
# Three patterns: the fragment `tract_core_properties`; a key in the fragment, with the quote that
# begins the key's value; and the end of the value.
_PROPERTIES = re.compile(
    r"fragment\s.*?\]\s*;\s*\}(?=\s*(?:\#|extension\b|fragment\b|graph\b|\Z))", re.DOTALL
)
_KEY = re.compile(r"""\(\s*(?:"([^"\n]*)"|'([^'\n]*)')\s*,\s*(["']?)""")
_END = {quote: re.compile(rf"{quote}\s*+\)\s*+[,\]]") for quote in "\"'"}
# The pattern does not begin with white space, which would be scanned again from each character.
_END[""] = re.compile(r"\)\s*+[,\]]")
_BLANKS_PER_STEP = 100
_TEMPLATE = re.compile(r"\{\{|\{%")


def parse(source: Source, meter: Meter) -> TractDocument:
    """Parse a text into a document.

    Raises NnefSyntaxError if the text is not in the dialect, SemanticError if a fragment is defined
    twice, and LimitError if the text is too large.
    """
    text, properties = without_properties(source.text)
    template = _TEMPLATE.search(text)
    if template is not None:
        raise NnefSyntaxError(
            "the text is a template",
            span=Span(source, template.start(), 2),
            hint="render it first: values of JSON resources are not filled in here",
        )
    run_on = _RUN_ON.search(text)
    if run_on is not None:
        raise NnefSyntaxError(
            f"unexpected '{run_on[1]}' in an extension line",
            span=Span(source, run_on.start(1), len(run_on[1])),
            hint="a semicolon may be missing before this",
        )
    lines, fragments, graph = PARSER.parse(source, meter, text=text)
    by_name: dict[str, s.Fragment] = {}
    for fragment in fragments:
        if fragment.name in by_name:
            message = f"fragment '{fragment.name}' is defined twice"
            raise SemanticError(message, span=s.span_in(source, fragment))
        by_name[fragment.name] = fragment

    def values(kind: str) -> tuple[str, ...]:
        return tuple(line.value for line in lines if line.kind == kind)

    streaming_symbols = ("S",) if values("tract_pulse_streaming_symbol") else ()
    assertions = [line for line in lines if line.kind == "tract_assert"]
    return TractDocument(
        source,
        extensions=tuple(f"{line.kind} {line.value}".strip() for line in lines),
        registries=values("tract_registry"),
        symbols=(*values("tract_symbol"), *streaming_symbols),
        assertions=tuple(_assertion(source, line, meter) for line in assertions),
        properties=properties,
        fragments=by_name,
        graph=graph,
    )


def without_properties(text: str) -> tuple[str, dict[str, str]]:
    """Replace the properties in a text by blanks; return the text, and the properties by name.

    The properties are read here because tract does not escape quotes in them, so that the grammar
    cannot read them.
    """
    match = _properties_in(text)
    if match is None:
        return text, {}
    blank = re.sub(r"[^\n]", " ", match[0])
    return text[: match.start()] + blank + text[match.end() :], dict(_pairs(match[0]))


def _properties_in(text: str) -> re.Match[str] | None:
    for sign in tract.signs(text):
        if sign[1].startswith("fragment"):
            return _PROPERTIES.match(text, sign.start())
    return None


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    key = _KEY.search(text)
    while key is not None:
        end = _END[key[3]].search(text, key.end())
        if end is None:
            return
        yield key[1] or key[2] or "", text[key.end() : end.start()].rstrip()
        key = _KEY.search(text, end.end())


@dataclass(slots=True)
class _Line(s.SyntaxNode):
    """An extension line: its first word `kind`, and the text after it, which starts at `offset`."""

    kind: str
    value: str


def _assertion(source: Source, line: _Line, meter: Meter) -> Assertion:
    meter.spend(line.offset // _BLANKS_PER_STEP, source.name)
    text = " " * line.offset + line.value  # the blanks keep the offsets of the document
    scenario, condition = PARSER.parse(source, meter, "assertion", text)
    return Assertion(scenario, condition, line.value, line.offset)


class _TractBuilder(TreeBuilder):
    """Builds the syntax tree of a text in the dialect.

    The types that the text declares are ignored.
    """

    def name(self, token: Token) -> str:
        if token[-1] not in "\"'":
            return str(token)
        name = unescaped(token[2:-1])
        if not name or not name.isprintable():
            raise self._fail("an identifier must not be empty or hold control characters", token)
        return name

    def document(self, version: str, *items: Any) -> Any:
        *definitions, graph = items
        lines = [x for x in definitions if isinstance(x, _Line)]
        return lines, [x for x in definitions if isinstance(x, s.Fragment)], graph

    def version(self, number: Token, end: Token | None) -> str:
        if number != "1.0":
            raise self._fail(f"version {number} is not supported, only 1.0 is", number)
        return str(number)

    def extension(self, name: Token, *names: Token | None) -> _Line:
        line = _LINE.fullmatch(name)
        assert line is not None
        return _Line(name.start_pos + line.start(2), line[1], line[2].rstrip())

    def fragment(self, name: Token, generic: Token | None, *items: Any) -> s.Fragment:
        return super().fragment(name, None, *items)

    def assertion(self, scenario: Token | None, condition: s.Expression) -> Any:
        return self.name(scenario) if scenario else "", condition

    def parameter(
        self, name: Token, type: t.Type, default: s.Expression | None
    ) -> s.FormalParameter:
        return super().parameter(name, t.ANY, default)

    def result(self, name: Token, type: t.Type | None) -> s.ResultDeclaration:
        return super().result(name, t.ANY)

    def named_type(self, name: Token, generic: Token | None) -> t.Type:
        return t.ANY

    def number(self, token: Token) -> s.Literal:
        if token.isdigit() and len(token) > 20:
            raise self._fail("an integer must fit 64 bits", token)
        value = int(token) if token.isdigit() else float(token)
        return s.Literal(token.start_pos, value)

    def string(self, token: Token) -> s.Literal:
        return s.Literal(token.start_pos, unescaped(token[1:-1]))

    def named_argument(self, name: Token, value: s.Expression) -> s.Argument:
        return s.Argument(name.start_pos, self.name(name), value)

    def generic(self, token: Token) -> str:
        return token[1:-1].strip()

    def invocation(
        self, name: Token, generic: Token | None, opening: Token, *items: s.Argument | None
    ) -> s.Invocation:
        arguments: tuple[s.Argument, ...] = nodes_of(items)
        kind = self.generic(generic) if generic else None
        node = s.Invocation(name.start_pos, self.name(name), kind, arguments)
        return self._nested(node, [argument.value for argument in arguments], node.offset)


# The dialect: its grammar for lark, and its language for the fast reader.
PARSER = Parser(
    "nnef_jax.formats.tract",
    ("document", "assertion"),
    builder=_TractBuilder,
    language=Language(
        name=rf"i{STRING}|[^\W\d]\w*+(?:\.\w++)*+",
        extension=r"(extension\s[^;]*;)",
        levels=("< <= > >= == !=", "+ -", "* /", "^"),
        signs=("-",),
        loose=True,
    ),
)
