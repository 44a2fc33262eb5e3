"""From the layers of a network to the flat graph: each layer once what feeds it is flattened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.errors import InconclusiveDimensionOperation
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import MAX_RANK, UNKNOWN, show
from lowering.graph import Graph, TensorType, Value
from nnef_jax.errors import NnefError, UnsupportedError, raise_all
from nnef_jax.flattening.emission import located
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.base import EXPORT_KNOWN, ExtentNeeded, Options
from nnef_jax.formats.openvino.bin_file import Weights
from nnef_jax.formats.openvino.document import CONSTANTS, Body, End, Net, NetLayer, Port
from nnef_jax.formats.openvino.element_types import computed, element_type
from nnef_jax.formats.openvino.layer_graph import LayerGraph
from nnef_jax.formats.openvino.layer_site import LayerSite, stored
from nnef_jax.formats.openvino.layers import Meaning, meanings
from nnef_jax.formats.openvino.network_ends import INPUTS, Ends, declared_shape, require_bounds
from nnef_jax.formats.openvino.pre_process import pre_processed
from nnef_jax.limits import within_memory

_SINKS = ("assign", "memory", "result")


def flatten(
    net: Net, ends: Ends, options: Options, weights: Weights, data: dict[str, NDArray[Any]]
) -> Graph:
    """Return the flat graph; `data` collects weights by label. Raises NnefError."""
    with within_memory("the flat graph"):
        graph = LayerGraph(options, data)
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
        return graph.builder.graph(net.name, outputs, [*ends.outputs], options.unfixed(ends.inputs))


def _names_in(net: Net) -> Iterator[str]:
    """Yield the names of layers and of their tensors, which nothing else may take."""
    for layer in net.layers:
        yield layer.name
        for port in layer.outputs:
            yield from port.names


@dataclass(slots=True, eq=False)
class Flattener:
    """Flattens networks into a graph; bodies get one of their own."""

    graph: LayerGraph
    weights: Weights
    prefix: str = ""

    def input(self, name: str, layer: NetLayer, port: Port, net: Net) -> Tensor:
        """Add an input of the network."""
        options = self.graph.options
        try:
            shapes = options.input_shapes
            declared_extents = declared_shape(layer, port)
            declared = layer.attributes.get("element_type", "") or port.type or layer.precision
            type = element_type(declared or "f32")
            if net.is_legacy and type not in ("i32", "i64"):
                type = "f32"  # inputs are converted, whatever they are stored in
            if name in options.values:
                found = options.value(name, declared_extents, computed(type, options.real))
                return Constant(found, type, derived=True)
            if declared_extents is None and name not in shapes:
                hint = f"give it: load(..., input_shapes={{{name!r}: (None, None)}}), None is open"
                raise InvalidOperation("its rank is open", hint)
            shape = options.shape(name, declared_extents or ())
            if len(shape) > MAX_RANK:
                raise InvalidOperation(f"it has {len(shape)} axes, arrays have at most {MAX_RANK}")
            if any(n is not UNKNOWN and n < 0 for n in shape):
                raise InvalidShape(f"its shape {show(shape)} has a negative extent")
            require_bounds(shapes.get(name, ()), layer)
            value = self.graph.builder.input(name, TensorType(shape, computed(type, options.real)))
            if self.graph.symbolic is not None:
                self.graph.symbolic.declare(value, options.symbolic_shapes.get(name, shape))
            if layer.kind in INPUTS:
                self._called_also(value, *port.names, layer.name)
            return value
        except InvalidOperation as error:
            raise located(error, f"input '{name}'", layer.span) from None

    def site(self, layer: NetLayer, net: Net, operands: Sequence[Tensor | None]) -> LayerSite:
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
                if layer.kind not in (*table, *CONSTANTS, *INPUTS, "result")
            ]
        )
        for layer in layers:
            if layer.kind in INPUTS or layer.kind == "result":
                continue
            ports = ((layer.id, port.id) for port in layer.inputs)
            operands = [
                feeds[end] if end in feeds else found.get(net.feeds.get(end, (-1, -1)))
                for end in ports
            ]
            found.update(self._flattened(layer, net, operands, table.get(layer.kind)))
        return found

    def _flattened(
        self, layer: NetLayer, net: Net, operands: Sequence[Tensor | None], meaning: Meaning | None
    ) -> Iterator[tuple[End, Tensor]]:
        site = self.site(layer, net, operands)
        try:
            if layer.kind in CONSTANTS:
                results: Any = stored(site)
            else:
                assert meaning is not None
                results = site.results(meaning)
            values: Sequence[Any] = results if isinstance(results, list | tuple) else [results]
            if len(values) < len(layer.outputs) and layer.kind not in _SINKS:
                raise InvalidOperation(f"it has {len(layer.outputs)} outputs, not {len(values)}")
        except InvalidOperation as error:
            raise located(error, str(layer), layer.span) from None
        except InconclusiveDimensionOperation:
            raise UnsupportedError(
                f"{layer} depends on more of an extent than is known while it is symbolic",
                span=layer.span,
                hint=EXPORT_KNOWN,
            ) from None
        except (ExtentNeeded, NnefError):
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # It has fewer ports, axes or items than any writer gives it; there are 200 types.
            message = f"its ports and attributes do not go together: {error}"
            raise located(InvalidOperation(message), str(layer), layer.span) from error
        for i, (port, value) in enumerate(zip(layer.outputs, values, strict=False)):
            name = self.prefix + layer.end_name(layer.outputs, i)
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
            return self.graph.ended(site.tensor(tensor), layer.span)
        except InvalidOperation as error:
            raise located(error, str(layer), layer.span) from None

    def body(
        self,
        body: Body,
        graph: LayerGraph,
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


def _needed(net: Net, feeds: Mapping[End, Tensor], wanted: Sequence[End]) -> list[NetLayer]:
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
