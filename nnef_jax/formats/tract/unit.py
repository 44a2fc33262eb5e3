"""One network of an archive, which may hold further ones under labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.tract.document import Document
from nnef_jax.formats.tract.parser import parse
from nnef_jax.formats.tract.quantization import read_quantization
from nnef_jax.formats.tract.resources import Resources
from nnef_jax.limits import Meter


@dataclass(frozen=True, slots=True)
class Unit:
    """A document, the data beside it, and the entries of its graph.quant by tensor.

    `rounds`: tensors of entries are rounded when the network runs. `progress` is told how many
    variables are read. `labels` precedes the labels of a network within another.
    """

    document: Document
    resources: Resources
    quantizers: Mapping[str, Quantizer]
    rounds: bool = True
    progress: Callable[[int], None] | None = None
    labels: str = ""
    _within: dict[str, Unit] = field(default_factory=dict[str, "Unit"], compare=False)

    def within(self, label: str, meter: Meter) -> Unit:
        """Return the archive's network of a label, read once. Raises ArchiveError without it."""
        if label not in self._within:
            resources = self.resources.submodel(label)
            document, text = parse(resources.graph, meter), resources.quantization
            self._within[label] = replace(
                self,
                document=document,
                resources=resources,
                quantizers=read_quantization(text, document.names, meter) if text else {},
                labels=f"{self.labels}{label}/",
                _within={},
            )
        return self._within[label]
