"""Meanings of layers with bodies.

TensorIterator and Loop repeat a body, and If runs one of two bodies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.counts import Count
from nnef_jax.flattening.emission import ByName
from nnef_jax.flattening.hostvalues import ceil_div
from nnef_jax.flattening.repetition import LAST, RepeatedBody, add_choice, flattened_branches
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.document import CONSTANTS, Body, PortRef
from nnef_jax.formats.openvino.layer_graph import LayerGraph
from nnef_jax.formats.openvino.layer_site import LayerSite, derived, stored
from nnef_jax.formats.openvino.layers.registry import operator, opsets
from nnef_jax.formats.openvino.ports import Link, back_edges, links, source_of

# The largest number of iterations that is a bound of a loop; a higher bound is dropped.
_MOST = 1 << 16


@opsets("Loop")
def _loop(site: LayerSite) -> list[Any]:
    """Repeat a body while a condition that the body computes is true.

    Input 0 is the largest number of iterations. Input 1 is the condition before the first
    iteration.
    """
    repetition = _Repetition(site)
    count = site.operand(0)
    begins: Tensor | bool = site.operand(1) if site.has(1) else True
    if isinstance(begins, Constant):
        begins = bool(begins.array.any())
    condition = repetition.condition()
    if not isinstance(count, Constant):
        return repetition.until(condition, count, begins)
    number = int(count.array.reshape(-1)[0])
    limit = number if number >= 0 else None
    if condition is None and begins is True:
        parts = repetition.parts()
        if limit is None and parts is None:
            raise InvalidOperation("nothing ends it: it has no count, condition or parts")
        # A scan has one number of iterations, so the limit and the number of parts must agree.
        is_scan = limit is None or parts is None or limit == parts
        if is_scan:
            return repetition.scanned(limit)
    return repetition.until(condition, limit, begins)


class _Repetition:
    """A layer with a repeated body, while the body is flattened."""

    def __init__(self, site: LayerSite) -> None:
        self.site = site
        self.body = site.body("body")
        self.repeated = RepeatedBody(site)
        self.inputs = links(self.body, inputs=True)
        self.outputs = links(self.body, inputs=False)
        self.next_states = back_edges(self.body)
        self.feeds: dict[PortRef, Tensor] = {}

    # The port maps

    def condition(self) -> PortRef | None:
        """Return the port of the body that computes the condition.

        Return None if the condition is always true.
        """
        for link in self.outputs:
            if link.purpose == "execution_condition":
                end = source_of(self.body, link.end)
                layer = self.body.net.by_id[end[0]]
                if layer.kind == "parameter":
                    # A condition that the body passes on unchanged stays true.
                    next_end = self.next_states.get(end)
                    is_true = next_end is None or source_of(self.body, next_end) == end
                else:
                    site = replace(self.site, layer=layer, net=self.body.net, operands=())
                    is_true = layer.kind in CONSTANTS and stored(site).array.all()
                return None if is_true else end
        return None

    def _reads_iteration(self, link: Link) -> bool:
        return link.purpose == "current_iteration" or link.port < 0

    @property
    def _cut_inputs(self) -> list[Link]:
        return [x for x in self.inputs if x.axis is not None]

    def parts(self) -> int | None:
        """Return the number of parts into which inputs are cut, or None if no input is cut.

        Each iteration reads one part of each cut input.
        """
        for link in self._cut_inputs:
            shape = self.site.known_shape(_outer(self.site, link))
            axis = self.site.axis(link.axis or 0, len(shape))
            low, high, _ = _range(link, shape[axis])
            return ceil_div(high - low, link.size)
        return None

    def _input_for(self, value: Value) -> Value:
        """Return the body's input for `value`, a tensor that each iteration reads as a whole."""
        graph = self.repeated.graph
        return graph.input_for(value, f"full_{len(graph.captured) + 1}")

    def _feed_iteration(self, iteration: Value) -> None:
        """Feed `iteration`, the number of the iteration, to the ports of the body that read it.

        The number is a tensor with a single element.
        """
        for link in self.inputs:
            if self._reads_iteration(link):
                rank = len(self.body.net.by_id[link.end[0]].outputs[0].shape or ())
                self.feeds[link.end] = self.repeated.at.reshaped(iteration, [1] * rank)

    # The operations

    def scanned(self, iterations: int | None) -> list[Any]:
        """Add a scan, which runs the body a fixed number of times, and return the layer's results.

        `iterations` is the number of iterations. If it is None, the number is that of the parts
        into which inputs are cut. Raises InvalidOperation if it is None and no input is cut.
        """
        site, repeated = self.site, self.repeated
        for link in self._cut_inputs:
            value, sign, axis = _parts_of(site, site.tensor(_outer(site, link)), link)
            self.feeds[link.end] = repeated.part(value, axis, sign * link.size)
        reads_iteration = any(map(self._reads_iteration, self.inputs))
        if not self._cut_inputs or reads_iteration:
            count = self.parts() if iterations is None else iterations
            if count is None:
                raise InvalidOperation("it has no input that is cut into parts")
            self._feed_iteration(repeated.iteration(count))
        return self._emit()

    def until(
        self, condition: PortRef | None, count: Tensor | int | None, begins: Tensor | bool
    ) -> list[Any]:
        """Add a loop that ends by its condition or after a computed number of iterations.

        `condition` is the port that computes the condition, `count` the largest number of
        iterations, and `begins` the condition before the first iteration. Each iteration slices its
        parts out of the cut inputs.
        """
        site = self.site
        inner = self.repeated.at
        parts = self.parts()
        bounds = [n for n in (parts, count) if isinstance(n, int)]
        limit = min(bounds, default=-1)
        if limit > _MOST:
            limit = -1
        integer = site.integer
        iteration = self.repeated.iteration(None)
        self._feed_iteration(iteration)
        for link in self._cut_inputs:
            value, sign, axis = _parts_of(site, site.tensor(_outer(self.site, link)), link)
            start: Value = iteration
            if link.size > 1:
                start = inner.step.mul(start, link.size)
            if sign < 0:
                last = value.type.shape[axis] - link.size
                start = inner.step.sub(last, start)
            self.feeds[link.end] = inner.step.dynamic_slice(
                self._input_for(value), start, length=link.size, axis=axis
            )
        if isinstance(count, Value):
            most: Value | int = site.reshaped(site.cast(count, integer), ())
            if parts is not None:
                most = site.step.min(most, parts)
        else:
            most = min([*bounds, int(np.iinfo(integer).max)])
        first = begins if isinstance(begins, bool) else _truth(site, begins)
        return self._emit(condition, {"count": most, "condition": first}, limit)

    def _emit(
        self, condition: PortRef | None = None, start: ByName | None = None, limit: int = -1
    ) -> list[Any]:
        """Add the scan or loop to the graph, and return the tensors of the layer's output ports.

        If `start` is None, a scan is added. Otherwise a loop is added, `start` has the loop's
        operands, `condition` is the port that computes its condition, and `limit` is the largest
        number of iterations (-1 if there is no limit).
        """
        site = self.site
        inner = self.repeated.at
        states = self._feed_uncut()
        before = [self.feeds[link.end] for link in states]
        next_ends = [source_of(self.body, self.next_states[link.end]) for link in states]
        connected = [link for link in self.outputs if link.port >= 0]
        results = [source_of(self.body, link.end) for link in connected]
        ends = [*next_ends, *results]
        if condition is not None:
            ends.append(condition)
        tensors = site.flatten(self.body, self.repeated.graph, self.feeds, ends, site.layer.name)
        after: list[Tensor] = []
        for end, state in zip(next_ends, before, strict=True):
            after.append(inner.cast(inner.tensor(tensors[end]), inner.dtype_of(state)))
        values = [inner.tensor(tensors[end]) for end in results]
        modes = [self._mode(link, x) for link, x in zip(connected, values, strict=True)]
        is_loop = start is not None
        continue_condition: list[Value] = []
        if is_loop:
            continues = True if condition is None else tensors[condition]
            continue_condition.append(_truth(inner, continues))
            # The last result is the number of iterations.
            values.append(inner.step.add(self.repeated.loop_inputs[0], 1))
            modes.append(LAST)
        outputs = self.repeated.add(
            site.insert, continue_condition, after, values, modes, start, limit
        )
        if is_loop:
            self._note_counts(connected, outputs)
        # No port has the last output of a loop, the number of iterations.
        by_port = dict(zip([link.port for link in connected], outputs, strict=False))
        return [by_port.get(port.id) for port in site.layer.outputs]

    def _feed_uncut(self) -> list[Link]:
        """Feed the inputs of the body that are not cut; return the links of the states among them.

        An input that is not a state is read as a whole by each iteration.
        """
        uncut = [x for x in self.inputs if x.axis is None and not self._reads_iteration(x)]
        states = [link for link in uncut if link.end in self.next_states]
        for link in uncut:
            if link.end not in self.next_states:
                value = _outer(self.site, link)
                if isinstance(value, Value):
                    value = self._input_for(value)
                self.feeds[link.end] = value
        for link in states:
            self.feeds[link.end] = self.repeated.state(_outer(self.site, link))
        return states

    def _mode(self, link: Link, x: Value) -> tuple[str, int, int]:
        """Return how the output of `link` is made from the values `x` of all iterations.

        The result is `LAST` for the last value, or ("full", axis, direction) for the values joined
        along an axis, from the last iteration to the first if the direction is -1.
        """
        if link.axis is None:
            return LAST
        direction = 1 if link.stride > 0 else -1
        return "full", self.site.axis(link.axis, len(x.type.shape)), direction

    def _note_counts(self, connected: Sequence[Link], outputs: Sequence[Value]) -> None:
        """Note how many items each joined output of a loop has along its joined axis.

        The last of `outputs` is the number of iterations, a computed tensor. The other outputs
        belong to the links in `connected`.
        """
        for link, value in zip(connected, outputs[:-1], strict=True):
            if link.axis is None:
                continue
            if link.stride < 0:
                raise InvalidOperation(
                    "the number of iterations is computed, and results are joined from the end"
                )
            site = self.site
            axis = site.axis(link.axis, len(value.type.shape))
            items = site.step.mul(site.reshaped(outputs[-1], (1,)), link.size)
            site.graph.counts[value] = Count(axis, items)


