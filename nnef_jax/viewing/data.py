"""Makes the data of the page: a network as an object for JSON, of bounded size."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from lowering import multiply_adds
from lowering.extents import UNKNOWN, is_known, volume, with_ones
from lowering.graph import UNTYPED, Graph, Operand, Operation, Value
from lowering.location import Span
from lowering.ops import FAMILIES
from nnef_jax.garbage import uncollected
from nnef_jax.measure.array_statistics import statistics_of
from nnef_jax.reading.network import Network
from nnef_jax.viewing.measures import Fields
from nnef_jax.viewing.operation_tree import MOST, Group, tree_of

# When the page appears, it shows at most 36 boxes. With fewer than 5 boxes, one more level of
# groups may be opened beyond this limit (see `_initially_open`).
_MOST_INITIAL_BOXES = 36
_FEW_BOXES = 5
_LONGEST_NAME = 300  # A name has at most this many characters.
_LONGEST_TEXT = 400  # An attribute, or a line of the document, has at most this many characters.
_MOST_LIST_ITEMS = 24  # An attribute that is a list is shown with at most this many items.
# All attributes and all lines of the document together have about this many characters at most.
_MOST_DETAIL_CHARACTERS = 6_000_000
# At most this many inputs, states or outputs are side by side. More than 24 are put into a group.
_MOST_PORTS = 24
# If an array has at most this many items, the page contains the array. If it has more items, the
# page contains only its statistics.
VALUES = 16_384
_MOST_ARRAY_BYTES = 2_000_000  # All arrays in the page together have at most this many bytes.
_LARGEST_ITEM_BYTES = 16  # An item of an array has at most this many bytes.

_T = TypeVar("_T")
ArrayOf = Callable[[str], ArrayLike | None]  # The function maps a label to an array.
_Node = dict[str, Any]  # This is an object in the page's JSON.

# The keys are colours. The values are the families of operations whose boxes have the colour. Only
# a few colours are used, because many could not be distinguished.
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
_FAMILY_OF: dict[str, str] = {}  # The key is a kind of operation, and the value is its colour.
for _colour, _families in _COLOURS.items():
    for _family in _families:
        _FAMILY_OF.update(dict.fromkeys(FAMILIES[_family], _colour))


def page_data(
    network: Network,
    arrays: ArrayOf = lambda _: None,
    fields: Mapping[str, Fields] | None = None,
) -> dict[str, Any]:
    """Return a network as an object for JSON. docs/view.md describes the object.

    Args:
        network: the network.
        arrays: a function from the label of a parameter to its array, or to None if the array
            cannot be read. The page has statistics of the arrays.
        fields: maps the name of a tensor to measured fields, such as "seconds". They are added to
            the node of the operation that computes the tensor.
    """
    with uncollected():
        return _Page(network, arrays, fields or {}).data


class _Page:
    """The object for JSON while it is built. `data` is the complete object."""

    def __init__(
        self,
        network: Network,
        arrays: ArrayOf,
        fields: Mapping[str, Fields],
    ) -> None:
        graph = network.graph
        self.nodes: list[_Node] = []
        self.tensors: list[dict[str, Any]] = []
        self.tensor_indices: dict[Value, int] = {}
        # This many characters, and this many bytes of arrays, may still be added to the page.
        self.remaining_characters = _MOST_DETAIL_CHARACTERS
        self.remaining_bytes = _MOST_ARRAY_BYTES
        self.fields = fields
        self.parameter_sizes: dict[Operation, int] = _parameter_sizes(network)
        parameters = self._parameters(network, arrays)
        self._add_nodes(graph)
        unused_items = 0
        for parameter in graph.parameters:
            if parameter.label in network.unused:
                unused_items += volume(with_ones(parameter.value.type.shape))
        state_items = sum(volume(state.value.type.shape) for state in graph.states)
        totals = {
            **_add_sums(self.nodes),
            "unused_parameters": unused_items,
            "state": _none_if_unknown(state_items),
            "open_extents": not all(is_known(value.type.shape) for value in graph.inputs),
        }
        self.data = {
            "name": _shortened(graph.name),
            "file": _file_name(graph),
            "dialect": network.frontend.dialect,
            "totals": totals,
            "coloured_by": [name for name in ("seconds", "error") if name in self.nodes[0]],
            "trimmed": self.remaining_characters < 0,
            "tensors": self.tensors,
            "parameters": parameters,
            "nodes": self.nodes,
            "open": _initially_open(self.nodes),
        }

    def _parameters(self, network: Network, arrays: ArrayOf) -> list[dict[str, Any]]:
        """Return the parameters of a network for the page, and add their tensors to the page."""
        parameters: list[dict[str, Any]] = []
        for parameter in network.graph.parameters:
            entry: dict[str, Any] = {
                "label": _shortened(parameter.label),
                "tensor": self._tensor_index(parameter.value),
                "unused": parameter.label in network.unused,
            }
            parameters.append(entry | self._array_fields(arrays(parameter.label)))
        return parameters

    def _add_nodes(self, graph: Graph) -> None:
        """Add the nodes of a graph: first the root, inputs and states, then groups with operations.

        The outputs come last.
        """
        self._add_node("group", "", parent=None, by="root", label=_shortened(graph.name))
        for parent, value in self._with_parents("inputs", graph.inputs):
            self._add_port("input", value.name, parent, writes=value)
        for parent, state in self._with_parents("states", graph.states):
            node = self._add_port("state", state.value.name, parent, writes=state.value)
            node |= {"label": _shortened(state.label), "update": self._tensor_index(state.update)}
        self._add_members(tree_of(graph), parent=0)
        outputs = [*zip(graph.output_names, graph.outputs, strict=True)]
        for parent, (name, value) in self._with_parents("outputs", outputs):
            self._add_port("output", name, parent, reads=value)

    def _array_fields(self, array: ArrayLike | None) -> dict[str, Any]:
        """Return the fields of a parameter's array: "statistics", and "npy" if the array is small.

        The field "npy" is the array as a .npy file in base64.
        """
        if array is None:
            return {"statistics": None}
        statistics = statistics_of(array)
        fields: dict[str, Any] = {"statistics": statistics}
        most_items = min(VALUES, self.remaining_bytes // _LARGEST_ITEM_BYTES)
        if statistics["count"] <= most_items:
            items = np.asarray(array)
            if items.dtype.kind not in "biufc":
                # The script in the page cannot read dtypes such as bfloat16. They become float32.
                items = items.astype(np.float32)
            file = io.BytesIO()
            np.save(file, np.asarray(items, order="C"), allow_pickle=False)
            self.remaining_bytes -= items.nbytes
            fields["npy"] = base64.b64encode(file.getvalue()).decode()
        return fields

    def _with_parents(self, group_name: str, ports: Sequence[_T]) -> Iterator[tuple[int, _T]]:
        """Yield pairs: the index of a parent node, and a port (an input, state or output).

        The parent is the root. If there are many ports, the parent is a group of ports. A group is
        added just before the first of its ports is yielded, because a parent must come before its
        members. `group_name` is "inputs", "states" or "outputs".
        """
        root = 0
        if len(ports) <= _MOST_PORTS:
            for port in ports:
                yield root, port
            return
        group = len(self.nodes)
        self._add_node("group", group_name, root, by="ports", label=f"{len(ports):,} {group_name}")
        parent = group
        needs_subgroups = len(ports) > MOST
        for index, port in enumerate(ports):
            starts_subgroup = needs_subgroups and index % MOST == 0
            if starts_subgroup:
                last = min(index + MOST, len(ports)) - 1
                label = f"{index:,} … {last:,}"
                parent = len(self.nodes)
                self._add_node("group", f"{group_name}/{index}", group, by="ports", label=label)
            yield parent, port

    def _add_node(self, type: str, name: str, parent: int | None, **fields: object) -> _Node:
        """Add a node to the page, and return the node. `parent` is the index of the parent node."""
        node = {"type": type, "name": _shortened(name), "parent": parent, **fields}
        self.nodes.append(node)
        return node

    def _add_port(
        self,
        type: str,
        name: str,
        parent: int,
        *,
        reads: Value | None = None,
        writes: Value | None = None,
    ) -> _Node:
        """Add the node of an input, state or output. The node reads or writes a tensor."""
        reads_field: list[Any] = []
        if reads is not None:
            reads_field.append(["", self._tensor_index(reads)])
        writes_field: list[int] = []
        if writes is not None:
            writes_field.append(self._tensor_index(writes))
        return self._add_node(type, name, parent, reads=reads_field, writes=writes_field)

    def _add_members(self, group: Group, parent: int) -> None:
        """Add the nodes of a group's members. `parent` is the index of the group's node."""
        for member in group.members:
            if isinstance(member, Operation):
                self._add_operation(member, parent)
                continue
            first_member = member.members[0]
            if len(member.members) == 1 and isinstance(first_member, Operation):
                # A group of a single operation is shown as the operation.
                node = self._add_operation(first_member, parent)
                node["module"] = _shortened(member.module)
                continue
            self._add_group(member, parent)

    def _add_group(self, group: Group, parent: int) -> None:
        """Add the node of a group, and the nodes of its members."""
        index = len(self.nodes)
        root = 0
        parent_path = "" if parent == root else self.nodes[parent]["name"]
        path = f"{parent_path}/{group.label}" if parent_path else group.label
        node = self._add_node("group", path, parent, by=group.by, label=_shortened(group.label))
        if group.repeats:
            node["repeats"] = group.repeats
        if group.by == "operation":
            # The last operation of the group is the main one. All others prepare its operands. The
            # box of the group looks like the box of the main operation.
            main = group.members[-1]
            assert isinstance(main, Operation)
            node["kind"] = main.kind
            node["family"] = _FAMILY_OF.get(main.kind, "other")
            if group.module:
                node["module"] = _shortened(group.module)
        self._add_members(group, index)

    def _add_operation(self, operation: Operation, parent: int) -> _Node:
        """Add the nodes of an operation and of its body, and return the operation's node."""
        index = len(self.nodes)
        family = "other" if operation.rule else _FAMILY_OF.get(operation.kind, "other")
        reads: list[list[int | str]] = []
        for name, operand in operation.operands:
            reads += map(list, self._operands(name, operand))
        writes = [self._tensor_index(value) for value in operation.writes()]
        node = self._add_node(
            "operation",
            operation.name,
            parent,
            kind=_shortened(operation.kind),
            family=family,
            reads=reads,
            writes=writes,
            multiply_adds=multiply_adds(operation),
            parameters=self.parameter_sizes.get(operation, 0),
        )
        self._describe(node, operation)
        for value in operation.writes():
            node |= self.fields.get(value.name, {})
        bodies = [value for _, value in operation.attributes if isinstance(value, Graph)]
        if bodies:
            self._add_body(operation, bodies[0], index)
        return node

    def _operands(self, name: str, operand: Operand) -> Iterator[tuple[str, int | str]]:
        """Yield a pair for an operand: its name, and either a tensor's index or a literal's text.

        A tuple of operands gives one pair for each item, with names such as "values[0]".
        """
        if isinstance(operand, Value):
            yield name, self._tensor_index(operand)
        elif isinstance(operand, tuple):
            for index, item in enumerate(operand):
                yield from self._operands(f"{name}[{index}]", item)
        else:
            yield name, _shown(operand)

    def _describe(self, node: _Node, operation: Operation) -> None:
        """Add an operation's attributes, and its place in the document, to the operation's node.

        Both are left out if the page has become too large.
        """
        if self.remaining_characters < 0:
            return
        attributes: list[list[str]] = []
        for name, value in operation.attributes:
            if not isinstance(value, Graph):
                attributes.append([name, _shown(value)])
        node["attributes"] = attributes
        if operation.span is not None:
            node["place"], node["text"] = _line_of(operation.span)
        node["calls"] = [_shortened(call.fragment) for call in operation.calls]
        for field in ("attributes", "text", "calls"):
            self.remaining_characters -= len(str(node.get(field, "")))

    def _add_body(self, operation: Operation, body: Graph, parent: int) -> None:
        """Add the nodes of an operation's body, such as the body of a loop.

        An input of the body reads an operand of the operation, and an output of the body writes a
        result of the operation. `parent` is the index of the operation's node.
        """
        operands = list(operation.reads())
        initial = dict(operation.operands).get("initial", ())
        state_count = len(initial) if isinstance(initial, tuple) else 0
        # The states of the body are its last inputs, and its first outputs.
        first_state = len(body.inputs) - state_count
        for index, value in enumerate(body.inputs):
            operand = operands[index] if index < len(operands) else None
            node = self._add_port("input", value.name, parent, reads=operand, writes=value)
            if index >= first_state:
                node["type"] = "state"
                node["label"] = _shortened(value.name)
                node["update"] = self._tensor_index(body.outputs[index - first_state])
        self._add_members(tree_of(body), parent)
        results = list(operation.writes())
        outputs_after_states = body.outputs[state_count:]
        # The body may have more outputs than the operation has results. The last outputs of the
        # body are then unused.
        for value, result in zip(outputs_after_states, results, strict=False):
            self._add_port("output", result.name, parent, reads=value, writes=result)

    def _tensor_index(self, value: Value) -> int:
        """Return the index of a tensor in the page. The tensor is added if it is not there yet."""
        if value not in self.tensor_indices:
            self.tensor_indices[value] = len(self.tensors)
            dtype = value.type.dtype
            shape = None
            if dtype != UNTYPED.dtype:
                shape = [None if extent is UNKNOWN else extent for extent in value.type.shape]
            self.tensors.append({"name": _shortened(value.name), "shape": shape, "dtype": dtype})
        return self.tensor_indices[value]


