"""A document of NNEF 1.0, final or provisional, as a network takes it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from lowering.graph import Graph
from lowering.location import Source
from nnef_jax.formats.base import Options, Shapes
from nnef_jax.formats.nnef.checks import check
from nnef_jax.formats.nnef.flatten import evaluate, flatten
from nnef_jax.formats.nnef.parser import parse
from nnef_jax.formats.nnef.quantization import QuantizationReader
from nnef_jax.formats.nnef.scope import Scope
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.collecting import uncollected
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.syntax.values import ExtentNeeded


class StandardFrontend:
    """A document of NNEF 1.0, final or provisional."""

    def __init__(self, source: Source, options: Options) -> None:
        with uncollected():
            self.document = parse(source, options.meter)
            self.scope = Scope(self.document, options.meter)
            check(self.document, self.scope)

    @property
    def dialect(self) -> str:
        """'NNEF 1.0' or 'NNEF 1.0 provisional'."""
        provisional = " provisional" if self.document.provisional else ""
        return f"NNEF {self.document.version}{provisional}"

    def flatten(self, options: Options) -> Graph:
        """The flat graph for the shapes in `options.input_shapes`, else the document's."""
        with uncollected():
            return flatten(self.document, self.scope, options)

    def declared_shapes(self, options: Options) -> Shapes:
        """The shapes in its `external` operations, None for an extent that is open."""
        shapes: dict[str, Sequence[int | None]] = {}
        for assignment in self.document.graph.body:
            match assignment:
                case s.Assignment(
                    target=s.Identifier(name=name),
                    value=s.Invocation(operation="external", arguments=(shape,)),
                ):
                    source = self.document.source
                    with suppress(ExtentNeeded):
                        extents = evaluate(shape.value, source, self.document, self.scope, options)
                        shapes[name] = [extent or None for extent in extents]
                case _:
                    pass
        return shapes

    def reader(self, options: Options) -> QuantizationReader:
        """The reader of graph.quant and of the headers of provisional tensor files."""
        return QuantizationReader(self.document, self.scope, options)

    def quantizers(self, source: Source, options: Options) -> dict[str, Quantizer]:
        """The entries of a graph.quant."""
        return self.reader(options).entries(source)
