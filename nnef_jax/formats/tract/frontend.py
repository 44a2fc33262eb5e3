"""A document of the dialect with its data, as `nnef_jax.network` takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from lowering.extents import UNKNOWN
from lowering.graph import Graph
from lowering.location import Source
from nnef_jax.formats.base import Options, Progress
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.collecting import uncollected
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.tract import symbols
from nnef_jax.formats.tract.document import Document
from nnef_jax.formats.tract.flatten import flatten
from nnef_jax.formats.tract.parser import parse
from nnef_jax.formats.tract.quantization import read_quantization
from nnef_jax.formats.tract.resources import Resources
from nnef_jax.formats.tract.unit import Unit


class TractFrontend:
    """A document as torch_to_nnef and tract write it, and what its archive holds.

    The text does not say what its variables hold: they are read when it is flattened, and kept.
    """

    def __init__(
        self,
        source: Source,
        resources: Resources,
        options: Options,
        *,
        rounds: bool = True,
        progress: Progress | None = None,
    ) -> None:
        with uncollected():
            self.document = parse(source, options.meter)
        self.data: dict[str, NDArray[Any]] = {}
        self.quantization = resources.quantization
        stored = self.quantizers(self.quantization, options) if self.quantization else {}
        count = _variables(self.document)

        def report(done: int) -> None:
            if progress is not None:
                progress(done, max(done + 1, count))

        self._unit = Unit(self.document, resources, stored, rounds, report)

    @property
    def dialect(self) -> str:
        """NNEF with the registries that the document names."""
        return f"NNEF 1.0 of tract ({', '.join(self.document.registries) or 'tract_nnef'})"

    def flatten(self, options: Options) -> Graph:
        """The flat graph for the shapes in `options.input_shapes`, else the document's."""
        shapes = {**options.input_shapes, **options.symbolic_shapes}
        values = symbols.solve(self.document, shapes, options.meter)
        with uncollected():
            return flatten(self._unit, options, values, self.data)

    def declared_shapes(self, options: Options) -> Mapping[str, Sequence[int | None]]:
        """The shapes of its inputs, None for an extent that depends on a symbol."""
        return {
            name: [_extent(expression) for expression in shape]
            for name, shape in self.document.input_shapes.items()
        }

    def quantizers(self, source: Source, options: Options) -> dict[str, Quantizer]:
        """The entries of a graph.quant."""
        return read_quantization(source, self.document.names, options.meter)


def _variables(document: Document) -> int:
    """How many variables the text has."""
    bodies = [document.graph.body, *(f.body or () for f in document.fragments.values())]
    found = s.invocations(assignment.value for body in bodies for assignment in body)
    return sum(node.operation == "variable" for node in found)


def _extent(expression: s.Expression) -> int | None:
    extent = symbols.evaluate(expression, {})
    return None if extent is UNKNOWN else extent
