"""The graphs, nodes and functions of a model, from its protobuf message."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.extents import MAX_RANK, volume
from lowering.location import Source, Span
from nnef_jax.errors import ArchiveError, NnefError, SemanticError, raise_all
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.protobuf import Raw
from nnef_jax.formats.onnx.tensor_types import dtype_of, size_of, unpacked
from nnef_jax.limits import Meter
from nnef_jax.storage.bitstream import BITS, CODES_PER_STEP

_VERSIONS = 31  # The newest IR version that is read; 14 exist, a later one is read as these are.
_LONGEST = 200  # letters of a line in a listing
_EXTERNAL = 1  # TensorProto.DataLocation
_ATTRIBUTES = {
    1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings", 9: "tensors",
    10: "graphs",
}  # fmt: skip
_SPARSE = 11  # AttributeProto.AttributeType
_SEPARATE = ("", "ai.onnx")  # two names of the default domain


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A node: the names of its inputs and outputs, '' where one is left out."""

    name: str
    operator: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    references: Mapping[str, str]  # attributes that are those of the function it is in, by name
    span: Span
    reads: frozenset[str]  # what it and graphs in it read of around
    overload: str = ""  # of the function that it calls

    @property
    def title(self) -> str:
        """Return the name of the node in errors."""
        return _titled(self.name, self.operator)


@dataclass(frozen=True, slots=True, eq=False)
class ModelPort:
    """An input or output of a graph: its shape has names of open extents, None without a rank."""

    name: str
    dtype: str  # "" where it has none
    shape: tuple[int | str | None, ...] | None
    is_tensor: bool = True  # not a sequence or an optional


