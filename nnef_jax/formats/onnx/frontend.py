"""The front end of ONNX: a checked model with its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lowering.graph import Graph
from lowering.location import Span
from nnef_jax.errors import ArchiveError
from nnef_jax.flattening.emission import computation_dtype
from nnef_jax.formats.base import Options, Shapes
from nnef_jax.formats.onnx.document import ModelPort, all_nodes
from nnef_jax.formats.onnx.document_reader import Reader
from nnef_jax.formats.onnx.flatten import flatten
from nnef_jax.formats.onnx.protobuf import parse
from nnef_jax.formats.syntax.graph_frontend import GraphFrontend, Titles
from nnef_jax.storage.archive import Archive
from nnef_jax.storage.labels import refusal


class OnnxFrontend(GraphFrontend):
    """A checked model. Large parameters stay in the file until a run needs them."""

    def __init__(self, archive: Archive, options: Options) -> None:
        super().__init__(options)
        name = archive.location(archive.graph)

        def open_beside(location: str) -> memoryview:
            reason = refusal(location)
            if reason:
                raise ArchiveError(f"the name {reason}")
            return archive.open_tensor(location)

        model, raw = parse(archive.open_tensor(archive.graph), name, options.meter)
        self._document = Reader(name, raw, options.meter, open_beside).document(model)
        # The message does not include the bytes of large tensors, since `model` has only marks for
        # these bytes.
        self._text = raw.unsalted(model.SerializeToString(deterministic=True))
        graph = self._document.graph
        self.inputs: Sequence[str] = [port.name for port in graph.inputs]
        self.outputs: Sequence[str] = [port.name for port in graph.outputs]
        self.symbols: Sequence[str] = _names_of_extents(graph.inputs)
        self.dialect: str = f"ONNX, operator set {self._document.versions.get('', 1)}"
        self.integer: str = computation_dtype("int64", options.real)

    def flatten(self, options: Options) -> Graph:
        """Return the flat graph for `options.input_shapes`.

        An input that is not in `options.input_shapes` has the shape that the model declares.
        """
        return flatten(self._document, options, self._data)

    def declared_shapes(self, options: Options) -> Shapes:
        """Return a dict from names of inputs to declared shapes.

        Inputs with an open rank are left out.

        `options.extents` maps names of open extents to numbers. An open extent without such a
        number is None.
        """

        def extent_of(declared: int | str | None) -> int | None:
            if isinstance(declared, int):
                return declared
            name = declared or ""  # An open extent without a name is None.
            return options.extents.get(name)

        shapes: dict[str, Sequence[int | None]] = {}
        for port in self._document.graph.inputs:
            if port.shape is not None:
                shapes[port.name] = [extent_of(declared) for declared in port.shape]
        return shapes

    def output_shapes(self) -> Shapes:
        """Return a dict from names of outputs to declared shapes. An open extent is None."""
        shapes: dict[str, Sequence[int | None]] = {}
        for port in self._document.graph.outputs:
            if port.shape is not None:
                extents = [extent if isinstance(extent, int) else None for extent in port.shape]
                shapes[port.name] = extents
        return shapes

    def symbolic_shapes(self, symbol: Callable[[str], Any]) -> Mapping[str, Sequence[Any]]:
        """Return a dict from names of inputs to shapes, with symbolic extents for named extents.

        `symbol` makes the symbolic extent for a name. An input is left out if its rank is open, or
        if it has an open extent without a name.
        """
        shapes: dict[str, Sequence[Any]] = {}
        for port in self._document.graph.inputs:
            if port.shape is None or None in port.shape:
                continue
            extents: list[Any] = []
            for extent in port.shape:
                extents.append(symbol(extent) if isinstance(extent, str) else extent)
            shapes[port.name] = extents
        return shapes

    def extent_names(self) -> Mapping[str, Sequence[str]]:
        """Return a dict from names of inputs and outputs to the names of their extents.

        An extent without a name has the name "".
        """
        graph = self._document.graph
        names: dict[str, Sequence[str]] = {}
        for port in (*graph.inputs, *graph.outputs):
            extents = port.shape or ()
            names[port.name] = [x if isinstance(x, str) else "" for x in extents]
        return names

    def content(self) -> Iterable[object]:
        """Return the dialect and the message, which determine the graphs of the network.

        The message does not include the bytes of large tensors.
        """
        return self.dialect, self._text

    def spans(self) -> Mapping[str, Span]:
        """Map the name of each output of a node to the node's line in the listing."""
        span_by_output: dict[str, Span] = {}
        for node in self._document.graph.nodes:
            for name in node.outputs:
                if name:
                    span_by_output[name] = node.span
        return span_by_output

    def titles(self) -> Titles:
        """Map the offset of a node's line in the listing to the title of the node.

        A title is a text such as "node 'sum' (Add)".
        """
        return {node.span.offset: node.title for node in all_nodes(self._document)}


def _names_of_extents(ports: Iterable[ModelPort]) -> list[str]:
    """Return the names of open extents of inputs, without repetitions."""
    names: dict[str, None] = {}
    for port in ports:
        for extent in port.shape or ():
            if isinstance(extent, str):
                names[extent] = None
    return list(names)
