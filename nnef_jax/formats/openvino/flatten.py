"""Flattens the layers of a network and of its bodies into a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.graph import Graph, Value
from nnef_jax.errors import UnsupportedError, raise_all
from nnef_jax.flattening.emission import locating_errors
from nnef_jax.flattening.outline import add_untyped, has_untyped, unknown
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.base import Options
from nnef_jax.formats.openvino.document import CONSTANTS, Body, Net, NetLayer, Port, PortRef
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

_SINKS = ("assign", "memory", "result")  # layers that may have no results
_STATEFUL = ("assign", "memory", "readvalue")  # layers that run even if no output needs them


def flatten(
    net: Net, ends: Ends, options: Options, weights: Weights, data: dict[str, NDArray[Any]]
) -> Graph:
    """Flatten a network into a graph, and add the network's weights to `data`.

    `data` maps labels of weights to arrays. Raises NnefError.
    """
    with within_memory("the flat graph"):
        graph = LayerGraph(options, data)
        graph.variables = ends.variables
        # New tensors get none of the names in the document.
        names = [*ends.inputs]
        for layer in net.layers:
            names.append(layer.name)
            for port in layer.outputs:
                names += port.names
        graph.builder.reserve(names)
        flattener = Flattener(graph, weights)
        feeds: dict[PortRef, Tensor] = {}  # maps ports to tensors of inputs
        for name, (layer, port) in ends.inputs.items():
            feeds[layer.id, port.id] = flattener.input(name, layer, port, net)
        feeds = pre_processed(net, feeds, flattener.site)
        tensors = flattener.run(net, feeds, [*ends.outputs.values()])
        outputs: list[Value] = []
        for name, output_port in ends.outputs.items():
            outputs.append(flattener.output(net, name, output_port, tensors))
        flattener.note_folded(net, tensors)
        return graph.builder.graph(net.name, outputs, [*ends.outputs], options.unfixed(ends.inputs))


@dataclass(slots=True, eq=False)
class Flattener:
    """Flattens a network into a graph, and each of its bodies into a separate graph."""

    graph: LayerGraph
    weights: Weights
    prefix: str = ""

    def input(self, name: str, layer: NetLayer, port: Port, net: Net) -> Tensor:
        """Add an input of the network to the graph, and return the input's tensor.

        `name` is the name of the input. `layer` and `port` declare the input's shape and type.
        """
        declared = layer.attributes.get("element_type", "") or port.type or layer.precision
        with locating_errors(f"input '{name}'", layer.span):
            type = element_type(declared or "f32")
            shape = declared_shape(layer, port)
            if net.is_legacy and type not in ("i32", "i64"):
                type = "f32"  # the runtime converts inputs of all other types to f32
            require_bounds(self.graph.options.input_shapes.get(name, ()), layer)
            value = self.graph.input(
                name, shape, type, self.graph.computation_dtype(type), layer.span
            )
        if isinstance(value, Value) and layer.kind in INPUTS:
            self._add_aliases(value, *port.names, layer.name)
        return value

    def site(self, layer: NetLayer, net: Net, operands: Sequence[Tensor | None]) -> LayerSite:
        """Make the site of a layer.

        The function that flattens the layer adds operations to the graph by this site. `operands`
        are the layer's inputs in the order of the layer's ports.
        """
        return LayerSite(
            layer,
            net,
            version=net.version,
            graph=self.graph,
            weights=self.weights,
            operands=operands,
            flatten=self.flatten_body,
            prefix=self.prefix,
        )

    def run(
        self, net: Net, feeds: Mapping[PortRef, Tensor], outputs: Sequence[PortRef]
    ) -> dict[PortRef, Tensor]:
        """Flatten the layers that `outputs` and the states of the network depend on.

        `feeds` maps ports to the tensors of the inputs of the network or body. Return a dict from
        ports to all tensors, including those of `feeds`.
        """
        tensors: dict[PortRef, Tensor] = dict(feeds)
        layers = _needed(net, feeds, outputs)
        # An outline is a graph that is only shown. Layers that cannot run are allowed in an
        # outline, but not in the bodies of its layers.
        is_only_shown = self.graph.options.outline and not self.prefix
        if not is_only_shown:
            unsupported = [layer for layer in layers if not _is_supported(net, layer)]
            raise_all([_unsupported(layer, net.version) for layer in unsupported])
        for layer in layers:
            if layer.kind in INPUTS or layer.kind == "result":
                continue
            operands = _operands_of(layer, net, feeds, tensors)
            if is_only_shown:
                can_run = not has_untyped(operands) and _is_supported(net, layer)
                if not can_run:
                    tensors.update(self._flattened_for_show(layer, operands))
                    continue
            try:
                tensors.update(self._flattened(layer, net, operands))
            except UnsupportedError:  # a layer in a body of this layer cannot run
                if not is_only_shown:
                    raise
                tensors.update(self._flattened_for_show(layer, operands))
        return tensors

    def _flattened_for_show(
        self, layer: NetLayer, operands: Sequence[Tensor | None]
    ) -> Iterator[tuple[PortRef, Tensor]]:
        """Add an unsupported layer to the graph, which is an outline: it is only shown.

        Yield pairs of a port and the layer's result at this port. The results have no types.
        """
        kind = layer.type if has_untyped(operands) else unknown(layer.type)
        names = [name for name, _ in layer.named(layer.outputs)]
        results = add_untyped(self.graph, kind, operands, names, layer.span)
        if layer.kind == "assign":
            variable = self.graph.builder.variable_of(label_of(layer))
            if variable is not None:
                # The layer's tensor has no type, so it cannot be the next value of the variable.
                # Instead, the variable keeps its value, and remains a state.
                with locating_errors(str(layer), layer.span):
                    self.graph.builder.update(variable, variable)
        for port, value in zip(layer.outputs, results, strict=True):
            yield (layer.id, port.id), value

    def _flattened(
        self, layer: NetLayer, net: Net, operands: Sequence[Tensor | None]
    ) -> Iterator[tuple[PortRef, Tensor]]:
        """Add the operations of a layer to the graph.

        Yield pairs of a port and the layer's result at this port.
        """
        site = self.site(layer, net, operands)

        def refusal() -> InvalidOperation | None:
            names = [f"input {i}" for i in range(len(operands))]
            return self.graph.refusal_of_operator(dict(zip(names, operands, strict=True)))

        with locating_errors(str(layer), layer.span, "ports", refusal):
            if layer.kind in CONSTANTS:
                results: Any = stored(site)
            else:
                operator = OPERATORS.get(layer.kind, net.version)
                assert operator is not None
                results = site.results(operator.run)
            values: Sequence[Any] = results if isinstance(results, list | tuple) else [results]
            if len(values) < len(layer.outputs) and layer.kind not in _SINKS:
                raise InvalidOperation(f"it has {len(layer.outputs)} outputs, not {len(values)}")
        # `values` may be longer than the list of outputs: the function of the layer may return
        # results for which the layer has no output.
        for (output_name, port), value in zip(layer.named(layer.outputs), values, strict=False):
            if isinstance(value, Value):
                self._note_names(value, output_name, port)
            yield (layer.id, port.id), value

    def _note_names(self, value: Value, output_name: str, port: Port) -> None:
        """Add aliases of the tensor `value`, which is a layer's result.

        The aliases are the document's names for the result: `output_name` and the names that `port`
        declares. `output_name` is the layer's name, with an index if the layer has several output
        ports. In a body, `output_name` gets a prefix, and the names of the port are left out.
        """
        name = self.prefix + output_name
        if value.name != name:
            self.graph.builder.aliases.setdefault(name, value)
        if not self.prefix:
            self._add_aliases(value, *port.names)

    def _add_aliases(self, value: Value, *names: str) -> None:
        """Add aliases of a tensor. A name is left out if another tensor of the graph has it."""
        builder = self.graph.builder
        for name in names:
            if name != value.name and not builder.is_taken(name):
                builder.aliases.setdefault(name, value)

    def output(
        self, net: Net, name: str, port: PortRef, tensors: Mapping[PortRef, Tensor]
    ) -> Value:
        """Return the tensor of an output port as the output `name` of the graph.

        `tensors` maps ports to all tensors of the network.
        """
        layer_id, port_id = port
        layer = net.by_id[layer_id]
        tensor = tensors.get(port)
        site = self.site(layer, net, operands=())
        with locating_errors(str(layer), layer.span):
            if tensor is None:
                raise InvalidOperation(f"output port {port_id} has no value")
            return self.graph.as_output(site.tensor(tensor), name, layer.span)

    def note_folded(self, net: Net, tensors: Mapping[PortRef, Tensor]) -> None:
        """Tell the graph which tensors of the document are constant, and what each layer reads.

        `tensors` maps ports to all tensors of the network.
        """
        names_by_port: dict[PortRef, list[str]] = {}
        for layer in net.layers:
            for name, port in layer.named(layer.outputs):
                names_by_port[layer.id, port.id] = [name, *port.names]
        constants: list[str] = []
        for port_reference, tensor in tensors.items():
            if isinstance(tensor, Constant):
                constants += names_by_port[port_reference]
        # A step has two lists of names: the tensors that a layer reads, and the layer's results.
        steps: list[tuple[list[str], list[str]]] = []
        for layer in net.layers:
            reads: list[str] = []
            for port in layer.inputs:
                source = net.sources.get((layer.id, port.id))
                if source is not None:
                    reads += names_by_port.get(source, ())
            results = [name for name, _ in layer.named(layer.outputs)]
            steps.append((reads, results))
        self.graph.note_folded(constants, steps)

    def flatten_body(
        self,
        body: Body,
        graph: LayerGraph,
        feeds: Mapping[PortRef, Tensor],
        outputs: Sequence[PortRef],
        name: str,
    ) -> dict[PortRef, Tensor]:
        """Flatten a body into `graph`. Return a dict from ports to the body's tensors.

        `feeds` maps ports to the inputs of the body. `outputs` are the ports whose tensors the body
        must compute, and `name` is the name of the layer that has the body.
        """
        inner = Flattener(graph, self.weights, f"{self.prefix}{name}.")
        return inner.run(body.net, feeds, outputs)


def _operands_of(
    layer: NetLayer,
    net: Net,
    feeds: Mapping[PortRef, Tensor],
    tensors: Mapping[PortRef, Tensor],
) -> list[Tensor | None]:
    """Return the tensor at each input port of a layer, or None for a port that is not connected.

    `feeds` maps input ports and output ports to the tensors of the network's inputs. `tensors` maps
    output ports to all tensors that are computed already.
    """
    operands: list[Tensor | None] = []
    for port in layer.inputs:
        input_port = layer.id, port.id
        source = net.sources.get(input_port)
        if input_port in feeds:  # the port is an input of the network
            operands.append(feeds[input_port])
        elif source is None:
            operands.append(None)
        else:
            operands.append(tensors.get(source))
    return operands


def _is_supported(net: Net, layer: NetLayer) -> bool:
    """Tell whether the type of a layer can run in the version of the network."""
    if layer.kind in CONSTANTS or layer.kind in INPUTS or layer.kind == "result":
        return True
    return OPERATORS.get(layer.kind, net.version) is not None


def _unsupported(layer: NetLayer, version: int) -> UnsupportedError:
    """Return the error for a layer that cannot run. `version` is the version of the network."""
    origin = layer.opset or f"version {version}"
    message = f"layer '{layer.name}': '{layer.type}' of {origin} is not supported"
    return UnsupportedError(message, span=layer.span)


def _needed(
    net: Net, feeds: Mapping[PortRef, Tensor], outputs: Sequence[PortRef]
) -> list[NetLayer]:
    """Return the layers that `outputs` and states depend on, in an order in which they can run.

    `feeds` maps ports to the tensors of the inputs.
    """
    needed_ids = _needed_ids(net, feeds, outputs)
    layers = [layer for layer in net.layers if layer.id in needed_ids]
    ids_of_read_layers = _ids_of_read_layers(net, layers)
    # A ReadValue declares its variable, so it must come before the Assign that writes the variable.
    # Therefore each Assign comes last, unless its result is read by a layer other than a Result.

    def comes_last(layer: NetLayer) -> bool:
        return layer.kind == "assign" and layer.id not in ids_of_read_layers

    return sorted(layers, key=comes_last)


def _needed_ids(net: Net, feeds: Mapping[PortRef, Tensor], outputs: Sequence[PortRef]) -> set[int]:
    """Return the ids of the layers that `outputs` and states depend on.

    `feeds` maps ports to the tensors of the inputs. No layer is needed to compute these tensors.
    """
    pending_ids = [layer_id for layer_id, _ in outputs]
    pending_ids += [layer.id for layer in net.layers if layer.kind in _STATEFUL]
    visited_ids = set[int]()
    while pending_ids:
        layer_id = pending_ids.pop()
        if layer_id in visited_ids:
            continue
        visited_ids.add(layer_id)
        for port in net.by_id[layer_id].inputs:
            input_port = (layer_id, port.id)
            if input_port not in feeds and input_port in net.sources:
                source_id, _ = net.sources[input_port]
                pending_ids.append(source_id)
    return visited_ids


def _ids_of_read_layers(net: Net, layers: Sequence[NetLayer]) -> set[int]:
    """Return the ids of the layers whose results are read by one of `layers`.

    Layers of the type Result do not count as readers.
    """
    ids = set[int]()
    for layer in layers:
        if layer.kind == "result":
            continue
        for port in layer.inputs:
            source = net.sources.get((layer.id, port.id))
            if source is not None:
                source_id, _ = source
                ids.add(source_id)
    return ids