def _parameter_sizes(network: Network) -> dict[Operation, int]:
    """Return the number of parameter items for each operation.

    A parameter belongs to the first operation that reads it. Parameters that no operation reads are
    left out. The summary of a network has the same numbers.
    """
    uncounted_sizes: dict[Value, int] = {}
    for parameter in network.graph.parameters:
        if parameter.label not in network.unused:
            uncounted_sizes[parameter.value] = volume(with_ones(parameter.value.type.shape))
    sizes: dict[Operation, int] = {}
    for operation in network.graph.operations:
        # `pop` removes a parameter. Later operations then do not count the parameter again.
        sizes_of_operands = [uncounted_sizes.pop(value, 0) for value in operation.reads()]
        sizes[operation] = sum(sizes_of_operands)
    return sizes


def _add_sums(nodes: list[_Node]) -> dict[str, int]:
    """Add sums to the node of each group, and return the sums of the root.

    Four numbers are added up over the members of a group: operations, multiply-adds, parameters and
    seconds. The error of a group is the largest error of a member.
    """
    for node in nodes:
        if node["type"] == "group":
            node |= {"operations": 0, "multiply_adds": 0, "parameters": 0}
    # Members come after their group. The nodes are visited in reverse order, so the sums of a group
    # are complete before they are added to the sums of its parent.
    for node in reversed(nodes):
        if node["parent"] is None or node["type"] not in _COUNTED:
            continue
        parent = nodes[node["parent"]]
        if parent["type"] != "group":
            # The parent is an operation such as a loop, and the node is in its body. The numbers of
            # the operation include the body already.
            continue
        # Only the node of a group has the field "operations". The node of an operation adds 1.
        parent["operations"] += node.get("operations", 1)
        parent["multiply_adds"] += node["multiply_adds"]
        parent["parameters"] += node["parameters"]
        if "seconds" in node:
            parent["seconds"] = parent.get("seconds", 0.0) + node["seconds"]
        if "error" in node:
            parent["error"] = max(parent.get("error", 0.0), node["error"])
    root = nodes[0]
    return {name: root[name] for name in ("operations", "parameters", "multiply_adds")}


