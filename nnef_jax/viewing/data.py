"""The data of the page: a network as an object for JSON, whose size is bounded."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from lowering import multiply_adds
from lowering.extents import UNKNOWN, is_known, known, volume
from lowering.graph import UNTYPED, Graph, Operand, Operation, Value
from lowering.location import Span
from lowering.ops import FAMILIES
from nnef_jax.array_statistics import statistics_of
from nnef_jax.garbage import uncollected
from nnef_jax.network import Network
from nnef_jax.viewing.measures import Fields
from nnef_jax.viewing.operation_tree import MOST, Group, tree_of

OPEN = 36  # boxes that are shown at first, about
_FEW = 5  # more groups are opened then
_NAME = 300  # characters of a name
_TEXT = 400  # of an attribute, or a line of the document
_ITEMS = 24  # of an attribute that is a list
_DETAILS = 6_000_000  # characters of attributes and lines, of all operations together
_PORTS = 24  # inputs, states or outputs that are shown side by side, more are a group
VALUES = 16_384  # items of an array that the page has, more have statistics alone
_BYTES = 2_000_000  # of such arrays, all together

_T = TypeVar("_T")

# What a box is coloured by: few, so that they can be told apart.
_COLOURS: Mapping[str, tuple[str, ...]] = {
    "product": ("conv", "linear", "transformer", "experts"),
    "activation": ("activation", "softmax"),
    "normalization": ("normalize",),
    "pooling": ("window", "reduce", "resample", "resize", "roi"),
    "recurrence": ("recurrent", "scan"),
    "arithmetic": ("elementwise", "signal"),
    "shape": ("shape", "selection", "indexing", "lookup", "detection"),
    "quantization": ("quantize", "quantized_products"),
    "constant": ("generators",),
}
_FAMILY_OF = {
    kind: colour
    for colour, families in _COLOURS.items()
    for family in families
    for kind in FAMILIES[family]
}


def page_data(
    network: Network,
    arrays: Callable[[str], Any] = lambda _: None,
    fields: Mapping[str, Fields] | None = None,
) -> dict[str, Any]:
    """Return a network as an object for JSON: docs/view.md says what it has.

    Args:
        network: the network.
        arrays: gives the array of a parameter by label, or None where it cannot be read; their
            statistics are shown.
        fields: more of operations, by the name of a tensor that they write.
    """
    with uncollected():
        return _Page(network, arrays, fields or {}).data


class _Page:
    def __init__(
        self,
        network: Network,
        arrays: Callable[[str], Any],
        fields: Mapping[str, Fields],
    ) -> None:
        graph = network.graph
        self.nodes: list[dict[str, Any]] = []
        self.tensors: list[dict[str, Any]] = []
        self.numbers: dict[Value, int] = {}
        self.details = _DETAILS
        self.fields = fields
        sizes = {p.value: volume(known(p.value.type.shape)) for p in graph.parameters}
        unused = {p.value for p in graph.parameters if p.label in network.unused}
        # As in the summary, a parameter counts for the first operation that reads it.
        self.sizes: dict[Operation, int] = {}
        pending = {value: size for value, size in sizes.items() if value not in unused}
        for operation in graph.operations:
            self.sizes[operation] = sum(pending.pop(value, 0) for value in operation.reads())
        self.bytes = _BYTES
        parameters = [
            {
                "label": _cut(p.label),
                "tensor": self._tensor(p.value),
                "unused": p.value in unused,
                **self._values(arrays(p.label)),
            }
            for p in graph.parameters
        ]
        self._add("group", "", None, by="root", label=_cut(graph.name))
        for parent, value in self._beside("inputs", graph.inputs):
            self._port("input", value.name, parent, writes=value)
        for parent, state in self._beside("states", graph.states):
            node = self._port("state", state.value.name, parent, writes=state.value)
            node |= {"label": _cut(state.label), "update": self._tensor(state.update)}
        self._members(tree_of(graph), 0)
        outputs = [*zip(graph.output_names, graph.outputs, strict=True)]
        for parent, (name, value) in self._beside("outputs", outputs):
            self._port("output", name, parent, reads=value)
        totals = _summed(self.nodes)
        spare = sum(sizes[value] for value in unused)
        self.data = {
            "name": _cut(graph.name),
            "file": _file(graph),
            "dialect": network.frontend.dialect,
            "totals": {
                **totals,
                "unused_parameters": spare,
                "state": _known(sum(volume(s.value.type.shape) for s in graph.states)),
                "open_extents": not all(is_known(value.type.shape) for value in graph.inputs),
            },
            "coloured_by": [x for x in ("seconds", "error") if x in self.nodes[0]],
            "trimmed": self.details < 0,
            "tensors": self.tensors,
            "parameters": parameters,
            "nodes": self.nodes,
            "open": _opened(self.nodes),
        }

    def _values(self, array: Any) -> dict[str, Any]:
        """Return statistics of an array, and where it is small a .npy file of it, as base64."""
        if array is None:
            return {"statistics": None}
        found: dict[str, Any] = {"statistics": statistics_of(array)}
        if found["statistics"]["count"] <= min(VALUES, self.bytes // 16):
            known = np.asarray(array)
            known = known if known.dtype.kind in "biufc" else known.astype(np.float32)
            file = io.BytesIO()
            np.save(file, np.asarray(known, order="C"), allow_pickle=False)
            self.bytes -= known.nbytes
            found["npy"] = base64.b64encode(file.getvalue()).decode()
        return found

    def _beside(self, what: str, ports: Sequence[_T]) -> Iterator[tuple[int, _T]]:
        """Yield ports with the groups that they are in: the root, or where there are many others.

        A group of groups has each in turn, since a parent comes before its members.
        """
        if len(ports) <= _PORTS:
            yield from ((0, port) for port in ports)
            return
        whole = parent = len(self.nodes)
        self._add("group", what, 0, by="ports", label=f"{len(ports):,} {what}")
        for index, port in enumerate(ports):
            if len(ports) > MOST and index % MOST == 0:
                label = f"{index:,} … {min(index + MOST, len(ports)) - 1:,}"
                parent = len(self.nodes)
                self._add("group", f"{what}/{index}", whole, by="ports", label=label)
            yield parent, port

    def _add(self, type: str, name: str, parent: int | None, **fields: Any) -> dict[str, Any]:
        node = {"type": type, "name": _cut(name), "parent": parent, **fields}
        self.nodes.append(node)
        return node

    def _port(
        self,
        type: str,
        name: str,
        parent: int,
        *,
        reads: Value | None = None,
        writes: Value | None = None,
    ) -> dict[str, Any]:
        return self._add(
            type,
            name,
            parent,
            reads=[] if reads is None else [["", self._tensor(reads)]],
            writes=[] if writes is None else [self._tensor(writes)],
        )

    def _members(self, group: Group, parent: int) -> None:
        for member in group.members:
            if isinstance(member, Operation):
                self._operation(member, parent)
            elif len(member.members) == 1 and isinstance(member.members[0], Operation):
                self._operation(member.members[0], parent)["module"] = _cut(member.module)
            else:
                index = len(self.nodes)
                outer = self.nodes[parent]["name"] if parent else ""
                path = f"{outer}/{member.label}" if outer else member.label
                node = self._add("group", path, parent, by=member.by, label=_cut(member.label))
                if member.repeats:
                    node["repeats"] = member.repeats
                if member.by == "operation":  # it looks like the operation that the others serve
                    main = member.members[-1]
                    assert isinstance(main, Operation)
                    node |= {"kind": main.kind, "family": _FAMILY_OF.get(main.kind, "other")}
                    node |= {"module": _cut(member.module)} if member.module else {}
                self._members(member, index)

    def _operation(self, operation: Operation, parent: int) -> dict[str, Any]:
        index = len(self.nodes)
        node = self._add(
            "operation",
            operation.name,
            parent,
            kind=_cut(operation.kind),
            family="other" if operation.rule else _FAMILY_OF.get(operation.kind, "other"),
            reads=[list(x) for name, y in operation.operands for x in self._operands(name, y)],
            writes=[self._tensor(value) for value in operation.writes()],
            multiply_adds=multiply_adds(operation),
            parameters=self.sizes.get(operation, 0),
        )
        self._describe(node, operation)
        for value in operation.writes():
            if fields := self.fields.get(value.name):
                node |= fields
        body = next((x for _, x in operation.attributes if isinstance(x, Graph)), None)
        if body is not None:
            self._body(operation, body, index)
        return node

    def _operands(self, name: str, operand: Operand) -> Iterator[tuple[str, int | str]]:
        if isinstance(operand, Value):
            yield name, self._tensor(operand)
        elif isinstance(operand, tuple):
            for index, item in enumerate(operand):
                yield from self._operands(f"{name}[{index}]", item)
        else:
            yield name, _shown(operand)

    def _describe(self, node: dict[str, Any], operation: Operation) -> None:
        """Add attributes, place and line of the document, while there is room for them."""
        if self.details < 0:
            return
        node["attributes"] = [
            [name, _shown(value)]
            for name, value in operation.attributes
            if not isinstance(value, Graph)
        ]
        if operation.span is not None:
            node["place"], node["text"] = _place(operation.span)
        node["calls"] = [_cut(call.fragment) for call in operation.calls]
        self.details -= sum(len(str(node.get(x, ""))) for x in ("attributes", "text", "calls"))

    def _body(self, operation: Operation, body: Graph, parent: int) -> None:
        """Add the graph that an operation repeats: its ports stand for what goes in and out."""
        outside = list(operation.reads())
        initial = dict(operation.operands).get("initial", ())
        states = len(initial) if isinstance(initial, tuple) else 0
        first = len(body.inputs) - states
        for index, value in enumerate(body.inputs):
            given = outside[index] if index < len(outside) else None
            node = self._port("input", value.name, parent, reads=given, writes=value)
            if index >= first:
                node |= {"type": "state", "label": _cut(value.name)}
                node["update"] = self._tensor(body.outputs[index - first])
        self._members(tree_of(body), parent)
        results = list(operation.writes())
        for value, result in zip(body.outputs[states:], results, strict=False):
            self._port("output", result.name, parent, reads=value, writes=result)

    def _tensor(self, value: Value) -> int:
        if value not in self.numbers:
            self.numbers[value] = len(self.tensors)
            extents = [None if extent is UNKNOWN else extent for extent in value.type.shape]
            name, dtype = _cut(value.name), value.type.dtype
            shape = None if dtype == UNTYPED.dtype else extents
            self.tensors.append({"name": name, "shape": shape, "dtype": dtype})
        return self.numbers[value]


def _summed(nodes: list[dict[str, Any]]) -> dict[str, int]:
    """Give each group the sums of what is in it, and return those of the whole."""
    for node in nodes:
        if node["type"] == "group":
            node |= {"operations": 0, "multiply_adds": 0, "parameters": 0}
    for node in reversed(nodes):
        # What an operation repeats is counted with it.
        group = None if node["parent"] is None else nodes[node["parent"]]
        if group is not None and group["type"] == "group" and node["type"] in _COUNTED:
            group["operations"] += node.get("operations", 1)
            group["multiply_adds"] += node["multiply_adds"]
            group["parameters"] += node["parameters"]
            for field, join in (("seconds", sum), ("error", max)):
                if field in node:
                    group[field] = join((group.get(field, 0.0), node[field]))
    return {x: nodes[0][x] for x in ("operations", "parameters", "multiply_adds")}


_COUNTED = ("group", "operation")


def _opened(nodes: list[dict[str, Any]]) -> list[int]:
    """Return the groups that are open at first: level by level, while there is room for all."""
    members: dict[int, list[int]] = {}
    for index, node in enumerate(nodes[1:], 1):
        members.setdefault(node["parent"], []).append(index)
    opened: list[int] = []
    shown = len(members.get(0, ()))
    level = [x for x in members.get(0, ()) if _opens(nodes[x])]
    while level:
        more = sum(len(members[x]) for x in level)
        if shown + more > (OPEN if shown >= _FEW else MOST + _FEW):
            break
        opened += level
        shown += more
        level = [x for y in level for x in members[y] if _opens(nodes[x])]
    return opened


def _opens(node: dict[str, Any]) -> bool:
    return node["type"] == "group" and node["by"] not in ("operation", "call", "ports")


def _file(graph: Graph) -> str:
    """Return the name of the folder or archive that a network was read from."""
    span = next((x.span for x in graph.operations if x.span is not None), None)
    parts = span.source.name.replace("\\", "/").split("/") if span is not None else []
    return _cut(parts[-2]) if len(parts) > 1 else ""


def _place(span: Span) -> tuple[str, str]:
    line, _ = span.source.position(span.offset)
    file = span.source.name.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{_cut(file)}:{line}", _cut(span.source.line(line).strip(), _TEXT)


def _shown(value: Any) -> str:
    """Return an attribute or a literal as the document would have it, cut where it is long."""
    return _cut(_literal(value), _TEXT)


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        items = [_literal(item) for item in value[:_ITEMS]]
        return f"[{', '.join(items + ['…'] * (len(value) > _ITEMS))}]"
    if isinstance(value, str):
        return f"'{value[:_TEXT]}'"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _cut(text: str, most: int = _NAME) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _known(count: int) -> int | None:
    return None if count is UNKNOWN else count
