"""Bodies that are repeated or chosen: TensorIterator, Loop and If.

A port map connects ports of the layer with layers of the body: before version 10 with their ports,
since then with Parameter and Result layers. With `axis` a tensor is cut along it, a part an
iteration, or results are joined along it; from -1 to 0 by -1 is from the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN
from lowering.graph import Graph, TensorType, Value
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.document import Body, End, Layer
from nnef_jax.formats.openvino.flat_graph import FlatGraph
from nnef_jax.formats.openvino.layers import everywhere, opsets
from nnef_jax.formats.openvino.site import Site, Tensor


@dataclass(slots=True, eq=False)
class _Link:
    """A line of a port map: the layer's port (-1 for none), the end in the body, how it is cut."""

    port: int
    end: End
    axis: int | None
    start: int
    stop: int
    stride: int
    size: int
    purpose: str


def _links(site: Site, body: Body, *, inputs: bool) -> list[_Link]:
    by_id = {layer.id: layer for layer in body.net.layers}
    found: list[_Link] = []
    for is_input, given in body.ports:
        if is_input != inputs:
            continue

        def number(name: str, default: int | None = None, given: Mapping[str, str] = given) -> int:
            text = given.get(name)
            if text is None and default is not None:
                return default
            try:
                return int(text or "")
            except ValueError:
                raise InvalidOperation(f"a port map has no whole number for '{name}'") from None

        layer = by_id.get(number("internal_layer_id"))
        if layer is None:
            raise InvalidOperation(f"the body has no layer {given.get('internal_layer_id')}")
        end = (layer.id, number("internal_port_id", _port_of(layer)))
        axis = number("axis", -(1 << 20))
        found.append(
            _Link(
                number("external_port_id", -1), end, None if axis == -(1 << 20) else axis,
                number("start", 0), number("end", -1), number("stride", 1), number("part_size", 1),
                given.get("purpose", ""),
            )
        )  # fmt: skip
    return found


def _port_of(layer: Layer) -> int:
    ports = layer.outputs if layer.kind == "parameter" else layer.inputs
    return ports[0].id if ports else 0


def _back(body: Body) -> dict[End, End]:
    """Return the ends that take a value for the next iteration, with those that give it."""
    by_id = {layer.id: layer for layer in body.net.layers}
    found: dict[End, End] = {}
    for source, target in body.back:
        if source[0] not in by_id or target[0] not in by_id:
            raise InvalidOperation("a back edge leads from or to a layer that there is not")
        ends = [
            end if body.net.is_legacy else (end[0], _port_of(by_id[end[0]]))
            for end in (source, target)
        ]
        found[ends[1]] = ends[0]
    return found


def _source(body: Body, end: End) -> End:
    """Return the output port whose value an end of the body has: a Result's is what it reads."""
    layer = next(layer for layer in body.net.layers if layer.id == end[0])
    return body.net.feeds.get(end, end) if layer.kind == "result" else end


@everywhere("TensorIterator")
def _tensor_iterator(site: Site) -> list[Any]:
    return _repeated(site, site.layer.bodies["body"], None)


@opsets("Loop")
def _loop(site: Site) -> list[Any]:
    """Repeat as often as input 0 says; the condition must stay true, and be known to."""
    body = site.layer.bodies["body"]
    count = site.operand(0)
    started = site.operand(1) if site.has(1) else None
    if isinstance(started, Constant) and not started.array.any():
        raise InvalidOperation("it does not run at all, which is not supported")
    turns = int(count.array.reshape(-1)[0]) if isinstance(count, Constant) else -1
    conditions = [x for x in _links(site, body, inputs=False) if x.purpose == "execution_condition"]
    for link in conditions:
        end = _source(body, link.end)
        layer = next(layer for layer in body.net.layers if layer.id == end[0])
        if layer.kind not in ("const", "constant", "parameter"):
            raise InvalidOperation(
                "it ends by a condition that is computed, which is not supported"
            )
    return _repeated(site, body, turns)


