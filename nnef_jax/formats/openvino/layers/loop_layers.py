"""Functions for layers with bodies.

TensorIterator and Loop repeat a body, and If runs one of two bodies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.emission import ByName
from nnef_jax.flattening.host_operations import ceil_div
from nnef_jax.flattening.repetition import LAST, RepeatedBody, add_choice, flattened_branches
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.document import CONSTANTS, Body, PortRef
from nnef_jax.formats.openvino.layer_graph import LayerGraph
from nnef_jax.formats.openvino.layer_site import LayerSite, derived, stored
from nnef_jax.formats.openvino.layers.registry import operator, opsets
from nnef_jax.formats.openvino.ports import Link, back_edges, links, source_of

# A loop with the attribute `limit` becomes a scan of `limit` steps. If a loop may have more than
# `_MOST_ITERATIONS` iterations, it gets no `limit`, and the operand `count` ends the loop.
_MOST_ITERATIONS = 1 << 16


@opsets("Loop")
def _loop(site: LayerSite) -> list[Any]:
    """Repeat a body while a condition that the body computes is true.

    Input 0 is the largest number of iterations. Input 1 is the condition before the first
    iteration.
    """
    repetition = _Repetition(site)
    count = site.operand(0)
    first_condition: Tensor | bool = site.operand(1) if site.has(1) else True
    if isinstance(first_condition, Constant):
        first_condition = bool(first_condition.array.any())
    condition_port = repetition.condition_port()
    if not isinstance(count, Constant):
        return repetition.until(condition_port, count, first_condition)
    declared_count = int(count.array.reshape(-1)[0])
    has_limit = declared_count >= 0  # a negative number stands for "no limit"
    limit = declared_count if has_limit else None
    is_always_true = condition_port is None and first_condition is True
    if is_always_true:
        parts = repetition.part_count()
        if limit is None and parts is None:
            raise InvalidOperation("nothing ends it: it has no count, condition or parts")
        # A scan has one number of iterations, so the limit and the number of parts must agree.
        is_scan = limit is None or parts is None or limit == parts
        if is_scan:
            return repetition.scanned(limit)
    return repetition.until(condition_port, limit, first_condition)


class _Repetition:
    """Flattens a layer that repeats a body."""

    def __init__(self, site: LayerSite) -> None:
        self.site = site
        self.body = site.body("body")
        self.repeated = RepeatedBody(site)
        self.inputs = links(self.body, inputs=True)
        self.outputs = links(self.body, inputs=False)
        # Maps a port that reads a state to the port that computes the state's next value.
        self.next_states = back_edges(self.body)
        # The inputs of the body: maps a port of the body to the tensor that is fed to this port.
        self.feeds: dict[PortRef, Tensor] = {}

    # The port maps

    def condition_port(self) -> PortRef | None:
        """Return the port of the body that computes the condition.

        Return None if the condition is always true.
        """
        for link in self.outputs:
            if link.purpose == "execution_condition":
                port = source_of(self.body, link.end)
                return None if self._stays_true(port) else port
        return None

    def _stays_true(self, condition_port: PortRef) -> bool:
        """Tell whether a condition that is true at first is true after each iteration.

        The port `condition_port` of the body computes the condition.
        """
        layer_id, _ = condition_port
        layer = self.body.net.by_id[layer_id]
        if layer.kind == "parameter":
            # A condition that the body passes on unchanged stays true.
            next_state = self.next_states.get(condition_port)
            return next_state is None or source_of(self.body, next_state) == condition_port
        if layer.kind not in CONSTANTS:
            return False  # the condition depends on values
        site_of_constant = replace(self.site, layer=layer, net=self.body.net, operands=())
        return bool(stored(site_of_constant).array.all())

    def _reads_iteration(self, link: Link) -> bool:
        """Tell whether a line of the port map feeds the number of the iteration to the body."""
        return link.purpose == "current_iteration" or link.port < 0

    @property
    def _cut_inputs(self) -> list[Link]:
        """Return the lines of the port map that cut an input into one part for each iteration."""
        return [link for link in self.inputs if link.axis is not None]

    def part_count(self) -> int | None:
        """Return the number of parts into which inputs are cut, or None if no input is cut.

        Each iteration reads one part of each cut input.
        """
        if not self._cut_inputs:
            return None
        # All cut inputs have the same number of parts, so the first cut input gives the number.
        link = self._cut_inputs[0]
        shape = self.site.known_shape(_outer(self.site, link))
        axis = self.site.axis(link.axis or 0, len(shape))
        cut = _cut_range(link, shape[axis])
        return ceil_div(cut.end - cut.begin, link.size)

    def _input_for(self, value: Value) -> Value:
        """Return the body's input for `value`, a tensor that each iteration gets as a whole."""
        graph = self.repeated.graph
        return graph.input_for(value, f"full_{len(graph.captured) + 1}")

    def _feed_iteration(self, iteration: Value) -> None:
        """Feed `iteration`, the number of the iteration, to the body's ports for this number.

        The number is a tensor with a single element.
        """
        for link in self.inputs:
            if self._reads_iteration(link):
                layer_id, _ = link.end
                declared_shape = self.body.net.by_id[layer_id].outputs[0].shape or ()
                shape = [1] * len(declared_shape)
                self.feeds[link.end] = self.repeated.at.reshaped(iteration, shape)

    # The operations

    def scanned(self, iterations: int | None) -> list[Any]:
        """Add a scan, which runs the body a fixed number of times, and return the layer's results.

        `iterations` is the number of iterations. None stands for the number of parts into which
        inputs are cut. Raises InvalidOperation if `iterations` is None and no input is cut.
        """
        site, repeated = self.site, self.repeated
        for link in self._cut_inputs:
            value, direction, axis = _cut_items(site, site.tensor(_outer(site, link)), link)
            self.feeds[link.end] = repeated.part(value, axis, direction * link.size)
        reads_iteration = any(map(self._reads_iteration, self.inputs))
        if not self._cut_inputs or reads_iteration:
            # Without cut inputs, the length of the scan follows from a tensor with the numbers 0 to
            # count - 1.
            count = self.part_count() if iterations is None else iterations
            if count is None:
                raise InvalidOperation("it has no input that is cut into parts")
            self._feed_iteration(repeated.iteration(count))
        return self._emit()

    def until(
        self,
        condition_port: PortRef | None,
        count: Tensor | int | None,
        first_condition: Tensor | bool,
    ) -> list[Any]:
        """Add a loop that ends when its condition is false, or after `count` iterations.

        `condition_port` is the port of the body that computes the condition, or None if the
        condition is always true. `count` is the largest number of iterations, or None if there is
        no such number. `first_condition` is the condition before the first iteration. Each
        iteration slices its parts out of the cut inputs.
        """
        site = self.site
        parts = self.part_count()
        known_bounds = [bound for bound in (parts, count) if isinstance(bound, int)]
        limit = min(known_bounds, default=-1)
        if limit > _MOST_ITERATIONS:
            limit = -1  # stands for no limit
        iteration = self.repeated.turn()
        self._feed_iteration(iteration)
        for link in self._cut_inputs:
            self.feeds[link.end] = self._sliced_part(link, iteration)
        largest_integer = int(np.iinfo(site.integer).max)
        if isinstance(count, Value):
            # The network computes the largest number of iterations. The number of parts is a bound
            # too.
            largest_count: Value | int = site.reshaped(site.cast(count, site.integer), ())
            if parts is not None:
                largest_count = site.step.min(largest_count, parts)
        else:
            largest_count = min([*known_bounds, largest_integer])
        if not isinstance(first_condition, bool):
            first_condition = _truth(site, first_condition)
        operands = {"count": largest_count, "condition": first_condition}
        return self._emit(condition_port, loop_operands=operands, limit=limit)

    def _sliced_part(self, link: Link, iteration: Value) -> Value:
        """Slice the part for an iteration out of an input, in the body of a loop.

        `link` is the line of the port map that cuts the input. `iteration` is the number of the
        iteration, from 0 on.
        """
        site = self.site
        step = self.repeated.at.step
        value, direction, axis = _cut_items(site, site.tensor(_outer(site, link)), link)
        start = iteration
        if link.size > 1:
            start = step.mul(iteration, link.size)
        if direction < 0:  # the part of iteration 0 is at the end of the axis
            last_start = value.type.shape[axis] - link.size
            start = step.sub(last_start, start)
        return step.dynamic_slice(self._input_for(value), start, length=link.size, axis=axis)

    def _emit(
        self,
        condition_port: PortRef | None = None,
        loop_operands: ByName | None = None,
        limit: int = -1,
    ) -> list[Any]:
        """Add the scan or loop to the graph, and return the tensors of the layer's output ports.

        If `loop_operands` is None, a scan is added, and the other arguments are not used. Otherwise
        a loop is added. `condition_port` is the port of the body that computes the loop's
        condition, or None if the condition is always true. `limit` is the largest number of
        iterations, or -1 if there is no limit.
        """
        site = self.site
        inner = self.repeated.at
        states = self._feed_uncut()
        states_before = [self.feeds[link.end] for link in states]
        next_ports = [source_of(self.body, self.next_states[link.end]) for link in states]
        # A line of the port map that has no port of the layer has the port -1. The line for the
        # condition may be such a line.
        connected = [link for link in self.outputs if link.port >= 0]
        result_ports = [source_of(self.body, link.end) for link in connected]
        ports = [*next_ports, *result_ports]
        if condition_port is not None:
            ports.append(condition_port)
        tensors = site.flatten(self.body, self.repeated.graph, self.feeds, ports, site.layer.name)
        next_states = [tensors[port] for port in next_ports]
        states_after = self._with_dtypes_of(states_before, next_states)
        values = [inner.tensor(tensors[port]) for port in result_ports]
        modes: list[tuple[str, int, int]] = []
        for link, value in zip(connected, values, strict=True):
            modes.append(self._output_mode(link, value))
        is_loop = loop_operands is not None
        continue_condition: list[Value] = []  # a loop has one condition, and a scan has none
        if is_loop:
            continues = True if condition_port is None else tensors[condition_port]
            continue_condition.append(_truth(inner, continues))
            # One more output counts the iterations: the number of the last iteration, plus 1.
            iteration = self.repeated.loop_inputs[0]
            values.append(inner.step.add(iteration, 1))
            modes.append(LAST)
        outputs = self.repeated.add(
            site.insert, continue_condition, states_after, values, modes,
            start=loop_operands, limit=limit,
        )  # fmt: skip
        if is_loop:
            outputs = self._outputs_with_counts(connected, outputs)
        output_by_port = dict(zip([link.port for link in connected], outputs, strict=True))
        return [output_by_port.get(port.id) for port in site.layer.outputs]

    def _with_dtypes_of(
        self, states_before: Sequence[Tensor], next_states: Sequence[Tensor]
    ) -> list[Tensor]:
        """Cast the states after an iteration to the dtypes of the states before the iteration.

        A state has the same dtype in all iterations.
        """
        inner = self.repeated.at
        states_after: list[Tensor] = []
        for state, next_state in zip(states_before, next_states, strict=True):
            states_after.append(inner.cast(inner.tensor(next_state), inner.dtype_of(state)))
        return states_after

    def _feed_uncut(self) -> list[Link]:
        """Feed all inputs of the body that are not cut. Return the port map's lines for states.

        An input that is neither cut nor a state has the same value in each iteration.
        """
        states: list[Link] = []
        for link in self.inputs:
            is_uncut = link.axis is None and not self._reads_iteration(link)
            if not is_uncut:
                continue
            is_state = link.end in self.next_states
            if is_state:
                states.append(link)
                continue
            value = _outer(self.site, link)
            if isinstance(value, Value):
                value = self._input_for(value)
            self.feeds[link.end] = value
        for link in states:
            self.feeds[link.end] = self.repeated.state(_outer(self.site, link))
        return states

    def _output_mode(self, link: Link, value: Value) -> tuple[str, int, int]:
        """Return the way in which the values of all iterations become an output of the layer.

        The result is `LAST` if the output is the last value, and ("full", axis, direction) if the
        output joins the values along an axis. The direction is -1 if the value of the last
        iteration comes first. `link` is the output's line of the port map, and `value` is the value
        of one iteration.
        """
        if link.axis is None:
            return LAST
        direction = 1 if link.stride > 0 else -1
        axis = self.site.axis(link.axis, len(value.type.shape))
        return "full", axis, direction

    def _outputs_with_counts(
        self, connected: Sequence[Link], outputs: Sequence[Value]
    ) -> list[Value]:
        """Return the outputs of a loop whose number of iterations is computed.

        `outputs` has one output for each link in `connected`, and then the number of iterations. An
        output that joins the values of all iterations is returned with the number of its items:
        `size` items for each iteration.
        """
        site = self.site
        *values, iterations = outputs
        results: list[Value] = []
        for link, value in zip(connected, values, strict=True):
            if link.axis is None:
                results.append(value)  # the value of the last iteration
                continue
            if link.stride < 0:
                raise InvalidOperation(
                    "the number of iterations is computed, and results are joined from the end"
                )
            axis = site.axis(link.axis, len(value.type.shape))
            item_count = site.step.mul(site.reshaped(iterations, (1,)), link.size)
            results.append(site.listed(value, axis, item_count))
        return results


