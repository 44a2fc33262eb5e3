"""The front end of OpenVINO's IR: a checked network with its weights."""

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
from nnef_jax.formats.openvino.element_types import Weights, computation_dtype
from nnef_jax.formats.openvino.flatten import flatten
from nnef_jax.formats.openvino.network_ends import declared_shape, ends_of
from nnef_jax.formats.openvino.xml import parse
from nnef_jax.formats.syntax.graph_frontend import GraphFrontend, Titles
from nnef_jax.storage.archive import Archive

_MOST_BYTES = 1 << 15  # only constants of at most this many bytes may decide shapes


class OpenvinoFrontend(GraphFrontend):
    """A checked network. Its weights stay in the file until a run reads them."""

    def __init__(self, archive: Archive, options: Options) -> None:
        super().__init__(options)
        data = archive.open_tensor(archive.graph)
        self._text = bytes(data)
        root, source = parse(data, archive.location(archive.graph), options.meter)
        self._net = read_net(root, source, options.meter)
        self._ends = ends_of(self._net)
        self._weights = _weights(archive)
        self.inputs: Sequence[str] = list(self._ends.inputs)
        self.outputs: Sequence[str] = list(self._ends.outputs)
        self.synonyms: Mapping[str, str] = self._ends.synonyms(self._net)
        self.dialect: str = f"OpenVINO IR {self._net.version}"
        self.integer: str = computation_dtype("i64", options.real)

    def flatten(self, options: Options) -> Graph:
        """Return the flat graph for `options.input_shapes`.

        An input that is not in `options.input_shapes` has its declared shape.
        """
        return flatten(self._net, self._ends, options, self._weights, self._data)

    def declared_shapes(self, options: Options) -> Shapes:
        """Return the declared shapes of the inputs. Inputs of open rank are left out."""
        shapes: dict[str, Any] = {}
        for name, (layer, port) in self._ends.inputs.items():
            with suppress(InvalidOperation):  # `flatten` raises the error again, with a line number
                shape = declared_shape(layer, port)
                if shape is not None:
                    shapes[name] = shape
        return shapes

    def state_shapes(self) -> Shapes:
        """Return a dict from labels to shapes, for the variables that only a call can initialise.

        These are the variables whose shape has open extents, or whose initial value is computed
        from inputs.
        """
        shapes: dict[str, Any] = {}
        for label, variable in self._ends.variables.items():
            if variable.depends_on_call:
                shapes[label] = variable.shape
        return shapes

    def content(self) -> Iterable[object]:
        """Return the dialect, the text of the document, and the bytes of all small constants.

        The structure of the flat graph depends only on these three objects.
        """
        constants = b"".join(_small_constants(self._net, self._weights.data or b""))
        return self.dialect, self._text, constants

    def spans(self) -> Mapping[str, Span]:
        """Return a dict from names of layers to their positions in the document."""
        return {layer.name: layer.span for layer in self._net.layers}

    def titles(self) -> Titles:
        """Return a title for each layer, such as "layer 'pool1' (MaxPool)".

        The keys are the offsets of the layers in the text. Layers in bodies are included.
        """
        return {layer.span.offset: str(layer) for layer in self._net.all_layers()}

    def unsavable(self) -> Sequence[NnefError]:
        """Return an error for each variable whose shape or initial value depends on a call."""
        reason = "starts with a computed value or has an open shape, which NNEF cannot express"
        errors: list[NnefError] = []
        for label, variable in self._ends.variables.items():
            if variable.depends_on_call:
                message = f"variable '{label}' {reason}"
                errors.append(UnsupportedError(message, span=variable.span))
        return errors


def _weights(archive: Archive) -> Weights:
    """Return the bytes of the .bin file: the file that the user named, or the file beside the .xml.

    If there is no such file, the bytes are None.
    """
    if archive.weights is not None:
        name, data = archive.weights
        return Weights(data, name)
    stem = archive.graph.removesuffix(".xml")
    name = f"{stem}.bin"
    data = archive.open_tensor(name) if archive.exists(name) else None
    return Weights(data, archive.location(name))


def _small_constants(net: Net, data: memoryview | bytes) -> Iterator[bytes]:
    """Yield the bytes of each small constant of a network and of its bodies.

    `data` are the bytes of the .bin file.
    """
    for layer in net.all_layers():
        if layer.kind not in CONSTANTS:
            continue
        places = [(blob.offset, blob.size) for blob in layer.blobs.values()]
        offset = layer.attributes.get("offset", "")
        size = layer.attributes.get("size", "")
        if offset.isdecimal() and size.isdecimal():
            places.append((int(offset), int(size)))
        for start, length in places:
            if length <= _MOST_BYTES:
                yield bytes(data[start : start + length])
