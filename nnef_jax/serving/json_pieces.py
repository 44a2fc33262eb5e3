"""Reads and writes long JSON in pieces, between which other threads get on.

Python's own reader and writer of JSON keep all other threads waiting until they are done, which
takes half a second for 16 MB.
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

_PIECE = 64 << 10  # characters that are read at once, a millisecond
_ITEMS = 4 << 10  # that are written at once
# Values of a long text that are read one by one: up to half a millisecond each. The others are
# numbers, in short lists at most.
_MOST_VALUES = 10_000
_decoder = json.JSONDecoder()
_space = re.compile(r"[ \t\n\r]*").match


@dataclass(frozen=True, slots=True)
class Pieces:
    """A long array of JSON, as lists of its items. A list of numbers in it is its numbers.

    An array that holds `Pieces` is `Pieces` itself, never a list.
    """

    lists: list[list[Any]]

    def flat(self) -> Iterator[list[Any]]:
        """Yield the lists, those of long arrays in it too."""
        for items in self.lists:
            types = set(map(type, items))
            if Pieces in types and types <= {Pieces, list}:
                for x in items:
                    yield from x.flat() if isinstance(x, Pieces) else [x]
            else:
                yield items


def loads(data: bytes) -> Any:
    """Return the value of a JSON text, as `json.loads` does, but for long arrays: `Pieces`.

    Raises ValueError, also for a long text of many strings and objects, and RecursionError.
    """
    text = data.decode(json.detect_encoding(data), "surrogatepass")
    return json.loads(text) if len(text) <= _PIECE else _Reader(text).document()


def flattened(items: list[Any]) -> list[Any]:
    """Return the items of lists in lists, in order. Raises ValueError where lengths differ."""
    while set(map(type, items)) == {list}:
        if len(set(map(len, items))) > 1:
            raise ValueError("lists in a list differ in length")
        items = [*chain.from_iterable(items)]
    return items


def dumped(array: NDArray[Any]) -> Iterator[str]:
    """Yield the text of the items of an array, flat, with commas between."""
    items = array.ravel()
    for start in range(0, len(items), _ITEMS):
        yield (", " if start else "") + json.dumps(items[start : start + _ITEMS].tolist())[1:-1]


class _Reader:
    """Reads values of a text from a place on."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self._values = 0

    def document(self) -> Any:
        """Return the value of the whole text."""
        value = self._value()
        if self._next():
            raise self._error("nothing")
        return value

    def _next(self) -> str:
        """Return the next character that is no space, '' at the end."""
        self.at = _space(self.text, self.at).end()  # pyright: ignore[reportOptionalMemberAccess]
        return self.text[self.at : self.at + 1]

    def _error(self, wanted: str) -> ValueError:
        return ValueError(f"at character {self.at} {wanted} is due")

    def _take(self, *allowed: str) -> str:
        """Pass over one of some characters, and return it."""
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

    def _array(self) -> list[Any] | Pieces:
        self._take("[")
        lists: list[list[Any]] = [[]]
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
                is_long = len(lists) > 1 or any(isinstance(x, Pieces) for x in lists[0])
                return Pieces(lists) if is_long else lists[0]

    def _numbers(self) -> list[Any] | None:
        """Return the next items, whole ones before any string or object; None if there are none."""
        stop = self.at + _PIECE
        for mark in ('"', "{"):
            position = self.text.find(mark, self.at, stop)
            stop = stop if position < 0 else position
        region = self.text[self.at : stop]
        codes = np.frombuffer(region.encode("latin-1", "replace"), np.uint8)
        depth = np.cumsum((codes == ord("[")).astype(np.int32) - (codes == ord("]")))
        ends = np.flatnonzero(depth < 0)[:1]  # of the array itself
        if not len(ends):
            ends = np.flatnonzero((codes == ord(",")) & (depth == 0))[-1:]
        if not len(ends):
            return None
        end = int(ends[0])
        self.at += end
        items = json.loads(f"[{region[:end]}]")
        if not items:
            raise self._error("a value")
        with suppress(ValueError):
            return items if depth[end] < 0 else flattened(items)
        return items
