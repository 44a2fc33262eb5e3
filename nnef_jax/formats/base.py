"""How a document is to be flattened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from lowering.extents import UNKNOWN
from lowering.graph import Graph
from lowering.location import Source
from lowering.registry import Registry
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.limits import Meter

Progress = Callable[[int, int], None]  # of how many variables are read, of how many
Expand = Literal["auto", "all"]


@dataclass(frozen=True, slots=True)
class Options:
    """How to flatten: which operations stay atomic, what the tensors of the document become."""

    rules: Registry = field(default_factory=Registry)  # a user's own, by the document's names
    expand: Expand = "auto"
    real: str = "float32"
    input_shapes: Mapping[str, Sequence[int | None]] = field(
        default_factory=dict[str, Sequence[int | None]]
    )
    meter: Meter = field(default_factory=Meter)  # of the load
    quantizers: Mapping[str, Quantizer] = field(default_factory=dict[str, Quantizer])
    # Shapes of inputs in which jax.export keeps extents symbolic; these are open in `input_shapes`.
    symbolic_shapes: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    open_extent: int = UNKNOWN  # what an extent that the document leaves open is taken for


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
