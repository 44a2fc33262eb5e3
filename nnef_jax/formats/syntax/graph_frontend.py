"""The front end of formats that are saved as flat documents of NNEF 1.0 with tensor files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering import rounding
from lowering.graph import Graph, Operation, StateVariable, Value
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

# Maps the offset of a node in the text to the title that errors show for the node.
Titles = Mapping[int, str]
# For each dtype of packed integers: numpy's dtype for an unpacked integer, and the number of bits
# of a packed integer.
_PACKED_INTEGERS = {
    "int4": (np.int8, 4), "uint4": (np.uint8, 4), "int2": (np.int8, 2), "uint2": (np.uint8, 2),
}  # fmt: skip
# Dtypes whose numbers can all be stored exactly in float16.
_EXACT_IN_FLOAT16 = (
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn",
)  # fmt: skip
# The largest number of characters of a text that is certain to stay within the default limits. The
# limits count at most six steps for each character.
_LONGEST_SAFE_TEXT = 1 << 20
_HINT_TO_KEEP = (
    "convert(..., keep=True), --keep, write it as a custom operation, which load reads again"
)


class GraphFrontend(Frontend):
    """A network whose weights remain in their files until a model computes with them.

    Such a network is saved as a flat document of NNEF 1.0.
    """

    is_saved_flat = True

    def __init__(self, options: Options) -> None:
        self._options = options
        # Maps labels to the arrays of variables. `flatten` adds them.
        self._data: dict[str, NDArray[Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A pickled front end has no data.
        return {**self.__dict__, "_data": {}}

    @abstractmethod
    def titles(self) -> Titles:
        """Map each layer or node to the title that errors show for the layer or node.

        The keys are the offsets of the layers or nodes in the text.
        """

    def stored(self, graph: Graph) -> Stored:
        """Return the weights of the variables, each in the dtype of the variable in the graph.

        If the file of an array has the same dtype, the array is a view of the file.
        """
        data: dict[str, NDArray[Any]] = {}
        for variable in (*graph.parameters, *graph.states):
            if isinstance(variable, StateVariable) and variable.initial is not None:
                continue  # the network computes the first value of the state
            array = self._data[variable.label]
            dtype = np.dtype(variable.value.type.dtype)
            if array.dtype != dtype:
                array = rounding.saturated(array, dtype)
            data[variable.label] = array
        return Stored(data, self)

    def identifiers(self, graph: Graph) -> Mapping[str, str]:
        """Map the identifiers of tensors in a flat document to the tensors' names in the graph."""
        writer = FlatWriter(graph, self._options.meter)
        # An error of `write` does no harm: at that time all tensors already have identifiers.
        with suppress(UnsupportedError):
            writer.write()
        names: dict[str, str] = {}
        for name, value in graph.values.items():
            if value in writer.names:
                # A value may have several names in the graph. The first one is returned.
                names.setdefault(writer.names[value], name)
        return names

    def flat_members(
        self,
        graph: Graph,
        options: Options,
        cut: Cut,
        arrays: Arrays,
        quantization: str | None,
    ) -> Written:
        """Return the part of the graph that `cut` selects, as an archive of a flat document.

        `arrays` maps labels to data. `quantization` is the text of the archive's graph.quant. If it
        is None, the archive has no graph.quant.
        """
        part, _ = cut(graph)
        text = print_document(_TitledWriter(part, self.titles, options).write())
        members = _members(text, arrays)
        if quantization is None:
            return Written(members, loads_same_graph=_loads_same_graph(part, text, options))
        return Written(members | {QUANTIZATION: quantization.encode()})

    def converted(self, graph: Graph, data: Arrays | None, *, flat: bool, keep: bool) -> Written:
        """Return the network as an archive of NNEF 1.0, with a flat document.

        If `keep`, operations that NNEF lacks are written as custom operations. Otherwise they are
        an error.
        """
        raise_all(self.unsavable())
        options = self._options
        arrays = data or {}
        if not keep:
            return self.flat_members(graph, options, _entire_graph, arrays, quantization=None)
        document = KeepingWriter(graph, options.meter, options.real, outer=None).write()
        return Written(_members(print_document(document), arrays))


