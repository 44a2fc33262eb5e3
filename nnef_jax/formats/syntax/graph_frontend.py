"""The front end of a format that is saved as NNEF 1.0, flat, its weights as tensor files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering import rounding
from lowering.graph import Graph, Operation, StateVariable
from nnef_jax.errors import UnsupportedError, raise_all
from nnef_jax.formats.base import Arrays, Cut, Frontend, Options, Stored, Written
from nnef_jax.formats.syntax.custom_operations import KeepingWriter
from nnef_jax.formats.syntax.flat_document import FlatWriter
from nnef_jax.formats.syntax.frontend import GRAPH, QUANTIZATION, tensor_members
from nnef_jax.formats.syntax.printing import print_document
from nnef_jax.formats.syntax.tree import Document
from nnef_jax.limits import Limits
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
_SHORT = 1 << 20  # characters; reading takes at most six steps for each
_KEEP = "convert(..., keep=True), --keep, write it as a custom operation, which load reads again"


class GraphFrontend(Frontend):
    """A network whose weights stay in files until they are computed with, and its options."""

    is_saved_flat = True

    def __init__(self, options: Options) -> None:
        self._options = options
        self._data: dict[str, NDArray[Any]] = {}  # by label, collected while it is flattened

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_data": {}}

    @abstractmethod
    def titles(self) -> Titles:
        """Return the title of each layer or node, as errors show it, by its place in the text."""

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

    def flat_members(
        self,
        graph: Graph,
        options: Options,
        cut: Cut,
        arrays: Mapping[str, Any],
        quantization: str | None,
    ) -> Written:
        """Return a part of the network as an archive of NNEF 1.0, flat."""
        part, _ = cut(graph)
        text = print_document(_TitledWriter(part, self.titles, options).write())
        members = _members(text, arrays)
        if quantization is None:
            return Written(members, _reads_alike(part, text, options))
        return Written(members | {QUANTIZATION: quantization.encode()})

    def converted(self, graph: Graph, data: Arrays | None, *, flat: bool, keep: bool) -> Written:
        """Return the network as one of NNEF 1.0, always flat."""
        raise_all(self.unsavable())
        options, arrays = self._options, data or {}
        if not keep:
            return self.flat_members(graph, options, lambda graph: (graph, {}), arrays, None)
        document = KeepingWriter(graph, options.meter, options.real, None).write()
        return Written(_members(print_document(document), arrays))


def _members(text: str, arrays: Mapping[str, Any]) -> dict[str, Member]:
    stored = {name: _as_member(x) for name, x in tensor_members(arrays).items()}
    return {GRAPH: text.encode()} | stored


def _reads_alike(graph: Graph, text: str, options: Options) -> bool:
    """Tell whether `load` is known to make this graph again of its flat document.

    It gives operations the same operands, of the same types, where all tensors have items and
    extents as declarations have them, which say 0 for an open extent. Whether it keeps to limits
    of one's own is not known.
    """
    operations = (value for operation in graph.operations for value in operation.writes())
    variables = (variable.value for variable in (*graph.parameters, *graph.states))
    types = {value.type for value in (*graph.inputs, *variables, *operations)}
    return (
        options.meter.limits == Limits()
        and len(text) <= _SHORT
        and {type.dtype for type in types} <= {options.real, "int32", "bool"}
        and all(extent > 0 for type in types for extent in type.shape)  # no open one is
    )


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

    def __init__(self, graph: Graph, titles: Callable[[], Titles], options: Options) -> None:
        super().__init__(graph, options.meter)
        self._titles, self._real = cache(titles), options.real
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
        title = self._titles().get(span.offset) if span else None
        if span is None or title is None:
            super().refuse(message, operation, hint)
        elif span.offset not in self._refused:
            self._refused.add(span.offset)
            super().refuse(f"{title}: {message}", operation, hint or _KEEP)
