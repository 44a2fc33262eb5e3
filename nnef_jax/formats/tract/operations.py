"""What the operations of the dialect are in the graph: its names and conventions as kinds.

Operations of a document reach kinds through this table alone. Those of NNEF that tract reads as the
standard does are kinds of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from lowering.graph import Value
from lowering.ops import rules
from nnef_jax.formats.tract.declarations import declarations


class Insert(Protocol):
    """Adds an operation that the document does not have, for one that it has."""

    def __call__(
        self, kind: str, operands: Mapping[str, Any], attributes: Mapping[str, Any], part: str
    ) -> Value:
        """Return its result; `part` says in the name of that what it is of the other operation."""
        ...


@dataclass(slots=True)
class Draft:
    """An operation before it is in the graph, with the arguments of its kind."""

    operands: dict[str, Any]
    attributes: dict[str, Any]
    insert: Insert


@dataclass(frozen=True, slots=True)
class Meaning:
    """How an operation of a document becomes one of a kind.

    Arguments that are `dropped` do not matter, others are `renamed`, `added` are attributes that
    the dialect fixes. What is left to do `rewrite` does, maybe by further operations.
    """

    kind: str
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    added: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dropped: frozenset[str] = frozenset()
    rewrite: Callable[[Draft], None] | None = None

    def draft(
        self, operands: Mapping[str, Any], attributes: Mapping[str, Any], insert: Insert
    ) -> Draft:
        """The operation with these arguments of the document. Raises InvalidOperation."""
        draft = Draft(self._named(operands), {**self._named(attributes), **self.added}, insert)
        if self.rewrite is not None:
            self.rewrite(draft)
        return draft

    def _named(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        renamed = self.renamed
        return {renamed.get(n, n): x for n, x in arguments.items() if n not in self.dropped}


@cache
def meanings() -> Mapping[str, Meaning]:
    """The table: operations by the names that documents give them."""
    same = {name: Meaning(name) for name in declarations() if name in rules}
    own = {name: Meaning(f"tract.{name}") for name in declarations() if f"tract.{name}" in rules}
    return same | own
