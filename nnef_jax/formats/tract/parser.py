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

# Matches an extension line. The groups are the word after "extension", and the text from there to
# the semicolon.
_LINE = re.compile(r"extension\s++(\w*+)\s*+(.*);", re.DOTALL)
# Matches an extension line that lacks a semicolon. The group is the next definition's keyword.
_RUN_ON = re.compile(
    r"^[ \t]*+extension\s[^;\n]*+\n\s*+(extension|fragment|graph)\b(?!\s*=)", re.MULTILINE
)
# Matches the fragment `tract_core_properties`, whose body ends with a list. Another definition, a
# comment or the end of the text follows the fragment.
_PROPERTIES = re.compile(
    r"fragment\s.*?\]\s*;\s*\}(?=\s*(?:\#|extension\b|fragment\b|graph\b|\Z))", re.DOTALL
)
# Matches the key of a property. Group 1 or 2 is the key. Group 3 is the quote that begins the
# value, or "" if the value has no quotes.
_KEY = re.compile(r"""\(\s*(?:"([^"\n]*)"|'([^'\n]*)')\s*,\s*(["']?)""")
# For each quote that may begin a value, a pattern that matches the end of the value. The text
# before the match is the value.
_END = {quote: re.compile(rf"{quote}\s*+\)\s*+[,\]]") for quote in "\"'"}
# This pattern does not begin with white space. Otherwise, a long run of blanks in a value would be
# scanned again from each of its blanks.
_END[""] = re.compile(r"\)\s*+[,\]]")
_BLANKS_PER_STEP = 100  # the number of blanks before an assertion that take one step
_MOST_DIGITS = 20  # the number of digits of the largest unsigned integer of 64 bits
_TEMPLATE = re.compile(r"\{\{|\{%")  # matches the beginning of an insertion in a template


def parse(source: Source, meter: Meter) -> TractDocument:
    """Parse a text into a document.

    Raises NnefSyntaxError if the text is not in the dialect, SemanticError if a fragment is defined
    twice, and LimitError if the text is too large.
    """
    text, properties = without_properties(source.text)
    _refuse_frequent_faults(source, text)
    lines, fragments, graph = PARSER.parse(source, meter, text=text)
    by_name: dict[str, s.Fragment] = {}
    for fragment in fragments:
        if fragment.name in by_name:
            message = f"fragment '{fragment.name}' is defined twice"
            raise SemanticError(message, span=s.span_in(source, fragment))
        by_name[fragment.name] = fragment

    def values_of(kind: str) -> tuple[str, ...]:
        return tuple(line.value for line in lines if line.kind == kind)

    # The extension `tract_pulse_streaming_symbol` declares the symbol S.
    streaming_symbols = ("S",) if values_of("tract_pulse_streaming_symbol") else ()
    assertions = [line for line in lines if line.kind == "tract_assert"]
    return TractDocument(
        source,
        extensions=tuple(f"{line.kind} {line.value}".strip() for line in lines),
        registries=values_of("tract_registry"),
        symbols=(*values_of("tract_symbol"), *streaming_symbols),
        assertions=tuple(_assertion(source, line, meter) for line in assertions),
        properties=properties,
        fragments=by_name,
        graph=graph,
    )


def _refuse_frequent_faults(source: Source, text: str) -> None:
    """Raise NnefSyntaxError for a template, and for an extension line without a semicolon.

    The errors of the grammar would not name these faults. `text` is the text of `source` without
    the properties.
    """
    template = _TEMPLATE.search(text)
    if template is not None:
        raise NnefSyntaxError(
            "the text is a template",
            span=Span(source, template.start(), len(template[0])),
            hint="render it first: values of JSON resources are not filled in here",
        )
    run_on = _RUN_ON.search(text)
    if run_on is not None:
        raise NnefSyntaxError(
            f"unexpected '{run_on[1]}' in an extension line",
            span=Span(source, run_on.start(1), len(run_on[1])),
            hint="a semicolon may be missing before this",
        )


def without_properties(text: str) -> tuple[str, dict[str, str]]:
    """Replace the properties in a text by blanks. Return the text, and a dict of the properties.

    The grammar cannot read the properties, because tract does not escape quotes in them.
    """
    match = _properties_in(text)
    if match is None:
        return text, {}
    blank = re.sub(r"[^\n]", " ", match[0])
    return text[: match.start()] + blank + text[match.end() :], dict(_pairs(match[0]))


def _properties_in(text: str) -> re.Match[str] | None:
    """Return the match of the fragment `tract_core_properties` in a text, or None."""
    for sign in tract.signs(text):
        # Only the sign of the properties begins with "fragment".
        if sign[1].startswith("fragment"):
            return _PROPERTIES.match(text, sign.start())
    return None


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield the key and the value of each property in the text of the fragment."""
    key_match = _KEY.search(text)
    while key_match is not None:
        key_in_double_quotes, key_in_single_quotes, value_quote = key_match.groups()
        end = _END[value_quote].search(text, key_match.end())
        if end is None:
            return  # the quotes of the value are not closed
        value = text[key_match.end() : end.start()].rstrip()
        yield key_in_double_quotes or key_in_single_quotes or "", value
        key_match = _KEY.search(text, end.end())


@dataclass(slots=True)
class _Line(s.SyntaxNode):
    """An extension line: `extension kind value;`. The text `value` starts at `offset`."""

    kind: str
    value: str


def _assertion(source: Source, line: _Line, meter: Meter) -> Assertion:
    """Parse the condition in a line `extension tract_assert`."""
    meter.spend(line.offset // _BLANKS_PER_STEP, source.name)
    text = " " * line.offset + line.value  # the blanks keep the offsets of the document
    scenario, condition = PARSER.parse(source, meter, "assertion", text)
    return Assertion(scenario, condition, text=line.value, offset=line.offset)


class _TractBuilder(TreeBuilder):
    """Builds the syntax tree of a text in the dialect.

    The types that the text declares are ignored.
    """

    def name(self, token: Token) -> str:
        is_quoted = token[-1] in "\"'"
        if not is_quoted:
            return str(token)
        name = unescaped(token[2:-1])  # without the i, and without the quotes
        if not name or not name.isprintable():
            raise self._fail("an identifier must not be empty or hold control characters", token)
        return name

    def document(self, version: str, *items: Any) -> Any:
        *definitions, graph = items
        lines = [item for item in definitions if isinstance(item, _Line)]
        fragments = [item for item in definitions if isinstance(item, s.Fragment)]
        return lines, fragments, graph

    def version(self, number: Token, end: Token | None) -> str:
        if number != "1.0":
            raise self._fail(f"version {number} is not supported, only 1.0 is", number)
        return str(number)

    def extension(self, name: Token, *names: Token | None) -> _Line:
        line = _LINE.fullmatch(name)
        assert line is not None
        kind, value = line.groups()
        return _Line(name.start_pos + line.start(2), kind, value.rstrip())

    def fragment(self, name: Token, generic: Token | None, *items: Any) -> s.Fragment:
        no_generic = None  # the generic parameter is ignored, like all declared types
        return super().fragment(name, no_generic, *items)

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
        is_integer = token.isdigit()
        if is_integer and len(token) > _MOST_DIGITS:
            raise self._fail("an integer must fit 64 bits", token)
        value = int(token) if is_integer else float(token)
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
        type_name = self.generic(generic) if generic else None
        node = s.Invocation(name.start_pos, self.name(name), type_name, arguments)
        return self._nested(node, [argument.value for argument in arguments], node.offset)


# The parser of the dialect. lark reads the grammar in the package, and the fast reader takes the
# language below.
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
