"""Functions for the layers TensorIterator and Loop, which repeat a body."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from lowering.errors import InvalidOperation
from lowering.extents import is_symbolic
from lowering.graph import Value
from nnef_jax.flattening.loops import Iteration, add_loop
from nnef_jax.flattening.repetition import LAST, RepeatedBody
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.document import CONSTANTS, PortRef
from nnef_jax.formats.openvino.layer_site import LayerSite, derived, stored
from nnef_jax.formats.openvino.layers.registry import operator, opsets
from nnef_jax.formats.openvino.ports import Link, back_edges, links, source_of


@opsets("Loop")
def _loop(site: LayerSite) -> list[Any]:
    """Repeat a body while a condition that the body computes is true.

    Input 0 is the largest number of iterations. Input 1 is the condition before the first
    iteration.
    """
    repetition = _Repetition(site)
    count: Tensor | None = site.operand(0)
    condition: Tensor | None = site.operand(1) if site.has(1) else None
    limit = math.inf
    if isinstance(count, Constant):
        declared_count = count.array.reshape(-1)[0]
        if is_symbolic(declared_count):
            # A run computes the count, for example from the length of a list.
            count = site.tensor(count)
        else:
            has_limit = declared_count >= 0  # a negative number stands for "no limit"
            limit = int(declared_count) if has_limit else math.inf
            count = None
    if isinstance(condition, Constant):
        if not condition.array.any():
            limit = 0
        condition = None  # `limit` is 0 if this condition is false
    condition_port = repetition.condition_port()
    is_always_true = condition_port is None and condition is None
    if is_always_true and count is None:
        parts = repetition.part_count()
        if limit == math.inf and parts is None:
            raise InvalidOperation("nothing ends it: it has no count, condition or parts")
        # A scan has one number of iterations, so the limit and the number of parts must agree.
        is_scan = limit == math.inf or parts is None or limit == parts
        if is_scan:
            return repetition.scanned(None if limit == math.inf else int(limit))
    return repetition.until(condition_port, count, condition, limit)


class _Repetition:
    """Flattens a layer that repeats a body."""

    def __init__(self, site: LayerSite) -> None:
        self.site = site
        self.body = site.body("body")
        self.inputs = links(self.body, inputs=True)
        self.outputs = links(self.body, inputs=False)
        # Maps a port that reads a state to the port that computes the state's next value.
        self.next_states = back_edges(self.body)

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
            changes = next_state and source_of(self.body, next_state) != condition_port
            return not changes and self._is_true_at_first(condition_port)
        if layer.kind not in CONSTANTS:
            return False  # the condition depends on values
        site_of_constant = replace(self.site, layer=layer, net=self.body.net, operands=())
        return bool(stored(site_of_constant).array.all())

    def _is_true_at_first(self, port: PortRef) -> bool:
        """Tell whether the body reads true from a port in the first iteration, if there is one."""
        for link in self.inputs:
            if link.end == port and link.port >= 0:
                value = outer_operand(self.site, link)
                if isinstance(value, Constant):
                    return bool(value.array.all())
                # The first iteration runs only if operand 1 is true.
                return self.site.has(1) and value is self.site.operand(1)
        return False

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
        shape = self.site.known_shape(outer_operand(self.site, link))
        axis = self.site.axis(link.axis or 0, len(shape))
        cut = _cut_range(self.site, link, shape[axis])
        return (cut.end - cut.begin) // link.size

    @property
    def _states(self) -> list[Link]:
        """Return the lines of the port map that feed states to the body."""
        return [link for link in self._whole_inputs if link.end in self.next_states]

    @property
    def _whole_inputs(self) -> list[Link]:
        """Return the lines of the port map that feed tensors that are not cut, also states."""
        inputs = [link for link in self.inputs if link.axis is None]
        return [link for link in inputs if not self._reads_iteration(link)]

    @property
    def _connected(self) -> list[Link]:
        """Return the lines of the port map for the output ports of the layer.

        A line that has no port of the layer has the port -1. The line for the condition may be such
        a line.
        """
        return [link for link in self.outputs if link.port >= 0]

    def _next_port(self, state: Link) -> PortRef:
        """Return the port of the body that computes the next value of a state."""
        return source_of(self.body, self.next_states[state.end])

    # The operations

    def scanned(self, iterations: int | None) -> list[Any]:
        """Add a scan, which runs the body a fixed number of times, and return the layer's results.

        `iterations` is the number of iterations. None stands for the number of parts into which
        inputs are cut. Raises InvalidOperation if `iterations` is None and no input is cut.
        """
        site = self.site
        repeated = RepeatedBody(site)
        count = self.part_count() if iterations is None else iterations
        if count is None:
            raise InvalidOperation("it has no input that is cut into parts")
        feeds = self._constant_feeds(repeated)
        for link in self._cut_inputs:
            value, direction, axis = _cut_items(site, site.tensor(outer_operand(site, link)), link)
            feeds[link.end] = repeated.part(value, axis, direction * link.size)
        reads_iteration = any(map(self._reads_iteration, self.inputs))
        if not self._cut_inputs or reads_iteration:
            # Without cut inputs, the length of the scan follows from a tensor with the numbers 0 to
            # count - 1.
            feeds |= self._number_feeds(repeated, repeated.iteration(count))
        for link in self._states:
            feeds[link.end] = repeated.state(outer_operand(site, link))
        iteration = self._iteration(repeated, feeds, None, self._connected)
        pairs = zip(repeated.inner_states, iteration.states, strict=True)
        if not all(repeated.graph.has_shape_of(old, new) for old, new in pairs):
            limit = math.inf if is_symbolic(count) else count
            return self.until(None, None, None, limit)  # a loop lets states grow
        no_condition: list[Tensor] = []  # a scan has none
        outputs = repeated.add(
            site.insert, no_condition, iteration.states, iteration.outputs, iteration.modes
        )
        return self._by_port(self._connected, outputs)

    def until(
        self,
        condition_port: PortRef | None,
        count: Tensor | None,
        condition: Tensor | None,
        limit: float,
    ) -> list[Any]:
        """Add a loop that ends when its condition is false, or after `count` iterations.

        Each iteration slices its parts out of the cut inputs.

        Args:
            condition_port: the port of the body that computes the condition, or None if the
                condition is always true.
            count: the largest number of iterations. None stands for `limit`.
            condition: the condition before the first iteration. None stands for true.
            limit: an upper bound of the number of iterations, or infinity.
        """
        site = self.site
        parts = self.part_count()
        if parts is not None:
            most_parts = site.graph.bound(parts)
            limit = limit if is_symbolic(most_parts) else min(limit, most_parts)
            count = self._smaller_count(count, parts)
        states = self._states
        next_ports = [self._next_port(state) for state in states]
        state_links: list[Link] = []  # the lines for outputs that are the last value of a state
        output_links: list[Link] = []
        for link in self._connected:
            is_state = link.axis is None and source_of(self.body, link.end) in next_ports
            (state_links if is_state else output_links).append(link)

        def flatten(
            repeated: RepeatedBody, number: Value, inner_states: Sequence[Value]
        ) -> Iteration:
            feeds = self._constant_feeds(repeated) | self._number_feeds(repeated, number)
            for link in self._cut_inputs:
                feeds[link.end] = self._sliced_part(repeated, link, number)
            for link, state in zip(states, inner_states, strict=True):
                feeds[link.end] = state
            return self._iteration(repeated, feeds, condition_port, output_links)

        first_states = [outer_operand(site, link) for link in states]
        last_states, outputs = add_loop(site, first_states, flatten, count, condition, limit)
        for link in state_links:
            outputs.append(last_states[next_ports.index(source_of(self.body, link.end))])
        return self._by_port([*output_links, *state_links], outputs)

    def _smaller_count(self, count: Tensor | None, parts: Any) -> Tensor | None:
        """Return the smaller one of `count` and the number of parts as a tensor without axes.

        A negative `count` is no limit. Return None if neither number is computed in a run.
        """
        site = self.site
        part_count: Any = parts
        if is_symbolic(parts):
            part_count = site.reshaped(site.graph.extent_tensor(parts, site.span), ())
        if count is None:
            return part_count if is_symbolic(parts) else None
        smaller = site.step.min(site.reshaped(site.cast(count, site.integer), ()), part_count)
        if isinstance(count, Value) and site.graph.bounds.is_count(count):
            return smaller
        return site.step.select(site.step.lt(smaller, 0), part_count, smaller)

    def _by_port(self, output_links: Sequence[Link], outputs: Sequence[Value]) -> list[Any]:
        """Return a tensor or None for each output port of the layer.

        `outputs` has the tensors for the lines `output_links` of the port map.
        """
        ports = [link.port for link in output_links]
        output_by_port = dict(zip(ports, outputs, strict=True))
        return [output_by_port.get(port.id) for port in self.site.layer.outputs]

    # The body

    def _constant_feeds(self, repeated: RepeatedBody) -> dict[PortRef, Tensor]:
        """Return the inputs of the body that have the same value in each iteration.

        The result maps ports of the body to the inputs.
        """
        feeds: dict[PortRef, Tensor] = {}
        for link in self._whole_inputs:
            if link.end not in self.next_states:
                value = outer_operand(self.site, link)
                feeds[link.end] = _input_for(repeated, value) if isinstance(value, Value) else value
        return feeds

    def _number_feeds(self, repeated: RepeatedBody, number: Value) -> dict[PortRef, Tensor]:
        """Return a dict from ports of the body to `number`, the number of the iteration.

        `number` has a single element.
        """
        feeds: dict[PortRef, Tensor] = {}
        for link in self.inputs:
            if self._reads_iteration(link):
                layer_id, _ = link.end
                declared_shape = self.body.net.by_id[layer_id].outputs[0].shape or ()
                shape = [1] * len(declared_shape)
                feeds[link.end] = repeated.at.reshaped(number, shape)
        return feeds

    def _sliced_part(self, repeated: RepeatedBody, link: Link, number: Value) -> Value:
        """Slice the part for an iteration out of an input, in the body of a loop.

        `link` is the line of the port map that cuts the input. `number` is the number of the
        iteration, from 0 on.
        """
        site = self.site
        step = repeated.at.step
        value, direction, axis = _cut_items(site, site.tensor(outer_operand(site, link)), link)
        start = number
        if link.size > 1:
            start = step.mul(number, link.size)
        if direction < 0:  # the part of iteration 0 is at the end of the axis
            last_start: Any = site.known_shape(value)[axis] - link.size
            if is_symbolic(last_start):
                last_start = repeated.graph.extent_tensor(last_start, site.span)
                last_start = repeated.at.reshaped(last_start, ())
            start = step.sub(last_start, start)
        return step.dynamic_slice(_input_for(repeated, value), start, length=link.size, axis=axis)

    def _iteration(
        self,
        repeated: RepeatedBody,
        feeds: dict[PortRef, Tensor],
        condition_port: PortRef | None,
        output_links: Sequence[Link],
    ) -> Iteration:
        """Flatten the body; return its results.

        `feeds` maps ports of the body to its inputs. `condition_port` is as for `until`. The
        outputs of the result are those of `output_links`, lines of the port map.
        """
        site = self.site
        inner = repeated.at
        next_ports = [self._next_port(state) for state in self._states]
        output_ports = [source_of(self.body, link.end) for link in output_links]
        ports = [*next_ports, *output_ports]
        if condition_port is not None:
            ports.append(condition_port)
        tensors = site.flatten(self.body, repeated.graph, feeds, ports, site.layer.name)
        states_after: list[Value] = []
        for state, port in zip(self._states, next_ports, strict=True):
            # A state has the same dtype in all iterations.
            dtype = inner.dtype_of(feeds[state.end])
            states_after.append(inner.cast(inner.tensor(tensors[port]), dtype))
        outputs = [inner.tensor(tensors[port]) for port in output_ports]
        modes: list[tuple[str, int, int]] = []
        for link, output in zip(output_links, outputs, strict=True):
            modes.append(self._output_mode(link, output))
        continues = derived(True) if condition_port is None else tensors[condition_port]
        return Iteration(continues, states_after, outputs, modes)

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


operator("TensorIterator")(lambda site: _Repetition(site).scanned(iterations=None))


# Ports of bodies


def outer_operand(site: LayerSite, link: Link) -> Tensor:
    """Return the layer's operand that a line of the port map connects to the body.

    `link` is the line.
    """
    ports = [port.id for port in site.layer.inputs]
    if link.port not in ports:
        raise InvalidOperation(f"it has no input port {link.port}")
    return site.operand(ports.index(link.port))


def _input_for(repeated: RepeatedBody, value: Value) -> Value:
    """Return the body's input for `value`, a tensor that each iteration gets as a whole."""
    graph = repeated.graph
    return graph.input_for(value, f"full_{len(graph.captured) + 1}")


