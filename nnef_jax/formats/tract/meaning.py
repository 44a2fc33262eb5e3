"""Turn an operation of a document into operations of the graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lowering.errors import InvalidOperation
from lowering.extents import Shape
from lowering.graph import Value

# Adds an operation that the document does not have, of a kind with operands and attributes, and
# returns its result; the last argument names the part of the document's operation that it is.
Insert = Callable[[str, Mapping[str, Any], Mapping[str, Any], str], Value]


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

    def before(self, name: str, kind: str, **attributes: Any) -> None:
        """Put another operation on an operand before this one."""
        operands = {"input": self.operands[name]}
        self.operands[name] = self._insert(kind, operands, attributes, name)

    def after(self, kind: str, **attributes: Any) -> None:
        """Put another operation on the result of this one."""
        result = self._insert(self.kind, self.operands, self.attributes, self.kind)
        self.kind, self.operands, self.attributes = kind, {"input": result}, attributes


@dataclass(frozen=True, slots=True)
class Meaning:
    """Makes an operation one of a kind; `rewrite` does what the other fields cannot.

    `renamed` has the kind's names of arguments by the dialect's, None for those that it lacks;
    `values` the kind's values of attributes by the dialect's, where no others are allowed.
    """

    kind: str
    renamed: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    added: Mapping[str, Any] = field(default_factory=dict[str, Any])
    rewrite: Callable[[Draft], None] | None = None
    values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict[str, Mapping[Any, Any]])

    def draft(
        self, operands: Mapping[str, Any], attributes: Mapping[str, Any], insert: Insert
    ) -> Draft:
        """Return the operation with these arguments of the document. Raises InvalidOperation."""
        draft = Draft(self.kind, self._named(operands), self.attributes(attributes), insert)
        if self.rewrite is not None:
            self.rewrite(draft)
        return draft

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return attributes of the document as the kind has them. Raises InvalidOperation."""
        meant = dict(given)
        for name, values in self.values.items():
            if name in given and given[name] not in values:
                known = ", ".join(map(repr, values))
                message = f"'{name}' must be one of {known}, it is {given[name]!r}"
                raise InvalidOperation(message)
            meant |= {name: values[given[name]]} if name in given else {}
        return {**self._named(meant), **self.added}

    def in_document(self, text: str) -> str:
        """Replace quoted names of the kind's arguments in a text by those of the document."""
        names = {kind: document for document, kind in self.renamed.items()}
        return re.sub(r"'(\w+)'", lambda name: f"'{names.get(name[1], name[1])}'", text)

    def _named(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if not self.renamed:
            return dict(arguments)
        named = ((self.renamed.get(name, name), x) for name, x in arguments.items())
        return {name: x for name, x in named if name is not None}
