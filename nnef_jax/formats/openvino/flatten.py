"""Flattens the layers of a network, each after the layers that feed it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, filterfalse
from typing import Any

from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.graph import Graph, Value
from nnef_jax.errors import UnsupportedError, raise_all
from nnef_jax.flattening.emission import placed
from nnef_jax.flattening.outline import add_untyped, has_untyped, unknown
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.base import Options
from nnef_jax.formats.openvino.document import CONSTANTS, Body, End, Net, NetLayer, Port
from nnef_jax.formats.openvino.element_types import Weights, element_type
from nnef_jax.formats.openvino.layer_graph import LayerGraph
from nnef_jax.formats.openvino.layer_site import LayerSite, stored
from nnef_jax.formats.openvino.layers import OPERATORS
from nnef_jax.formats.openvino.network_ends import (
    INPUTS,
    Ends,
    declared_shape,
    label_of,
    require_bounds,
)
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
        ports = (port for layer in net.layers for port in layer.outputs)
        names = chain((layer.name for layer in net.layers), *(port.names for port in ports))
        graph.builder.reserve([*ends.inputs, *names])  # which nothing else may take
        flattener = Flattener(graph, weights)
        feeds: dict[End, Tensor] = {}
        for name, (layer, port) in ends.inputs.items():
            feeds[layer.id, port.id] = flattener.input(name, layer, port, net)
        feeds = pre_processed(net, feeds, flattener.site)
        found = flattener.run(net, feeds, [*ends.outputs.values()])
        outputs = [flattener.value(net, *output, found) for output in ends.outputs.items()]
        flattener.note_folded(net, found)
        return graph.builder.graph(net.name, outputs, [*ends.outputs], options.unfixed(ends.inputs))


@dataclass(slots=True, eq=False)
class Flattener:
    """Flattens networks into a graph; bodies get one of their own."""

    graph: LayerGraph
    weights: Weights
    prefix: str = ""

    def input(self, name: str, layer: NetLayer, port: Port, net: Net) -> Tensor:
        """Add an input of the network."""
        declared = layer.attributes.get("element_type", "") or port.type or layer.precision
        with placed(f"input '{name}'", layer.span):
            type, shape = element_type(declared or "f32"), declared_shape(layer, port)
            if net.is_legacy and type not in ("i32", "i64"):
                type = "f32"  # inputs are converted, whatever they are stored in
            require_bounds(self.graph.options.input_shapes.get(name, ()), layer)
            value = self.graph.input(name, shape, type, self.graph.computed(type), layer.span)
        if isinstance(value, Value) and layer.kind in INPUTS:
            self._called_also(value, *port.names, layer.name)
        return value

    def site(self, layer: NetLayer, net: Net, operands: Sequence[Tensor | None]) -> LayerSite:
        """Return the place of a layer."""
        version, body = net.version, self.body
        return LayerSite(layer, net, version, self.graph, self.weights, operands, body, self.prefix)

    def run(
        self, net: Net, feeds: Mapping[End, Tensor], wanted: Sequence[End]
    ) -> dict[End, Tensor]:
        """Flatten the layers that outputs and sinks need; return tensors by port, with `feeds`."""
        found: dict[End, Tensor] = dict(feeds)
        layers = _needed(net, feeds, wanted)
        is_shown = self.graph.options.outline and not self.prefix
        if not is_shown:
            unsupported = filterfalse(partial(_is_supported, net), layers)
            raise_all([_unsupported(layer, net.version) for layer in unsupported])
        for layer in layers:
            if layer.kind in INPUTS or layer.kind == "result":
                continue
            ports = ((layer.id, port.id) for port in layer.inputs)
            operands = [
                feeds[end] if end in feeds else found.get(net.feeds.get(end, (-1, -1)))
                for end in ports
            ]
            if is_shown and (has_untyped(operands) or not _is_supported(net, layer)):
                found.update(self._shown(layer, operands))
                continue
            try:
                found.update(self._flattened(layer, net, operands))
            except UnsupportedError:  # in a body
                if not is_shown:
                    raise
                found.update(self._shown(layer, operands))
        return found

    def _shown(
        self, layer: NetLayer, operands: Sequence[Tensor | None]
    ) -> Iterator[tuple[End, Tensor]]:
        """Add the tensors of a layer, without their types."""
        kind = layer.type if has_untyped(operands) else unknown(layer.type)
        names, ports = zip(*layer.named(layer.outputs), strict=True) if layer.outputs else ((), ())
        made = add_untyped(self.graph, kind, operands, names, layer.span)
        builder = self.graph.builder
        variable = builder.variable_of(label_of(layer)) if layer.kind == "assign" else None
        if variable is not None:  # a state it stays, with the only tensor that has its type
            with placed(str(layer), layer.span):
                builder.update(variable, variable)
        return (((layer.id, port.id), value) for port, value in zip(ports, made, strict=True))

    def _flattened(
        self, layer: NetLayer, net: Net, operands: Sequence[Tensor | None]
    ) -> Iterator[tuple[End, Tensor]]:
        site = self.site(layer, net, operands)
        with placed(str(layer), layer.span, "ports"):
            if layer.kind in CONSTANTS:
                results: Any = stored(site)
            else:
                operator = OPERATORS.get(layer.kind, net.version)
                assert operator is not None
                results = site.results(operator.run)
            values: Sequence[Any] = results if isinstance(results, list | tuple) else [results]
            if len(values) < len(layer.outputs) and layer.kind not in _SINKS:
                raise InvalidOperation(f"it has {len(layer.outputs)} outputs, not {len(values)}")
        for (own, port), value in zip(layer.named(layer.outputs), values, strict=False):
            name = self.prefix + own
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

    def value(self, net: Net, name: str, end: End, found: Mapping[End, Tensor]) -> Value:
        """Return the tensor at an output port as an output of the graph, under this name."""
        layer, tensor = net.by_id[end[0]], found.get(end)
        site = self.site(layer, net, ())
        with placed(str(layer), layer.span):
            if tensor is None:
                raise InvalidOperation("nothing gives the output that is read of it")
            return self.graph.ended(site.tensor(tensor), name, layer.span)

    def note_folded(self, net: Net, found: Mapping[End, Tensor]) -> None:
        """Note the tensors of layers that are known."""
        own = {layer: layer.named(layer.outputs) for layer in net.layers}
        names = {(x.id, port.id): [n, *port.names] for x in own for n, port in own[x]}
        known = [n for end, x in found.items() if isinstance(x, Constant) for n in names[end]]
        steps: list[tuple[list[str], list[str]]] = []
        for layer in net.layers:
            ends = [net.feeds.get((layer.id, port.id), (-1, -1)) for port in layer.inputs]
            reads = [name for end in ends for name in names.get(end, ())]
            steps.append((reads, [name for name, _ in own[layer]]))
        self.graph.fold(known, steps)

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


def _is_supported(net: Net, layer: NetLayer) -> bool:
    if layer.kind in CONSTANTS or layer.kind in INPUTS or layer.kind == "result":
        return True
    return OPERATORS.get(layer.kind, net.version) is not None


def _unsupported(layer: NetLayer, version: int) -> UnsupportedError:
    origin = layer.opset or f"version {version}"
    message = f"layer '{layer.name}': '{layer.type}' of {origin} is not supported"
    return UnsupportedError(message, span=layer.span)


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