operator("TensorIterator")(lambda site: _Repetition(site).scanned(iterations=None))


# A choice of two bodies


@opsets("If")
def _if(site: LayerSite) -> list[Any]:
    """Run `then_body` if input 0 is true, otherwise `else_body`. The other body does not run."""
    condition = site.operand(0)
    then_body = site.body("then_body")
    else_body = site.body("else_body")
    if isinstance(condition, Constant):
        body = then_body if condition.array.any() else else_body
        feeds = {link.end: _outer(site, link) for link in links(body, inputs=True)}
        return _results(site, body, site.graph, feeds)
    then_graph = site.graph.body()
    else_graph = site.graph.body()
    # The two bodies are flattened when these functions are called.
    flatteners = [
        partial(_flattened, site, then_body, then_graph),
        partial(_flattened, site, else_body, else_graph),
    ]
    body_outputs = flattened_branches(flatteners, site.graph.hint_to_fix(condition))
    truth = _truth(site, condition)
    return add_choice(site, site.insert, truth, [then_graph, else_graph], body_outputs)


def _flattened(site: LayerSite, body: Body, graph: LayerGraph) -> list[Value]:
    """Flatten a body as a graph of its own. Return the tensors of the layer's output ports.

    `graph` is the empty graph of the body. If the body reads a tensor from outside, the tensor
    becomes an input of `graph`.
    """
    feeds = dict[PortRef, Tensor]()
    for link in links(body, inputs=True):
        value = _outer(site, link)
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


