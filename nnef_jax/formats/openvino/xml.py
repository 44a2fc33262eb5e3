"""Reads untrusted XML.

Document types and entities are refused; depth, sizes and time are limited.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from lowering.location import Source, Span
from nnef_jax.errors import LimitError, NnefSyntaxError
from nnef_jax.limits import Meter, raising

_ELEMENT_STEPS = 6  # the cost of an element, counted towards `Limits.steps`
_BYTES_PER_STEP = 32  # this many bytes of the document cost one step
_CHUNK_BYTES = 1 << 16  # this many bytes are parsed at a time
_NUMBER_TAG = "dim"  # the most frequent tag, and the only one whose text is stored


@dataclass(slots=True, eq=False)
class Element:
    """An XML element with its attributes and children.

    `dims` has the texts of the `<dim>` children. `children` has all other children.
    """

    tag: str
    attributes: dict[str, str]
    line: int
    column: int
    children: list[Element] = field(default_factory=list["Element"])
    dims: list[str] = field(default_factory=list[str])

    def child(self, *tags: str) -> Element | None:
        """Return the first child whose tag is in `tags`, or None if there is no such child."""
        for child in self.children:
            if child.tag in tags:
                return child
        return None

    def below(self, *tags: str) -> list[Element]:
        """Return the children of the first child whose tag is in `tags`.

        Return [] if there is no such child.
        """
        child = self.child(*tags)
        return [] if child is None else child.children

    def span(self, source: Source) -> Span:
        """Return the position of the element's start tag in the file."""
        return Span(source, source.offset(self.line, self.column), len(self.tag) + 1)


def parse(data: memoryview, name: str, meter: Meter) -> tuple[Element, Source]:
    """Parse XML. Return the root element, and the source to which errors refer.

    `name` is the name of the file in errors. Raises NnefSyntaxError if the data are no XML, and
    LimitError if the document is too large.
    """
    # Only errors show the text of the source, so characters that cannot be read are replaced.
    is_wide = bytes(data[:2]) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    encoding = "utf-16" if is_wide else "utf-8-sig"
    source = Source(name, str(data, encoding, "replace"))
    return _ElementReader(source, meter).read(data), source


class _ElementReader:
    """Builds elements while the parser reads a document."""

    def __init__(self, source: Source, meter: Meter) -> None:
        self._source = source
        self._meter = meter
        self._parser: Any = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype
        self._texts: list[str] = []  # the texts since the last start tag
        self._parser.CharacterDataHandler = self._texts.append
        self._open: list[Element] = []  # elements whose end tags are still to come
        self._root: Element | None = None
        self._in_number = False  # whether the parser is inside a <dim> element

    def read(self, data: memoryview) -> Element:
        """Parse a document and return its root element."""
        try:
            for start in range(0, len(data), _CHUNK_BYTES):
                piece = data[start : start + _CHUNK_BYTES]
                self._meter.spend(len(piece) // _BYTES_PER_STEP, self._source.name)
                is_final = False
                self._parser.Parse(piece, is_final)
            is_final = True
            self._parser.Parse(b"", is_final)
        except expat.ExpatError as error:
            raise self._error(f"this is no XML: {expat.ErrorString(error.code)}") from None
        except (NnefSyntaxError, LimitError):
            # These errors keep their messages. The next clause would catch them as ValueErrors.
            raise
        except (LookupError, ValueError) as error:  # Python does not have the document's encoding
            raise self._error(f"this is no XML: {error}") from None
        assert self._root is not None  # a document without an element raises ExpatError
        return self._root

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        """Handle a start tag. The parser calls this method."""
        meter = self._meter
        parser = self._parser
        meter.spend(_ELEMENT_STEPS, self._source.name)
        self._texts.clear()
        # The text of a `<dim>` is stored at its end tag, without an `Element`.
        starts_number = tag == _NUMBER_TAG and not self._in_number
        if starts_number and self._open:
            self._in_number = True
            return
        element = Element(tag, attributes, parser.CurrentLineNumber, parser.CurrentColumnNumber + 1)
        longest = meter.limits.array_items
        for value in attributes.values():
            if len(value) > longest:
                message = f"an attribute has more than {longest} characters"
                raise self._beyond(message, "array_items")
        if len(self._open) >= meter.limits.nesting:
            raise self._beyond(f"elements are nested more than {len(self._open)} deep", "nesting")
        if self._open:
            self._open[-1].children.append(element)
        else:
            self._root = element
        self._open.append(element)

    def _end(self, tag: str) -> None:
        """Handle an end tag. The parser calls this method."""
        if self._in_number:
            self._open[-1].dims.append("".join(self._texts))
            self._in_number = False
        else:
            self._open.pop()

    def _refuse_doctype(self, *_: object) -> None:
        raise self._error("document types are refused: they may define entities without end")

    def _error(self, message: str) -> NnefSyntaxError:
        """Return an error at the parser's current place in the document."""
        line = self._parser.CurrentLineNumber
        column = self._parser.CurrentColumnNumber + 1
        span = Span(self._source, self._source.offset(line, column))
        return NnefSyntaxError(message, span=span)

    def _beyond(self, message: str, limit: str) -> LimitError:
        """Return an error for a document that exceeds a limit. `limit` is the name of the limit."""
        place = self._error("").span  # only the place of this error is used
        return LimitError(message, span=place, hint=raising(limit))