def _repeated(site: Site, body: Body, turns: int | None) -> list[Any]:
    """Add a scan over the parts of cut inputs, or over a count of turns."""
    inputs, outputs = _links(site, body, inputs=True), _links(site, body, inputs=False)
    back = _back(body)
    ports = [port.id for port in site.layer.inputs]

    def outer(link: _Link) -> Tensor:
        if link.port not in ports:
            raise InvalidOperation(f"it has no input port {link.port}")
        return site.operand(ports.index(link.port))

    cut = [x for x in inputs if x.axis is not None]
    turn = [x for x in inputs if x.purpose == "current_iteration" or x.port < 0]
    turn += [x for x in inputs if x.purpose == "current_iteration" and x not in turn]
    states = [x for x in inputs if x.axis is None and x.end in back and x not in turn]
    whole = [x for x in inputs if x not in (*cut, *turn, *states)]
    graph = site.graph.body()
    feeds: dict[End, Tensor] = {}
    scanned: list[Tensor] = []
    axes: list[int] = []
    chunks: list[int] = []
    heads: list[Value] = []

    def enter(value: Value, shape: Sequence[int], name: str) -> Value:
        return graph.builder.input(name, TensorType(tuple(shape), value.type.dtype))

    for i, link in enumerate(cut):
        value, sign, axis = _cut(site, site.tensor(outer(link)), link)
        shape = list(value.type.shape)
        shape[axis] = link.size
        heads.append(enter(value, shape, f"part_{i}"))
        feeds[link.end] = heads[-1]
        scanned.append(value)
        axes.append(axis)
        chunks.append(sign * link.size)
    if not cut or turn:
        if turns is None or turns < 0:
            turns = _count(site, scanned, axes, chunks)
        numbers = Constant(np.arange(turns, dtype=np.int64), "i64", derived=True)
        value = site.tensor(numbers)
        head = enter(value, (1,), "turn")
        heads.append(head)
        scanned.append(value)
        axes.append(0)
        chunks.append(1)
        for link in turn:
            layer = next(layer for layer in body.net.layers if layer.id == link.end[0])
            rank = len(layer.outputs[0].shape or ())
            inner = replace(site, graph=graph)
            feeds[link.end] = head if rank else inner.insert("squeeze", {"input": head}, axes=(0,))
    full: list[Value] = []
    held: list[Value] = []
    for i, link in enumerate(whole):
        value = outer(link)
        if isinstance(value, Constant):
            feeds[link.end] = value
            continue
        full.append(value)
        held.append(enter(value, value.type.shape, f"full_{i}"))
        feeds[link.end] = held[-1]
    initial = [site.tensor(outer(link)) for link in states]
    before = [enter(v, v.type.shape, f"state_{i}") for i, v in enumerate(initial)]
    feeds.update({link.end: value for link, value in zip(states, before, strict=True)})
    nexts = [_source(body, back[link.end]) for link in states]
    shown = [x for x in outputs if x.port >= 0]
    ends = [_source(body, link.end) for link in shown]
    found = site.flatten(body, graph, feeds, [*nexts, *ends], site.layer.name)
    inner = replace(site, graph=graph)
    after = [_as(inner, found[end], b.type) for end, b in zip(nexts, before, strict=True)]
    values = [inner.tensor(found[end]) for end in ends]
    how = [
        ("last", 0, 1) if x.axis is None
        else ("full", x.axis % max(len(v.type.shape), 1), -1 if x.stride < 0 else 1)
        for x, v in zip(shown, values, strict=True)
    ]  # fmt: skip
    captured = [*graph.captured.items()]
    order = [*heads, *held, *(i for i, _ in captured), *before]
    flat = _graph(graph, order, [*after, *values])
    operands = {
        "scanned": scanned, "full": [*full, *(o for _, o in captured)], "initial": initial,
    }  # fmt: skip
    attributes: dict[str, Any] = {
        "body": flat, "axes": tuple(axes), "chunks": tuple(chunks), "outputs": tuple(how),
        "skip": 0,
    }  # fmt: skip
    made = site.insert("scan", operands, **attributes)
    made = made if isinstance(made, list) else [made]
    by_port = dict(zip((x.port for x in shown), made, strict=True))
    return [by_port.get(port.id) for port in site.layer.outputs]


def _graph(graph: FlatGraph, inputs: Sequence[Value], outputs: Sequence[Value]) -> Graph:
    names = [f"{i}_{value.name}" for i, value in enumerate(outputs)]
    return graph.builder.graph("body", outputs, names, [value.name for value in inputs])


