"""Turn an operation of a document into operations of the graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lowering.extents import Shape
from lowering.graph import Value


class Insert(Protocol):
    """Adds an operation that the document does not have, for one that it has."""

    def __call__(
        self, kind: str, operands: Mapping[str, Any], attributes: Mapping[str, Any], part: str
    ) -> Value:
        """Return the result; `part` names the part of the other operation that it is."""
        ...


@dataclass(slots=True)
class Draft:
    """An operation before it is in the graph, with the arguments of its kind."""

    kind: str
    operands: dict[str, Any]
    attributes: dict[str, Any]
    _insert: Insert

    def dtype(self, name: str) -> str:
        """Return the dtype of an operand."""
        x = self.operands[name]
        return x.type.dtype if isinstance(x, Value) else x.dtype.name

    def shape(self, name: str) -> Shape:
        """Return the shape of an operand."""
        x = self.operands[name]
        return x.type.shape if isinstance(x, Value) else ()

    def before(self, name: str, kind: str, operand: str = "input", **attributes: Any) -> None:
        """Put another operation on an operand before this one."""
        operands = {operand: self.operands[name]}
        self.operands[name] = self._insert(kind, operands, attributes, name)

    def after(self, kind: str, operand: str = "input", **attributes: Any) -> None:
        """Put another operation on the result of this one."""
        result = self._insert(self.kind, self.operands, self.attributes, self.kind)
        self.kind, self.operands, self.attributes = kind, {operand: result}, attributes


@dataclass(frozen=True, slots=True)
class Meaning:
    """How an operation becomes one of a kind; `rewrite` does what the other fields cannot."""

    kind: str
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    added: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dropped: frozenset[str] = frozenset()
    rewrite: Callable[[Draft], None] | None = None

    def draft(
        self, operands: Mapping[str, Any], attributes: Mapping[str, Any], insert: Insert
    ) -> Draft:
        """Return the operation with these arguments of the document. Raises InvalidOperation."""
        given = {**self._named(attributes), **self.added}
        draft = Draft(self.kind, self._named(operands), given, insert)
        if self.rewrite is not None:
            self.rewrite(draft)
        return draft

    def in_document(self, text: str) -> str:
        """Replace quoted names of the kind's arguments in a text by those of the document."""
        names = {kind: document for document, kind in self.renamed.items()}
        return re.sub(r"'(\w+)'", lambda name: f"'{names.get(name[1], name[1])}'", text)

    def _named(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        renamed = self.renamed
        return {renamed.get(n, n): x for n, x in arguments.items() if n not in self.dropped}
