"""From the dialect's text to a `Document`, by lark's LALR parser.

Sources: tract's documentation of the format, and files of its writer and of torch_to_nnef.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput

from lowering.location import Source, Span
from nnef_jax.errors import LimitError, NnefError, NnefSyntaxError, SemanticError
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.tokens import count_tokens
from nnef_jax.formats.syntax.types import ANY
from nnef_jax.formats.syntax.unexpected import syntax_error
from nnef_jax.formats.tract.document import Assertion, Document
from nnef_jax.formats.tract.fast_parser import flat_statements
from nnef_jax.formats.tract.recognition import signs
from nnef_jax.limits import TOKEN, Meter, raising, within_memory

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
                f"fragment '{fragment.name}' is defined twice", span=fragment.span(fragment)
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


_LOCK = threading.Lock()


@cache
def _parser() -> tuple[Lark, _Builder]:
    grammar = files("nnef_jax.formats.tract").joinpath("grammar.lark").read_text(encoding="utf-8")
    builder = _Builder()
    return Lark(
        grammar,
        parser="lalr",
        start=["document", "assertion"],
        transformer=builder,
        maybe_placeholders=True,
    ), builder


def _run(start: str, source: Source, text: str, meter: Meter) -> Any:
    meter.spend(TOKEN * count_tokens(text), source.name)
    with within_memory("the text"), _LOCK:  # the builder holds state of one text
        lark, builder = _parser()
        builder.begin(source, meter.limits.nesting)
        try:
            return lark.parse(text, start=start)
        except UnexpectedInput as error:
            raise syntax_error(lark, source, text, error, provisional=False) from None


def _present(items: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(item for item in items if isinstance(item, s.Node))


class _Builder(Transformer[Token, Any]):
    """Builds the syntax tree; methods are named after the grammar's productions."""

    def __init__(self) -> None:
        super().__init__(visit_tokens=False)
        self.begin(Source("", ""), 0)

    def begin(self, source: Source, nesting: int) -> None:
        self._source = source
        self._nesting = nesting

    def _depth(self, items: Sequence[s.Node], offset: int) -> int:
        depth = 1 + max((item.depth for item in items), default=0)
        if depth > self._nesting:
            raise LimitError(
                f"expressions are nested more than {self._nesting} deep",
                span=Span(self._source, offset),
                hint=raising("nesting"),
            )
        return depth

    def _fail(self, message: str, token: Token) -> NnefSyntaxError:
        span = Span(self._source, token.start_pos or 0, len(token))
        return NnefSyntaxError(message, span=span)

    def _name(self, token: Token) -> str:
        if token[-1] not in "\"'":
            return str(token)
        name = _ESCAPE.sub(r"\1", token[2:-1])
        if not name or not name.isprintable():
            raise self._fail("an identifier must not be empty or hold control characters", token)
        return name

    # Documents

    def document(self, items: list[Any]) -> Any:
        _, *rest, graph = items
        lines = [item for item in rest if isinstance(item, _Line)]
        return lines, [item for item in rest if isinstance(item, s.Fragment)], graph

    def version(self, items: list[Token]) -> None:
        if items[0] != "1.0":
            raise self._fail(f"version {items[0]} is not supported, only 1.0 is", items[0])

    def extension(self, items: list[Token]) -> _Line:
        (line,) = items
        found = _LINE.fullmatch(line)
        assert found is not None
        return _Line(found[1], found[2].rstrip(), (line.start_pos or 0) + found.start(2))

    def fragment(self, items: list[Any]) -> s.Fragment:
        name, body = items[0], items[-1]
        parameters = tuple(item for item in items if isinstance(item, s.Parameter))
        results = tuple(item for item in items if isinstance(item, s.ResultDeclaration))
        return s.Fragment(
            name.start_pos, self._name(name), False, None, parameters, results, body, self._source
        )

    def graph(self, items: list[Any]) -> s.GraphDefinition:
        name, _, parameters, _, results, body = items
        return s.GraphDefinition(name.start_pos, self._name(name), parameters, results, body)

    def parameter(self, items: list[Any]) -> s.Parameter:
        name, _, default = items
        return s.Parameter(name.start_pos, self._name(name), ANY, default)

    def result(self, items: list[Any]) -> s.ResultDeclaration:
        return s.ResultDeclaration(items[0].start_pos, self._name(items[0]), ANY)

    def names(self, items: list[Any]) -> tuple[s.Identifier, ...]:
        return tuple(
            s.Identifier(item.start_pos or 0, self._name(item))
            for item in items
            if item is not None
        )

    def type(self, items: list[Any]) -> None:
        return None

    def body(self, items: list[s.Assignment]) -> tuple[s.Assignment, ...]:
        return tuple(items)

    def assignment(self, items: list[Any]) -> s.Assignment:
        target, value, _ = items
        return s.Assignment(target.offset, target, value)

    def assertion(self, items: list[Any]) -> tuple[str, s.Expression]:
        scenario, condition = items
        return self._name(scenario) if scenario else "", condition

    # Expressions

    def number(self, items: list[Token]) -> s.Literal:
        text, offset = items[0], items[0].start_pos or 0
        if not text.isdigit():
            return s.Literal(offset, float(text))
        if len(text) > 20:
            raise self._fail("an integer must fit 64 bits", text)
        return s.Literal(offset, int(text))

    def string(self, items: list[Token]) -> s.Literal:
        return s.Literal(items[0].start_pos or 0, _ESCAPE.sub(r"\1", items[0][1:-1]))

    def true(self, items: list[Token]) -> s.Literal:
        return s.Literal(items[0].start_pos or 0, True)

    def false(self, items: list[Token]) -> s.Literal:
        return s.Literal(items[0].start_pos or 0, False)

    def identifier(self, items: list[Token]) -> s.Identifier:
        return s.Identifier(items[0].start_pos or 0, self._name(items[0]))

    def bare_tuple(self, items: list[Any]) -> s.Tuple:
        return s.Tuple(items[0].offset, tuple(items), depth=self._depth(items, items[0].offset))

    def tuple(self, items: list[Any]) -> s.Tuple:
        offset, found = items[0].start_pos, _present(items)
        return s.Tuple(offset, found, depth=self._depth(found, offset))

    def array(self, items: list[Any]) -> s.Array:
        offset, found = items[0].start_pos, _present(items)
        return s.Array(offset, found, depth=self._depth(found, offset))

    def parenthesised(self, items: list[Any]) -> s.Expression:
        opening, inner = items
        inner.depth = self._depth([inner], opening.start_pos)
        return inner

    def binary(self, items: list[Any]) -> s.Binary:
        left, operator, right = items
        depth = self._depth([left, right], operator.start_pos)
        return s.Binary(operator.start_pos, str(operator), left, right, depth=depth)

    def negative(self, items: list[Any]) -> s.Expression:
        sign, operand = items
        offset = sign.start_pos
        match operand:
            case s.Literal(value=int() | float() as value) if not isinstance(value, bool):
                return s.Literal(offset, -value)
            case _:
                return s.Unary(offset, "-", operand, depth=self._depth([operand], offset))

    def subscript(self, items: list[Any]) -> s.Subscript:
        sequence, _, index = items
        depth = self._depth([sequence, index], sequence.offset)
        return s.Subscript(sequence.offset, sequence, index, depth=depth)

    def argument(self, items: list[Any]) -> s.Argument:
        return s.Argument(items[0].offset, None, items[0], depth=items[0].depth)

    def named_argument(self, items: list[Any]) -> s.Argument:
        name, value = items
        return s.Argument(name.start_pos, self._name(name), value, depth=value.depth)

    def invocation(self, items: list[Any]) -> s.Invocation:
        name, generic, *rest = items
        offset, arguments = name.start_pos, _present(rest)
        kind = generic.strip("<>").strip() if generic else None
        depth = self._depth(arguments, offset)
        return s.Invocation(offset, self._name(name), kind, arguments, depth=depth)
