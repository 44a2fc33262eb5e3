"""What a network needs of the text that it was read from, whichever dialect that is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from lowering.graph import Graph
from lowering.location import Source
from nnef_jax.quantization import QuantizationReader
from nnef_jax.quantizer import Quantizer
from nnef_jax.text import syntax as s
from nnef_jax.text.checks import check
from nnef_jax.text.collecting import uncollected
from nnef_jax.text.flatten import evaluate, flatten
from nnef_jax.text.library import Scope
from nnef_jax.text.options import Options
from nnef_jax.text.parser import parse
from nnef_jax.text.values import ExtentNeeded

Shapes = Mapping[str, Sequence[int | None]]


class Document(Protocol):
    """A syntax tree, as far as all dialects have the same."""

    @property
    def source(self) -> Source:
        """The text."""
        ...

    @property
    def extensions(self) -> tuple[str, ...]:
        """What stands in its extension lines."""
        ...

    @property
    def graph(self) -> s.GraphDefinition:
        """The graph."""
        ...


class Frontend(Protocol):
    """A checked document that can be flattened for given shapes of its inputs."""

    @property
    def document(self) -> Document:
        """Its syntax tree."""
        ...

    @property
    def dialect(self) -> str:
        """The name of the dialect that it is written in."""
        ...

    def flatten(self, options: Options) -> Graph:
        """The flat graph; `values.ExtentNeeded` where its structure depends on an open extent."""
        ...

    def declared_shapes(self, options: Options) -> Shapes:
        """The shapes of the inputs as the document has them, None where an extent is open.

        Inputs whose shape depends on that of another are left out.
        """
        ...

    def quantizers(self, source: Source, options: Options) -> dict[str, Quantizer]:
        """The entries of a graph.quant for the document, by the identifiers of their tensors."""
        ...


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