# Ports of bodies


def _outer(site: LayerSite, link: Link) -> Tensor:
    """Return the layer's operand that a line of the port map connects to the body.

    `link` is the line.
    """
    ports = [port.id for port in site.layer.inputs]
    if link.port not in ports:
        raise InvalidOperation(f"it has no input port {link.port}")
    return site.operand(ports.index(link.port))


def _truth(site: LayerSite, condition: Tensor | bool) -> Value:
    """Return a condition as a tensor of bool."""
    if isinstance(condition, bool):
        condition = derived(np.array(condition))
    return site.cast(site.tensor(condition), "bool")


class _CutRange(NamedTuple):
    """The range of an axis that is cut into parts: the items from `begin` to `end` - 1.

    `direction` is -1 if the first part is at the end of the range, otherwise 1.
    """

    begin: int
    end: int
    direction: int


def _cut_range(link: Link, extent: int) -> _CutRange:
    """Return the range of an axis that is cut into parts.

    `link` is the line of the port map that describes the parts. The axis has `extent` items. Raises
    InvalidOperation if the parts overlap, leave items out, or do not fit the axis.
    """
    if link.size == 0 or abs(link.stride) != link.size:
        raise InvalidOperation("parts that overlap or leave items out are not supported")
    # A bound of -1 stands for the end of the axis, -2 for one item before the end, and so on.
    start = link.start if link.start >= 0 else link.start + extent + 1
    stop = link.stop if link.stop >= 0 else link.stop + extent + 1
    are_inside = 0 <= start <= extent and 0 <= stop <= extent
    if not are_inside:
        raise InvalidOperation(
            f"its parts from {link.start} to {link.stop} do not fit {extent} items"
        )
    if link.stride > 0:
        return _CutRange(begin=start, end=stop, direction=1)
    # Parts with a negative stride start at the end of the range.
    return _CutRange(begin=stop, end=start, direction=-1)


def _cut_items(site: LayerSite, value: Value, link: Link) -> tuple[Value, int, int]:
    """Return the tuple (items, direction, axis) for a tensor that is cut into parts along an axis.

    The items are the range of `value` that the parts cover. The direction is -1 if the first part
    is at the end of the axis, otherwise 1. `link` is the line of the port map that describes the
    parts.
    """
    axis = site.axis(link.axis or 0, len(value.type.shape))
    extent = site.known_shape(value)[axis]
    cut = _cut_range(link, extent)
    has_all_items = cut.begin == 0 and cut.end == extent
    if not has_all_items:
        value = site.part(value, axis=axis, first=cut.begin, last=cut.end)
    return value, cut.direction, axis