_COUNTED = ("group", "operation")


def _initially_open(nodes: list[_Node]) -> list[int]:
    """Return the indices of the groups that are open when the page appears.

    The groups are opened level by level. A level stays closed if the page would show too many boxes
    with it.
    """
    members: dict[int, list[int]] = {}
    for index, node in enumerate(nodes[1:], start=1):
        members.setdefault(node["parent"], []).append(index)
    open_groups: list[int] = []
    root = 0
    boxes = members.get(root, [])
    shown_count = len(boxes)
    level = [box for box in boxes if _can_open(nodes[box])]
    while level:
        inner_boxes = list(chain.from_iterable(members[group] for group in level))
        limit = _MOST_INITIAL_BOXES
        if shown_count < _FEW_BOXES:
            # A group among the few boxes may have `MOST` members. It should still be opened.
            limit = MOST + _FEW_BOXES
        if shown_count + len(inner_boxes) > limit:
            break
        open_groups += level
        shown_count += len(inner_boxes)
        level = [box for box in inner_boxes if _can_open(nodes[box])]
    return open_groups


def _can_open(node: _Node) -> bool:
    """Tell whether a node is a group that may be open when the page appears."""
    return node["type"] == "group" and node["by"] not in ("operation", "call", "ports")


def _file_name(graph: Graph) -> str:
    """Return the name of the network's folder or archive, or '' if it is unknown."""
    for operation in graph.operations:
        if operation.span is not None:
            # For the source "models/net.tgz/graph.nnef" the name is "net.tgz".
            parts = operation.span.source.name.replace("\\", "/").split("/")
            return _shortened(parts[-2]) if len(parts) > 1 else ""
    return ""


