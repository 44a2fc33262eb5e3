"""A network of OpenVINO with its weights, as `nnef_jax.network` takes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lowering.errors import InvalidOperation
from lowering.graph import Graph
from lowering.location import Span
from nnef_jax.errors import NnefError, UnsupportedError
from nnef_jax.formats.base import Options, Shapes
from nnef_jax.formats.openvino.document import CONSTANTS, Net, read_net
from nnef_jax.formats.openvino.element_types import Weights, computed
from nnef_jax.formats.openvino.flatten import flatten
from nnef_jax.formats.openvino.network_ends import declared_shape, ends_of
from nnef_jax.formats.openvino.xml import parse
from nnef_jax.formats.syntax.graph_frontend import GraphFrontend, Titles
from nnef_jax.storage.archive import Archive

_SMALL = 1 << 15  # bytes of a constant: shapes, indices, ends of ranges have no more


class OpenvinoFrontend(GraphFrontend):
    """A checked network; its weights stay in the file until they are computed with."""

    def __init__(self, archive: Archive, options: Options) -> None:
        super().__init__(options)
        data = archive.open_tensor(archive.graph)
        self._text = bytes(data)
        root, source = parse(data, archive.location(archive.graph), options.meter)
        self._net = read_net(root, source, options.meter)
        self._ends = ends_of(self._net)
        self._weights = _weights(archive)
        self.inputs, self.outputs = list(self._ends.inputs), list(self._ends.outputs)
        self.synonyms = self._ends.synonyms(self._net)
        self.dialect = f"OpenVINO IR {self._net.version}"
        self.integer = computed("i64", options.real)

    def flatten(self, options: Options) -> Graph:
        """Return the graph for the shapes in `options.input_shapes`, else the document's."""
        return flatten(self._net, self._ends, options, self._weights, self._data)

    def declared_shapes(self, options: Options) -> Shapes:
        """Return the shapes of its inputs; those whose rank is open are left out."""
        found: dict[str, Any] = {}
        for name, (layer, port) in self._ends.inputs.items():
            with suppress(InvalidOperation):  # raised where it is flattened, with its line
                found[name] = declared_shape(layer, port)
        return {name: shape for name, shape in found.items() if shape is not None}

    def state_shapes(self) -> Shapes:
        """Return the shapes of the variables whose shape or start is not known before a call."""
        found = self._ends.variables.items()
        return {label: variable.shape for label, variable in found if variable.changes}

    def content(self) -> Iterable[object]:
        """Tell the text, and the constants that may decide the structure: all but large ones."""
        constants = b"".join(_small_constants(self._net, self._weights.data or b""))
        return self.dialect, self._text, constants

    def spans(self) -> Mapping[str, Span]:
        """Return where layers stand."""
        return {layer.name: layer.span for layer in self._net.layers}

    def titles(self) -> Titles:
        """Return the title of each layer, in bodies too, by its place in the text."""
        return {layer.span.offset: str(layer) for layer in self._net.all_layers()}

    def unsavable(self) -> Sequence[NnefError]:
        """Return errors for variables that start anew, or change their shape."""
        why = "starts with what is computed, or changes its shape, which NNEF cannot say"
        found = [(label, x.span) for label, x in self._ends.variables.items() if x.changes]
        return [UnsupportedError(f"variable '{label}' {why}", span=at) for label, at in found]


def _weights(archive: Archive) -> Weights:
    if archive.weights is not None:
        name, data = archive.weights
        return Weights(data, name)
    name = f"{archive.graph.removesuffix('.xml')}.bin"
    data = archive.open_tensor(name) if archive.exists(name) else None
    return Weights(data, archive.location(name))


def _small_constants(net: Net, data: memoryview | bytes) -> Iterator[bytes]:
    """Yield the bytes of the constants of a network and its bodies, but for large ones."""
    for layer in net.all_layers():
        if layer.kind in CONSTANTS:
            places = [(blob.offset, blob.size) for blob in layer.blobs.values()]
            given = [layer.attributes.get(name, "") for name in ("offset", "size")]
            if all(text.isdecimal() for text in given):
                places.append((int(given[0]), int(given[1])))
            yield from (bytes(data[at : at + size]) for at, size in places if size <= _SMALL)
