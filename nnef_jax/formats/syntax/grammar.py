"""Reads texts by the grammars, lark's, which are the record of the language and explain errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from lark import Lark, Token
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from lowering.location import Span
from nnef_jax.errors import NnefSyntaxError
from nnef_jax.formats.syntax.tokens import STRING
from nnef_jax.formats.syntax.tree_builder import TreeBuilder

_WORD = re.compile(r"[A-Za-z_0-9.]+|[=<>!]=|->|&&|\|\||[^A-Za-z_0-9]")
_STRING = re.compile(STRING)
_STATEMENT = re.compile(r"[A-Za-z_([}]")
_UNCLOSED = re.compile(r"\b(graph|fragment)\s+$")
_SHOWN = {
    "NAME": "an identifier", "NUMBER": "a number", "STRING": "a string", "END": "';'",
    "BRACKET": "'['", "PARENTHESIS": "'('", "GENERIC": "'<type>'", "GENERIC_DECLARATION": "'<?>'",
    "EXTENSION": "the name of an extension", "$END": "the end of the text",
    "COMPARE": "a comparison",
}  # fmt: skip


class _Callbacks:
    """Hands the lists that lark gives to the methods of the builder of the text that is read."""

    def __init__(self, kind: type[TreeBuilder]) -> None:
        self._kind = kind
        self.builder: TreeBuilder | None = None

    def __getattr__(self, name: str) -> Callable[[list[Any]], Any]:
        getattr(self._kind, name)  # lark asks which productions there are methods for
        return lambda items: getattr(self.builder, name)(*items)


class GrammarReader:
    """Reads texts by what formats share of a grammar and a package's own part, one at a time."""

    def __init__(self, package: str, starts: Sequence[str], kind: type[TreeBuilder]) -> None:
        parts = ("nnef_jax.formats.syntax", "common.lark"), (package, "grammar.lark")
        grammar = "".join(files(p).joinpath(name).read_text(encoding="utf-8") for p, name in parts)
        self._callbacks = _Callbacks(kind)
        self._lark = Lark(grammar, parser="lalr", start=[*starts], transformer=self._callbacks)
        self._lock = threading.Lock()

    def read(self, start: str, text: str, builder: TreeBuilder) -> Any:
        """Return the builder's tree of a text from one of the start symbols of the grammar.

        The text may have semicolons that the builder's source lacks, at the same places otherwise.
        Raises NnefSyntaxError, LimitError, or what else the builder raises.
        """
        with self._lock:
            self._callbacks.builder = builder
            try:
                return self._lark.parse(text, start=start)
            except UnexpectedInput as error:
                raise _syntax_error(self._lark, builder, text, error) from None
            finally:
                self._callbacks.builder = None


def _syntax_error(
    lark: Lark, builder: TreeBuilder, text: str, error: UnexpectedInput
) -> NnefSyntaxError:
    """Return lark's error as one with its place, the expected tokens, and a hint."""
    source, provisional = builder.source, builder.provisional
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
