"""Reads texts by grammars of lark, which define the language and explain errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Sequence
from importlib.resources import files
from typing import Any

from lark import Lark, Token
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from lowering.location import Span
from nnef_jax.errors import NnefSyntaxError
from nnef_jax.formats.syntax.tokens import STRING
from nnef_jax.formats.syntax.tree_builder import TreeBuilder

# The largest number of allowed terminals that a message lists; if more are allowed, it lists none.
_MOST_SHOWN = 8
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
    """Calls the method of a tree builder that has the name of a production, for lark."""

    def __init__(self, kind: type[TreeBuilder]) -> None:
        self._kind = kind
        self.builder: TreeBuilder | None = None

    def __getattr__(self, name: str) -> Callable[[list[Any]], Any]:
        # For optional methods that the builder lacks, lark needs the AttributeError of this line.
        getattr(self._kind, name)
        return lambda items: getattr(self.builder, name)(*items)


class GrammarReader:
    """Reads texts by a grammar of lark: `common.lark`, and the `grammar.lark` of a package.

    Several threads may share a reader. A lock lets only one of them read at a time.
    """

    def __init__(self, package: str, starts: Sequence[str], kind: type[TreeBuilder]) -> None:
        common = files("nnef_jax.formats.syntax").joinpath("common.lark")
        special = files(package).joinpath("grammar.lark")
        grammar = common.read_text(encoding="utf-8") + special.read_text(encoding="utf-8")
        self._callbacks = _Callbacks(kind)
        self._lark = Lark(grammar, parser="lalr", start=[*starts], transformer=self._callbacks)
        self._lock = threading.Lock()

    def read(self, start: str, text: str, builder: TreeBuilder) -> Any:
        """Read a text of the production `start`; return the tree that the builder makes.

        The text may have semicolons in places where the builder's source has white space; the
        offsets are equal. Raises NnefSyntaxError if the text does not follow the grammar, and
        errors of the builder.
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
    """Convert lark's error to an error with a span, the expected tokens, and a hint."""
    source = builder.source
    offset, terminals = _offset_and_terminals(text, error)
    is_inserted = text[offset : offset + 1] != source.text[offset : offset + 1]
    if is_inserted:  # the error is at a semicolon that the source does not have
        remaining = text[offset + 1 :].lstrip()
        offset = len(text) - len(remaining)
    names = _shown_terminals(lark, terminals)
    if builder.provisional:
        names.discard("';'")
    match = _WORD.match(source.text, offset)
    word = match[0] if match else ""
    unexpected = _quoted(word) if word else "end of the text"
    message = f"unexpected {unexpected}"
    if len(names) == 1:
        message += f", expected {min(names)}"
    elif 0 < len(names) <= _MOST_SHOWN:
        message += f", expected one of {', '.join(sorted(names))}"
    is_token = not isinstance(error, UnexpectedCharacters)
    hint = _hint(text, offset, word, names, is_token)
    span = Span(source, offset, max(len(word), 1))
    return NnefSyntaxError(message, span=span, hint=hint)


def _offset_and_terminals(text: str, error: UnexpectedInput) -> tuple[int, Collection[str]]:
    """Return the offset of an error in the text, and the terminals that are allowed there."""
    match error:
        case UnexpectedCharacters():
            return error.pos_in_stream or 0, error.allowed or ()
        case UnexpectedToken(token=Token(type="$END")) | UnexpectedEOF():
            return len(text.rstrip()), error.expected
        case UnexpectedToken():
            return error.token.start_pos or 0, error.accepts or error.expected
        case _:
            return 0, ()


def _shown_terminals(lark: Lark, terminals: Collection[str]) -> set[str]:
    """Return the texts that messages show for terminals of the grammar, such as "';'"."""
    patterns = {terminal.name: terminal.pattern for terminal in lark.terminals}
    names: set[str] = set()
    for name in terminals:
        if name in _SHOWN:
            names.add(_SHOWN[name])
        elif name in patterns:
            names.add(f"'{patterns[name].value}'")
        else:
            names.add(name)
    return names


def _hint(text: str, offset: int, word: str, names: set[str], is_token: bool) -> str:
    """Return a hint for the error at an offset, or '' for no hint.

    Args:
        text: the text. A provisional text has semicolons here.
        offset: the offset of the unexpected word.
        word: the unexpected word, or '' for the end of the text.
        names: the allowed terminals, in the form that messages show.
        is_token: whether the word is a token of the language.
    """
    is_double_equals = text[max(0, offset - 1) : offset + 1] == "=="
    if word[:1] in ("'", '"') and not _STRING.match(text, offset):
        return "the string does not end on its line, or has quotes of two kinds"
    if text[offset : offset + 1] == "\ufeff":
        return "save the text without a byte order mark"
    if not text.strip():
        return "the text is empty: a document starts with 'version 1.0;' and has a graph"
    if names == {"'version'"}:
        return "a document starts with 'version 1.0;'"
    if is_double_equals or (word == ":" and "'='" in names):
        return "write a single '=' to assign a name, or to name an argument"
    if word[:1] in (";", "}"):
        if "')'" in names:
            return "a ')' may be missing before this"
        if "']'" in names:
            return "a ']' may be missing before this"
    if "';'" in names and is_token and _STATEMENT.match(word):
        return "a semicolon may be missing before this"
    if word[:1].isalpha() and _UNCLOSED.search(text, max(0, offset - 40), offset):
        return "the body before this may lack its '}'"
    return ""


def _quoted(word: str) -> str:
    if "'" in word:
        return f'"{word}"'
    return f"'{word}'" if word.isprintable() else repr(word)
