"""A network of OpenVINO as a document of NNEF 1.0, and its weights as tensor files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.graph import Graph, Operation
from nnef_jax.formats.base import Options
from nnef_jax.formats.openvino.document import Net, NetLayer
from nnef_jax.formats.syntax.flat_document import FlatWriter
from nnef_jax.formats.syntax.kept import KeepingWriter
from nnef_jax.formats.syntax.tree import Document
from nnef_jax.storage.tensorfile import TensorFile
from nnef_jax.storage.writer import Member

Layers = Mapping[int, NetLayer]  # by where they stand in the text
_INTEGERS = {"int4": (np.int8, 4), "uint4": (np.uint8, 4), "uint2": (np.uint8, 2)}
_HALVES = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")  # whose numbers float16 has
_KEEP = "convert(..., keep=True), --keep, write it as a custom operation, which load reads again"


def layers_in(net: Net) -> Layers:
    """Return the layers of a network and of its bodies by their places."""
    found: dict[int, NetLayer] = {}
    waiting = [net]
    while waiting:
        for layer in waiting.pop().layers:
            found[layer.span.offset] = layer
            waiting += [body.net for body in layer.bodies.values()]
    return found


def written(graph: Graph, layers: Layers, options: Options, *, keep: bool) -> Document:
    """Return the flat document; UnsupportedError names each layer that it cannot say."""
    if keep:
        return KeepingWriter(graph, options.meter, options.real, None).write()
    return _LayerWriter(graph, layers, options).write()


def as_member(array: Any) -> Member:
    """Return weights as a tensor file has them: codes of 4 bits in 4, small floats in 16."""
    items: NDArray[Any] = np.asarray(array)
    name = items.dtype.name
    if name in _INTEGERS:
        dtype, bits = _INTEGERS[name]
        return TensorFile(items.astype(dtype), bits, dtype is np.int8, False)
    if name in _HALVES:
        return items.astype(np.float16)
    return items.astype(np.float32) if items.dtype.kind == "V" else items


class _LayerWriter(FlatWriter):
    """Says of what NNEF does not have in which layer it is."""

    def __init__(self, graph: Graph, layers: Layers, options: Options) -> None:
        super().__init__(graph, options.meter)
        self._layers, self._real = layers, options.real
        self._refused = set[int]()

    def write(self) -> Document:
        """Return the document, whose operations have items that NNEF has."""
        for operation in self.graph.operations:
            for value in operation.writes():
                dtype = value.type.dtype
                if dtype not in (self._real, "bool") and not dtype.startswith(("int", "uint")):
                    self.refuse(f"it has items of {dtype}", operation)
        return super().write()

    def refuse(self, message: str, operation: Operation | None = None, hint: str = "") -> None:
        """Note what cannot be said, once for each layer."""
        span = operation.span if operation else None
        layer = self._layers.get(span.offset) if span else None
        if layer is None:
            super().refuse(message, operation, hint)
        elif layer.span.offset not in self._refused:
            self._refused.add(layer.span.offset)
            super().refuse(f"{layer}: {message}", operation, hint or _KEEP)
