"""A network of OpenVINO with its weights, as `nnef_jax.network` takes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.graph import Graph, StateVariable
from lowering.location import Span
from nnef_jax.errors import NnefError, UnsupportedError, raise_all
from nnef_jax.formats.base import Cut, ExtentNeeded, Frontend, Options, Shapes, Stored
from nnef_jax.formats.openvino.bin_file import Weights
from nnef_jax.formats.openvino.document import read_net
from nnef_jax.formats.openvino.element_types import computed
from nnef_jax.formats.openvino.flatten import flatten
from nnef_jax.formats.openvino.network_ends import declared_shape, ends_of
from nnef_jax.formats.openvino.nnef import as_member, layers_in, written
from nnef_jax.formats.openvino.state_variables import Variable
from nnef_jax.formats.openvino.xml import parse
from nnef_jax.formats.syntax.frontend import GRAPH
from nnef_jax.formats.syntax.printing import print_document
from nnef_jax.storage.archive import Archive
from nnef_jax.storage.labels import member_of
from nnef_jax.storage.writer import Member


class OpenvinoFrontend(Frontend):
    """A checked network; its weights stay in the file until they are computed with."""

    def __init__(self, archive: Archive, options: Options) -> None:
        data = archive.open_tensor(archive.graph)
        self._text = bytes(data)
        root, source = parse(data, archive.location(archive.graph), options.meter)
        self._net = read_net(root, source, options.meter)
        self._ends = ends_of(self._net)
        self._options = options
        self._weights = _weights(archive)
        self._data: dict[str, NDArray[Any]] = {}
        self.inputs, self.outputs = list(self._ends.inputs), list(self._ends.outputs)
        self.synonyms = self._ends.synonyms(self._net)
        self.dialect = f"OpenVINO IR {self._net.version}"
        self.integer = computed("i64", options.real)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_data": {}}  # which flattening collects

    def flatten(self, options: Options) -> Graph:
        """Return the graph for the shapes in `options.input_shapes`, else the document's."""
        return flatten(self._net, self._ends, options, self._weights, self._data)

    def declared_shapes(self, options: Options) -> Shapes:
        """Return the shapes of its inputs; those whose rank is open are left out."""
        found: dict[str, Any] = {}
        for name, (layer, port) in self._ends.inputs.items():
            with suppress(InvalidOperation):  # raised where it is flattened, with its line
                shape = declared_shape(layer, port)
                if shape is not None:
                    found[name] = shape
        return found

    def state_shapes(self) -> Shapes:
        """Return the shapes of the variables whose shape or start is not known before a call."""
        found = self._ends.variables.items()
        return {label: variable.shape for label, variable in found if variable.changes}

    def stored(self, graph: Graph) -> Stored:
        """Return the weights, viewed in the file where the graph has them as they are stored."""
        found: dict[str, NDArray[Any]] = {}
        for variable in (*graph.parameters, *graph.states):
            if isinstance(variable, StateVariable) and variable.initial is not None:
                continue  # it starts with what the network computes
            array = self._data[variable.label]
            dtype = np.dtype(variable.value.type.dtype)
            found[variable.label] = array if array.dtype == dtype else array.astype(dtype)
        return Stored(found, self)

    def content(self) -> Iterable[object]:
        """Tell the text, and the constants that may decide the structure: all but large ones."""
        return self.dialect, self._text, b"".join(self._weights.small_constants(self._net))

    def spans(self) -> Mapping[str, Span]:
        """Return where layers stand."""
        return {layer.name: layer.span for layer in self._net.layers}

    def members(self, arrays: Mapping[str, Any], quantization: str | None) -> dict[str, Member]:
        """Return the network as an archive of NNEF 1.0, flat, with other weights by label."""
        raise_all([*_changing(self._ends.variables)])
        return self._archive(self._whole(self._options), arrays)

    def flat_members(
        self, options: Options, cut: Cut, arrays: Mapping[str, Any], quantization: str | None
    ) -> dict[str, Member]:
        """Return a part of the network as an archive of NNEF 1.0, flat."""
        return self._archive(cut(self._whole(options))[0], arrays)

    def converted(
        self,
        graph: Graph,
        data: Mapping[str, NDArray[Any]] | None,
        *,
        flat: bool,
        keep: bool = False,
    ) -> dict[str, Member]:
        """Return the network as one of NNEF 1.0, always flat."""
        raise_all([*_changing(self._ends.variables)])
        return self._archive(graph, data or {}, keep=keep)

    def _archive(
        self, graph: Graph, arrays: Mapping[str, Any], *, keep: bool = False
    ) -> dict[str, Member]:
        layers = layers_in(self._net)
        document = written(graph, layers, self._options, keep=keep)
        stored = {member_of(label): as_member(array) for label, array in arrays.items()}
        return {GRAPH: print_document(document).encode()} | stored

    def _whole(self, options: Options) -> Graph:
        try:
            return self.flatten(options)
        except ExtentNeeded:
            raise UnsupportedError(
                "the graph depends on open extents of inputs, which NNEF cannot say",
                hint="close them by load(..., input_shapes=...)",
            ) from None


def _changing(variables: Mapping[str, Variable]) -> Iterator[NnefError]:
    for label, variable in variables.items():
        if variable.changes:
            message = f"variable '{label}' starts with what is computed, or changes its shape"
            yield UnsupportedError(f"{message}, which NNEF cannot say", span=variable.span)


def _weights(archive: Archive) -> Weights:
    if archive.weights is not None:
        name, data = archive.weights
        return Weights(data, name)
    name = f"{archive.graph.removesuffix('.xml')}.bin"
    data = archive.open_tensor(name) if archive.exists(name) else None
    return Weights(data, archive.location(name))
