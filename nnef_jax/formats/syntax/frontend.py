"""The front end of formats whose documents are texts in NNEF's language."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from lowering.graph import Graph
from lowering.location import Source, Span
from nnef_jax.errors import DataError
from nnef_jax.formats.base import Arrays, Cut, Frontend, Options, Written
from nnef_jax.formats.syntax import tree
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.storage.archive import Archive
from nnef_jax.storage.labels import member_of
from nnef_jax.storage.writer import Member

GRAPH, QUANTIZATION = "graph.nnef", "graph.quant"


def tensor_members(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return a dict from names of files to the arrays of variables.

    A file stores one variable. `arrays` maps labels to the arrays. Raises DataError if two arrays
    would be stored in the same file.
    """
    members: dict[str, NDArray[Any]] = {}
    for label, array in arrays.items():
        member = member_of(label)
        if member in members:
            message = f"variable '{label}' and another variable would both be stored in '{member}'"
            raise DataError(message)
        members[member] = array
    return members


class TextFrontend(Frontend):
    """A document in a text format, its archive, and the archive's graph.quant.

    `quantization` is None if the archive has no graph.quant.
    """

    def __init__(
        self, source: Source, graph: tree.GraphDefinition, archive: Archive, options: Options
    ) -> None:
        self._source = source
        self._graph = graph
        self.inputs: Sequence[str] = [identifier.name for identifier in graph.parameters]
        self.outputs: Sequence[str] = [identifier.name for identifier in graph.results]
        self.archive = archive
        self.options = options
        self.quantization: Source | None = None
        if archive.exists(QUANTIZATION):
            self.quantization = archive.read_text(QUANTIZATION)

    def content(self) -> Iterable[object]:
        """Return the dialect, and the names and texts of the members that were read."""
        content = [self.dialect]
        for name, text in sorted(self.archive.texts.items()):
            content += [name, text]
        return tuple(content)

    def spans(self) -> Mapping[str, Span]:
        """Return the place of each name that the graph's body assigns."""
        spans: dict[str, Span] = {}
        for assignment in self._graph.body:
            for identifier in tree.identifiers(assignment.target):
                spans[identifier.name] = tree.span_in(self._source, identifier)
        return spans

    @abstractmethod
    def quantizers(self, source: Source) -> Mapping[str, Quantizer]:
        """Read a graph.quant, and return a dict from names of tensors to entries.

        Raises NnefError, which contains all errors of the entries.
        """

    @abstractmethod
    def flat_text(self, graph: Graph, options: Options, cut: Cut) -> str:
        """Return the part of the graph that `cut` selects, as a flat text.

        Raises UnsupportedError, which names everything that the format cannot express.
        """

    def members(self, arrays: Arrays, quantization: str | None) -> Written:
        """Return the archive that was read, with its data replaced by `arrays`.

        `quantization` is the text of graph.quant. If it is None, the text that was read is used.
        """
        if quantization is None and self.quantization is not None:
            quantization = self.quantization.text
        return self._archive(self._source.text, arrays, quantization)

    def flat_members(
        self,
        graph: Graph,
        options: Options,
        cut: Cut,
        arrays: Arrays,
        quantization: str | None,
    ) -> Written:
        """Return the part of the graph that `cut` selects, as an archive with a flat text.

        `arrays` maps labels to data. `quantization` is the text of graph.quant, or None if the
        archive has no graph.quant. In the flat text, an operation rounds each quantised tensor.
        """
        return self._archive(self.flat_text(graph, options, cut), arrays, quantization)

    def _archive(self, text: str, arrays: Arrays, quantization: str | None) -> Written:
        """Return an archive with the text of a graph, the arrays of variables, and a graph.quant.

        Raises NnefError if the graph.quant is not valid.
        """
        members: dict[str, Member] = {GRAPH: text.encode()}
        if quantization is not None:
            self.quantizers(Source(QUANTIZATION, quantization))  # checks the text
            members[QUANTIZATION] = quantization.encode()
        return Written({**members, **tensor_members(arrays)})
