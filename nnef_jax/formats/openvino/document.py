"""Reads the layers of a network and of its bodies, and the edges between the layers.

A body is a network inside a layer, such as the body of a loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from lowering.errors import InvalidOperation
from lowering.location import Source, Span
from nnef_jax.errors import NnefError, SemanticError, UnsupportedError, raise_all
from nnef_jax.formats.openvino.element_types import element_type
from nnef_jax.formats.openvino.xml import Element
from nnef_jax.limits import COMPARISONS_PER_STEP, OPERATION_STEPS, Meter

_VISITING, _DONE = 1, 2  # states of a layer while layers are ordered
_EDGE_STEPS = 4  # the cost of an edge, counted towards `Limits.steps`
_MOST_DIGITS = 20  # a number in an attribute has at most this many digits
OLDEST, NEWEST = 2, 11  # the oldest and newest version of documents that are read
FIRST_OF_OPSETS = 10  # the first version that stores all weights in Const layers
CONSTANTS = ("const", "constant")  # types of layers that hold weights, in lower case
# Maps a layer's type, in lower case, to the word for this type in tags of version 2. For example,
# "fullyconnected" is "fc" in `<fc_data>`.
_OLD_TYPES = {
    "fullyconnected": "fc", "innerproduct": "fc", "norm": "lrn", "batchnormalization": "batch_norm",
}  # fmt: skip
_BODIES = ("body", "then_body", "else_body")  # tags of the elements that hold bodies
_LARGEST_EXTENT = 1 << 40  # the largest number of items along an axis
OPEN_RANK = "..."  # attributes have this text instead of a shape if the rank is open
# Matches an open extent that is declared by two bounds, such as 1..8. A bound may be left out.
BOUNDS = re.compile(r"(\d{0,20})\.\.(\d{0,20})")


@dataclass(slots=True, eq=False)
class Port:
    """A port of a layer, with the type that the document declares for it.

    An open extent is -1. A port without `<dim>` elements has the shape (), even if its rank is
    open.
    """

    id: int
    shape: tuple[int, ...]
    type: str  # the element type, or "" if it is not declared
    names: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Blob:
    """The position of a layer's weights in the .bin file, and the element type of the weights.

    `offset` and `size` are numbers of bytes. If `type` is "", the weights have the element type of
    the layer.
    """

    offset: int
    size: int
    type: str


@dataclass(slots=True, eq=False)
class NetLayer:
    """A layer of a network.

    `attributes` are the attributes of the layer's `<data>` element. `kind` is `type` in lower case.
    """

    id: int
    name: str
    type: str
    opset: str
    attributes: Mapping[str, str]
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    blobs: Mapping[str, Blob]
    bodies: Mapping[str, Body]
    precision: str
    span: Span
    element: Element
    kind: str = field(init=False)

    def __post_init__(self) -> None:
        self.kind = self.type.lower()

    def __str__(self) -> str:
        return f"layer '{self.name}' ({self.type})"

    def named(self, ports: Sequence[Port]) -> list[tuple[str, Port]]:
        """Pair each port with a name.

        A single port gets the name of the layer. Several ports get the name of the layer and an
        index, such as `conv.0` and `conv.1`.
        """
        if len(ports) == 1:
            return [(self.name, ports[0])]
        return [(f"{self.name}.{i}", port) for i, port in enumerate(ports)]


PortRef = tuple[int, int]  # a reference to a port: the id of the layer, and the id of the port


@dataclass(eq=False)
class Net:
    """A checked network. Each layer in `layers` comes after the layers whose results it reads."""

    name: str
    version: int
    layers: Sequence[NetLayer]
    # The edges: maps a connected input port to the output port whose result the input port reads.
    sources: Mapping[PortRef, PortRef]
    element: Element
    source: Source

    @property
    def is_legacy(self) -> bool:
        """Tell whether layers hold their weights as blobs, as in documents before version 10."""
        return self.version < FIRST_OF_OPSETS

    @cached_property
    def by_id(self) -> Mapping[int, NetLayer]:
        """Return a dict from ids to the layers."""
        return {layer.id: layer for layer in self.layers}

    def all_layers(self) -> Iterator[NetLayer]:
        """Yield all layers, including the layers of bodies."""
        for layer in self.layers:
            yield layer
            for body in layer.bodies.values():
                yield from body.net.all_layers()

    @cached_property
    def read(self) -> frozenset[PortRef]:
        """Return the output ports that are connected to an input port."""
        return frozenset(self.sources.values())


class PortLine(NamedTuple):
    """A line of the port map of a body. The line connects a port of the outer layer to the body.

    `is_input` tells whether the port is an input port of the outer layer. `attributes` are the
    attributes of the line's element.
    """

    is_input: bool
    attributes: Mapping[str, str]


@dataclass(slots=True, eq=False)
class Body:
    """A network inside a layer, with its port map and its back edges.

    A back edge is a pair of ports. The first port computes a state. The second port reads the state
    in the next iteration.
    """

    net: Net
    port_map: Sequence[PortLine]
    back_edges: Sequence[tuple[PortRef, PortRef]]


def read_net(root: Element, source: Source, meter: Meter) -> Net:
    """Read the network of a document and check it. `root` is the document's root element.

    Raises NnefError, which lists all errors.
    """
    if root.tag != "net":
        raise SemanticError(
            f"the root element must be <net>, it is <{root.tag}>",
            span=root.span(source),
            hint="a network of OpenVINO is an .xml with <net> and a .bin beside it",
        )
    try:
        version = whole_number(root.attributes, "version", 0)
    except InvalidOperation as error:
        raise SemanticError(error.message, span=root.span(source)) from None
    if not OLDEST <= version <= NEWEST:
        raise UnsupportedError(
            f"the network has version {version}, versions {OLDEST} to {NEWEST} are supported",
            span=root.span(source),
        )
    return _NetReader(source, meter, version).net(root)


@dataclass(slots=True)
class _NetReader:
    source: Source
    meter: Meter
    version: int
    errors: list[NnefError] = field(default_factory=list[NnefError])

    def net(self, element: Element) -> Net:
        """Read the network in an element and check it. Raises NnefError, which lists all errors."""
        layers: list[NetLayer] = []
        for child in element.below("layers"):
            if child.tag == "layer":
                layers.append(self._layer(child))
        raise_all(self.errors)
        if not layers:
            raise SemanticError("the network has no layers", span=element.span(self.source))
        by_id: dict[int, NetLayer] = {}
        for layer in layers:
            first_with_id = by_id.setdefault(layer.id, layer)
            if first_with_id is not layer:
                message = f"layers '{first_with_id.name}' and '{layer.name}' have the same id"
                self._error(message, layer.element)
        sources: dict[PortRef, PortRef] = {}
        for edge in element.below("edges"):
            self.meter.spend(_EDGE_STEPS, self.source.name)
            self._edge(edge, by_id, sources)
        raise_all(self.errors)
        ordered = list(self._ordered(layers, by_id, sources))
        name = element.attributes.get("name", "network")
        return Net(name, self.version, ordered, sources, element, self.source)

    def _error(self, message: str, element: Element, hint: str = "") -> None:
        """Add an error to `errors`, located at an element of the document."""
        self.errors.append(SemanticError(message, span=element.span(self.source), hint=hint))

    def _layer(self, element: Element) -> NetLayer:
        """Read a layer. Errors are added to `errors`, and the parts with errors are left empty."""
        self.meter.spend(OPERATION_STEPS, self.source.name)
        name = element.attributes.get("name", "")
        type = element.attributes.get("type", "")
        id = -1
        precision = ""
        inputs: list[Port] = []
        outputs: list[Port] = []
        blobs: Mapping[str, Blob] = {}
        try:
            if not type:
                raise InvalidOperation("a layer has no type")
            id = whole_number(element.attributes, "id")
            if element.attributes.get("precision") != "UNSPECIFIED":
                precision = _type(element.attributes)
            inputs = self._ports(element, "input")
            outputs = self._ports(element, "output")
            ids = [port.id for port in (*inputs, *outputs)]
            if len(ids) != len(set(ids)):
                raise InvalidOperation("two ports of the layer have the same id")
            blobs = _blobs(element)
        except InvalidOperation as error:
            message = f"layer '{name}' ({type or 'of no type'}): {error.message}"
            self._error(message, element, error.hint)
        bodies = {tag: self._body(element, tag) for tag in _BODIES if element.child(tag)}
        for body in bodies.values():
            # The meter counts the later comparisons of each line with all other lines and with all
            # ports.
            count = len(body.port_map) + len(inputs) + len(outputs)
            self.meter.spend(count**2 // COMPARISONS_PER_STEP, self.source.name)
        return NetLayer(
            id,
            name or f"{type.lower()}_{id}",
            type,
            opset=element.attributes.get("version", ""),
            attributes=_data(element, type).attributes,
            inputs=sorted(inputs, key=lambda port: port.id),
            outputs=sorted(outputs, key=lambda port: port.id),
            blobs=blobs,
            bodies=bodies,
            precision=precision,
            span=element.span(self.source),
            element=element,
        )

    def _ports(self, layer: Element, tag: str) -> list[Port]:
        """Read the ports in the child `<tag>` of a layer's element."""
        return [self._port(child) for child in layer.below(tag) if child.tag == "port"]

    def _port(self, element: Element) -> Port:
        """Read a port. Raises InvalidOperation if `element` does not describe a port."""
        shape = tuple(map(_extent, element.dims))
        names = _names(element.attributes.get("names", ""))
        id = whole_number(element.attributes, "id")
        return Port(id, shape, _type(element.attributes), names)

    def _body(self, layer: Element, tag: str) -> Body:
        """Read the body in the child `<tag>` of a layer's element, with its port map."""
        body = layer.child(tag)
        assert body is not None
        prefix = tag.removesuffix("body")  # "then_" for the tag "then_body", or "" for "body"
        net = _NetReader(self.source, self.meter, self.version).net(body)
        port_map: list[PortLine] = []
        for line in layer.below(f"{prefix}port_map", "port_map"):
            is_input = line.tag == "input"
            port_map.append(PortLine(is_input, line.attributes))
        back_edges: list[tuple[PortRef, PortRef]] = []
        for edge in layer.below("back_edges"):
            try:
                back_edges.append((_edge_end(edge, "from"), _edge_end(edge, "to")))
            except InvalidOperation as error:
                self._error(error.message, edge)
        return Body(net, port_map, back_edges)

    def _edge(
        self, edge: Element, layers: Mapping[int, NetLayer], sources: dict[PortRef, PortRef]
    ) -> None:
        """Add an edge to `sources`, which maps input ports to the output ports that they read.

        `layers` maps ids to layers. An error is noted if a port of the edge does not exist, or if
        the input port is already connected to another output port.
        """
        try:
            start = _edge_end(edge, "from")
            end = _edge_end(edge, "to")
            self._require_port(start, layers, "outputs")
            self._require_port(end, layers, "inputs")
            if sources.setdefault(end, start) != start:
                layer_id, port_id = end
                name = layers[layer_id].name
                raise InvalidOperation(f"two edges lead to port {port_id} of '{name}'")
        except InvalidOperation as error:
            self._error(error.message, edge)

    def _require_port(
        self, reference: PortRef, layers: Mapping[int, NetLayer], direction: str
    ) -> None:
        """Raise InvalidOperation if no layer has the port `reference`.

        `direction` is "inputs" or "outputs".
        """
        layer_id, port_id = reference
        if layer_id not in layers:
            raise InvalidOperation(f"there is no layer with the id {layer_id}")
        layer = layers[layer_id]
        ports = layer.inputs if direction == "inputs" else layer.outputs
        self.meter.spend(len(ports) // COMPARISONS_PER_STEP, self.source.name)
        if all(port.id != port_id for port in ports):
            message = f"there is no port {port_id} among {direction} of '{layer.name}'"
            raise InvalidOperation(message)

    def _ordered(
        self,
        layers: Sequence[NetLayer],
        by_id: Mapping[int, NetLayer],
        sources: Mapping[PortRef, PortRef],
    ) -> Iterator[NetLayer]:
        """Yield each layer after the layers whose results it reads.

        Layers that do not depend on each other keep the order of the document where possible.
        """
        # The state of a layer is `_VISITING` while the layers that it reads are visited, and
        # `_DONE` after the layer is yielded. A layer that was not visited has no state.
        state_by_id = dict[int, int]()
        for start in layers:
            stack = [start]
            while stack:
                layer = stack[-1]
                if state_by_id.get(layer.id) == _DONE:
                    stack.pop()
                    continue
                pending: list[NetLayer] = []  # layers that must come before this layer
                for port in layer.inputs:
                    source = sources.get((layer.id, port.id))
                    if source is None:
                        continue
                    source_id, _ = source
                    if state_by_id.get(source_id) != _DONE:
                        pending.append(by_id[source_id])
                if not pending:
                    state_by_id[layer.id] = _DONE
                    yield stack.pop()
                    continue
                # A layer that is visited again, before its pending layers are done, is in a cycle.
                if state_by_id.get(layer.id) == _VISITING:
                    raise SemanticError(
                        f"layer '{layer.name}' depends on itself, through '{pending[0].name}'",
                        span=layer.span,
                    )
                state_by_id[layer.id] = _VISITING
                stack += reversed(pending)


def _data(layer: Element, type: str) -> Element:
    """Return the child element that holds the attributes of a layer.

    The child is usually `<data>`. In version 2 the tag of the child may begin with the layer's
    type, as in `<pooling_data>`. If there is no such child, return an element without attributes.
    """
    kind = type.lower()
    tags = ["data"]
    for name in (kind, _OLD_TYPES.get(kind, kind), "norm"):
        tags += [f"{name}_data", f"{name}-data", name]
    data = layer.child(*tags) or layer.child("elementwise_data")
    return data or Element("data", attributes={}, line=layer.line, column=layer.column)


def _blobs(layer: Element) -> dict[str, Blob]:
    """Return a dict from tags to the positions of a layer's weights in the .bin file.

    A tag is the name of the element that declares the position, such as "weights" or "biases".
    """
    elements = [*layer.children, *layer.below("blobs")]
    blobs: dict[str, Blob] = {}
    for element in elements:
        if "offset" in element.attributes and "size" in element.attributes:
            offset = whole_number(element.attributes, "offset")
            size = whole_number(element.attributes, "size")
            blobs[element.tag] = Blob(offset, size, _type(element.attributes))
    return blobs


def _type(attributes: Mapping[str, str]) -> str:
    """Return the element type in the attribute `precision`, or "" if the attribute is missing."""
    type = attributes.get("precision", "")
    return element_type(type) if type else ""


def _edge_end(edge: Element, direction: str) -> PortRef:
    """Return the port at one end of an edge. `direction` is "from" or "to"."""
    layer = whole_number(edge.attributes, f"{direction}-layer")
    port = whole_number(edge.attributes, f"{direction}-port", 0)
    return layer, port


def whole_number(attributes: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return the attribute `name`, a whole number of 0 or more.

    If the attribute is missing, return `default`. Raises InvalidOperation if the attribute is not
    such a number, or if it is missing and `default` is None.
    """
    text = attributes.get(name)
    if text is None:
        if default is None:
            raise InvalidOperation(f"'{name}' is missing")
        return default
    is_number = text.strip().isdecimal() and len(text) <= _MOST_DIGITS
    if not is_number:
        raise InvalidOperation(f"'{name}' must be a whole number of 0 or more, it is {text[:40]!r}")
    return int(text)


def _extent(text: str) -> int:
    """Return the extent that a text declares. For an open extent, return -1."""
    digits = text.strip()
    if digits == "-1":
        return -1
    is_number = digits.isdecimal() and len(digits) <= _MOST_DIGITS
    if not is_number or int(digits) > _LARGEST_EXTENT:
        hint = "an open extent is -1"
        raise InvalidOperation(f"a shape has the extent {digits[:40]!r}", hint)
    return int(digits)


def extents(text: str) -> list[int | None]:
    """Return the shape that the text of an attribute declares.

    Open extents are None in the result: "?,3,1..8,-1" returns [None, 3, None, None]. Raises
    InvalidOperation if the rank is open.
    """
    if text.strip() == OPEN_RANK:
        raise InvalidOperation("its rank is open")
    if not text.strip():
        return []
    shape: list[int | None] = []
    for part in map(str.strip, text.split(",")):
        is_open = part in ("?", "-1") or BOUNDS.fullmatch(part)
        extent = None if is_open else _extent(part)
        shape.append(extent)
    return shape


def _names(text: str) -> tuple[str, ...]:
    """Split a list of names at its commas. A comma within a name has a backslash before it."""
    if not text:
        return ()
    # The character "\0" replaces the commas within names until the list is split.
    parts = text.replace("\\,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts)
