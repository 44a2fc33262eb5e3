"""The two dialects of the language, 1.0 final and 1.0 provisional: how to tell them apart, what only one has.

A final text ends its version with a semicolon, a provisional one does not: that decides. Everything else
that differs in the text is named by a feature that the parser notes where it meets it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lowering.location import Source, Span
from nnef_jax.errors import NnefError, NnefSyntaxError

# What the parser noted -> what to write instead, for texts of the other dialect.
FINAL_FEATURES = {
    "extension": "",
    "typed tensor": "write 'tensor'",
    "generic": "",
    "yield": "write [item for name in array if condition]",
    "integer type": "write 'extent'",
}
PROVISIONAL_FEATURES = {
    "extent type": "write 'integer'",
    "untyped tensor": "write 'tensor<scalar>', 'tensor<integer>' or 'tensor<logical>'",
    "comprehension without yield": "write [for name in array if condition yield item]",
    "tensor()": "write 'external'",
    "tuple without parentheses": "put the tuple into parentheses",
    "shape_of": "it was deprecated in 1.0.1; pass the extents as arguments",
}

FRAGMENTS = "KHR_enable_fragment_definitions"
OPERATORS = "KHR_enable_operator_expressions"

KEYWORDS = frozenset(
    "graph fragment tensor scalar logical string shape_of length_of range_of for in if else true false "
    "version extension yield".split()
)
CASTS = frozenset({"scalar", "integer", "extent", "logical", "string"})
BUILTINS = CASTS | {"shape_of", "length_of", "range_of"}

_VERSION = re.compile(r"(?:\s|#[^\n\f]*)*version\s+[^\s;#]+\s*(;)?")


def is_provisional(text: str) -> bool:
    """Whether a text that begins with a version is written in the provisional dialect."""
    match = _VERSION.match(text)
    return match is not None and match[1] is None


def check_features(source: Source, provisional: bool, features: Sequence[tuple[str, int]]) -> None:
    """Raise for the constructions that the dialect of the text does not have."""
    foreign = FINAL_FEATURES if provisional else PROVISIONAL_FEATURES
    dialect = "1.0 provisional" if provisional else "1.0 final"
    errors: list[NnefError] = [
        NnefSyntaxError(
            f"'{name}' is not part of NNEF {dialect}", span=Span(source, offset), hint=foreign[name]
        )
        for name, offset in features
        if name in foreign
    ]
    if provisional and errors:
        errors[0].hint = "a final text starts with 'version 1.0;', with the semicolon"
    for error in errors[:1]:
        error.others = tuple(errors[1:])
        raise error


_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\n\f]+|\#[^\n\f]*)"""
    r"""|(?P<string>'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")"""
    r"""|(?P<word>[A-Za-z_0-9.]+)|(?P<mark>==|<=|>=|!=|->|.)""",
    re.DOTALL,
)


def end_statements(text: str) -> str:
    """A provisional text with the optional semicolons put in, every character at its old offset.

    A semicolon takes the place of the white space (or comment) before each statement and each `}`. A
    statement starts where the identifiers, arrays and tuples before a lone `=` outside of brackets start.
    """
    characters = list(text)
    tokens: list[tuple[str, int, int]] = []  # text (strings as ''), start, end
    for match in _TOKEN.finditer(text):
        if match.lastgroup == "skip":
            if match[0].startswith("#"):
                characters[match.start() : match.end()] = " " * len(match[0])
        else:
            word = "''" if match.lastgroup == "string" else match[0]
            tokens.append((word, match.start(), match.end()))
    for index in _statement_ends(tokens):
        previous, _, end = tokens[index - 1]
        if previous not in ("{", ";") and end < len(characters) and characters[end].isspace():
            characters[end] = ";"
    return "".join(characters)


def _statement_ends(tokens: Sequence[tuple[str, int, int]]) -> Iterator[int]:
    """Indices of the tokens that start a statement in a body, or close a body."""
    depth, in_body = 0, False
    for index, (token, _, _) in enumerate(tokens):
        if token in ("(", "["):
            depth += 1
        elif token in (")", "]"):
            depth -= 1
        elif token == "{":
            depth, in_body = 0, True
        elif token == "}" and in_body:
            in_body = False
            yield index
        elif token == "=" and in_body and depth == 0:
            yield _target_start(tokens, index)


def _target_start(tokens: Sequence[tuple[str, int, int]], index: int) -> int:
    """The index of the first token of the target that ends before the `=` at an index."""
    start = index
    while start > 0:
        start -= 1
        if tokens[start][0] in (")", "]"):
            depth = 1
            while depth and start > 0:
                start -= 1
                depth += (tokens[start][0] in (")", "]")) - (tokens[start][0] in ("(", "["))
        if start == 0 or tokens[start - 1][0] != ",":
            break
        start -= 1
    return start
