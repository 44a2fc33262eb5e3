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
from nnef_jax.formats.onnx.tensor_types import dtype_of, size_of, unpacked
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

_MOST_VERSION = 31  # the largest IR version that is read; the newest version today is 14
_LONGEST = 200  # letters of a line in the listing of nodes
_EXTERNAL = 1  # TensorProto.DataLocation
# Fields of AttributeProto, by AttributeType. The names of fields that are lists have several
# letters.
_ATTRIBUTES = {
    1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings", 9: "tensors",
    10: "graphs",
}  # fmt: skip
_SPARSE, _SPARSE_LIST = 11, 12  # AttributeProto.AttributeType
_DEFAULT_DOMAIN = ("", "ai.onnx")  # the two names of the standard's domain


@dataclass(slots=True)
class Reader:
    """Reads the protobuf message of a model.

    Errors refer to a line in a listing of the nodes, which has a line for each node.

    Args:
        name: the name of the file, for errors.
        raw: the bytes of large tensors, which are not in the message.
        meter: counts the cost of reading.
        open: a function that returns the content of a file beside the model, by name.
        errors: the errors so far.
    """

    name: str
    raw: Raw
    meter: Meter
    open: Callable[[str], memoryview]
    errors: list[NnefError] = field(default_factory=list[NnefError])
    # Files that could not be read; their first error is in `errors`.
    _unreadable: set[str] = field(default_factory=set[str])
    _spans: list[Span] = field(default_factory=list[Span])  # an item for each line of the listing
    _count: int = 0  # the number of nodes read so far

    def document(self, model: ModelProto) -> ModelDocument:
        """Read a ModelProto and check it. Raises NnefError, which has all errors."""
        if not model.HasField("graph"):
            raise ArchiveError(f"{self.name} is no ONNX model: it has no graph")
        if not 0 <= model.ir_version <= _MOST_VERSION:  # a message without a version has 0
            raise ArchiveError(
                f"{self.name} is an ONNX model of IR version {model.ir_version}, which is unknown",
                hint="versions 3 to 14 exist: the file is damaged, or `ir_version` was set wrongly",
            )
        versions = {self._domain(x.domain): x.version for x in model.opset_import}
        self.list_nodes(model.graph.node, *(x.node for x in model.functions))
        graph = self.graph(model.graph)
        functions = {
            (self._domain(x.domain), _decoded(x.name), _decoded(x.overload)): self.function(x)
            for x in model.functions
        }
        raise_all(self.errors)
        return ModelDocument(graph, versions, functions, model.ir_version)

    def list_nodes(self, *groups: Iterable[NodeProto]) -> None:
        """Make the listing: a text with one line for each node, to which errors refer.

        `groups` are the nodes of the model's graph and of each of its functions. A node is followed
        by the nodes of the graphs in its attributes.
        """
        lines: list[str] = []

        def add_lines(nodes: Iterable[NodeProto]) -> None:
            for node in nodes:
                lines.append(_line(node))
                for attribute in node.attribute:
                    for graph in (attribute.g, *attribute.graphs):
                        add_lines(graph.node)

        for nodes in groups:
            add_lines(nodes)
        source = Source(self.name, "\n".join(lines) or "(no nodes)")
        start = 0
        lines.append("")  # this line is the place of the graph itself
        for line in lines:
            self._spans.append(Span(source, start, max(len(line), 1)))
            start += len(line) + 1

    def _place(self) -> Span:
        """Return the place of the node that is read next."""
        return self._spans[min(self._count, len(self._spans) - 1)]

    def graph(self, proto: GraphProto) -> ModelGraph:
        """Read a GraphProto."""
        span = self._place()
        tensors: dict[str, Constant] = {}
        readers = [(x.name, partial(self.tensor, x)) for x in proto.initializer]
        readers += [(x.values.name, partial(self.sparse, x)) for x in proto.sparse_initializer]
        labels = _texts(name for name, _ in readers)
        for name, (_, read) in zip(labels, readers, strict=True):
            with self.located(f"initializer '{name}'", span):
                tensors[name] = read(label=name)
        self.check_distinct(_texts(x.name for x in proto.input), span)
        inputs = [self.port(x) for x in proto.input if _decoded(x.name) not in tensors]
        outputs = [self.port(x) for x in proto.output]
        nodes = [self.node(x) for x in proto.node]
        input_names = [x.name for x in inputs]
        defined = [*input_names, *labels, *_outputs_of(nodes)]
        self.check_distinct(defined, span)
        read_names = {x.name for x in outputs}.union(*(x.reads for x in nodes))
        reads = frozenset(read_names.difference(defined))
        name = _decoded(proto.name)
        return ModelGraph(name, tuple(nodes), tuple(inputs), tuple(outputs), tensors, span, reads)

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
        return Function(inputs, _texts(proto.output), nodes, defaults, versions)

    def check_distinct(self, names: Sequence[str], span: Span) -> None:
        """Append an error to `errors` if a name occurs twice in `names`.

        `span` is the error's place.
        """
        earlier_names = set[str]()
        for name in names:
            if name in earlier_names:
                self.errors.append(SemanticError(f"'{name}' is given twice", span=span))
                return
            if name:
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
            if attribute.ref_attr_name:
                references[_decoded(attribute.name)] = _decoded(attribute.ref_attr_name)
                continue
            key = _decoded(attribute.name)
            with self.located(f"{title}: attribute '{key[:_LONGEST]}'", span):
                attributes[key] = self.attribute(attribute)
        inputs = _texts(proto.input)
        reads = set(inputs)
        for value in attributes.values():
            for graph in graphs_in(value):
                reads |= graph.reads
        return Node(
            name,
            operator,
            self._domain(proto.domain),
            inputs,
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
            return None
        field = _ATTRIBUTES.get(proto.type)
        # Old files do not store the type of an attribute. The type follows from the field that is
        # set.
        if field is None:
            fields = [name for name in _ATTRIBUTES.values() if _is_set(proto, name)]
            field = fields[0] if fields else "ints"
        value = getattr(proto, field)
        readers: dict[str, Any] = {
            "s": _decoded, "strings": _decoded, "t": self.tensor, "tensors": self.tensor,
            "g": self.graph, "graphs": self.graph,
        }  # fmt: skip
        read = readers.get(field, _unchanged)
        is_list = len(field) > 1
        return tuple(map(read, value)) if is_list else read(value)

    def port(self, proto: ValueInfoProto) -> ModelPort:
        """Read the description of an input or output of a graph."""
        kind = proto.type.WhichOneof("value")
        if kind != "tensor_type":
            return ModelPort(_decoded(proto.name), "", None, kind is None)
        type = proto.type.tensor_type
        shape: tuple[int | str | None, ...] | None = None
        if type.HasField("shape"):
            shape = tuple(map(_extent, type.shape.dim))
        try:
            dtype = dtype_of(type.elem_type) if type.elem_type else ""
        except InvalidOperation:
            dtype = "string"
        return ModelPort(_decoded(proto.name), dtype, shape)

    def tensor(self, proto: TensorProto, label: str = "") -> Constant:
        """Read a TensorProto as a constant with a label.

        If possible, the array is a view of the file. Raises InvalidOperation if the tensor is not
        valid.
        """
        dtype = dtype_of(proto.data_type)
        shape = _shape(proto)
        items = volume(shape)
        if dtype in BITS:
            self.meter.spend(items // CODES_PER_STEP, f"tensor '{label}'")
            self.meter.expand(items, f"tensor '{label}'")
        if proto.data_location == _EXTERNAL:
            data = self._external(proto, size_of(dtype, items))
        elif proto.HasField("raw_data"):
            data = self.raw.get(proto.raw_data)
        else:
            return Constant(self._typed(proto, dtype, shape, items), dtype, label)
        return Constant(unpacked(data, dtype, shape), dtype, label)

    def _external(self, proto: TensorProto, size: int) -> memoryview:
        """Return the bytes of a tensor that is stored in another file.

        `size` is the number of bytes if the message does not say the number.
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
        is_inside = offset >= 0 and length >= 0 and offset + length <= len(data)
        if not is_inside:
            self._unreadable.add(location)
            raise InvalidOperation(
                f"its data are {length} bytes at {offset} of '{location}', which has {len(data)}",
                "is that file cut off, or of another model?",
            )
        return data[offset : offset + length]

    def _typed(
        self, proto: TensorProto, dtype: str, shape: tuple[int, ...], items: int
    ) -> NDArray[Any]:
        """Return the array of a tensor whose items are stored as numbers in the message."""
        field = {
            "float32": "float", "complex64": "float", "float64": "double", "complex128": "double",
            "int64": "int64", "uint32": "uint64", "uint64": "uint64",
        }.get(dtype, "int32")  # fmt: skip
        stored_dtype = "float32" if field == "float" else field
        stored = np.array(getattr(proto, f"{field}_data"), stored_dtype)
        tensor_dtype = np.dtype(dtype)
        if tensor_dtype.kind == "c":
            array = stored.view(tensor_dtype)
        else:
            item_dtype: Any = tensor_dtype
            if field == "int32" and tensor_dtype.kind in "fV":
                item_dtype = f"u{tensor_dtype.itemsize}"  # the items are stored as their bits
            array = stored.astype(item_dtype, copy=False)
            changed = stored[stored != array]
            if changed.size and stored.dtype.kind in "iu":
                raise InvalidOperation(f"it has {changed[0]}, which is no {dtype}")
        if dtype in BITS:
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
        size = size_of(values.type, volume(shape))
        are_integers = indices.dtype.kind in "iu"
        is_one_per_value = indices.shape in {(count,), (count, len(shape))}
        if not are_integers or not is_one_per_value or np.any(indices < 0):
            raise InvalidOperation("its indices are no list of places, one for each value")
        self.meter.expand(size, f"tensor '{label}'")
        array = np.zeros(shape, values.array.dtype)
        index = np.unravel_index(indices, shape) if indices.ndim == 1 else tuple(indices.T)
        try:
            array[index] = values.array
        except (IndexError, ValueError):
            raise InvalidOperation("its indices are not in its shape") from None
        return Constant(array, values.type, label)

    @contextmanager
    def located(self, title: str, span: Span) -> Generator[None]:
        """Append an error that is raised in the `with` block to `errors`.

        `title` begins the message of the error, and `span` is its place.
        """
        try:
            yield
        except NnefError:
            raise
        except _AlreadyReported:
            pass
        except (ValueError, OverflowError) as error:
            message = getattr(error, "message", error)
            hint = getattr(error, "hint", "")
            self.errors.append(SemanticError(f"{title}: {message}", span=span, hint=hint))

    @staticmethod
    def _domain(name: str) -> str:
        return "" if name in _DEFAULT_DOMAIN else _decoded(name)


class _AlreadyReported(ValueError):
    """A tensor is in a file that cannot be read, and an earlier tensor has reported this file."""


def _line(node: NodeProto) -> str:
    """Return the line that the listing has for a node."""
    domain = f"{_decoded(node.domain)}." if node.domain not in _DEFAULT_DOMAIN else ""
    name = f" '{_decoded(node.name)}'" if node.name else ""
    inputs = ", ".join(_texts(node.input))
    outputs = ", ".join(_texts(node.output))
    text = f"{domain}{_decoded(node.op_type)}{name} ({inputs}) -> ({outputs})"
    letters = [c if c.isprintable() else " " for c in text[:_LONGEST]]
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
    if any(n < 0 for n in shape):
        raise InvalidOperation(f"its shape {list(shape)} has a negative extent")
    return shape


def _extent(proto: TensorShapeProto.Dimension) -> int | str | None:
    """Return an extent of a shape: a number, or the name of an open extent.

    Return None for an open extent without a name. Some exporters write -1 for it.
    """
    if not proto.HasField("dim_value"):
        return _decoded(proto.dim_param) or None
    return None if proto.dim_value == -1 else proto.dim_value


def _unchanged(value: object) -> object:
    return value


def _outputs_of(nodes: Iterable[Node]) -> list[str]:
    return [name for node in nodes for name in node.outputs]


def _texts(values: Iterable[str | bytes]) -> tuple[str, ...]:
    return tuple(map(_decoded, values))


def _is_set(proto: AttributeProto, field: str) -> bool:
    is_list = len(field) > 1
    return bool(getattr(proto, field)) if is_list else proto.HasField(field)
