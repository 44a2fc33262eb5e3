"""Reads texts by lark's grammars, which define the language and explain errors."""

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
    """Lark's transformer. For each production it calls a method of the builder."""

    def __init__(self, kind: type[TreeBuilder]) -> None:
        self._kind = kind
        self.builder: TreeBuilder | None = None

    def __getattr__(self, name: str) -> Callable[[list[Any]], Any]:
        getattr(self._kind, name)  # raises AttributeError, as lark needs for optional methods
        return lambda items: getattr(self.builder, name)(*items)


class GrammarReader:
    """A reader by two grammar files: the common one, and that of a package.

    Several threads may read, one after the other.
    """

    def __init__(self, package: str, starts: Sequence[str], kind: type[TreeBuilder]) -> None:
        parts = ("nnef_jax.formats.syntax", "common.lark"), (package, "grammar.lark")
        grammar = "".join(files(p).joinpath(name).read_text(encoding="utf-8") for p, name in parts)
        self._callbacks = _Callbacks(kind)
        self._lark = Lark(grammar, parser="lalr", start=[*starts], transformer=self._callbacks)
        self._lock = threading.Lock()

    def read(self, start: str, text: str, builder: TreeBuilder) -> Any:
        """Return the tree that the builder makes from the production `start`.

        The text may have semicolons where the builder's source has white space; offsets are the
        same. Raises NnefSyntaxError, and errors of the builder.
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
    """Return lark's error with its span, the expected tokens, and a hint."""
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
    if text[offset : offset + 1] != source.text[offset : offset + 1]:  # an inserted semicolon
        offset += len(text[offset:]) - len(text[offset + 1 :].lstrip())
    names = {shown(name) for name in allowed or ()} - ({"';'"} if provisional else set())
    word = _WORD.match(source.text, offset)
    unexpected = _quoted(word[0]) if word else "end of the text"
    message = f"unexpected {unexpected}"
    if 0 < len(names) <= 8:
        message += f", expected {'one of ' * (len(names) > 1)}{', '.join(sorted(names))}"
    hint = ""
    is_no_token = isinstance(error, UnexpectedCharacters)
    if unexpected[1] in "'\"" and not _STRING.match(text, offset):
        hint = "the string does not end on its line, or has quotes of two kinds"
    elif text[offset : offset + 1] == "\ufeff":
        hint = "save the text without a byte order mark"
    elif not text.strip():
        hint = "the text is empty: a document starts with 'version 1.0;' and has a graph"
    elif names == {"'version'"}:
        hint = "a document starts with 'version 1.0;'"
    elif (unexpected == "':'" and "'='" in names) or text[max(0, offset - 1) : offset + 1] == "==":
        hint = "write a single '=' to assign a name, or to name an argument"
    elif unexpected[1] in ";}" and "')'" in names:
        hint = "a ')' may be missing before this"
    elif unexpected[1] in ";}" and "']'" in names:
        hint = "a ']' may be missing before this"
    elif "';'" in names and not is_no_token and word and _STATEMENT.match(word[0]):
        hint = "a semicolon may be missing before this"
    elif word and word[0][0].isalpha() and _UNCLOSED.search(text, max(0, offset - 40), offset):
        hint = "the body before this may lack its '}'"
    length = len(word[0]) if word else 1
    return NnefSyntaxError(message, span=Span(source, offset, length), hint=hint)


def _quoted(word: str) -> str:
    return f'"{word}"' if "'" in word else f"'{word}'" if word.isprintable() else repr(word)
