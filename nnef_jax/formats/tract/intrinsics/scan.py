"""The operation `tract_core_scan`, which repeats a fragment over slices of tensors, with states."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from lowering.errors import InvalidOperation
from lowering.graph import Graph, TensorType, Value
from nnef_jax.flattening.hostvalues import host
from nnef_jax.flattening.operators.attributes import flag, text
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.tract.application import Results, apply, tensor
from nnef_jax.formats.tract.attributes import known_integer
from nnef_jax.formats.tract.call_site import CallSite
from nnef_jax.formats.tract.document import SCAN
from nnef_jax.formats.tract.flat_graph import FlatGraph
from nnef_jax.formats.tract.operators.registry import fixed, intrinsic
from nnef_jax.wording.similar import listed

_SCAN_STEPS = 1_000  # steps of the meter for a scan


class _EntryForm(NamedTuple):
    """The form of the entries of an argument. Each entry is a tuple.

    `lengths` are the possible lengths of an entry, and `strings` are the indices of the items that
    must be strings.
    """

    lengths: Sequence[int]
    strings: Sequence[int]


# Maps an argument of the scan to the form of the argument's entries. The argument is a list of
# entries.
_ENTRY_FORMS = {
    "scan": _EntryForm(lengths=(4,), strings=(0,)),
    "full": _EntryForm(lengths=(2,), strings=(0,)),
    "state": _EntryForm(lengths=(3,), strings=(0, 2)),
    "output": _EntryForm(lengths=(3, 4), strings=(0, 1)),
}


class _Scanned(NamedTuple):
    """A parameter of a scan's body, and the tensor that is cut into the values of the parameter.

    In each iteration, the parameter is a slice of the tensor along `axis`, of |chunk| items. If
    `chunk` is negative, the first slice is at the end of the axis.
    """

    parameter: str
    tensor: Value
    axis: int
    chunk: int


class _State(NamedTuple):
    """A state of a scan: a parameter of the body, its first value, and a result of the body.

    The result is the value of the parameter in the next iteration.
    """

    parameter: str
    first: Value
    result: str


class _Output(NamedTuple):
    """An output of a scan: a result of the body, and how its values become the output.

    `mode` tells whether all values are joined along `axis`, or the last value is the output. If
    `chunk` is negative, the value of the last iteration comes first.
    """

    result: str
    mode: str
    axis: int
    chunk: int


@intrinsic(SCAN, name=text("body"), skip=fixed("skip"), resets=flag("reset_every_turn"))
def scan(site: CallSite, *, name: str, skip: int, resets: bool) -> Any:
    """Flatten the body of a scan as a separate graph, and add one operation `scan` to the graph.

    `name` is the fragment that is the body. A parameter of the body is a slice of a scanned tensor,
    a full tensor, or a state. The first value of a state is a tensor, and each next value is a
    result of the body. In the first `skip` iterations, states do not change. In a network that
    takes a stream, states are kept from call to call unless `resets`.
    """
    document = site.unit.document
    fragment = document.fragments.get(name)
    if fragment is None:
        raise InvalidOperation(f"the document has no fragment '{name}' for 'body'")
    site.graph.meter.spend(_SCAN_STEPS)
    entries = {key: _entries(site.arguments[key], key) for key in _ENTRY_FORMS}
    changes_state = bool(entries["state"]) or skip != 0
    is_in_stream = document.is_pulsed and site.graph.outer is None
    keeps_state = is_in_stream and changes_state and not resets  # from call to call
    scanned = _scanned_of(site, entries["scan"])
    states = _states_of(site, entries["state"])
    outputs = _outputs_of(entries["output"])
    results = [output.result for output in outputs]
    skipped_iterations = skip if keeps_state else 0
    body = _Body(site, fragment, scanned, entries["full"], results, skipped_iterations)
    graph, full, states = body.flatten(states)
    initial = [state.first for state in states]
    if keeps_state:
        prefix = site.names[0] if site.names else f"{site.frame.prefix}{name}"
        starts = [start for _, start, _ in entries["state"]]
        initial = body.variables(starts, states, prefix)
        skip = 0  # the body counts the iterations itself
        # The last value of each state also becomes an output of the scan. The body's outputs begin
        # with the next values of the states.
        outputs += [_Output(result="", mode="last", axis=0, chunk=1)] * len(initial)
        graph = replace(graph, outputs=(*graph.outputs, *graph.outputs[: len(initial)]))
    operands = {"scanned": [entry.tensor for entry in scanned], "full": full, "initial": initial}
    attributes = {
        "body": graph,
        "axes": [entry.axis for entry in scanned],
        "chunks": [entry.chunk for entry in scanned],
        "outputs": [(output.mode, output.axis, output.chunk) for output in outputs],
        "skip": skip,
    }
    (tensors,) = site.add("scan", operands, attributes, site.names)
    if not keeps_state:
        return Results.of(tensors)
    last_values = tensors[-len(initial) :]
    for variable, last_value in zip(initial, last_values, strict=True):
        site.graph.builder.update(variable, last_value)
    return Results.of(tensors[: -len(initial)])


def _entries(value: object, key: str) -> list[tuple[Any, ...]]:
    """Return the entries of the argument `key`. Raises InvalidOperation if their form is wrong."""
    form = _ENTRY_FORMS[key]
    entries = cast(list[Any], value if isinstance(value, list) else [value])
    for entry in entries:
        if not isinstance(entry, tuple) or len(cast(tuple[Any], entry)) not in form.lengths:
            raise InvalidOperation(f"'{key}' is a list of tuples of {form.lengths[-1]} values")
        if any(not isinstance(entry[i], str) for i in form.strings):
            raise InvalidOperation(
                f"'{key}' must name parameters and results of the body by strings"
            )
    return entries


def _scanned_of(site: CallSite, entries: Sequence[tuple[Any, ...]]) -> list[_Scanned]:
    """Read the entries of the argument `scan`."""
    scanned: list[_Scanned] = []
    for parameter, value, *axis_and_chunk in entries:
        axis, chunk = _axis_and_chunk(axis_and_chunk)
        scanned.append(_Scanned(parameter, tensor(site, value), axis, chunk))
    return scanned


def _states_of(site: CallSite, entries: Sequence[tuple[Any, ...]]) -> list[_State]:
    """Read the entries of the argument `state`."""
    states: list[_State] = []
    for parameter, start, result in entries:
        states.append(_State(parameter, tensor(site, start), result))
    return states


def _outputs_of(entries: Sequence[tuple[Any, ...]]) -> list[_Output]:
    """Read the entries of the argument `output`."""
    outputs: list[_Output] = []
    for result, mode, *axis_and_chunk in entries:
        axis, chunk = _axis_and_chunk(axis_and_chunk)
        outputs.append(_Output(result, mode, axis, chunk))
    return outputs


def _axis_and_chunk(values: Sequence[Any]) -> tuple[int, int]:
    """Read the end of an entry as integers: [axis, chunk] or [axis]. The default chunk is 1."""
    axis, *chunks = values
    chunk = known_integer(chunks[0], "chunk") if chunks else 1
    return known_integer(axis, "axis"), chunk


@dataclass(frozen=True, slots=True)
class _Body:
    """The body of a scan.

    In the first `skipped_iterations` iterations of a stream, states do not change.
    """

    site: CallSite
    fragment: s.Fragment
    scanned: Sequence[_Scanned]
    full: Sequence[tuple[Any, ...]]
    outputs: Sequence[str]
    skipped_iterations: int

    def flatten(
        self, states: list[_State], *, again: bool = False
    ) -> tuple[Graph, list[Value], list[_State]]:
        """Flatten the body; return its graph, the tensors that it reads in full, and the states.

        The states have the dtypes of the results that replace them. If the first value of a state
        has another dtype, it is cast, and the body is flattened a second time, with `again` set.
        """
        site = self.site.into(self.site.graph.body())
        graph = site.graph
        bindings = _Bindings(site, self.site.graph, self.fragment)
        slices = [bindings.bind(x.parameter, x.tensor, x.axis, x.chunk) for x in self.scanned]
        # There is a pair for each tensor that the body reads in full: the body's input, and the
        # tensor outside of the body.
        full_tensors: list[tuple[Value, Any]] = []
        for name, outer in self.full:
            body_input = bindings.bind(name, outer)
            if isinstance(body_input, Value):  # the body has no input for a constant value
                full_tensors.append((body_input, outer))
        state_inputs = [bindings.bind(state.parameter, state.first) for state in states]
        bindings.refuse_missing()
        body_frame = site.evaluator.enter(self.fragment, bindings.values, site.named())
        identifier = _identifier_finder(body_frame.values)
        body_site = replace(site, frame=body_frame)

        def result(name: str) -> Value:
            node = s.Identifier(site.node.offset, identifier(name) or name)
            return tensor(body_site, site.evaluator.lookup(node, body_frame))

        next_states = [result(state.result) for state in states]
        results = [result(name) for name in self.outputs]
        if not again:
            cast_states = self._cast_first_values(states, next_states)
            if cast_states != states:
                return self.flatten(cast_states, again=True)
        full_tensors += [(body_input, outer) for outer, body_input in graph.captured.items()]
        full_inputs = [body_input for body_input, _ in full_tensors]
        inputs = [*slices, *full_inputs, *state_inputs]
        if self.skipped_iterations:
            inputs, next_states = self._with_counter(site, inputs, next_states)
        outputs = [*next_states, *results]
        output_names = [value.name for value in outputs]
        input_names = [value.name for value in inputs]
        flat = graph.builder.graph(self.fragment.name, outputs, output_names, input_names)
        flat, used_tensors = _without_unused(flat, full_tensors)
        return flat, used_tensors, states

    def _cast_first_values(
        self, states: Sequence[_State], next_states: Sequence[Value]
    ) -> list[_State]:
        """Cast the first value of each state to the dtype of the state's next value."""
        cast_states: list[_State] = []
        for state, next_value in zip(states, next_states, strict=True):
            first = self.site.cast(state.first, next_value.type.dtype)
            cast_states.append(state._replace(first=first))
        return cast_states

    def _with_counter(
        self, site: CallSite, inputs: Sequence[Value], next_states: Sequence[Value]
    ) -> tuple[list[Value], list[Value]]:
        """Add a counter of iterations to the body's inputs and next states; return both lists.

        States change only from the iteration `skipped_iterations` on.
        """
        builder = site.graph.builder
        iteration = builder.input(builder.unreserved("turn"), TensorType((), builder.integer))
        changes = apply(site, "ge", x=iteration, y=self.skipped_iterations)
        states = inputs[len(inputs) - len(next_states) :]  # the last inputs of the body
        delayed: list[Value] = []
        for before, after in zip(states, next_states, strict=True):
            delayed.append(
                apply(site, "select", condition=changes, true_value=after, false_value=before)
            )
        next_iteration = apply(site, "add", x=iteration, y=1)
        return [*inputs, iteration], [*delayed, next_iteration]

    def variables(
        self, starts: Sequence[object], states: Sequence[_State], prefix: str
    ) -> list[Value]:
        """Add a state of the graph for each state of the body, and for the counter of iterations.

        `starts` are the initial values, which must be constants. The names of the states begin with
        `prefix`.
        """
        graph = self.site.graph
        variables: list[Value] = []
        for start, state in zip(starts, states, strict=True):
            initial = graph.constants.get(start) if isinstance(start, Value) else host(start)
            if initial is None:
                message = f"state '{state.parameter}' of a stream must start as a constant"
                raise self.site.error(message)
            name = f"{prefix}_{_escape(state.parameter)}"
            variables.append(self.site.state(state.first.type, name, initial))
        if self.skipped_iterations:
            type = TensorType((), graph.builder.integer)
            variables.append(self.site.state(type, f"{prefix}_turn"))
        return variables


