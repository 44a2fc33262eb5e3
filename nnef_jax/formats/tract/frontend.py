"""A document of the dialect with its data, as `nnef_jax.network` takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from numpy.typing import NDArray

from lowering.extents import UNKNOWN
from lowering.graph import Graph, substituted
from lowering.location import Source
from nnef_jax.formats.base import Cut, Options, Stored
from nnef_jax.formats.syntax.frontend import GRAPH, QUANTIZATION, TextFrontend
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.tract import symbols
from nnef_jax.formats.tract.dtypes import compute_dtype
from nnef_jax.formats.tract.flat_document import print_flat
from nnef_jax.formats.tract.flat_graph import Said
from nnef_jax.formats.tract.flatten import flatten
from nnef_jax.formats.tract.quantization import read_quantization
from nnef_jax.formats.tract.unit import Unit
from nnef_jax.limits import Meter
from nnef_jax.storage.archive import Archive
from nnef_jax.storage.writer import Member


class TractFrontend(TextFrontend):
    """A document and its archive; flattening reads variables: the text has no types of them."""

    def __init__(self, archive: Archive, options: Options) -> None:
        self._unit = Unit(archive, options.meter)
        self.document = document = self._unit.document
        super().__init__(document.source, document.graph, archive, options)
        self.extensions = document.extensions
        self.quantizes = options.rounds and bool(self._unit.quantizers)
        registries = ", ".join(self.document.registries) or "tract_nnef"
        self.dialect = f"NNEF 1.0 of tract ({registries})"
        self._data: dict[str, NDArray[Any] | None] = {}
        self.integer = compute_dtype("int64", options.real)

    def flatten(self, options: Options) -> Graph:
        """Return the graph for the shapes in `options.input_shapes`, else the document's."""
        return flatten(self._unit, options, self._extents(options), self._data)[0]

    def content(self) -> Iterable[object]:
        """Tell the texts of its archive, of those in it, and what data may decide the structure."""
        return self.dialect, *self._unit.content()

    def _extents(self, options: Options) -> Mapping[str, Any]:
        shapes = {**options.input_shapes, **options.symbolic_shapes}
        return symbols.solve(self.document, shapes, options.meter)

    def stored(self, graph: Graph) -> Stored:
        """Return the data of the variables, which flattening has read, and let go of them."""
        data, self._data = self._data, dict.fromkeys(self._data)
        return Stored(cast(dict[str, NDArray[Any]], data), self)

    def declared_shapes(self, options: Options) -> Mapping[str, Sequence[int | None]]:
        """Return the shapes of its inputs, None for an extent that depends on a symbol."""
        return {
            name: [None if x is UNKNOWN else x for x in (symbols.evaluate(e, {}) for e in shape)]
            for name, shape in self.document.input_shapes.items()
        }

    def symbolic_shapes(self, symbol: Callable[[str], Any]) -> Mapping[str, Sequence[Any]]:
        """Return the shapes of its inputs in its symbols."""
        values = {name: symbol(name) for name in symbols.solve(self.document, {}, Meter())}
        return {
            name: [symbols.evaluate(expression, values) for expression in shape]
            for name, shape in self.document.input_shapes.items()
        }

    def quantizers(self, source: Source) -> Mapping[str, Quantizer]:
        """Return the entries of a graph.quant."""
        return read_quantization(source, self.document.names, self.options.meter)

    def flat_text(self, options: Options, cut: Cut) -> str:
        """Return a flat document of the dialect of a part of the graph."""
        whole, said = flatten(self._unit, options, self._extents(options), self._data)
        part, inputs = cut(whole)

        def swap(operand: Any) -> Any:
            if isinstance(operand, list):
                return [swap(x) for x in operand]  # pyright: ignore[reportUnknownVariableType]
            return substituted(operand, inputs)

        swapped: Said = {
            value: (name, {k: swap(x) for k, x in operands.items()}, attributes)
            for value, (name, operands, attributes) in said.items()
        }
        return print_flat(self.document, part, swapped, options)

    def converted(
        self,
        graph: Graph,
        data: Mapping[str, NDArray[Any]] | None,
        *,
        flat: bool,
        keep: bool = False,
    ) -> dict[str, Member]:
        """Return the text as it was read, or a flat one with its graph.quant written out."""
        if not flat:
            return self.members(data or {}, None)
        options, real = replace(self.options, rounds=True), dict[str, NDArray[Any] | None]()
        found, said = flatten(self._unit, options, self._extents(options), real)
        text = print_flat(self.document, found, said, options)
        arrays = {} if data is None else {p.label: real[p.label] for p in found.parameters}
        members = self.members(arrays, None) | {GRAPH: text.encode()}
        members.pop(QUANTIZATION, None)
        return members
