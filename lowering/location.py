"""Defines sources, which are texts of documents, and spans, which are places in a source."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True, eq=False)
class Source:
    """The text of a document, and its name in messages, which is usually the file name.

    Sources are compared by identity.
    """

    name: str
    text: str

    @cached_property
    def _line_starts(self) -> array[int]:
        """Return the character offset of the start of each line."""
        lengths = [len(line) + 1 for line in self.text.split("\n")]
        return array("q", accumulate(lengths, initial=0))

    def position(self, offset: int) -> tuple[int, int]:
        """Return the line and the column of a character offset, both counted from 1."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def offset(self, line: int, column: int) -> int:
        """Return the character offset of a line and a column, both counted from 1.

        The offset is at most the length of the text. A line beyond the last one counts as the
        last line.
        """
        last_line = len(self._line_starts)
        start = self._line_starts[min(line, last_line) - 1]
        return min(start + column - 1, len(self.text))

    def line(self, number: int) -> str:
        """Return the text of line `number`, without the line break. The first line is line 1."""
        start = self._line_starts[number - 1]
        end = self.text.find("\n", start)
        if end < 0:
            end = len(self.text)
        return self.text[start:end].rstrip("\r")


@dataclass(frozen=True, slots=True)
class Span:
    """A place in the text of a document: an offset and a length, both in characters.

    The offset counts from 0. `str(span)` is `name:line:column`, where line and column count
    from 1. `excerpt` shows the line.
    """

    source: Source
    offset: int
    length: int = 1

    def __str__(self) -> str:
        line, column = self.source.position(self.offset)
        return f"{self.source.name}:{line}:{column}"

    @property
    def line(self) -> int:
        """Return the line of the place, counted from 1."""
        line, _ = self.source.position(self.offset)
        return line

    @property
    def column(self) -> int:
        """Return the column of the place, counted from 1."""
        _, column = self.source.position(self.offset)
        return column

    def excerpt(self, width: int = 100) -> str:
        """Return the line of the place, and below it a line with a caret at the place.

        The line is cut to about `width` characters.
        """
        line, column = self.source.position(self.offset)
        # The excerpt starts where the line starts, unless the place would be among the last 20
        # characters of the excerpt, or beyond. Then the place is in the middle of the excerpt.
        is_near_start = column <= width - 20
        start = 0 if is_near_start else column - width // 2
        excerpt = ""
        for character in self.source.line(line)[start : start + width]:
            excerpt += character if character.isprintable() else " "
        indent = column - 1 - start
        # There is a caret for each character of the place, but none beyond the line.
        caret_count = max(1, min(self.length, len(excerpt) - indent))
        return f"{excerpt}\n{' ' * indent}{'^' * caret_count}"