operator("TensorIterator")(lambda site: _Repetition(site).scanned(None))


# A choice of two bodies


@opsets("If")
def _if(site: LayerSite) -> list[Any]:
    """Run one of two bodies, which input 0 chooses. The other body is not computed."""
    condition = site.operand(0)
    then_body = site.body("then_body")
    else_body = site.body("else_body")
    if isinstance(condition, Constant):
        body = then_body if condition.array.any() else else_body
        feeds = {link.end: _outer(site, link) for link in links(body, inputs=True)}
        return _results(site, body, site.graph, feeds)
    then_graph = site.graph.body()
    else_graph = site.graph.body()
    flatteners = [
        partial(_flattened, site, then_body, then_graph),
        partial(_flattened, site, else_body, else_graph),
    ]
    body_outputs = flattened_branches(flatteners, site.graph.hint_to_fix(condition))
    truth = _truth(site, condition)
    outputs = add_choice(site.insert, truth, [then_graph, else_graph], body_outputs)
    return outputs if isinstance(outputs, list) else [outputs]


def _flattened(site: LayerSite, body: Body, graph: LayerGraph) -> list[Value]:
    """Flatten a body into `graph`; return tensors of `graph` for the layer's output ports."""
    feeds = dict[PortRef, Tensor]()
    for link in links(body, inputs=True):
        value = _outer(site, link)
        if isinstance(value, Value):
            value = graph.input_for(value, f"given_{len(graph.captured)}")
        feeds[link.end] = value
    inner = replace(site, graph=graph)
    return [inner.tensor(x) for x in _results(site, body, graph, feeds)]


