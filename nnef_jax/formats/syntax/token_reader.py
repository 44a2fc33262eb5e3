"""Steps through the tokens of a text, for the fast reader."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from nnef_jax.formats.syntax.tokens import Language, Token

NAME, NUMBER, STRING, GENERIC = 1, 2, 3, 4  # the numbers of groups of `Language.token`

_Item = TypeVar("_Item")


class NotUnderstood(Exception):
    """The fast reader cannot read a text. The text must be read by the grammar."""


class TokenReader:
    """Reads the tokens of a text.

    The next token is `token`. Its kind is `kind`, such as NAME, and its place in the text is from
    `start` to `stop`. The methods raise NotUnderstood at an unexpected token.

    Args:
        text: the text.
        language: the patterns of tokens and the form of productions.
        most: the largest number of tokens that may be read one by one.
    """

    match: Callable[..., re.Match[str] | None]
    tokens_left: int
    kind: int
    token: str
    start: int
    stop: int

    def __init__(self, text: str, language: Language, most: int) -> None:
        self.text = text
        self.language = language
        self.loose: bool = language.loose
        self.match = language.token.match
        self.tokens_left = most
        self.advance(0)

    def advance(self, offset: int) -> None:
        """Read the token at an offset, and make it the next token."""
        self.tokens_left -= 1
        match = self.match(self.text, offset)
        if match is None or self.tokens_left < 0:
            raise NotUnderstood
        kind = match.lastindex or 0  # the number of the group that matched, such as NAME
        self.kind = kind
        self.token = match[kind]
        self.start, self.stop = match.span(kind)

    def take(self, token: str | None = None) -> Token:
        """Step over the next token and return it.

        Unless `token` is None, the next token must be `token`.
        """
        if token is not None and token != self.token:
            raise NotUnderstood
        result = placed(self.token, self.start)
        self.advance(self.stop)
        return result

    def expect(self, token: str) -> None:
        """Step over the next token, which must be `token`."""
        if token != self.token:
            raise NotUnderstood
        self.advance(self.stop)

    def accept(self, token: str) -> bool:
        """Step over the next token if it is `token`. Return whether it is."""
        is_next = token == self.token
        if is_next:
            self.advance(self.stop)
        return is_next

    def name(self) -> Token:
        """Step over the next token, which must be a name, and return it."""
        require(self.kind == NAME)
        return self.take()

    def generic(self, declared: bool = False) -> Token | None:
        """Step over the next token if it is a generic argument such as `<scalar>`, and return it.

        Return None if the next token is something else. If `declared`, the token is in a
        declaration, where it must have the form `<?>` or `<? = type>`.
        """
        if self.kind != GENERIC:
            return None
        token = self.take()
        is_allowed = "?" in token if declared else "=" not in token
        require(self.loose or is_allowed)
        return token

    def several(self, item: Callable[[], _Item]) -> list[_Item]:
        """Read one or more items with commas between them. The function `item` reads an item."""
        items = [item()]
        while self.accept(","):
            items.append(item())
        return items

    def listed(self, brackets: str, item: Callable[[], object], least: int = 0) -> list[Any]:
        """Read a list in `brackets`, such as "[]", that has at least `least` items.

        `item` is called to read an item. Return a list of the opening bracket and the items.
        """
        opening, closing = brackets
        return [self.take(opening), *self.items_to(closing, item, least)]

    def items_to(self, closing: str, item: Callable[[], _Item], least: int = 0) -> list[_Item]:
        """Read items with commas between them, and the closing bracket after the items.

        `item` is called to read an item. There must be at least `least` items.
        """
        items: list[_Item] = []
        while self.token != closing:
            items.append(item())
            if self.token != ",":
                break
            self.advance(self.stop)
            # Only lists in a loose language may end with a comma.
            require(self.loose or self.token != closing)
        require(len(items) >= least)
        self.expect(closing)
        return items


def require(condition: bool) -> None:
    """Raise NotUnderstood if a condition is not true."""
    if not condition:
        raise NotUnderstood


def placed(text: str, start: int) -> Token:
    """Return a token with its offset in the text."""
    token = Token(text)
    token.start_pos = start
    return token


def token_of(match: re.Match[str], group: int) -> Token:
    """Return the token that a group of a pattern matched."""
    return placed(match[group], match.start(group))
