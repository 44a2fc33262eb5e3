"""Bodies of which one is chosen: If."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lowering.errors import InvalidOperation
from lowering.graph import Graph, Value
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.document import Body, End
from nnef_jax.formats.openvino.layer_graph import LayerGraph
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers import opsets
from nnef_jax.formats.openvino.layers.loop_layers import graph_of, outer, truth
from nnef_jax.formats.openvino.ports import links, source_of


@opsets("If")
def _if(site: LayerSite) -> list[Any]:
    """Choose one of two bodies; only the chosen one is computed."""
    condition = site.operand(0)
    bodies = [site.body(f"{name}_body") for name in ("then", "else")]
    if isinstance(condition, Constant):
        body = bodies[0 if condition.array.any() else 1]
        feeds = {link.end: outer(site, link) for link in links(body, inputs=True)}
        return _results(site, body, site.graph, feeds)
    parts = [_Part(site, body) for body in bodies]
    operands = list(dict.fromkeys(value for part in parts for value in part.entered))
    then_body, else_body = (part.whole(operands) for part in parts)
    chosen = truth(site, condition)
    made = site.step.branch(chosen, operands, then_body=then_body, else_body=else_body)
    return made if isinstance(made, list) else [made]


class _Part:
    """A body as a graph of its own. `entered` has what it takes, with what that is inside."""

    def __init__(self, site: LayerSite, body: Body) -> None:
        graph = self._graph = site.graph.body()
        entered = self.entered = dict[Value, Value]()
        feeds: dict[End, Tensor] = {}
        for link in links(body, inputs=True):
            value = outer(site, link)
            if isinstance(value, Value) and value not in entered:
                name = graph.builder.unreserved(f"given_{len(entered)}")
                entered[value] = graph.builder.input(name, value.type)
            feeds[link.end] = entered[value] if isinstance(value, Value) else value
        inner = replace(site, graph=graph)
        self.results = [inner.tensor(x) for x in _results(site, body, graph, feeds)]
        entered |= {outer: value for value, outer in graph.captured.items()}

    def whole(self, operands: Sequence[Value]) -> Graph:
        """Return the graph, which takes what both bodies do."""
        builder = self._graph.builder
        order = [
            self.entered.get(value) or builder.input(builder.unreserved(f"unread_{i}"), value.type)
            for i, value in enumerate(operands)
        ]
        return graph_of(self._graph, order, self.results)


def _results(
    site: LayerSite, body: Body, graph: LayerGraph, feeds: dict[End, Tensor]
) -> list[Tensor]:
    """Flatten a body; return what it has for the output ports."""
    outputs = links(body, inputs=False)
    ends = [source_of(body, link.end) for link in outputs]
    found = site.flatten(body, graph, feeds, ends, site.layer.name)
    by_port = {link.port: found[end] for link, end in zip(outputs, ends, strict=True)}
    if missing := [port.id for port in site.layer.outputs if port.id not in by_port]:
        raise InvalidOperation(f"a body gives nothing for output port {missing[0]}")
    return [by_port[port.id] for port in site.layer.outputs]
