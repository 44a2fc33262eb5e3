"""Port maps, which connect the ports of a layer to the layers of its bodies.

Before version 10, a map refers to ports of the body's layers. Since version 10, it refers to
Parameter and Result layers of the body. A line of the map may have an `axis`. A line for an input
then cuts the input along this axis into one part for each iteration. A line for an output joins the
results of the iterations along the axis. If the parts run from -1 to 0 with stride -1, the first
part is at the end of the axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowering.errors import InvalidOperation
from nnef_jax.formats.openvino.document import Body, NetLayer, PortRef


@dataclass(slots=True, eq=False)
class Link:
    """A line of a port map. It connects a port of a layer to a port in the body of the layer.

    `port` is the id of the layer's port, or -1 if the line has none. `end` is the port in the body.
    `axis`, `start`, `stop`, `stride` and `size` say how an input is cut into parts, or how results
    are joined.
    """

    port: int
    end: PortRef
    axis: int | None
    start: int
    stop: int
    stride: int
    size: int
    purpose: str


def links(body: Body, *, inputs: bool) -> list[Link]:
    """Return the lines of a body's port map: for inputs if `inputs` is true, else for outputs."""
    selected: list[Link] = []
    for line in body.port_map:
        if line.is_input == inputs:
            selected.append(_link(body, line.attributes))
    return selected


def _link(body: Body, attributes: Mapping[str, str]) -> Link:
    """Read a line of a body's port map from the attributes of the line's element."""
    layer = body.net.by_id.get(_number(attributes, "internal_layer_id"))
    if layer is None:
        raise InvalidOperation(f"the body has no layer {attributes.get('internal_layer_id')}")
    port = _number(attributes, "external_port_id", -1)
    inner_port = _number(attributes, "internal_port_id", _first_port(layer))
    axis = _number(attributes, "axis") if "axis" in attributes else None
    return Link(
        port,
        end=(layer.id, inner_port),
        axis=axis,
        start=_number(attributes, "start", 0),
        stop=_number(attributes, "end", -1),
        stride=_number(attributes, "stride", 1),
        size=_number(attributes, "part_size", 1),
        purpose=attributes.get("purpose", ""),
    )


def _number(attributes: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return the attribute `name` as an integer. Without a default, the attribute is required."""
    text = attributes.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise InvalidOperation(f"'{name}' of a port map must be a whole number") from None


def _first_port(layer: NetLayer) -> int:
    """Return the id of a layer's first input, or of its first output if the layer is a Parameter.

    Return 0 if there is no such port.
    """
    ports = layer.outputs if layer.kind == "parameter" else layer.inputs
    return ports[0].id if ports else 0


def back_edges(body: Body) -> dict[PortRef, PortRef]:
    """Return the back edges of a body as a dict.

    The dict maps a port that reads a state to the port that computes the state for the next
    iteration.
    """
    layers = body.net.by_id
    edges: dict[PortRef, PortRef] = {}
    for source, target in body.back_edges:
        source_id, _ = source
        target_id, _ = target
        if source_id not in layers or target_id not in layers:
            raise InvalidOperation("a back edge leads from or to a missing layer")
        if body.net.is_legacy:
            edges[target] = source
        else:
            # A back edge has no ids of ports, since Parameter and Result layers have one port.
            target_port = _first_port(layers[target_id])
            source_port = _first_port(layers[source_id])
            edges[target_id, target_port] = (source_id, source_port)
    return edges


def source_of(body: Body, port: PortRef) -> PortRef:
    """Return the output port that computes the value of `port`, a port of a layer in the body.

    For a port of a Result layer, return the output port that the layer reads. For a port of any
    other layer, return `port` itself.
    """
    layer_id, _ = port
    is_result = body.net.by_id[layer_id].kind == "result"
    return body.net.sources.get(port, port) if is_result else port
