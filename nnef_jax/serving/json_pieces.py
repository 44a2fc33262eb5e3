"""Reads and writes long JSON in pieces, so that other threads can run in between.

Python's json module holds the interpreter's lock while it processes a whole text. A text of 16 MB
takes half a second.
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

_PIECE_CHARACTERS = 64 << 10  # This many characters are read at once, which takes a millisecond.
_PIECE_ITEMS = 4 << 10  # This many items are written at once.
# A long text has at most this many strings, objects and long lists. Reading each of these takes up
# to half a millisecond. Numbers and short lists are not limited, because many of them are read at
# once.
_MOST_VALUES = 10_000
_decoder = json.JSONDecoder()
_space = re.compile(r"[ \t\n\r]*").match


Items = list[Any]  # The items are JSON values or `Pieces`.


@dataclass(frozen=True, slots=True)
class Pieces:
    """A long JSON array, as consecutive lists of its items.

    Lists of numbers among the items may be flattened: [1, 2], [3, 4] to 1, 2, 3, 4. An array that
    contains `Pieces` is itself `Pieces`, and never a list.
    """

    lists: list[Items]

    def flat(self) -> Iterator[Items]:
        """Yield lists of items. An item that is `Pieces` is replaced by the lists in it."""
        for items in self.lists:
            types = set(map(type, items))
            has_only_arrays = types <= {Pieces, list}
            if Pieces not in types or not has_only_arrays:
                yield items
                continue
            for array in items:
                if isinstance(array, Pieces):
                    yield from array.flat()
                else:
                    yield array


def loads(data: bytes) -> Any:
    """Return the value of a JSON text as `json.loads` does, but with long arrays as `Pieces`.

    Raises RecursionError or ValueError for a text that is not JSON, and ValueError for a long text
    with too many strings and objects.
    """
    text = data.decode(json.detect_encoding(data), "surrogatepass")
    if len(text) <= _PIECE_CHARACTERS:
        return json.loads(text)
    return _Reader(text).document()


def flattened(items: Items) -> Items:
    """Return the items of nested lists in one flat list.

    Raises ValueError if the lists have different lengths.
    """
    # Each round removes one level of lists: [[1, 2], [3, 4]] becomes [1, 2, 3, 4].
    while set(map(type, items)) == {list}:
        lengths = set(map(len, items))
        if len(lengths) > 1:
            raise ValueError("lists in a list differ in length")
        items = list(chain.from_iterable(items))
    return items


def dumped(array: NDArray[np.generic]) -> Iterator[str]:
    """Yield the JSON text of an array's items in pieces.

    The items are flat and separated by commas, as in "1, 2, 3", without brackets around them.
    """
    items = array.ravel()
    for start in range(0, len(items), _PIECE_ITEMS):
        piece = items[start : start + _PIECE_ITEMS].tolist()
        text = json.dumps(piece).removeprefix("[").removesuffix("]")
        is_first = start == 0
        yield text if is_first else f", {text}"


class _Reader:
    """A reader of the values in a JSON text. `at` is the index of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._value_count = 0

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
        """Read and return the next value. Raises ValueError if there have been too many values."""
        self._value_count += 1
        if self._value_count > _MOST_VALUES:
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
        """Read and return a JSON object."""
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
        """Read and return a JSON array.

        Runs of numbers are read at once, and all other items one by one.
        """
        self._take("[")
        if self._next() == "]":
            self._take("]")
            return []
        lists: list[Items] = [[]]
        is_open = True
        while is_open:
            numbers = self._numbers()
            if numbers is None:
                lists[-1].append(self._value())
            else:
                lists += [numbers, []]  # later values go to a new list
            is_open = self._take(",", "]") == ","
        lists = [items for items in lists if items]
        has_pieces = any(isinstance(item, Pieces) for item in lists[0])
        if len(lists) > 1 or has_pieces:
            return Pieces(lists)
        return lists[0]

    def _numbers(self) -> Items | None:
        """Return the next complete items of an array: numbers, and lists of numbers.

        Only the next `_PIECE_CHARACTERS` characters are read, and only up to the next string or
        object. Return None if these characters contain no complete item.
        """
        stop = self.at + _PIECE_CHARACTERS
        for mark in ('"', "{"):
            position = self.text.find(mark, self.at, stop)
            if position >= 0:
                stop = position
        region = self.text[self.at : stop]
        end = _end_of_items(region)
        if end is None:
            return None
        self.at += end
        items = json.loads(f"[{region[:end]}]")
        if not items:
            raise self._error("a value")
        is_end_of_array = region[end] == "]"
        if is_end_of_array:  # if the array has no other part, the nested lists must stay
            return items
        # Flat numbers take less memory than lists. If the lists differ in length, they stay lists.
        with suppress(ValueError):
            return flattened(items)
        return items


def _end_of_items(region: str) -> int | None:
    """Return the index at which the complete items end, in a text within a JSON array.

    The region begins between two items of the array, and has no strings and objects. If the array
    ends in the region, the index is that of its "]". Otherwise it is the index of the last comma
    between items, or None if there is no such comma.
    """
    # There is one byte for each character, because characters beyond latin-1 become "?".
    codes = np.frombuffer(region.encode("latin-1", "replace"), np.uint8)
    # The depth rises by 1 at "[", and falls by 1 at "]". Characters of the array's own items
    # have the depth 0. In "1, [2, 3], 4]" the comma after 2 has the depth 1, and the last "]",
    # which ends the array, has the depth -1.
    opening = (codes == ord("[")).astype(np.int32)
    closing = codes == ord("]")
    depth = np.cumsum(opening - closing)
    ends_of_array = np.flatnonzero(depth < 0)
    if len(ends_of_array) > 0:
        return int(ends_of_array[0])
    commas = np.flatnonzero((codes == ord(",")) & (depth == 0))
    return int(commas[-1]) if len(commas) > 0 else None
