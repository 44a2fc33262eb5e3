"""Functions for the layer If, which runs one of two bodies."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.repetition import add_choice, flattened_branches
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.document import Body, PortRef
from nnef_jax.formats.openvino.layer_graph import LayerGraph
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers.loop_layers import outer_operand
from nnef_jax.formats.openvino.layers.registry import opsets
from nnef_jax.formats.openvino.ports import links, source_of


@opsets("If")
def _if(site: LayerSite) -> list[Any]:
    """Run `then_body` if input 0 is true, otherwise `else_body`. The other body does not run."""
    condition = site.operand(0)
    then_body = site.body("then_body")
    else_body = site.body("else_body")
    if isinstance(condition, Constant):
        body = then_body if condition.array.any() else else_body
        feeds = {link.end: outer_operand(site, link) for link in links(body, inputs=True)}
        return _results(site, body, site.graph, feeds)
    then_graph = site.graph.body()
    else_graph = site.graph.body()
    # The two bodies are flattened when these functions are called.
    flatteners = [
        partial(_flattened, site, then_body, then_graph),
        partial(_flattened, site, else_body, else_graph),
    ]
    body_outputs = flattened_branches(flatteners, site.graph.hint_to_fix(condition))
    truth = site.cast(condition, "bool")
    return add_choice(site, site.insert, truth, [then_graph, else_graph], body_outputs)


def _flattened(site: LayerSite, body: Body, graph: LayerGraph) -> list[Value]:
    """Flatten a body as a graph of its own. Return the tensors of the layer's output ports.

    `graph` is the empty graph of the body. If the body reads a tensor from outside, the tensor
    becomes an input of `graph`.
    """
    feeds = dict[PortRef, Tensor]()
    for link in links(body, inputs=True):
        value = outer_operand(site, link)
        if isinstance(value, Value):
            value = graph.input_for(value, f"given_{len(graph.captured)}")
        feeds[link.end] = value
    # If a result is a constant, `inner_site` adds the constant to the graph of the body.
    inner_site = replace(site, graph=graph)
    return [inner_site.tensor(x) for x in _results(site, body, graph, feeds)]


def _results(
    site: LayerSite, body: Body, graph: LayerGraph, feeds: dict[PortRef, Tensor]
) -> list[Tensor]:
    """Flatten a body into `graph`. Return the tensors of the layer's output ports.

    `feeds` maps ports to the inputs of the body.
    """
    outputs = links(body, inputs=False)
    sources = [source_of(body, link.end) for link in outputs]
    tensors = site.flatten(body, graph, feeds, sources, site.layer.name)
    results: dict[int, Tensor] = {}  # maps ids of the layer's output ports to tensors
    for link, source in zip(outputs, sources, strict=True):
        results[link.port] = tensors[source]
    for port in site.layer.outputs:
        if port.id not in results:
            raise InvalidOperation(f"a body has no result for output port {port.id}")
    return [results[port.id] for port in site.layer.outputs]
