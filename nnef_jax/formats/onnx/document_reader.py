"""Reads the document of a model from its protobuf message."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.extents import MAX_RANK, volume
from lowering.location import Source, Span
from nnef_jax.errors import ArchiveError, NnefError, SemanticError, raise_all
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.document import (
    Function,
    ModelDocument,
    ModelGraph,
    ModelPort,
    Node,
    graphs_in,
    titled,
)
from nnef_jax.formats.onnx.protobuf import Raw
from nnef_jax.formats.onnx.tensor_types import converted, dtype_of, size_of, unpacked
from nnef_jax.limits import Meter
from nnef_jax.storage.bitstream import BITS, CODES_PER_STEP

if TYPE_CHECKING:
    from onnx import (
        AttributeProto,
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        SparseTensorProto,
        TensorProto,
        TensorShapeProto,
        ValueInfoProto,
    )

_LARGEST_IR_VERSION = 31  # the largest IR version that is read; the newest version today is 14
_LONGEST_LINE = 200  # the largest number of letters of a line in the listing of nodes
_EXTERNAL = 1  # the TensorProto.DataLocation of a tensor in another file
# The fields of AttributeProto that have the values of attributes. The keys are the codes of types
# in AttributeProto.AttributeType. A field that is a list has a name of several letters.
_VALUE_FIELDS = {
    1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings", 9: "tensors",
    10: "graphs",
}  # fmt: skip
# The type codes of an attribute that is a sparse tensor, and of a list of sparse tensors.
_SPARSE, _SPARSE_LIST = 11, 12
# The fields of TensorProto that hold the items. The keys are dtypes. A field's name is written
# without its suffix "_data". Items of all other dtypes are in the field "int32_data".
_ITEM_FIELDS = {
    "float32": "float", "complex64": "float", "float64": "double", "complex128": "double",
    "int64": "int64", "uint32": "uint64", "uint64": "uint64",
}  # fmt: skip
_DEFAULT_DOMAIN = ("", "ai.onnx")  # the two names of the standard's domain


@dataclass(slots=True)
class Reader:
    """Reads the protobuf message of a model.

    Errors refer to lines of a listing, which has a line for each node.

    Args:
        name: the name of the file, for errors.
        raw: the bytes of large tensors, which are not in the message.
        meter: counts the cost of reading.
        open: a function that takes the name of a file beside the model and returns its content.
        errors: the errors so far.
    """

    name: str
    raw: Raw
    meter: Meter
    open: Callable[[str], memoryview]
    errors: list[NnefError] = field(default_factory=list[NnefError])
    # The names of files that could not be read. `errors` has one error for each of these files.
    _unreadable: set[str] = field(default_factory=set[str])
    _spans: list[Span] = field(default_factory=list[Span])  # the span of each line of the listing
    _count: int = 0  # the number of nodes read so far

    def document(self, model: ModelProto) -> ModelDocument:
        """Read a ModelProto and check it. Raises a NnefError that has all errors of the model."""
        if not model.HasField("graph"):
            raise ArchiveError(f"{self.name} is no ONNX model: it has no graph")
        # Protobuf reads a missing version as 0.
        if not 0 <= model.ir_version <= _LARGEST_IR_VERSION:
            raise ArchiveError(
                f"{self.name} is an ONNX model of IR version {model.ir_version}, which is unknown",
                hint="versions 3 to 14 exist: the file is damaged, or `ir_version` was set wrongly",
            )
        versions = {self._domain(x.domain): x.version for x in model.opset_import}
        self.list_nodes(model.graph.node, *(x.node for x in model.functions))
        graph = self.graph(model.graph)
        functions: dict[tuple[str, str, str], Function] = {}
        for proto in model.functions:
            key = (self._domain(proto.domain), _decoded(proto.name), _decoded(proto.overload))
            functions[key] = self.function(proto)
        raise_all(self.errors)
        return ModelDocument(graph, versions, functions, model.ir_version)

    def list_nodes(self, *groups: Iterable[NodeProto]) -> None:
        """Make the listing, a text with one line for each node. Errors refer to these lines.

        `groups` are the nodes of the model's graph and the nodes of each of its functions. In the
        listing, a node is followed by the nodes of the graphs in its attributes.
        """
        lines: list[str] = []
        for nodes in groups:
            lines += _lines(nodes)
        source = Source(self.name, "\n".join(lines) or "(no nodes)")
        lines.append("")  # an empty line at the end, for errors of a graph after the last node
        start = 0
        for line in lines:
            length = max(len(line), 1)  # A span has at least one letter.
            self._spans.append(Span(source, start, length))
            start += len(line) + 1  # The next line follows a line break.

    def _place(self) -> Span:
        """Return the span of the next node's line in the listing.

        After the last node, return the span of the empty line at the end of the listing.
        """
        last_line = len(self._spans) - 1
        return self._spans[min(self._count, last_line)]

    def graph(self, proto: GraphProto) -> ModelGraph:
        """Read a GraphProto."""
        span = self._place()
        labels, tensors = self._initializers(proto, span)
        self.check_distinct(_texts(x.name for x in proto.input), span)
        # In old files, the initialisers are inputs too. Such inputs are left out here.
        inputs = [self.port(x) for x in proto.input if _decoded(x.name) not in tensors]
        outputs = [self.port(x) for x in proto.output]
        nodes = [self.node(x) for x in proto.node]
        input_names = [port.name for port in inputs]
        defined = [*input_names, *labels, *_outputs_of(nodes)]
        self.check_distinct(defined, span)
        reads = {port.name for port in outputs}
        for node in nodes:
            reads |= node.reads
        outer_reads = frozenset(reads.difference(defined))
        return ModelGraph(
            name=_decoded(proto.name),
            nodes=tuple(nodes),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            tensors=tensors,
            span=span,
            reads=outer_reads,
        )

    def _initializers(self, proto: GraphProto, span: Span) -> tuple[list[str], dict[str, Constant]]:
        """Return the labels of a graph's initialisers, and a dict from labels to tensors.

        If a tensor cannot be read, it is left out, and an error at `span` is added to `errors`.
        """
        labels: list[str] = []
        # For each label, the function that reads its tensor.
        readers: list[Callable[[str], Constant]] = []
        for dense in proto.initializer:
            labels.append(_decoded(dense.name))
            readers.append(partial(self.tensor, dense))
        for sparse in proto.sparse_initializer:
            labels.append(_decoded(sparse.values.name))
            readers.append(partial(self.sparse, sparse))
        tensors: dict[str, Constant] = {}
        for label, read in zip(labels, readers, strict=True):
            with self.located(f"initializer '{label}'", span):
                tensors[label] = read(label)
        return labels, tensors

    def function(self, proto: FunctionProto) -> Function:
        """Read a FunctionProto."""
        defaults: dict[str, Any] = {}
        for attribute in proto.attribute_proto:
            defaults[_decoded(attribute.name)] = self.attribute(attribute)
        span = self._place()
        nodes = tuple(self.node(x) for x in proto.node)
        inputs = _texts(proto.input)
        self.check_distinct([*inputs, *_outputs_of(nodes)], span)
        versions = {self._domain(x.domain): x.version for x in proto.opset_import}
        outputs = _texts(proto.output)
        return Function(inputs, outputs, nodes, defaults=defaults, versions=versions)

    def check_distinct(self, names: Sequence[str], span: Span) -> None:
        """Append an error to `errors` if a name occurs twice in `names`.

        `span` is the place of the error.
        """
        earlier_names = set[str]()
        for name in names:
            if name in earlier_names:
                self.errors.append(SemanticError(f"'{name}' is given twice", span=span))
                return
            if name:  # The name "" stands for nothing, so it may occur twice.
                earlier_names.add(name)

    def node(self, proto: NodeProto) -> Node:
        """Read a NodeProto, with the graphs in its attributes."""
        span = self._place()
        self._count += 1
        attributes: dict[str, Any] = {}
        references: dict[str, str] = {}
        self.check_distinct(_texts(x.name for x in proto.attribute), span)
        name = _decoded(proto.name)
        operator = _decoded(proto.op_type)
        title = titled(name, operator)
        for attribute in proto.attribute:
            key = _decoded(attribute.name)
            if attribute.ref_attr_name:
                references[key] = _decoded(attribute.ref_attr_name)
                continue
            with self.located(f"{title}: attribute '{key[:_LONGEST_LINE]}'", span):
                attributes[key] = self.attribute(attribute)
        inputs = _texts(proto.input)
        reads = set(inputs)
        for value in attributes.values():
            for graph in graphs_in(value):
                reads |= graph.reads
        return Node(
            name=name,
            operator=operator,
            domain=self._domain(proto.domain),
            inputs=inputs,
            outputs=_texts(proto.output),
            attributes=attributes,
            references=references,
            span=span,
            reads=frozenset(reads),
            overload=_decoded(proto.overload),
        )

    def attribute(self, proto: AttributeProto) -> Any:
        """Read the value of an AttributeProto.

        The value is a number, a string, a `Constant`, a `ModelGraph`, or a tuple of these.
        """
        if proto.type == _SPARSE:
            return self.sparse(proto.sparse_tensor)
        if proto.type == _SPARSE_LIST:
            return None  # No operator of the standard has such an attribute.
        field_name = _VALUE_FIELDS.get(proto.type)
        if field_name is None:
            # Old files do not store the type of an attribute. The type follows from the field that
            # is set. If no field is set, the value is an empty list.
            set_fields = [name for name in _VALUE_FIELDS.values() if _is_set(proto, name)]
            field_name = set_fields[0] if set_fields else "ints"
        value = getattr(proto, field_name)
        readers: dict[str, Any] = {
            "s": _decoded, "strings": _decoded, "t": self.tensor, "tensors": self.tensor,
            "g": self.graph, "graphs": self.graph,
        }  # fmt: skip
        read = readers.get(field_name, _unchanged)
        if _is_list(field_name):
            return tuple(map(read, value))
        return read(value)

    def port(self, proto: ValueInfoProto) -> ModelPort:
        """Read the description of an input or output of a graph."""
        name = _decoded(proto.name)
        kind = proto.type.WhichOneof("value")
        if kind is None:
            return ModelPort(name, dtype="", shape=None)
        if kind != "tensor_type":
            return ModelPort(name, dtype="", shape=None, is_tensor=False)
        type = proto.type.tensor_type
        shape: tuple[int | str | None, ...] | None = None
        if type.HasField("shape"):
            shape = tuple(map(_extent, type.shape.dim))
        if not type.elem_type:  # The file does not say the dtype.
            return ModelPort(name, dtype="", shape=shape)
        try:
            dtype = dtype_of(type.elem_type)
        except InvalidOperation:
            # The items are strings, or the code of their type is unknown. An error is raised when
            # the input is flattened.
            dtype = "string"
        return ModelPort(name, dtype, shape)

    def tensor(self, proto: TensorProto, label: str = "") -> Constant:
        """Read a TensorProto as a constant with a label.

        If possible, the array is a view of the file. Raises InvalidOperation if the tensor is not
        valid.
        """
        dtype = dtype_of(proto.data_type)
        shape = _shape(proto)
        items = volume(shape)
        if dtype in BITS:
            # Items of fewer than 8 bits are unpacked to bytes.
            self.meter.spend(items // CODES_PER_STEP, f"tensor '{label}'")
            self.meter.expand(items, f"tensor '{label}'")
        if proto.data_location == _EXTERNAL:
            data = self._external(proto, size_of(dtype, items))
            array = unpacked(data, dtype, shape)
        elif proto.HasField("raw_data"):
            data = self.raw.get(proto.raw_data)
            array = unpacked(data, dtype, shape)
        else:
            array = self._typed(proto, dtype, shape, items)
        return Constant(array, dtype, label)

    def _external(self, proto: TensorProto, size: int) -> memoryview:
        """Return the bytes of a tensor that is stored in another file.

        If the message does not give the number of bytes, `size` bytes are returned. Raises
        `_AlreadyReported` if the file is one of `_unreadable`.
        """
        entries = {_decoded(x.key): _decoded(x.value) for x in proto.external_data}
        location = entries.get("location", "")
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries.get("length", size))
        except ValueError:
            raise InvalidOperation("its offset or length in another file is no number") from None
        if location in self._unreadable:
            raise _AlreadyReported
        try:
            data = self.open(location)
        except (ArchiveError, OSError) as error:
            self._unreadable.add(location)
            hint = getattr(error, "hint", "") or "the model needs that file beside it"
            message = getattr(error, "message", error)
            raise InvalidOperation(f"its data are in '{location}': {message}", hint) from None
        end = offset + length
        if offset < 0 or length < 0 or end > len(data):
            self._unreadable.add(location)
            raise InvalidOperation(
                f"its data are {length} bytes at {offset} of '{location}', which has {len(data)}",
                "is that file cut off, or of another model?",
            )
        return data[offset:end]

    def _typed(
        self, proto: TensorProto, dtype: str, shape: tuple[int, ...], items: int
    ) -> NDArray[Any]:
        """Return the array of a tensor whose items are stored as numbers in the message.

        `items` is the number of items that the shape implies, such as 6 for (2, 3).
        """
        field_name = _ITEM_FIELDS.get(dtype, "int32")
        stored_dtype = "float32" if field_name == "float" else field_name
        stored = np.array(getattr(proto, f"{field_name}_data"), stored_dtype)
        tensor_dtype = np.dtype(dtype)
        # Complex items are stored as pairs of a real and an imaginary part.
        is_complex = tensor_dtype.kind == "c"
        array = stored.view(tensor_dtype) if is_complex else converted(stored, dtype)
        if dtype in BITS:  # A stored number has the bits of several items.
            return unpacked(memoryview(array.tobytes()), dtype, shape)
        if array.size != items:
            raise InvalidOperation(f"it has {array.size} items, its shape is {list(shape)}")
        return array.view(tensor_dtype).reshape(shape)

    def sparse(self, proto: SparseTensorProto, label: str = "") -> Constant:
        """Read a SparseTensorProto as a dense tensor, in which missing items are 0."""
        values = self.tensor(proto.values)
        indices = self.tensor(proto.indices).array
        shape = _shape(proto)
        count = values.array.size
        # An index is either a single number or a number for each axis. A single number is a
        # position in the flat tensor.
        has_allowed_shape = indices.shape in {(count,), (count, len(shape))}
        has_integers = indices.dtype.kind in "iu"
        if not has_integers or not has_allowed_shape or np.any(indices < 0):
            raise InvalidOperation("its indices are no list of places, one for each value")
        dense_size = size_of(values.type, volume(shape))
        self.meter.expand(dense_size, f"tensor '{label}'")
        array = np.zeros(shape, values.array.dtype)
        is_flat = indices.ndim == 1
        index = np.unravel_index(indices, shape) if is_flat else tuple(indices.T)
        try:
            array[index] = values.array
        except (IndexError, ValueError):
            raise InvalidOperation("its indices are not in its shape") from None
        return Constant(array, values.type, label)

    @contextmanager
    def located(self, title: str, span: Span) -> Generator[None]:
        """Catch an error that the `with` block raises, and append the error to `errors`.

        `title` is the beginning of the error's message, and `span` is the place of the error.
        """
        try:
            yield
        except NnefError:  # such as a LimitError, which is a ValueError too
            raise
        except _AlreadyReported:
            pass
        except (ValueError, OverflowError) as error:
            message = getattr(error, "message", error)
            hint = getattr(error, "hint", "")
            self.errors.append(SemanticError(f"{title}: {message}", span=span, hint=hint))

    @staticmethod
    def _domain(name: str) -> str:
        """Return the name of a domain, which is "" for the standard's domain."""
        return "" if name in _DEFAULT_DOMAIN else _decoded(name)


