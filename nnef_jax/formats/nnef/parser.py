"""Parses documents of NNEF 1.0 (spec 3.1, 3.2), and checks rules beyond the grammar.

The semicolon after the version decides the dialect: 1.0 final has the semicolon, and 1.0
provisional does not. Other constructions that only one dialect has are called features. The tree
builder records each use of a feature.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lowering.location import Source, Span
from nnef_jax.errors import NnefError, NnefSyntaxError, raise_all
from nnef_jax.formats.syntax import tree
from nnef_jax.formats.syntax.parsing import STANDARD
from nnef_jax.formats.syntax.tokens import TOKEN, count_tokens
from nnef_jax.limits import TOKEN_STEPS, Meter

# Features that only one dialect has. The value of a feature is a pair: its name in errors, and a
# hint about the replacement in the other dialect.
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

_FRAGMENT_EXTENSION = "KHR_enable_fragment_definitions"
_OPERATOR_EXTENSION = "KHR_enable_operator_expressions"
# For each feature that needs an extension in 1.0 final: the extension, and the error message if the
# document does not declare this extension.
EXTENDED = {
    "operator in graph": (_OPERATOR_EXTENSION, "an expression is not allowed here"),
    "fragment": (_FRAGMENT_EXTENSION, "fragment definitions need an extension"),
    "operator in fragment": (_OPERATOR_EXTENSION, "operator expressions need an extension"),
}

_VERSION = re.compile(
    r"(?:\s++|#[^\n\f]*+[\n\f])*+version\s++[^\s;#]++(?:\s++|#[^\n\f]*+[\n\f])*+(;)?"
)


def parse(source: Source, meter: Meter) -> tree.Document:
    """Parse a document of NNEF 1.0, final or provisional.

    Raises NnefSyntaxError if the text is not in the language, and LimitError if the text is too
    large.
    """
    text = source.text
    provisional = is_provisional(text)
    if provisional:
        # The parser reads `text`, which has semicolons between statements. The text of `source` has
        # spaces in the place of the semicolons. So offsets of errors are the same in both texts.
        meter.spend(TOKEN_STEPS * count_tokens(text), source.name)
        spaced_text, text = end_statements(text)
        source = source if spaced_text == source.text else Source(source.name, spaced_text)
    document, features = STANDARD.parse(source, meter, text=text, provisional=provisional)
    check_features(source, provisional, features)
    _check_extensions(document, features)
    return document


def parse_quantization(
    source: Source, meter: Meter
) -> Sequence[tuple[tree.Literal, tree.Expression]]:
    """Parse a graph.quant; return pairs (name of a tensor, operation that quantises the tensor).

    See section 5.3 of the specification.
    """
    return STANDARD.parse(source, meter, start="quantization")


def _check_extensions(document: tree.Document, features: Sequence[tuple[str, int]]) -> None:
    """Raise NnefSyntaxError if a document has compositional syntax, but does not enable it.

    `features` has the name and the offset of each use of a feature. Only documents of 1.0 final
    declare extensions. In a document of 1.0 provisional, the statements of the graph must be
    invocations.
    """
    source = document.source
    if document.provisional:
        # Arguments of invocations may be expressions. The provisional specification calls the graph
        # flat, but its appendix C and its chapter 7 have such arguments.
        for statement in document.graph.body:
            if not isinstance(statement.value, tree.Invocation):
                raise NnefSyntaxError(
                    "a statement of the graph must invoke an operation",
                    span=tree.span_in(source, statement.value),
                    hint="the graph of a provisional document is flat: "
                    "move expressions into a fragment",
                )
        return
    # `dict` keeps the last pair of a feature. The pairs are reversed, so the first offset is kept.
    first_offsets = dict(reversed(features))
    for feature, (extension, message) in EXTENDED.items():
        if feature in first_offsets and extension not in document.extensions:
            span = Span(source, first_offsets[feature])
            hint = f"write 'extension {extension};' after the version"
            raise NnefSyntaxError(message, span=span, hint=hint)


# Dialects


def is_provisional(text: str) -> bool:
    """Tell whether a text is in 1.0 provisional: its version has no semicolon."""
    match = _VERSION.match(text)
    return match is not None and match[1] is None


def check_features(source: Source, provisional: bool, features: Sequence[tuple[str, int]]) -> None:
    """Raise NnefSyntaxError if a text uses features that its dialect does not have.

    `features` has the name and the offset of each use of a feature. The error is at the first use
    of a feature. A text of 1.0 final has an error for each such feature.
    """
    foreign_features = FINAL_FEATURES if provisional else PROVISIONAL_FEATURES
    dialect = "1.0 provisional" if provisional else "1.0 final"
    first_offsets: dict[str, int] = {}
    for name, offset in sorted(features, key=lambda feature: feature[1]):
        if name in foreign_features:
            first_offsets.setdefault(name, offset)
    errors: list[NnefError] = []
    for name, offset in first_offsets.items():
        title, hint = foreign_features[name]
        message = f"{title} is not part of NNEF {dialect}"
        errors.append(NnefSyntaxError(message, span=Span(source, offset), hint=hint))
    if provisional and errors:
        # Probably the text is in 1.0 final, and only lacks the semicolon after the version. All
        # errors but the first are then removed, since they would distract from the cause.
        semicolon = "begin it with 'version 1.0;', with the semicolon"
        errors[0].hint = f"if this is a text of 1.0 final, {semicolon}"
        del errors[1:]
    raise_all(errors)


def end_statements(text: str) -> tuple[str, str]:
    """Return two copies of a text of 1.0 provisional, in which statements are separated.

    In the first copy, there is at least one space after each statement. In the second copy, the
    first of these spaces is a semicolon, and comments are replaced by spaces. A character has the
    same offset in both copies.

    For example, `a = f(x)b = g(a)` becomes `a = f(x) b = g(a)` and `a = f(x);b = g(a)`.
    """
    tokens = _tokens(text)
    without_comments = TOKEN.sub(_blank_comment, text)
    spaced = ""
    with_semicolons = ""
    offset = 0  # the end of the part of the text that both copies already have
    for index in _statement_ends(tokens):
        # The space between two statements may have a comment, or may be empty.
        begin = tokens[index - 1].end
        end = tokens[index].start
        space = text[begin:end] or " "
        # In the second copy, a semicolon replaces the first character of the space.
        spaced += text[offset:begin] + space
        with_semicolons += without_comments[offset:begin] + ";" + without_comments[begin + 1 : end]
        offset = end
    return spaced + text[offset:], with_semicolons + without_comments[offset:]


def _blank_comment(token: re.Match[str]) -> str:
    """Return the text of a token. If the token is a comment, return spaces instead."""
    text = token[0]
    return " " * len(text) if text.startswith("#") else text


class _Token(NamedTuple):
    """A token of a text, with the offsets of its start and its end."""

    text: str  # two single quotes if the token is a string
    start: int
    end: int


def _tokens(text: str) -> list[_Token]:
    """Return the tokens of a text, without comments."""
    tokens: list[_Token] = []
    for match in TOKEN.finditer(text):
        if match.lastgroup == "skip":
            continue
        # The text of a string may look like other tokens, so it is left out.
        token_text = "''" if match.lastgroup == "string" else match[0]
        tokens.append(_Token(token_text, match.start(), match.end()))
    return tokens


def _statement_ends(tokens: Sequence[_Token]) -> Iterator[int]:
    """Yield the indices of the tokens before which a semicolon is missing.

    A statement begins with its target: the identifiers, arrays and tuples before a single `=` that
    is outside of brackets. A body ends with `}`.
    """
    depth = 0  # the number of open brackets
    is_in_body = False
    target = 0  # the index of the first token of a possible target
    previous = ""  # the text of the previous token
    for index, token in enumerate(tokens):
        end = 0  # the index of the token before which a statement ends
        # A comma, and the token after a comma, continue a target. Outside of brackets, any other
        # token may begin a target. The second of two commas may begin a target too.
        is_comma = token.text == ","
        follows_comma = previous == ","
        begins_target = depth == 0 and is_comma == follows_comma
        if token.text in ("(", "["):
            depth += 1
        elif token.text in (")", "]"):
            depth -= 1
        elif token.text == "{":
            depth = 0
            is_in_body = True
            target = index
        elif token.text == "}" and is_in_body:
            is_in_body = False
            end = index
        elif token.text == "=" and is_in_body and depth == 0 and not follows_comma:
            # The previous statement ends where the target of this statement begins.
            end = target if _TARGET_START.match(tokens[target].text) else 0
        if begins_target:
            target = index
        previous = token.text
        if end > 0 and tokens[end - 1].text not in ("{", ";"):
            yield end


_TARGET_START = re.compile(r"[A-Za-z_0-9(\[]")  # matches the first letter of a target