def _line_of(span: Span) -> tuple[str, str]:
    """Return two texts for a place in a document: file with line number, and the line itself."""
    source = span.source
    line_number, _column = source.position(span.offset)
    file_name = source.name.replace("\\", "/").rsplit("/", 1)[-1]
    text = source.line(line_number).strip()
    return f"{_shortened(file_name)}:{line_number}", _shortened(text, _LONGEST_TEXT)


def _shown(value: object) -> str:
    """Return an attribute or a literal in NNEF's syntax, shortened if it is long."""
    return _shortened(_literal(value), _LONGEST_TEXT)


def _literal(value: object) -> str:
    """Return an attribute or a literal in NNEF's syntax. A long list has only its first items."""
    if isinstance(value, tuple):
        items: tuple[Any, ...] = value
        texts = [_literal(item) for item in items[:_MOST_LIST_ITEMS]]
        if len(items) > _MOST_LIST_ITEMS:
            texts.append("…")
        return f"[{', '.join(texts)}]"
    if isinstance(value, str):
        return f"'{value[:_LONGEST_TEXT]}'"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _shortened(text: str, most: int = _LONGEST_NAME) -> str:
    """Cut a text to at most `most` characters. The last character of a cut text is an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _none_if_unknown(count: int) -> int | None:
    """Return a number of items, or None if the number depends on an open extent."""
    return None if count is UNKNOWN else count