class _Bindings:
    """The values of the parameters of a scan's body. The method `bind` adds a value."""

    def __init__(self, site: CallSite, outer: FlatGraph, fragment: s.Fragment) -> None:
        self.values: dict[str, Any] = {}
        self._site = site
        self._outer = outer
        self._fragment = fragment
        self._parameter = _identifier_finder(parameter.name for parameter in fragment.parameters)

    def bind(self, name: str, value: object, axis: int | None = None, chunk: int = 1) -> Any:
        """Bind the parameter `name` to a value from outside the body, or to slices of this value.

        If `axis` is not None, the parameter is a slice of |chunk| items along this axis. Return the
        body's input for the parameter, or None if the value is a constant.
        """
        parameter = self._free(name)
        if not isinstance(value, Value):
            self.values[parameter] = value
            return None
        shape = list(value.type.shape)
        symbolic = list(self._outer.shape_of(value))
        stored = self._outer.constants.get(value)
        if axis is not None:
            has_axis = -len(shape) <= axis < len(shape)
            if not has_axis or chunk == 0:
                message = f"'scan' cannot cut a tensor {value.type} along axis {axis} by {chunk}"
                raise self._site.error(message)
            shape[axis] = symbolic[axis] = abs(chunk)
            stored = None  # each slice has different items
        type = TensorType(tuple(shape), value.type.dtype)
        self.values[parameter] = self._site.graph.input(parameter, type, symbolic, stored)
        return self.values[parameter]

    def refuse_missing(self) -> None:
        """Raise NnefError if a parameter of the body has no value."""
        missing = [p.name for p in self._fragment.parameters if p.name not in self.values]
        if missing:
            message = f"the body's {', '.join(map(repr, missing))} has no value"
            hint = "each of its parameters must be in 'scan', 'full' or 'state'"
            raise self._site.error(message, hint)

    def _free(self, name: str) -> str:
        """Return the parameter of the body that `name` stands for.

        Raises NnefError if there is no such parameter, or if the parameter already has a value.
        """
        parameter = self._parameter(name)
        if parameter is None:
            message = f"fragment '{self._fragment.name}' has no parameter '{name}'"
            hint = f"its parameters are {listed([p.name for p in self._fragment.parameters])}"
            raise self._site.error(message, hint)
        if parameter in self.values:
            raise self._site.error(f"parameter '{parameter}' of the body is given twice")
        return parameter