def _as(site: Site, found: Tensor, type: TensorType) -> Value:
    value = site.tensor(found)
    return site.cast(value, type.dtype)


def _cut(site: Site, value: Value, link: _Link) -> tuple[Value, int, int]:
    """Return what is cut, which way, and along which axis."""
    axis = site.axis(link.axis or 0, len(value.type.shape))
    extent = value.type.shape[axis]
    if abs(link.stride) != link.size:
        raise InvalidOperation("parts that overlap, or leave items out, are not supported")
    sign = 1 if link.stride > 0 else -1
    if extent is UNKNOWN:
        extent = site.known_shape(value)[axis]
    first, last = (x + extent + 1 if x < 0 else x for x in (link.start, link.stop))
    low, high = (first, last) if sign > 0 else (last, first)
    if (low, high) != (0, extent):
        value = site.insert(
            "slice", {"input": value}, axes=(axis,), begin=(low,), end=(high,), stride=(1,)
        )
    return value, sign, axis


def _count(
    site: Site, scanned: Sequence[Tensor], axes: Sequence[int], chunks: Sequence[int]
) -> int:
    if not scanned:
        raise InvalidOperation(
            "how often it runs is computed by the network, which is not supported"
        )
    return -(-site.known_shape(scanned[0])[axes[0]] // abs(chunks[0]))


@opsets("If")
def _if(site: Site) -> list[Any]:
    """Choose one of two bodies; only the chosen one is computed."""
    condition = site.operand(0)
    ports = [port.id for port in site.layer.inputs]
    bodies = [site.layer.bodies[f"{name}_body"] for name in ("then", "else")]
    if isinstance(condition, Constant):
        return _branch_known(site, bodies[0 if condition.array.any() else 1], ports)
    operands: list[Value] = []
    graphs: list[Graph] = []
    shown: list[list[int]] = []
    places: dict[Value, int] = {}
    parts: list[tuple[FlatGraph, dict[Value, Value], list[Value]]] = []
    for body in bodies:
        graph = site.graph.body()
        feeds: dict[End, Tensor] = {}
        entered: dict[Value, Value] = {}
        for link in _links(site, body, inputs=True):
            value = site.operand(ports.index(link.port))
            if isinstance(value, Constant):
                feeds[link.end] = value
                continue
            if value not in entered:
                name = graph.builder.unreserved(f"given_{len(entered)}")
                entered[value] = graph.builder.input(name, value.type)
            feeds[link.end] = entered[value]
        outputs = _links(site, body, inputs=False)
        ends = [_source(body, link.end) for link in outputs]
        found = site.flatten(body, graph, feeds, ends, site.layer.name)
        inner = replace(site, graph=graph)
        by_port = {
            link.port: inner.tensor(found[end]) for link, end in zip(outputs, ends, strict=True)
        }
        results = [by_port[port.id] for port in site.layer.outputs]
        entered |= {outer: inner_value for inner_value, outer in graph.captured.items()}
        parts.append((graph, entered, results))
        shown.append([link.port for link in outputs])
    for _, entered, _ in parts:
        for value in entered:
            if value not in places:
                places[value] = len(operands)
                operands.append(value)
    for graph, entered, results in parts:
        order = [
            entered.get(value)
            or graph.builder.input(graph.builder.unreserved(f"unread_{i}"), value.type)
            for i, value in enumerate(operands)
        ]
        graphs.append(_graph(graph, order, results))
    truth = site.tensor(condition)
    if truth.type.dtype != "bool":
        truth = site.insert("ne", {"x": truth, "y": 0})
    made = site.insert(
        "branch",
        {"condition": truth, "operands": operands},
        then_body=graphs[0],
        else_body=graphs[1],
    )
    return made if isinstance(made, list) else [made]


def _branch_known(site: Site, body: Body, ports: Sequence[int]) -> list[Any]:
    feeds = {
        link.end: site.operand(ports.index(link.port)) for link in _links(site, body, inputs=True)
    }
    outputs = _links(site, body, inputs=False)
    ends = [_source(body, link.end) for link in outputs]
    found = site.flatten(body, site.graph, feeds, ends, site.layer.name)
    by_port = {link.port: found[end] for link, end in zip(outputs, ends, strict=True)}
    return [by_port[port.id] for port in site.layer.outputs]
