"""Port maps: how a layer's ports are connected with the layers of its bodies.

Before version 10 they name ports of body layers, since then Parameter and Result layers. With
`axis` a tensor is cut along it, a part an iteration, or results are joined along it; from -1 to 0
by -1 is from the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowering.errors import InvalidOperation
from nnef_jax.formats.openvino.document import Body, End, NetLayer


@dataclass(slots=True, eq=False)
class Link:
    """A line of a port map: the layer's port (-1 for none), the end in the body, how it is cut."""

    port: int
    end: End
    axis: int | None
    start: int
    stop: int
    stride: int
    size: int
    purpose: str


def links(body: Body, *, inputs: bool) -> list[Link]:
    """Return the lines of a port map for the inputs, or for the outputs, of a body."""
    return [_link(body, given) for is_input, given in body.ports if is_input == inputs]


def _link(body: Body, given: Mapping[str, str]) -> Link:
    layer = body.net.by_id.get(_number(given, "internal_layer_id"))
    if layer is None:
        raise InvalidOperation(f"the body has no layer {given.get('internal_layer_id')}")
    return Link(
        _number(given, "external_port_id", -1),
        (layer.id, _number(given, "internal_port_id", _port_of(layer))),
        _number(given, "axis") if "axis" in given else None,
        _number(given, "start", 0),
        _number(given, "end", -1),
        _number(given, "stride", 1),
        _number(given, "part_size", 1),
        given.get("purpose", ""),
    )


def _number(given: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = given.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise InvalidOperation(f"a port map has no whole number for '{name}'") from None


def _port_of(layer: NetLayer) -> int:
    ports = layer.outputs if layer.kind == "parameter" else layer.inputs
    return ports[0].id if ports else 0


def back_edges(body: Body) -> dict[End, End]:
    """Return the ends that take a value for the next iteration, with those that give it."""
    by_id = body.net.by_id
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


def source_of(body: Body, end: End) -> End:
    """Return the output port whose value an end of the body has: a Result's is what it reads."""
    return body.net.feeds.get(end, end) if body.net.by_id[end[0]].kind == "result" else end
