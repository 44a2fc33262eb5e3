"""From the layers of a network to the flat graph: each layer once what feeds it is flattened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jax.errors import InconclusiveDimensionOperation
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import MAX_RANK, UNKNOWN, show
from lowering.graph import Graph, TensorType, Value
from nnef_jax.errors import NnefError, SemanticError, UnsupportedError, raise_all
from nnef_jax.formats.base import EXPORT_KNOWN, ExtentNeeded, Options
from nnef_jax.formats.openvino.counted import ended, followed
from nnef_jax.formats.openvino.document import (
    BOUNDS,
    CONSTANTS,
    OPEN_RANK,
    Body,
    End,
    Layer,
    Net,
    Port,
    extents,
)
from nnef_jax.formats.openvino.element_types import computed, element_type
from nnef_jax.formats.openvino.flat_graph import FlatGraph, located
from nnef_jax.formats.openvino.folding import folded
from nnef_jax.formats.openvino.layer_site import LayerSite, stored
from nnef_jax.formats.openvino.layers import Meaning, meanings
from nnef_jax.formats.openvino.pre_process import pre_processed
from nnef_jax.formats.openvino.site import Tensor
from nnef_jax.formats.openvino.variables import Variable, variables_of
from nnef_jax.formats.openvino.weights import Weights
from nnef_jax.limits import within_memory

_T = TypeVar("_T")
_SINKS = ("assign", "memory", "result")
_INPUTS = ("input", "parameter")


@dataclass(frozen=True, slots=True)
class Ends:
    """The inputs and outputs of a network by name, each with its port, and its variables."""

    inputs: Mapping[str, tuple[Layer, Port]]
    outputs: Mapping[str, End]
    variables: Mapping[str, Variable]


def ends_of(net: Net) -> Ends:
    """Return how the inputs and outputs of a network are called, in the order of the document."""
    inputs: list[tuple[str, tuple[Layer, Port]]] = []
    outputs: list[tuple[str, End]] = []
    in_document = sorted(net.layers, key=lambda layer: layer.span.offset)
    for layer in in_document:
        if layer.kind in _INPUTS and layer.outputs:
            port = layer.outputs[0]
            inputs.append((_called(layer, port, 0, net.is_legacy), (layer, port)))
        elif net.is_legacy:
            for i, port in enumerate(layer.inputs):
                if (layer.id, port.id) not in net.feeds:
                    name = layer.name if len(layer.inputs) == 1 else f"{layer.name}.{i}"
                    inputs.append((name, (layer, port)))
        if net.is_legacy:
            for i, port in enumerate(layer.outputs):
                if (layer.id, port.id) not in net.read:
                    name = layer.name if len(layer.outputs) == 1 else f"{layer.name}.{i}"
                    outputs.append((name, (layer.id, port.id)))
        elif layer.kind == "result":
            end = net.feeds.get((layer.id, layer.inputs[0].id)) if layer.inputs else None
            if end is None:
                message = f"layer '{layer.name}' (Result): nothing leads to it"
                raise SemanticError(message, span=layer.span)
            producer = net.by_id[end[0]]
            i = [port.id for port in producer.outputs].index(end[1])
            named = producer.outputs[i].names or layer.inputs[0].names
            name = named[0] if named else _called(producer, producer.outputs[i], i, legacy=False)
            outputs.append((name, end))
    return Ends(_by_name(inputs), _by_name(outputs), variables_of(net))


def _called(layer: Layer, port: Port, i: int, legacy: bool) -> str:
    if port.names and not legacy:
        return port.names[0]
    return layer.name if len(layer.outputs) == 1 else f"{layer.name}.{i}"


def _by_name(items: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """Return items by name, the second of a name as `name_1`."""
    table, repeated = dict[str, _T](), Counter[str]()
    for name, item in items:
        unique = name
        while unique in table:
            repeated[name] += 1
            unique = f"{name}_{repeated[name]}"
        table[unique] = item
    return table


def declared_shape(layer: Layer, port: Port) -> list[int | None] | None:
    """Return the declared shape of an input, None if its rank is open; None for an open extent."""
    text = layer.attributes.get("shape")
    if layer.kind != "parameter" or text is None:
        return [None if n < 0 else n for n in port.shape or ()]
    return None if text.strip() == OPEN_RANK else extents(text)


def _require_bounds(shape: Sequence[int | None], layer: Layer) -> None:
    """Raise InvalidShape for an extent outside of what is declared as `1..8`, `2..` or `..8`."""
    texts = layer.attributes.get("shape", "").split(",")
    for axis, (extent, text) in enumerate(zip(shape, texts, strict=False)):
        bounds = BOUNDS.fullmatch(text.strip())
        if bounds and extent is not None:
            low, high = bounds.groups()
            if extent < int(low or 0) or (high and extent > int(high)):
                raise InvalidShape(f"axis {axis} has {extent} items, declared are {text.strip()}")


def flatten(
    net: Net, ends: Ends, options: Options, weights: Weights, data: dict[str, NDArray[Any]]
) -> Graph:
    """Return the flat graph; `data` collects weights by label. Raises NnefError."""
    with within_memory("the flat graph"):
        graph = FlatGraph(options, data)
        graph.variables = ends.variables
        graph.builder.reserve([*ends.inputs, *_names_in(net)])
        flattener = Flattener(graph, weights)
        feeds: dict[End, Tensor] = {}
        for name, (layer, port) in ends.inputs.items():
            value = flattener.input(name, layer, port, net)
            feeds[layer.id, port.id] = value
        feeds = pre_processed(net, feeds, flattener.site)
        found = flattener.run(net, feeds, [end for end in ends.outputs.values()])
        outputs = [flattener.value(net, end, found) for end in ends.outputs.values()]
        return graph.builder.graph(net.name, outputs, [*ends.outputs], [*ends.inputs])


def _names_in(net: Net) -> Iterator[str]:
    """Yield the names of layers and of their tensors, which nothing else may take."""
    for layer in net.layers:
        yield layer.name
        for port in layer.outputs:
            yield from port.names


@dataclass(slots=True, eq=False)
class Flattener:
    """Flattens networks into a graph; bodies get one of their own."""

    graph: FlatGraph
    weights: Weights
    prefix: str = ""

    def input(self, name: str, layer: Layer, port: Port, net: Net) -> Value:
        """Add an input of the network."""
        options = self.graph.options
        try:
            shapes = options.input_shapes
            declared_extents = declared_shape(layer, port)
            if declared_extents is None and name not in shapes:
                hint = f"give it: load(..., input_shapes={{{name!r}: (None, None)}}), None is open"
                raise InvalidOperation("its rank is open", hint)
            shape = options.shape(name, declared_extents or ())
            if len(shape) > MAX_RANK:
                raise InvalidOperation(f"it has {len(shape)} axes, arrays have at most {MAX_RANK}")
            if any(n is not UNKNOWN and n < 0 for n in shape):
                raise InvalidShape(f"its shape {show(shape)} has a negative extent")
            _require_bounds(shapes.get(name, ()), layer)
            declared = layer.attributes.get("element_type", "") or port.type or layer.precision
            type = element_type(declared or "f32")
            if net.is_legacy and type not in ("i32", "i64"):
                type = "f32"  # inputs are converted, whatever they are stored in
            value = self.graph.builder.input(name, TensorType(shape, computed(type, options.real)))
            if self.graph.symbolic is not None:
                self.graph.symbolic.declare(value, options.symbolic_shapes.get(name, shape))
            if layer.kind in _INPUTS:
                self._called_also(value, *port.names, layer.name)
            return value
        except InvalidOperation as error:
            raise located(error, f"input '{name}'", layer.span) from None

    def site(self, layer: Layer, net: Net, operands: Sequence[Tensor | None]) -> LayerSite:
        """Return the place of a layer."""
        return LayerSite(layer, net, self.graph, self.weights, operands, self.body, self.prefix)

    def run(
        self, net: Net, feeds: Mapping[End, Tensor], wanted: Sequence[End]
    ) -> dict[End, Tensor]:
        """Flatten what outputs and sinks need, given tensors at ports; return all tensors."""
        table = meanings(is_legacy=net.is_legacy)
        found: dict[End, Tensor] = dict(feeds)
        layers = _needed(net, feeds, wanted)
        raise_all(
            [
                UnsupportedError(
                    f"layer '{layer.name}': '{layer.type}' of "
                    f"{layer.opset or f'version {net.version}'} is not supported",
                    span=layer.span,
                )
                for layer in layers
                if layer.kind not in (*table, *CONSTANTS, *_INPUTS, "result")
            ]
        )
        for layer in layers:
            if layer.kind in _INPUTS or layer.kind == "result":
                continue
            ports = ((layer.id, port.id) for port in layer.inputs)
            operands = [
                feeds[end] if end in feeds else found.get(net.feeds.get(end, (-1, -1)))
                for end in ports
            ]
            found.update(self._flattened(layer, net, operands, table.get(layer.kind)))
        return found

    def _flattened(
        self, layer: Layer, net: Net, operands: Sequence[Tensor | None], meaning: Meaning | None
    ) -> Iterator[tuple[End, Tensor]]:
        site, what = self.site(layer, net, operands), f"layer '{layer.name}' ({layer.type})"
        try:
            results: Any = stored(site) if layer.kind in CONSTANTS else folded(site)
            if results is None:
                assert meaning is not None
                results = followed(site, meaning)
            values: Sequence[Any] = results if isinstance(results, list | tuple) else [results]
            if len(values) < len(layer.outputs) and layer.kind not in _SINKS:
                raise InvalidOperation(f"it has {len(layer.outputs)} outputs, not {len(values)}")
        except InvalidOperation as error:
            raise located(error, what, layer.span) from None
        except InconclusiveDimensionOperation:
            raise UnsupportedError(
                f"{what} depends on more of an extent than is known while it is symbolic",
                span=layer.span,
                hint=EXPORT_KNOWN,
            ) from None
        except (ExtentNeeded, NnefError):
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # It has fewer ports, axes or items than any writer gives it; there are 200 types.
            message = f"its ports and attributes do not go together: {error}"
            raise located(InvalidOperation(message), what, layer.span) from error
        for i, (port, value) in enumerate(zip(layer.outputs, values, strict=False)):
            name = self.prefix + (layer.name if len(layer.outputs) == 1 else f"{layer.name}.{i}")
            if isinstance(value, Value) and value.name != name:
                self.graph.builder.aliases.setdefault(name, value)
            if isinstance(value, Value) and not self.prefix:
                self._called_also(value, *port.names)
            yield (layer.id, port.id), value

    def _called_also(self, value: Value, *names: str) -> None:
        """Note the other names of a tensor: those that no layer has."""
        builder = self.graph.builder
        for name in names:
            if name != value.name and not builder.is_taken(name):
                builder.aliases.setdefault(name, value)

    def value(self, net: Net, end: End, found: Mapping[End, Tensor]) -> Value:
        """Return what is at an output port as a tensor of the graph."""
        layer, tensor = net.by_id[end[0]], found.get(end)
        site = self.site(layer, net, ())
        try:
            if tensor is None:
                raise InvalidOperation("nothing gives the output that is read of it")
            return ended(site, site.tensor(tensor))
        except InvalidOperation as error:
            what = f"layer '{layer.name}' ({layer.type})"
            raise located(error, what, layer.span) from None

    def body(
        self,
        body: Body,
        graph: FlatGraph,
        feeds: Mapping[End, Tensor],
        wanted: Sequence[End],
        name: str,
    ) -> dict[End, Tensor]:
        """Flatten a body into a graph of its own, given the tensors at its ends."""
        inner = Flattener(graph, self.weights, f"{self.prefix}{name}.")
        found = inner.run(body.net, feeds, wanted)
        if any(found.get(end) in graph.counts for end in wanted):
            raise InvalidOperation(
                f"how many items a result of '{name}' has depends on values",
                "a body may have such tensors inside, its ends may not",
            )
        return found


def _needed(net: Net, feeds: Mapping[End, Tensor], wanted: Sequence[End]) -> list[Layer]:
    """Return the layers that outputs and sinks depend on, in order."""
    waiting = [end[0] for end in wanted]
    kept = ("assign", "memory", "readvalue")
    waiting += [layer.id for layer in net.layers if layer.kind in kept]
    known = set[int]()
    while waiting:
        id = waiting.pop()
        if id in known:
            continue
        known.add(id)
        for port in net.by_id[id].inputs:
            end = (id, port.id)
            if end not in feeds and end in net.feeds:
                waiting.append(net.feeds[end][0])
    # A variable is declared where it is read: what writes comes last, but for Results.
    found = [layer for layer in net.layers if layer.id in known]
    reads = (
        (layer.id, port.id) for layer in found if layer.kind != "result" for port in layer.inputs
    )
    read = {net.feeds[end][0] for end in reads if end in net.feeds}
    return sorted(found, key=lambda layer: layer.kind == "assign" and layer.id not in read)
