"""Reads and writes long JSON in pieces, so that other threads can run in between.

Python's json module holds the interpreter's lock while it processes a whole text, which takes half
a second for 16 MB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PIECE = 64 << 10  # number of characters that are read at once, in a millisecond
_ITEMS = 4 << 10  # number of items that are written at once
# The largest number of strings, objects and long lists in a long text. Each of these is read
# separately, in half a millisecond at most. Numbers and short lists do not count, because they are
# read in pieces.
_MOST_VALUES = 10_000
_decoder = json.JSONDecoder()
_space = re.compile(r"[ \t\n\r]*").match


Items = list[Any]  # a list of JSON values, or of Pieces


@dataclass(frozen=True, slots=True)
class Pieces:
    """A long JSON array, as consecutive lists of its items.

    If the items include lists of numbers, these lists are flattened. An array that contains
    `Pieces` is itself `Pieces`, and never a list.
    """

    lists: list[Items]

    def flat(self) -> Iterator[Items]:
        """Yield lists of items; items that are `Pieces` are replaced by their own lists."""
        for items in self.lists:
            types = set(map(type, items))
            if Pieces in types and types <= {Pieces, list}:
                for x in items:
                    yield from x.flat() if isinstance(x, Pieces) else [x]
            else:
                yield items


def loads(data: bytes) -> Any:
    """Return the value of a JSON text as `json.loads` does, but with long arrays as `Pieces`.

    Raises RecursionError or ValueError, also for a long text with too many strings and objects.
    """
    text = data.decode(json.detect_encoding(data), "surrogatepass")
    return json.loads(text) if len(text) <= _PIECE else _Reader(text).document()


def flattened(items: Items) -> Items:
    """Return the items of nested lists in one flat list.

    Raises ValueError if the lists have different lengths.
    """
    while set(map(type, items)) == {list}:
        if len(set(map(len, items))) > 1:
            raise ValueError("lists in a list differ in length")
        items = [*chain.from_iterable(items)]
    return items


def dumped(array: NDArray[np.generic]) -> Iterator[str]:
    """Yield the JSON text of an array in pieces, with flat items separated by commas."""
    items = array.ravel()
    for start in range(0, len(items), _ITEMS):
        separator = ", " if start else ""
        text_in_brackets = json.dumps(items[start : start + _ITEMS].tolist())
        yield separator + text_in_brackets[1:-1]


class _Reader:
    """A reader of the values in a JSON text. `at` is the index of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._values = 0

    def document(self) -> Any:
        """Return the value of the text. Raises ValueError if it is not one complete JSON value."""
        value = self._value()
        if self._next():
            raise self._error("nothing")
        return value

    def _next(self) -> str:
        """Return the next character that is not white space, or '' at the end of the text."""
        self.at = _space(self.text, self.at).end()  # pyright: ignore[reportOptionalMemberAccess]
        return self.text[self.at : self.at + 1]

    def _error(self, expected: str) -> ValueError:
        return ValueError(f"{expected} is expected at character {self.at}")

    def _take(self, *allowed: str) -> str:
        """Consume the next character, which must be one of `allowed`, and return it."""
        character = self._next()
        if character not in allowed:
            raise self._error(" or ".join(allowed))
        self.at += 1
        return character

    def _value(self) -> Any:
        self._values += 1
        if self._values > _MOST_VALUES:
            raise ValueError(f"it has more than {_MOST_VALUES} strings, objects and long lists")
        match self._next():
            case "{":
                return self._object()
            case "[":
                return self._array()
            case _:
                value, self.at = _decoder.raw_decode(self.text, self.at)
                return value

    def _object(self) -> dict[str, Any]:
        self._take("{")
        members: dict[str, Any] = {}
        if self._next() == "}":
            self._take("}")
            return members
        while True:
            if self._next() != '"':
                raise self._error("a name in quotes")
            name = self._value()
            self._take(":")
            members[name] = self._value()
            if self._take(",", "}") == "}":
                return members

    def _array(self) -> Items | Pieces:
        self._take("[")
        lists: list[Items] = [[]]
        if self._next() == "]":
            self._take("]")
            return lists[0]
        while True:
            items = self._numbers()
            if items is None:
                lists[-1].append(self._value())
            else:
                lists += [items, []]
            if self._take(",", "]") == "]":
                lists = [items for items in lists if items]
                if len(lists) > 1 or any(isinstance(x, Pieces) for x in lists[0]):
                    return Pieces(lists)
                return lists[0]

    def _numbers(self) -> Items | None:
        """Return the next complete items of an array, before any string or object.

        Return None if the next part of the text has no complete item.
        """
        stop = self.at + _PIECE
        for mark in ('"', "{"):
            position = self.text.find(mark, self.at, stop)
            if position >= 0:
                stop = position
        region = self.text[self.at : stop]
        codes = np.frombuffer(region.encode("latin-1", "replace"), np.uint8)
        steps = (codes == ord("[")).astype(np.int32) - (codes == ord("]"))
        depth = np.cumsum(steps)
        # The items end at the bracket that closes the array, or else at the last comma in this
        # region.
        closing_brackets = np.flatnonzero(depth < 0)
        commas = np.flatnonzero((codes == ord(",")) & (depth == 0))
        if len(closing_brackets):
            end = int(closing_brackets[0])
        elif len(commas):
            end = int(commas[-1])
        else:
            return None
        self.at += end
        items = json.loads(f"[{region[:end]}]")
        if not items:
            raise self._error("a value")
        if len(closing_brackets):
            return items
        with suppress(ValueError):
            return flattened(items)
        return items
