"""The front end of a format that is saved as NNEF 1.0, flat, its weights as tensor files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering import rounding
from lowering.graph import Graph, Operation, StateVariable
from nnef_jax.errors import UnsupportedError
from nnef_jax.formats.base import Arrays, Cut, ExtentNeeded, Frontend, Options, Stored
from nnef_jax.formats.syntax.custom_operations import KeepingWriter
from nnef_jax.formats.syntax.flat_document import FlatWriter
from nnef_jax.formats.syntax.frontend import GRAPH, QUANTIZATION, tensor_members
from nnef_jax.formats.syntax.printing import print_document
from nnef_jax.formats.syntax.tree import Document
from nnef_jax.storage.tensorfile import TensorFile
from nnef_jax.storage.writer import Member

Titles = Mapping[int, str]  # what errors call nodes, by where they stand in the text
_INTEGERS = {
    "int4": (np.int8, 4), "uint4": (np.uint8, 4), "int2": (np.int8, 2), "uint2": (np.uint8, 2),
}  # fmt: skip
# Whose numbers float16 has.
_HALVES = (
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn",
)  # fmt: skip
_KEEP = "convert(..., keep=True), --keep, write it as a custom operation, which load reads again"


class GraphFrontend(Frontend):
    """A network whose weights stay in files until they are computed with, and its options."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._data: dict[str, NDArray[Any]] = {}  # by label, collected while it is flattened

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_data": {}}

    @abstractmethod
    def titles(self) -> Titles:
        """Return the title of each layer or node, as errors show it, by its place in the text."""

    def require_savable(self) -> None:
        """Raise UnsupportedError for what the whole network has that NNEF cannot say."""

    def stored(self, graph: Graph) -> Stored:
        """Return the weights, viewed in the file where the graph has them as they are stored."""
        found: dict[str, NDArray[Any]] = {}
        for variable in (*graph.parameters, *graph.states):
            if isinstance(variable, StateVariable) and variable.initial is not None:
                continue  # it starts with what the network computes
            array = self._data[variable.label]
            dtype = np.dtype(variable.value.type.dtype)
            found[variable.label] = (
                array if array.dtype == dtype else rounding.saturated(array, dtype)
            )
        return Stored(found, self)

    def identifiers(self, graph: Graph) -> Mapping[str, str]:
        """Return the names of tensors, by what the flat document calls them."""
        writer = FlatWriter(graph, self._options.meter)
        with suppress(UnsupportedError):  # what cannot be said has a name too
            writer.write()
        found: dict[str, str] = {}
        for name, value in graph.values.items():
            if value in writer.names:
                found.setdefault(writer.names[value], name)
        return found

    def members(self, arrays: Mapping[str, Any], quantization: str | None) -> dict[str, Member]:
        """Return the network as an archive of NNEF 1.0, flat, with other weights by label."""
        self.require_savable()
        return self._archive(self._whole(self._options), arrays, quantization)

    def flat_members(
        self, options: Options, cut: Cut, arrays: Mapping[str, Any], quantization: str | None
    ) -> dict[str, Member]:
        """Return a part of the network as an archive of NNEF 1.0, flat."""
        return self._archive(cut(self._whole(options))[0], arrays, quantization)

    def converted(
        self, graph: Graph, data: Arrays | None, *, flat: bool, keep: bool
    ) -> dict[str, Member]:
        """Return the network as one of NNEF 1.0, always flat."""
        self.require_savable()
        return self._archive(graph, data or {}, keep=keep)

    def _archive(
        self,
        graph: Graph,
        arrays: Mapping[str, Any],
        quantization: str | None = None,
        *,
        keep: bool = False,
    ) -> dict[str, Member]:
        options = self._options
        if keep:
            document = KeepingWriter(graph, options.meter, options.real, None).write()
        else:
            document = _TitledWriter(graph, self.titles(), options).write()
        stored = {name: _as_member(x) for name, x in tensor_members(arrays).items()}
        texts = {GRAPH: print_document(document), QUANTIZATION: quantization}
        return {member: text.encode() for member, text in texts.items() if text} | stored

    def _whole(self, options: Options) -> Graph:
        try:
            return self.flatten(options)
        except ExtentNeeded:
            raise UnsupportedError(
                "the graph depends on open extents of inputs, which NNEF cannot say",
                hint=f"close them by {self.closing()}",
            ) from None


def _as_member(array: Any) -> Member:
    """Return weights as a tensor file has them: codes of 4 bits in 4, small floats in 16."""
    items: NDArray[Any] = np.asarray(array)
    name = items.dtype.name
    if name in _INTEGERS:
        dtype, bits = _INTEGERS[name]
        return TensorFile(items.astype(dtype), bits, dtype is np.int8, False)
    if name in _HALVES:
        return items.astype(np.float16)
    return items.astype(np.float32) if items.dtype.kind == "V" else items


class _TitledWriter(FlatWriter):
    """Says of what NNEF does not have which part of the text it is in."""

    def __init__(self, graph: Graph, titles: Titles, options: Options) -> None:
        super().__init__(graph, options.meter)
        self._titles, self._real = titles, options.real
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
        """Record an operation that cannot be written, once for each part of the source."""
        span = operation.span if operation else None
        title = self._titles.get(span.offset) if span else None
        if span is None or title is None:
            super().refuse(message, operation, hint)
        elif span.offset not in self._refused:
            self._refused.add(span.offset)
            super().refuse(f"{title}: {message}", operation, hint or _KEEP)
