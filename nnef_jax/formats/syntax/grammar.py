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

# The largest number of allowed terminals that a message lists. If more terminals are allowed, the
# message lists none.
_MOST_SHOWN = 8
# Matches the word or mark at the offset of an error. The message of the error shows this word.
_WORD = re.compile(r"[A-Za-z_0-9.]+|[=<>!]=|->|&&|\|\||[^A-Za-z_0-9]")
_STRING = re.compile(STRING)
_STATEMENT_START = re.compile(r"[A-Za-z_([}]")
_UNCLOSED_BODY = re.compile(r"\b(graph|fragment)\s+$")
# Maps names of terminals of the grammar to the texts that messages show for them.
_SHOWN_TERMINALS = {
    "NAME": "an identifier", "NUMBER": "a number", "STRING": "a string", "END": "';'",
    "BRACKET": "'['", "PARENTHESIS": "'('", "GENERIC": "'<type>'", "GENERIC_DECLARATION": "'<?>'",
    "EXTENSION": "the name of an extension", "$END": "the end of the text",
    "COMPARE": "a comparison",
}  # fmt: skip


class _Callbacks:
    """Lets lark call the methods of a tree builder. Productions and methods have the same names.

    `builder` is the builder of the text that is being read. `kind` is the class of the builder.
    """

    def __init__(self, kind: type[TreeBuilder]) -> None:
        self._kind = kind
        self.builder: TreeBuilder | None = None

    def __getattr__(self, name: str) -> Callable[[list[Any]], Any]:
        """Return a function that calls the builder's method `name` with the items of a list."""
        # Some methods are optional. If the class lacks a method, this line raises AttributeError,
        # and lark knows that the method does not exist.
        getattr(self._kind, name)

        def call(items: list[Any]) -> Any:
            """Call the method of the present builder."""
            method = getattr(self.builder, name)
            return method(*items)

        return call


class GrammarReader:
    """Reads texts by a grammar of lark: `common.lark`, and the `grammar.lark` of a package.

    Several threads may share a reader. A lock lets only one thread read at a time.
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

        The text is that of the builder's source. It may have semicolons in the place of white
        space, which changes no offset. Raises NnefSyntaxError if the text does not follow the
        grammar. Errors of the builder are raised too.
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
    offset = _after_added_semicolon(text, source.text, offset)
    expected = _shown_terminals(lark, terminals)
    if builder.provisional:
        expected.discard("';'")  # a source in 1.0 provisional has no semicolons
    match = _WORD.match(source.text, offset)
    word = match[0] if match else ""
    unexpected = _quoted(word) if word else "end of the text"
    message = f"unexpected {unexpected}"
    if len(expected) == 1:
        message += f", expected {min(expected)}"
    elif 0 < len(expected) <= _MOST_SHOWN:
        message += f", expected one of {', '.join(sorted(expected))}"
    is_token = not isinstance(error, UnexpectedCharacters)  # whether the language has such a token
    hint = _hint(text, offset, word, expected, is_token)
    span = Span(source, offset, max(len(word), 1))
    return NnefSyntaxError(message, span=span, hint=hint)


def _after_added_semicolon(text: str, source_text: str, offset: int) -> int:
    """Return the offset of an error. If the error is at an added semicolon, skip the semicolon.

    In 1.0 provisional, `text` has semicolons in places where the source has white space or a
    comment. If such a semicolon is unexpected, the error is at the next token.
    """
    is_at_end = offset >= len(text)  # the text may be a part of the source
    if is_at_end or text[offset] == source_text[offset]:
        return offset
    offset += 1
    while text[offset : offset + 1].isspace():
        offset += 1
    return offset


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
        if name in _SHOWN_TERMINALS:
            names.add(_SHOWN_TERMINALS[name])
        elif name in patterns:
            names.add(f"'{patterns[name].value}'")
        else:
            names.add(name)
    return names


def _hint(text: str, offset: int, word: str, expected: set[str], is_token: bool) -> str:
    """Return a hint for the error at an offset, or '' for no hint.

    Args:
        text: the text. In NNEF 1.0 provisional, semicolons may replace its white space.
        offset: the offset of the unexpected word.
        word: the unexpected word, or '' for the end of the text.
        expected: the allowed terminals, in the form that messages show.
        is_token: whether the word is a token of the language.
    """
    first_letter = word[:1]
    is_open_string = first_letter in ("'", '"') and not _STRING.match(text, offset)
    if is_open_string:
        return "the string does not end on its line, or has quotes of two kinds"
    if text[offset : offset + 1] == "\ufeff":
        return "save the text without a byte order mark"
    if not text.strip():
        return "the text is empty: a document starts with 'version 1.0;' and has a graph"
    if expected == {"'version'"}:
        return "a document starts with 'version 1.0;'"
    is_double_equals = text[max(0, offset - 1) : offset + 1] == "=="
    is_colon_for_equals = word == ":" and "'='" in expected
    if is_double_equals or is_colon_for_equals:
        return "write a single '=' to assign a name, or to name an argument"
    if first_letter in (";", "}"):
        if "')'" in expected:
            return "a ')' may be missing before this"
        if "']'" in expected:
            return "a ']' may be missing before this"
    may_begin_statement = is_token and _STATEMENT_START.match(word) is not None
    if may_begin_statement and "';'" in expected:
        return "a semicolon may be missing before this"
    # A name after "graph" or "fragment" begins a declaration. The pattern is searched only in the
    # 40 letters before the name, so that a long text takes no longer.
    if first_letter.isalpha() and _UNCLOSED_BODY.search(text, max(0, offset - 40), offset):
        return "the body before this may lack its '}'"
    return ""


def _quoted(word: str) -> str:
    """Return a word in quotes. A character that cannot be printed is shown as its escape."""
    if "'" in word:
        return f'"{word}"'
    return f"'{word}'" if word.isprintable() else repr(word)
