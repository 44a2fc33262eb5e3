"""From text to syntax tree (spec 3.1, 3.2): the entry points, and what the grammar does not say.

A text of 1.0 final ends its version with a semicolon, a provisional one does not: that decides.
Everything else that differs in the text is named by a feature that is noted where it is met.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lowering.location import Source, Span
from nnef_jax.errors import NnefError, NnefSyntaxError, raise_all
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.parsing import STANDARD
from nnef_jax.formats.syntax.tokens import TOKEN, count_tokens
from nnef_jax.limits import TOKEN as TOKEN_STEPS
from nnef_jax.limits import Meter

# What the parser noted -> how to call it, and what to write instead in texts of the other dialect.
FINAL_FEATURES = {
    "extension": ("'extension'", ""),
    "typed tensor": ("a tensor type with an item type", ""),
    "generic": ("a generic type '<...>'", ""),
    "yield": ("'yield'", ""),
    "integer type": ("type 'integer'", ""),
}
PROVISIONAL_FEATURES = {
    "extent type": ("type 'extent'", "write 'integer'"),
    "untyped tensor": (
        "'tensor' without an item type",
        "write 'tensor<scalar>', 'tensor<integer>' or 'tensor<logical>'",
    ),
    "comprehension without yield": (
        "an array comprehension without 'yield'",
        "write [for name in array if condition yield item]",
    ),
    "tensor()": ("operation 'tensor'", "write 'external'"),
    "tuple without parentheses": ("a tuple without parentheses", "put the tuple into parentheses"),
    "shape_of": ("'shape_of'", "it was deprecated in 1.0.1; pass the extents as arguments"),
}

_FRAGMENTS = "KHR_enable_fragment_definitions"
_OPERATORS = "KHR_enable_operator_expressions"
# What a final text needs an extension for, and how that is said.
EXTENDED = {
    "operator in graph": (_OPERATORS, "an expression is not allowed here"),
    "fragment": (_FRAGMENTS, "fragment definitions need an extension"),
    "operator in fragment": (_OPERATORS, "operator expressions need an extension"),
}

_VERSION = re.compile(
    r"(?:\s++|#[^\n\f]*+[\n\f])*+version\s++[^\s;#]++(?:\s++|#[^\n\f]*+[\n\f])*+(;)?"
)


def parse(source: Source, meter: Meter) -> s.Document:
    """Return the syntax tree of a document of either dialect. Raises what `Parser.parse` does."""
    text = source.text
    provisional = is_provisional(text)
    if provisional:
        meter.spend(TOKEN_STEPS * count_tokens(text), source.name)
        spaced, text = end_statements(text)
        source = source if spaced == source.text else Source(source.name, spaced)
    document, features = STANDARD.parse(source, meter, text=text, provisional=provisional)
    check_features(source, provisional, features)
    _check_extensions(document, features)
    return document


def parse_quantization(source: Source, meter: Meter) -> Sequence[tuple[s.Literal, s.Expression]]:
    """Return the entries of a graph.quant text (spec 5.3): tensor and quantising operation."""
    return STANDARD.parse(source, meter, "quantization")


def _check_extensions(document: s.Document, features: Sequence[tuple[str, int]]) -> None:
    """Require the extensions of compositional syntax in 1.0 final.

    The provisional text calls the graph flat, yet computes arguments in it (appendix C, chapter 7):
    there it is the statements of the graph that must be plain invocations.
    """
    source = document.source
    if document.provisional:
        for statement in document.graph.body:
            if not isinstance(statement.value, s.Invocation):
                raise NnefSyntaxError(
                    "a statement of the graph must invoke an operation",
                    span=s.span_in(source, statement.value),
                    hint="the graph of a provisional document is flat: "
                    "move expressions into a fragment",
                )
        return
    first = dict(reversed(features))
    for construction, (extension, message) in EXTENDED.items():
        if construction in first and extension not in document.extensions:
            hint = f"write 'extension {extension};' after the version"
            raise NnefSyntaxError(message, span=Span(source, first[construction]), hint=hint)


# Dialects


def is_provisional(text: str) -> bool:
    """Tell whether a text that begins with a version is written in the provisional dialect."""
    match = _VERSION.match(text)
    return match is not None and match[1] is None


def check_features(source: Source, provisional: bool, features: Sequence[tuple[str, int]]) -> None:
    """Raise for constructions that the dialect does not have, once for each kind of them."""
    foreign = FINAL_FEATURES if provisional else PROVISIONAL_FEATURES
    dialect = "1.0 provisional" if provisional else "1.0 final"
    first: dict[str, int] = {}
    for name, offset in sorted(features, key=lambda feature: feature[1]):
        if name in foreign:
            first.setdefault(name, offset)
    errors: list[NnefError] = []
    for name, offset in first.items():
        what, hint = foreign[name]
        message, span = f"{what} is not part of NNEF {dialect}", Span(source, offset)
        errors.append(NnefSyntaxError(message, span=span, hint=hint))
    if provisional and errors:  # the mistake is the missing semicolon, which made it provisional
        semicolon = "begin it with 'version 1.0;', with the semicolon"
        errors[0].hint = f"if this is a text of 1.0 final, {semicolon}"
        del errors[1:]
    raise_all(errors)


def end_statements(text: str) -> tuple[str, str]:
    """Return a provisional text with white space before each statement and each `}` of a body.

    And with a semicolon in the place of the first of it, which may be a comment's: all else keeps
    its offset. A statement starts where the identifiers, arrays and tuples before a lone `=`
    outside of brackets start.
    """
    tokens = _tokens(text)
    blank = TOKEN.sub(lambda m: " " * len(m[0]) if m[0].startswith("#") else m[0], text)
    spaced, ended, at = "", "", 0
    for index in _statement_ends(tokens):
        end, begin = tokens[index - 1][2], tokens[index][1]
        spaced += text[at:end] + (text[end:begin] or " ")
        ended += blank[at:end] + ";" + blank[end + 1 : begin]
        at = begin
    return spaced + text[at:], ended + blank[at:]


def _tokens(text: str) -> list[tuple[str, int, int]]:
    """Return the tokens with start and end; a string is ''."""
    return [
        ("''" if match.lastgroup == "string" else match[0], match.start(), match.end())
        for match in TOKEN.finditer(text)
        if match.lastgroup != "skip"
    ]


def _statement_ends(tokens: Sequence[tuple[str, int, int]]) -> Iterator[int]:
    """Yield indices of tokens that may lack a semicolon before them: starts and ends."""
    depth, in_body, before = 0, False, ""
    start = 0  # of the names, arrays and tuples with commas between them that end here
    for index, (token, _, _) in enumerate(tokens):
        end, begins = 0, depth == 0 and (before == ",") == (token == ",")
        if token in ("(", "["):
            depth += 1
        elif token in (")", "]"):
            depth -= 1
        elif token == "{":
            depth, in_body, start = 0, True, index
        elif token == "}" and in_body:
            in_body, end = False, index
        elif token == "=" and in_body and depth == 0 and before != ",":
            end = start if _TARGET.match(tokens[start][0]) else 0
        start, before = index if begins else start, token
        if end and tokens[end - 1][0] not in ("{", ";"):
            yield end


_TARGET = re.compile(r"[A-Za-z_0-9(\[]")
