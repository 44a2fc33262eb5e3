"""The tokens and the keywords of NNEF's language (spec 3.1, 3.2)."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SHARED_KEYWORDS = {
    *("graph", "fragment", "tensor", "scalar", "logical", "string", "true", "false"),
    *("shape_of", "length_of", "range_of", "for", "in", "if", "else"),
}
KEYWORDS = frozenset(_SHARED_KEYWORDS | {"integer", "version", "extension", "yield"})
PROVISIONAL_KEYWORDS = frozenset(_SHARED_KEYWORDS | {"extent"})
CASTS = frozenset({"scalar", "integer", "extent", "logical", "string"})
BUILTINS = CASTS | {"shape_of", "length_of", "range_of"}

# Components of the patterns below.
SPACE = r"(?:[ \t\r\n\f]++|\#[^\n\f]*+)*+"
NAME = r"[A-Za-z_][A-Za-z0-9_]*+"
NUMBER = r"[0-9]++(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?"
_STRING = r"""(?:'(?:[^'\\\n]++|\\.)*+'{end}|"(?:[^"\\\n]++|\\.)*+"{end})"""
STRING = _STRING.format(end="")
# A string. If its closing quote is missing, the string ends at the end of the line. Therefore the
# pattern always matches, and no text is scanned twice.
OPEN_STRING = _STRING.format(end="?")

_TYPE = r"<\s*+(?:(?:\?|[A-Za-z_]++)\s*+)?(?:=\s*+[A-Za-z_]++\s*+)?>"
_MARK = r"\[\]|->|&&|\|\||[<>=!]=|\S|\Z"
_BLANK = r"[ \t]*+"
# `_SMALL` is a number that certainly fits 64 bits, `_ITEM` is such a number with blanks around it,
# and `_PAIR` is a pair of items in parentheses.
_SMALL = r"-?[0-9]{1,18}+(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]{1,2}+)?"
_ITEM = rf"{_BLANK}{_SMALL}{_BLANK}"
_PAIR = rf"\({_ITEM},{_ITEM}\){_BLANK}"

TOKEN = re.compile(
    rf"(?P<skip>[ \t\r\n\f]++|\#[^\n\f]*+)|(?P<string>{OPEN_STRING})"
    r"|(?P<word>[A-Za-z_0-9.]++)|(?P<mark>==|<=|>=|!=|->|.)",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class Token(str):
    """A piece of a text. `start_pos` is its offset in the text.

    Tokens of lark have an attribute of the same name.
    """

    __slots__ = ("start_pos",)
    start_pos: int


def count_tokens(text: str) -> int:
    """Count the tokens in a text. White space and comments do not count."""
    return sum(match.lastgroup != "skip" for match in TOKEN.finditer(text))


def unescaped(text: str) -> str:
    """Return the text between quotes without the backslashes that escape characters."""
    return _ESCAPE.sub(r"\1", text)


class Language:
    """A dialect of NNEF's language, for the fast reader.

    Args:
        name: the pattern of an identifier.
        extension: the pattern of an extension line.
        levels: the binary operators by precedence, from the lowest to the highest.
        signs: the unary operators.
        loose: whether lists may end with a comma, bodies may be empty, and results may lack types.
            Such a language has no conditions, comprehensions, ranges, or fragments without a body.
    """

    def __init__(
        self,
        name: str = NAME,
        extension: str = r"extension[ \t\r\n\f]+([^;#,\s][^;#\n,]*(?:,[ \t]*[^;#,\s][^;#\n,]*)*);",
        levels: Sequence[str] = ("||", "&&", "in < <= > >= == !=", "+ -", "* /"),
        signs: Sequence[str] = ("-", "+", "!"),
        loose: bool = False,
    ) -> None:
        self.extension: re.Pattern[str] = re.compile(extension)
        self.levels: dict[str, int] = {}
        for level, operators in enumerate(levels, start=1):
            self.levels.update(dict.fromkeys(operators.split(), level))
        self.signs = signs
        self.loose = loose
        # A token. Each kind of tokens has a group: a name, a number, a string, a generic argument,
        # or a mark.
        self.token: re.Pattern[str] = re.compile(
            rf"{SPACE}(?:({name})|({NUMBER})|({STRING})|({_TYPE})|({_MARK}))"
        )
        # An argument `value` or `name = value`, and the mark after it. The groups are the name, the
        # value (numbers in brackets, a number, a name, or a string), and the mark. With a match for
        # each token, reading an argument would take 1.7 times as long. The lists of items have `*`
        # instead of `*+`: with `*+`, Python up to 3.11.4 keeps the comma before an item that does
        # not match.
        self.value: re.Pattern[str] = re.compile(
            rf"{SPACE}(?:({name}){SPACE}={SPACE})?(?:(\[{_ITEM}(?:,{_ITEM})*\]"
            rf"|\({_ITEM}(?:,{_ITEM})+\)|\[{_PAIR}(?:,{_BLANK}{_PAIR})*\])"
            rf"|({_SMALL})|({name})|({STRING})){SPACE}([,)])"
        )
        # The declaration `name: type` or `name: type<generic>`.
        self.declared: re.Pattern[str] = re.compile(
            rf"({name}){SPACE}:{SPACE}({name})(?:{SPACE}(<\s*+(?:(?:\?|[A-Za-z_]++)\s*+)?>))?"
        )
        # The beginning of a statement, `name = operation(` or `name = operation<generic>(`.
        self.statement: re.Pattern[str] = re.compile(
            rf"{SPACE}({name}){SPACE}={SPACE}({name}){SPACE}"
            rf"(?:(<\s*+[a-z]++\s*+>){SPACE})?\("
        )