@dataclass(frozen=True, slots=True, eq=False)
class ModelGraph:
    """Nodes between inputs and outputs; `tensors` are initialisers by name."""

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[ModelPort, ...]
    outputs: tuple[ModelPort, ...]
    tensors: Mapping[str, Constant]
    span: Span
    reads: frozenset[str]  # what it reads of around


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """An operator defined by nodes, with the defaults of its attributes."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    defaults: Mapping[str, Any]
    versions: Mapping[str, int]  # of operator sets, by domain


@dataclass(frozen=True, slots=True, eq=False)
class ModelDocument:
    """A model: its graph, the versions of the operator sets it uses, and its own functions."""

    graph: ModelGraph
    versions: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], Function]
    version: int  # of the file format


@dataclass(slots=True)
class Reader:
    """Reads the message of a model; errors are located in a listing of its nodes, a line each."""

    name: str
    raw: Raw
    meter: Meter
    open: Callable[[str], memoryview]  # a file beside the model
    errors: list[NnefError] = field(default_factory=list[NnefError])
    _unreadable: set[str] = field(default_factory=set[str])  # files of weights, each told once
    _spans: list[Span] = field(default_factory=list[Span])  # of nodes, in order
    _end: int = 0

    def document(self, model: Any) -> ModelDocument:
        """Return the checked document. Raises NnefError, all that is wrong with it at once."""
        if not model.HasField("graph"):
            raise ArchiveError(f"{self.name} is no ONNX model: it has no graph")
        if not 0 <= model.ir_version <= _VERSIONS:  # 0 where it is left out
            raise ArchiveError(
                f"{self.name} is an ONNX model of IR version {model.ir_version}, which is unknown",
                hint="it is 3 to 14: the file is damaged, or `ir_version` was set wrongly",
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

    def list_nodes(self, *groups: Any) -> None:
        """Make the text in which errors are located: a line for each node, in order."""
        lines: list[str] = []

        def add(nodes: Any) -> None:
            for node in nodes:
                lines.append(_line(node))
                for attribute in node.attribute:
                    for graph in (attribute.g, *attribute.graphs):
                        add(graph.node)

        for nodes in groups:
            add(nodes)
        source = Source(self.name, "\n".join(lines) or "(no nodes)")
        start = 0
        for line in (*lines, ""):  # the last one is for a graph behind all nodes
            self._spans.append(Span(source, start, max(len(line), 1)))
            start += len(line) + 1

    def _place(self) -> Span:
        """Return the place of the next node."""
        return self._spans[min(self._end, len(self._spans) - 1)]

    def graph(self, proto: Any) -> ModelGraph:
        """Return a graph."""
        span = self._place()
        tensors: dict[str, Constant] = {}
        dense, sparse = proto.initializer, proto.sparse_initializer
        stored = _texts((*(x.name for x in dense), *(x.values.name for x in sparse)))
        readers = [self.tensor] * len(dense) + [self.sparse] * len(sparse)
        for name, read, tensor in zip(stored, readers, (*dense, *sparse), strict=True):
            with self.located(f"initializer '{name}'", span):
                tensors[name] = read(tensor, name)
        self.distinct(_texts(x.name for x in proto.input), span)
        inputs = [self.port(x) for x in proto.input if _decoded(x.name) not in tensors]
        outputs = [self.port(x) for x in proto.output]
        nodes = [self.node(x) for x in proto.node]
        own = [*(x.name for x in inputs), *stored, *(n for x in nodes for n in x.outputs)]
        self.distinct(own, span)
        read = {x.name for x in outputs}.union(*(x.reads for x in nodes))
        reads = frozenset(read.difference(own))
        name = _decoded(proto.name)
        return ModelGraph(name, tuple(nodes), tuple(inputs), tuple(outputs), tensors, span, reads)

    def function(self, proto: Any) -> Function:
        """Return a function of the model."""
        defaults: dict[str, Any] = {}
        for attribute in proto.attribute_proto:
            defaults[_decoded(attribute.name)] = self.attribute(attribute)
        span = self._place()
        nodes = tuple(self.node(x) for x in proto.node)
        self.distinct([*_texts(proto.input), *(n for x in nodes for n in x.outputs)], span)
        own = {self._domain(x.domain): x.version for x in proto.opset_import}
        return Function(_texts(proto.input), _texts(proto.output), nodes, defaults, own)

    def distinct(self, names: Sequence[str], span: Span) -> None:
        """Note an error for the first of names that must be given once and is given twice."""
        seen = set[str]()
        for name in filter(None, names):
            if name in seen:
                self.errors.append(SemanticError(f"'{name}' is given twice", span=span))
                return
            seen.add(name)

    def node(self, proto: Any) -> Node:
        """Return a node, with the graphs in its attributes."""
        span = self._place()
        self._end += 1
        attributes: dict[str, Any] = {}
        references: dict[str, str] = {}
        self.distinct(_texts(x.name for x in proto.attribute), span)
        name, operator = _decoded(proto.name), _decoded(proto.op_type)
        title = _titled(name, operator)
        for attribute in proto.attribute:
            if attribute.ref_attr_name:
                references[_decoded(attribute.name)] = _decoded(attribute.ref_attr_name)
                continue
            key = _decoded(attribute.name)
            with self.located(f"{title}: attribute '{key[:_LONGEST]}'", span):
                attributes[key] = self.attribute(attribute)
        inputs = _texts(proto.input)
        inner = (graph.reads for value in attributes.values() for graph in graphs_in(value))
        return Node(
            name,
            operator,
            self._domain(proto.domain),
            inputs,
            _texts(proto.output),
            attributes,
            references,
            span,
            frozenset(inputs).union(*inner),
            _decoded(proto.overload),
        )

    def attribute(self, proto: Any) -> Any:
        """Return the value of an attribute: numbers, texts, tensors, graphs or tuples of these."""
        field = _ATTRIBUTES.get(proto.type)
        if field is None and proto.type in (_SPARSE, _SPARSE + 1):
            return self.sparse(proto.sparse_tensor) if proto.type == _SPARSE else None
        if field is None:  # old files leave the type out
            field = next((n for n in _ATTRIBUTES.values() if _is_set(proto, n)), "ints")
        value = getattr(proto, field)
        read: Any = {"s": _decoded, "t": self.tensor, "g": self.graph}.get(field[0], _same)
        return read(value) if len(field) == 1 else tuple(map(read, value))

    def port(self, proto: Any) -> ModelPort:
        """Return an input or output."""
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

    def tensor(self, proto: Any, label: str = "") -> Constant:
        """Return a tensor, viewed in the file where it can be. Raises InvalidOperation."""
        dtype, shape = dtype_of(proto.data_type), _shape(proto)
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

    def _external(self, proto: Any, size: int) -> memoryview:
        entries = {_decoded(x.key): _decoded(x.value) for x in proto.external_data}
        location = entries.get("location", "")
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries.get("length", size))
        except ValueError:
            raise InvalidOperation("its offset or length in another file is no number") from None
        if location in self._unreadable:
            raise _Told
        try:
            data = self.open(location)
        except (ArchiveError, OSError) as error:
            self._unreadable.add(location)
            hint = getattr(error, "hint", "") or "the model needs that file beside it"
            message = getattr(error, "message", error)
            raise InvalidOperation(f"its data are in '{location}': {message}", hint) from None
        if offset < 0 or length < 0 or offset + length > len(data):
            self._unreadable.add(location)
            raise InvalidOperation(
                f"its data are {length} bytes at {offset} of '{location}', which has {len(data)}",
                "is that file cut off, or of another model?",
            )
        return data[offset : offset + length]

    def _typed(self, proto: Any, dtype: str, shape: tuple[int, ...], items: int) -> Any:
        """Return a tensor whose items are numbers in the message."""
        field = {
            "float32": "float", "complex64": "float", "float64": "double", "complex128": "double",
            "int64": "int64", "uint32": "uint64", "uint64": "uint64",
        }.get(dtype, "int32")  # fmt: skip
        exact = "float32" if field == "float" else field
        stored, kind = np.array(getattr(proto, f"{field}_data"), exact), np.dtype(dtype)
        if kind.kind == "c":
            array = stored.view(kind)
        else:  # float16 and the like are bits in whole numbers
            is_bits = field == "int32" and kind.kind in "fV"
            array = stored.astype(f"u{kind.itemsize}" if is_bits else kind, copy=False)
            wrong = stored[stored != array]
            if wrong.size and stored.dtype.kind in "iu":
                raise InvalidOperation(f"it has {wrong[0]}, which is no {dtype}")
        if dtype in BITS:
            return unpacked(memoryview(array.tobytes()), dtype, shape)
        if array.size != items:
            raise InvalidOperation(f"it has {array.size} items, its shape is {list(shape)}")
        return array.view(kind).reshape(shape)

    def sparse(self, proto: Any, label: str = "") -> Constant:
        """Return a tensor of which most items are 0, given the others."""
        values = self.tensor(proto.values)
        places = self.tensor(proto.indices).array
        shape = _shape(proto)
        size = size_of(values.type, volume(shape))
        wanted = {(values.array.size,), (values.array.size, len(shape))}
        if places.dtype.kind not in "iu" or places.shape not in wanted or np.any(places < 0):
            raise InvalidOperation("its indices are no list of places, one for each value")
        self.meter.expand(size, f"tensor '{label}'")
        array = np.zeros(shape, values.array.dtype)
        index = np.unravel_index(places, shape) if places.ndim == 1 else tuple(places.T)
        try:
            array[index] = values.array
        except (IndexError, ValueError):
            raise InvalidOperation("its indices are not in its shape") from None
        return Constant(array, values.type, label)

    @contextmanager
    def located(self, what: str, span: Span) -> Generator[None]:
        """Keep errors of what is done within, with their place."""
        try:
            yield
        except NnefError:
            raise
        except _Told:
            pass
        except (ValueError, OverflowError) as error:
            message, hint = getattr(error, "message", error), getattr(error, "hint", "")
            self.errors.append(SemanticError(f"{what}: {message}", span=span, hint=hint))

    @staticmethod
    def _domain(name: str) -> str:
        return "" if name in _SEPARATE else _decoded(name)


class _Told(ValueError):
    """An error was noted before."""


def _titled(name: str, operator: str) -> str:
    """Return a short name of a node for errors: it is said often, and a name may be long."""
    named = f" '{name[:_LONGEST]}'" if name else ""
    return f"node{named} ({operator[:_LONGEST]})"


def _line(node: Any) -> str:
    """Return a node as the listing shows it."""
    domain = f"{_decoded(node.domain)}." if node.domain not in _SEPARATE else ""
    name = f" '{_decoded(node.name)}'" if node.name else ""
    read, written = (", ".join(_texts(x)) for x in (node.input, node.output))
    text = f"{domain}{_decoded(node.op_type)}{name} ({read}) -> ({written})"
    return "".join(c if c.isprintable() else " " for c in text[:_LONGEST])


def _decoded(value: bytes | str) -> str:
    """Return a text; protobuf hands over bytes where it is no UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _shape(proto: Any) -> tuple[int, ...]:
    """Return the shape of a stored tensor. Raises InvalidOperation."""
    shape = tuple(proto.dims)
    if len(shape) > MAX_RANK:
        raise InvalidOperation(f"it has {len(shape)} axes, arrays have at most {MAX_RANK}")
    if any(n < 0 for n in shape):
        raise InvalidOperation(f"its shape {list(shape)} has a negative extent")
    return shape


def _extent(proto: Any) -> int | str | None:
    """Return an extent, or the name of an open one; exporters write -1 for one without a name."""
    if not proto.HasField("dim_value"):
        return _decoded(proto.dim_param) or None
    return None if proto.dim_value == -1 else proto.dim_value


def _same(value: Any) -> Any:
    return value


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(_decoded, values))


def _is_set(proto: Any, name: str) -> bool:
    return (
        bool(getattr(proto, name)) if name.endswith("s") and len(name) > 1 else proto.HasField(name)
    )


def graphs_in(value: Any) -> Iterator[ModelGraph]:
    """Yield the graphs that an attribute has."""
    for x in value if isinstance(value, tuple) else (value,):
        if isinstance(x, ModelGraph):
            yield x


def all_nodes(document: ModelDocument) -> Iterator[Node]:
    """Yield the nodes of a model, of its functions, and of the graphs in nodes."""
    waiting = [*document.graph.nodes]
    waiting += [node for function in document.functions.values() for node in function.nodes]
    while waiting:
        node = waiting.pop()
        yield node
        for value in node.attributes.values():
            for graph in graphs_in(value):
                waiting += graph.nodes
