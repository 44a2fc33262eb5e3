"""A document of the dialect as it was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowering.location import Source
from nnef_jax.formats.syntax import tree as s


@dataclass(frozen=True, slots=True)
class Assertion:
    """`extension tract_assert`: a condition on symbols, maybe for one named scenario only."""

    scenario: str
    condition: s.Expression
    text: str
    offset: int


@dataclass(frozen=True, slots=True)
class Document:
    """Fragments by name, the graph, and what the extension lines say.

    `properties` are the key-value pairs of the fragment `tract_core_properties`.
    """

    source: Source
    extensions: tuple[str, ...]
    registries: tuple[str, ...]
    symbols: tuple[str, ...]
    assertions: tuple[Assertion, ...]
    properties: Mapping[str, str]
    fragments: Mapping[str, s.Fragment]
    graph: s.GraphDefinition

    @property
    def names(self) -> set[str]:
        """All that the graph's body assigns."""
        return {i.name for a in self.graph.body for i in s.identifiers(a.target)}

    @property
    def pulsed(self) -> bool:
        """Whether each call of the network gets the next piece of a stream."""
        return not {"tract_pulse", "pulse"}.isdisjoint(self.registries) or any(
            key.startswith("pulse.") for key in self.properties
        )