class _CutRange(NamedTuple):
    """The range of an axis that is cut into parts: the items from `begin` to `end` - 1.

    `direction` is -1 if the first part is at the end of the range, otherwise 1.
    """

    begin: int
    end: int
    direction: int


def _cut_range(site: LayerSite, link: Link, extent: int) -> _CutRange:
    """Return the range of an axis that is cut into parts.

    `link` is the line of the port map that describes the parts. The axis has `extent` items. Raises
    InvalidOperation if the parts overlap, leave items out, or do not fit the axis. Also raises
    InvalidOperation for parts of several items of a list, and for parts that are not all parts of a
    list, since the list may have too few items.
    """
    if link.size == 0 or abs(link.stride) != link.size:
        raise InvalidOperation("parts that overlap or leave items out are not supported")
    is_entire = {link.start, link.stop} == {0, -1}
    counts = site.graph.count_names((extent,))
    if counts and not (is_entire and link.size == 1):
        raise InvalidOperation(
            f"the number of items that are cut into parts depends on values ('{counts[0]}' tells "
            "it), so each part must be a single item, and the parts must be all items"
        )
    # A bound of -1 stands for the end of the axis, -2 for one item before the end, and so on.
    start = link.start if link.start >= 0 else link.start + extent + 1
    stop = link.stop if link.stop >= 0 else link.stop + extent + 1
    are_inside = 0 <= start <= extent and 0 <= stop <= extent
    if not are_inside:
        raise InvalidOperation(
            f"its parts from {link.start} to {link.stop} do not fit {extent} items"
        )
    if (stop - start) % link.size != 0:
        raise InvalidOperation(
            f"its parts of {link.size} items do not divide the items from {start} to {stop}"
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
    cut = _cut_range(site, link, extent)
    has_all_items = cut.begin == 0 and cut.end == extent
    if not has_all_items:
        value = site.part(value, axis=axis, first=cut.begin, last=cut.end)
    return value, cut.direction, axis