def _without_unused(
    body: Graph, full_tensors: Sequence[tuple[Value, Any]]
) -> tuple[Graph, list[Any]]:
    """Remove the unused inputs of a body.

    `full_tensors` has a pair for each tensor that the body reads in full: the body's input, and the
    tensor outside of the body. Return the body, and the outside tensors of the remaining inputs.
    """
    unused = {body_input for body_input, _ in full_tensors} - body.needed
    used_inputs = tuple(value for value in body.inputs if value not in unused)
    used_tensors = [outer for body_input, outer in full_tensors if body_input not in unused]
    return replace(body, inputs=used_inputs), used_tensors


def _identifier_finder(identifiers: Iterable[str]) -> Callable[[str], str | None]:
    """Return a function that maps a string to an identifier, or to None.

    The first of these identifiers that exists is the result:

    - the string itself
    - the escaped string
    - the only identifier whose escaped form equals the escaped string
    """
    names = set(identifiers)
    by_escaped: dict[str, list[str]] = {}
    for identifier in names:
        by_escaped.setdefault(_escape(identifier), []).append(identifier)

    def find(name: str) -> str | None:
        escaped = _escape(name)
        for candidates in ([name], [escaped], by_escaped.get(escaped, [])):
            if len(candidates) == 1 and candidates[0] in names:
                return candidates[0]
        return None

    return find


def _escape(name: str) -> str:
    """Escape a name by the rules of tract for names without quotes.

    For example, `/rnn/X.0` becomes `__rnn_X_0`. Letters of all alphabets are kept.
    """
    escaped = re.sub(r"[\W_]", "_", name)
    return escaped if name[:1].isalpha() or name[:1] == "_" else f"_{escaped}"