class _AlreadyReported(ValueError):
    """The data of a tensor are in an unreadable file, for which `errors` already has an error."""


def _lines(nodes: Iterable[NodeProto]) -> list[str]:
    """Return the lines of the listing for nodes and for the graphs in their attributes."""
    lines: list[str] = []
    for node in nodes:
        lines.append(_line(node))
        for attribute in node.attribute:
            # `attribute.g` is a graph without nodes if the attribute has no graph.
            for graph in (attribute.g, *attribute.graphs):
                lines += _lines(graph.node)
    return lines


def _line(node: NodeProto) -> str:
    """Return the line of the listing for a node, such as "Add 'sum' (x, y) -> (z)"."""
    domain = f"{_decoded(node.domain)}." if node.domain not in _DEFAULT_DOMAIN else ""
    name = f" '{_decoded(node.name)}'" if node.name else ""
    inputs = ", ".join(_texts(node.input))
    outputs = ", ".join(_texts(node.output))
    text = f"{domain}{_decoded(node.op_type)}{name} ({inputs}) -> ({outputs})"
    letters = [letter if letter.isprintable() else " " for letter in text[:_LONGEST_LINE]]
    return "".join(letters)


def _decoded(value: bytes | str) -> str:
    """Return a string of the message. Protobuf returns bytes for a string that is not UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _shape(proto: TensorProto | SparseTensorProto) -> tuple[int, ...]:
    """Return the shape of a stored tensor.

    Raises InvalidOperation if an extent is negative, or if there are more axes than arrays can
    have.
    """
    shape = tuple(proto.dims)
    if len(shape) > MAX_RANK:
        raise InvalidOperation(f"it has {len(shape)} axes, arrays have at most {MAX_RANK}")
    if any(extent < 0 for extent in shape):
        raise InvalidOperation(f"its shape {list(shape)} has a negative extent")
    return shape


def _extent(proto: TensorShapeProto.Dimension) -> int | str | None:
    """Return an extent of a shape: a number, or the name of an open extent.

    Return None for an open extent without a name. Some exporters write -1 for such an extent.
    """
    if not proto.HasField("dim_value"):
        return _decoded(proto.dim_param) or None
    return None if proto.dim_value == -1 else proto.dim_value


def _unchanged(value: object) -> object:
    return value


def _outputs_of(nodes: Iterable[Node]) -> list[str]:
    """Return the names of the outputs of all nodes."""
    names: list[str] = []
    for node in nodes:
        names += node.outputs
    return names


def _texts(values: Iterable[str | bytes]) -> tuple[str, ...]:
    """Decode strings of the message; see `_decoded`."""
    return tuple(map(_decoded, values))


def _is_set(proto: AttributeProto, field_name: str) -> bool:
    """Tell whether a field of an attribute has a value, or has items if it is a list."""
    if _is_list(field_name):
        return len(getattr(proto, field_name)) > 0
    return proto.HasField(field_name)


def _is_list(field_name: str) -> bool:
    """Tell whether a field of `_VALUE_FIELDS` is a list: its name has more than one letter."""
    return len(field_name) > 1