def _results(
    site: LayerSite, body: Body, graph: LayerGraph, feeds: dict[PortRef, Tensor]
) -> list[Tensor]:
    """Flatten a body into `graph`; return the tensors of the layer's output ports.

    `feeds` are the inputs of the body, by port.
    """
    outputs = links(body, inputs=False)
    ends = [source_of(body, link.end) for link in outputs]
    tensors = site.flatten(body, graph, feeds, ends, site.layer.name)
    by_port = {link.port: tensors[end] for link, end in zip(outputs, ends, strict=True)}
    missing = [port.id for port in site.layer.outputs if port.id not in by_port]
    if missing:
        raise InvalidOperation(f"a body has no result for output port {missing[0]}")
    return [by_port[port.id] for port in site.layer.outputs]


# Ports of bodies


def _outer(site: LayerSite, link: Link) -> Tensor:
    """Return the operand of the layer that `link` connects to a port of the body."""
    ports = [port.id for port in site.layer.inputs]
    if link.port not in ports:
        raise InvalidOperation(f"it has no input port {link.port}")
    return site.operand(ports.index(link.port))


def _truth(site: LayerSite, x: Tensor | bool) -> Value:
    """Return a condition as a tensor of bool."""
    if isinstance(x, bool):
        x = derived(np.array(x))
    return site.cast(site.tensor(x), "bool")


def _range(link: Link, extent: int) -> tuple[int, int, int]:
    """Return (begin, end, direction) of the items of an axis that `link` cuts into parts.

    `extent` is the extent of the axis. The direction is -1 if the first part is at the end of the
    axis, otherwise 1.
    """
    if abs(link.stride) != link.size or not link.size:
        raise InvalidOperation("parts that overlap or leave items out are not supported")
    first = link.start if link.start >= 0 else link.start + extent + 1
    last = link.stop if link.stop >= 0 else link.stop + extent + 1
    are_inside = 0 <= first <= extent and 0 <= last <= extent
    if not are_inside:
        raise InvalidOperation(
            f"its parts from {link.start} to {link.stop} do not fit {extent} items"
        )
    return (first, last, 1) if link.stride > 0 else (last, first, -1)


def _parts_of(site: LayerSite, value: Value, link: Link) -> tuple[Value, int, int]:
    """Return the items of `value` that `link` cuts into parts, the direction, and the axis.

    The direction is -1 if the first part is at the end of the axis, otherwise 1.
    """
    axis = site.axis(link.axis or 0, len(value.type.shape))
    extent = site.known_shape(value)[axis]
    low, high, sign = _range(link, extent)
    if (low, high) != (0, extent):
        value = site.part(value, axis, low, high)
    return value, sign, axis