def _entire_graph(graph: Graph) -> tuple[Graph, Mapping[Value, Value]]:
    """Return the entire graph, as a cut that removes nothing."""
    return graph, {}


def _members(text: str, arrays: Arrays) -> dict[str, Member]:
    """Return an archive's members. `text` is the graph's text. `arrays` maps labels to data."""
    members: dict[str, Member] = {GRAPH: text.encode()}
    for name, array in tensor_members(arrays).items():
        members[name] = _as_member(array)
    return members


def _loads_same_graph(graph: Graph, text: str, options: Options) -> bool:
    """Tell whether `load` is certain to make this graph from the graph's flat document.

    A document must be able to declare the type of each tensor. Therefore the items must be real
    numbers, int32 or bool. No extent may be 0, since 0 declares an open extent. The limits must be
    the default limits, since the user's limits may be too small for the document.
    """
    has_default_limits = options.meter.limits == Limits()
    if not has_default_limits or len(text) > _LONGEST_SAFE_TEXT:
        return False
    types = {value.type for value in graph.inputs}
    types |= {variable.value.type for variable in (*graph.parameters, *graph.states)}
    for operation in graph.operations:
        types |= {value.type for value in operation.writes()}
    declarable_dtypes = {options.real, "int32", "bool"}
    for type in types:
        has_open_or_empty_axis = any(extent <= 0 for extent in type.shape)
        if type.dtype not in declarable_dtypes or has_open_or_empty_axis:
            return False
    return True


def _as_member(weights: NDArray[Any]) -> Member:
    """Return weights in the form in which a tensor file stores them.

    Integers of 2 and 4 bits stay packed. Floats of up to 8 bits are stored in float16, and bfloat16
    is stored in float32.
    """
    name = weights.dtype.name
    if name in _PACKED_INTEGERS:
        dtype, bits = _PACKED_INTEGERS[name]
        is_signed = dtype is np.int8
        array = weights.astype(dtype)
        return TensorFile(array, bits, signed=is_signed, quantized=False)
    if name in _EXACT_IN_FLOAT16:
        return weights.astype(np.float16)
    is_numpy_dtype = weights.dtype.kind != "V"  # numpy itself lacks bfloat16
    return weights if is_numpy_dtype else weights.astype(np.float32)


class _TitledWriter(FlatWriter):
    """A writer whose errors name the layers or nodes that NNEF cannot express."""

    def __init__(self, graph: Graph, titles: Callable[[], Titles], options: Options) -> None:
        super().__init__(graph, options.meter)
        self._titles = cache(titles)
        self._real = options.real
        self._refused = set[int]()

    def write(self) -> Document:
        """Return the flat document of the graph.

        Raises UnsupportedError for anything that NNEF cannot express, such as a tensor whose dtype
        NNEF does not have. All dtypes of integers are accepted here.
        """
        for operation in self.graph.operations:
            for value in operation.writes():
                dtype = value.type.dtype
                is_integer = dtype.startswith(("int", "uint"))
                if not is_integer and dtype not in (self._real, "bool"):
                    self.refuse(f"it has items of {dtype}", operation)
        return super().write()

    def refuse(self, message: str, operation: Operation | None = None, hint: str = "") -> None:
        """Record an error for an operation that cannot be written, once for each layer or node."""
        if operation is None or operation.span is None:
            super().refuse(message, operation, hint)
            return
        offset = operation.span.offset
        title = self._titles().get(offset)
        if title is None:
            super().refuse(message, operation, hint)
        elif offset not in self._refused:
            self._refused.add(offset)
            super().refuse(f"{title}: {message}", operation, hint or _HINT_TO_KEEP)
