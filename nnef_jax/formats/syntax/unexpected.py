"""Writes the messages of syntax errors: what was found, expected, and perhaps meant."""

from __future__ import annotations

import re

from lark import Lark, Token
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from lowering.location import Source, Span
from nnef_jax.errors import NnefSyntaxError

_WORD = re.compile(r"[A-Za-z_0-9.]+|[=<>!]=|->|&&|\|\||[^A-Za-z_0-9]")
_STRING = re.compile(r"'([^'\\\n]|\\.)*'|\"([^\"\\\n]|\\.)*\"")
_STATEMENT = re.compile(r"[A-Za-z_([}]")
_UNCLOSED = re.compile(r"\b(graph|fragment)\s+$")
_SHOWN = {
    "NAME": "an identifier",
    "NUMBER": "a number",
    "STRING": "a string",
    "END": "';'",
    "BRACKET": "'['",
    "PARENTHESIS": "'('",
    "GENERIC": "'<type>'",
    "GENERIC_DECLARATION": "'<?>'",
    "EXTENSION": "the name of an extension",
    "$END": "the end of the text",
    "COMPARE": "a comparison",
}


def syntax_error(
    lark: Lark, source: Source, text: str, error: UnexpectedInput, provisional: bool
) -> NnefSyntaxError:
    """Return what lark found in a text, as an error with its place, what was expected, and a hint.

    `text` is the source's text with the semicolons put in that a provisional one may leave out.
    """
    patterns = {terminal.name: terminal.pattern for terminal in lark.terminals}

    def shown(name: str) -> str:
        pattern = patterns.get(name)
        return _SHOWN.get(name) or (f"'{pattern.value}'" if pattern else name)

    match error:
        case UnexpectedCharacters():
            offset, allowed = error.pos_in_stream or 0, error.allowed
        case UnexpectedToken(token=Token(type="$END")) | UnexpectedEOF():
            offset, allowed = len(text.rstrip()), error.expected
        case UnexpectedToken():
            offset, allowed = error.token.start_pos or 0, error.accepts or error.expected
        case _:
            offset, allowed = 0, ()
    if text[offset : offset + 1] != source.text[offset : offset + 1]:  # a semicolon that was put in
        offset += len(text[offset:]) - len(text[offset + 1 :].lstrip())
    names = {shown(name) for name in allowed or ()} - ({"';'"} if provisional else set())
    word = _WORD.match(source.text, offset)
    found = _quoted(word[0]) if word else "end of the text"
    message = f"unexpected {found}"
    if 0 < len(names) <= 8:
        message += f", expected {'one of ' * (len(names) > 1)}{', '.join(sorted(names))}"
    hint = ""
    broken = isinstance(error, UnexpectedCharacters)
    if found[1] in "'\"" and not _STRING.match(text, offset):
        hint = "the string does not end on its line, or has quotes of two kinds"
    elif text[offset : offset + 1] == "\ufeff":
        hint = "save the text without a byte order mark"
    elif not text.strip():
        hint = "the text is empty: a document starts with 'version 1.0;' and has a graph"
    elif names == {"'version'"}:
        hint = "a document starts with 'version 1.0;'"
    elif (found == "':'" and "'='" in names) or text[max(0, offset - 1) : offset + 1] == "==":
        hint = "write a single '=' to assign a name, or to name an argument"
    elif found[1] in ";}" and "')'" in names:
        hint = "a ')' may be missing before this"
    elif found[1] in ";}" and "']'" in names:
        hint = "a ']' may be missing before this"
    elif "';'" in names and not broken and word and _STATEMENT.match(word[0]):
        hint = "a semicolon may be missing before this"
    elif word and word[0][0].isalpha() and _UNCLOSED.search(text, max(0, offset - 40), offset):
        hint = "the body before this may lack its '}'"
    length = len(word[0]) if word else 1
    return NnefSyntaxError(message, span=Span(source, offset, length), hint=hint)


def _quoted(word: str) -> str:
    return f'"{word}"' if "'" in word else f"'{word}'" if word.isprintable() else repr(word)
