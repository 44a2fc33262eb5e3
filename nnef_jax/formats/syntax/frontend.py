"""Front ends of formats whose documents are texts in the language."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from lowering.graph import Graph
from lowering.location import Source, Span
from nnef_jax.errors import DataError
from nnef_jax.formats.base import Cut, Frontend, Options, Written
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.storage.archive import Archive
from nnef_jax.storage.labels import member_of

GRAPH, QUANTIZATION = "graph.nnef", "graph.quant"


def tensor_members(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays by the members that hold them; DataError for two in one member."""
    found: dict[str, Any] = {}
    for label, array in arrays.items():
        member = member_of(label)
        if member in found:
            message = f"variable '{label}' and another one would both be stored in '{member}'"
            raise DataError(message)
        found[member] = array
    return found


class TextFrontend(Frontend):
    """A document, and the texts of its archive; `quantization` is that of graph.quant, if any."""

    def __init__(
        self, source: Source, graph: s.GraphDefinition, archive: Archive, options: Options
    ) -> None:
        self._source, self._graph = source, graph
        self.inputs = [i.name for i in graph.parameters]
        self.outputs = [i.name for i in graph.results]
        self.archive = archive
        self.options = options
        exists = archive.exists(QUANTIZATION)
        self.quantization = archive.read_text(QUANTIZATION) if exists else None

    def content(self) -> Iterable[object]:
        """Return its dialect, and the texts of its archive."""
        return self.dialect, *chain.from_iterable(sorted(self.archive.texts.items()))

    def spans(self) -> Mapping[str, Span]:
        """Return where the graph's body assigns each of its names."""
        return {
            identifier.name: s.span_in(self._source, identifier)
            for assignment in self._graph.body
            for identifier in s.identifiers(assignment.target)
        }

    @abstractmethod
    def quantizers(self, source: Source) -> Mapping[str, Quantizer]:
        """Return the entries of the document's graph.quant; NnefError for what is wrong with it."""

    @abstractmethod
    def flat_text(self, graph: Graph, options: Options, cut: Cut) -> str:
        """Return a flat document of a part of the graph; UnsupportedError for what has none."""

    def members(self, arrays: Mapping[str, Any], quantization: str | None) -> Written:
        """Return the archive of the document with other data for its variables, by label."""
        if quantization is None and self.quantization is not None:
            quantization = self.quantization.text
        return self._archive(self._source.text, arrays, quantization)

    def flat_members(
        self,
        graph: Graph,
        options: Options,
        cut: Cut,
        arrays: Mapping[str, Any],
        quantization: str | None,
    ) -> Written:
        """Return the archive of a part of the document, flat, with rounding as operations."""
        return self._archive(self.flat_text(graph, options, cut), arrays, quantization)

    def _archive(self, text: str, arrays: Mapping[str, Any], quantization: str | None) -> Written:
        members: dict[str, Any] = {GRAPH: text.encode()}
        if quantization is not None:
            self.quantizers(Source(QUANTIZATION, quantization))
            members[QUANTIZATION] = quantization.encode()
        return Written(members | tensor_members(arrays))
