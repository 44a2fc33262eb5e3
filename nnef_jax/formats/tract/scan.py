"""`tract_core_scan`: a fragment repeated over slices of tensors, with state from turn to turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from lowering.errors import InvalidOperation
from lowering.graph import Graph, TensorType, Value
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.types import LOGICAL, STRING
from nnef_jax.formats.tract import pulse
from nnef_jax.formats.tract.arguments import attribute, known_integer
from nnef_jax.formats.tract.host import host
from nnef_jax.similar import listed

if TYPE_CHECKING:
    from nnef_jax.formats.tract.flatten import Flattener, Frame

KIND = "tract_core_scan"
_STEPS = 1_000


def body_of(node: s.Invocation) -> str:
    """The fragment that a scan repeats, '' for any other invocation."""
    if node.operation == KIND:
        for position, argument in enumerate(node.arguments):
            match argument:
                case s.Argument(name="body", value=s.Literal(value=str(name))):
                    return name
                case s.Argument(name=None, value=s.Literal(value=str(name))) if position == 0:
                    return name
                case _:
                    pass
    return ""


def scan(
    flattener: Flattener,
    arguments: Mapping[str, Any],
    node: s.Invocation,
    frame: Frame,
    names: Sequence[str],
) -> Any:
    """Flatten the body by itself and add one operation `scan` to the graph.

    The parameters of the body go by name: to slices of the scanned tensors, to whole ones, and to
    states, which start as a tensor and become a result of the body after each turn. In a network
    that gets a stream piece by piece the states stay from call to call.
    """
    name = attribute(arguments["body"], STRING)
    body = flattener.document.fragments.get(name)
    if body is None:
        raise InvalidOperation(f"the document has no fragment '{name}' for 'body'")
    flattener.refuse_recursion(body, node, frame)
    flattener.spend(_STEPS, node, frame)
    parts = {key: _entries(arguments[key], key) for key in ("scan", "full", "state", "output")}
    skip = known_integer(arguments["skip"], "skip")
    streams = bool(
        flattener.document.pulsed
        and flattener.outer is None
        and not attribute(arguments["reset_every_turn"], LOGICAL)
        and (parts["state"] or skip)
    )
    scanned = [
        (str(entry[0]), flattener.tensor(entry[1], "", node, frame), *_axis_and_chunk(entry[2:]))
        for entry in parts["scan"]
    ]
    states = [
        (str(entry[0]), flattener.tensor(entry[1], "", node, frame), str(entry[2]))
        for entry in parts["state"]
    ]
    outputs = [
        (str(entry[0]), str(entry[1]), *_axis_and_chunk(entry[2:])) for entry in parts["output"]
    ]
    call = _Body(flattener, body, node, frame, scanned, parts["full"], [o[0] for o in outputs])
    call.skipped = skip if streams else 0
    graph, whole, states = call.flatten(states)
    initial = [value for _, value, _ in states]
    if streams:
        starts = [entry[1] for entry in parts["state"]]
        prefix = names[0] if names else f"{frame.prefix}{name}"
        initial = call.kept(starts, states, prefix)
        skip, outputs = 0, [*outputs, *[("", "last", 0, 1)] * len(initial)]
        graph = replace(graph, outputs=(*graph.outputs, *graph.outputs[: len(initial)]))
    results = flattener.emit(
        "scan",
        {"scanned": [value for _, value, *_ in scanned], "full": whole, "initial": initial},
        {
            "body": graph,
            "axes": [axis for *_, axis, _ in scanned],
            "chunks": [chunk for *_, chunk in scanned],
            "outputs": [tuple(rest) for _, *rest in outputs],
            "skip": skip,
        },
        node,
        frame,
        names,
    )[0]
    if streams:
        for variable, last in zip(initial, results[-len(initial) :], strict=True):
            flattener.builder.update(variable, last)
        results = results[: -len(initial)]
    return results[0] if len(results) == 1 else flattener.several(results)


def _entries(value: Any, key: str) -> list[tuple[Any, ...]]:
    lengths = {"scan": (4,), "full": (2,), "state": (3,), "output": (3, 4)}[key]
    entries = cast(list[Any], value) if isinstance(value, list) else [value]
    for entry in entries:
        if not isinstance(entry, tuple) or len(cast(tuple[Any], entry)) not in lengths:
            raise InvalidOperation(f"'{key}' is a list of tuples of {lengths[-1]} values")
        texts = {"scan": (0,), "full": (0,), "state": (0, 2), "output": (0, 1)}[key]
        if any(not isinstance(entry[i], str) for i in texts):
            raise InvalidOperation(f"'{key}': parameters and results of the body go by their names")
    return entries


def _axis_and_chunk(values: Sequence[Any]) -> tuple[int, int]:
    """Axis and chunk; a chunk that is left out is 1."""
    chunk = known_integer(values[1], "chunk") if values[1:] else 1
    return known_integer(values[0], "axis"), chunk


class _Body:
    """The body of a scan, flattened into a graph of its own."""

    def __init__(
        self,
        flattener: Flattener,
        fragment: s.Fragment,
        node: s.Node,
        frame: Frame,
        scanned: Sequence[tuple[str, Value, int, int]],
        full: Sequence[tuple[Any, ...]],
        outputs: Sequence[str],
    ) -> None:
        self._flattener = flattener
        self._fragment = fragment
        self._node = node
        self._frame = frame
        self._scanned = scanned
        self._full = full
        self._outputs = outputs
        self._names = _Names(parameter.name for parameter in fragment.parameters)
        self.skipped = 0  # turns at the start of a stream that leave the states as they are

    def flatten(
        self, states: Sequence[tuple[str, Value, str]], *, again: bool = False
    ) -> tuple[Graph, list[Value], list[tuple[str, Value, str]]]:
        """The graph, what goes into it whole, and the states with their initial tensors.

        What a state starts from takes the dtype that the body gives the state.
        """
        child = self._flattener.child()
        bound: dict[str, Any] = {}
        slices = [self._slice(child, bound, *entry) for entry in self._scanned]
        whole = [(self._enter(child, bound, n, v), v) for n, v in self._full]
        kept = [self._enter(child, bound, name, value) for name, value, _ in states]
        self._refuse_unbound(bound)
        inner = child.enter(self._fragment, bound, self._node, self._frame, ())
        known = _Names(inner.values)
        nexts = [self._result(child, inner, known, name) for _, _, name in states]
        results = [self._result(child, inner, known, name) for name in self._outputs]
        pairs = list(zip(states, nexts, strict=True))
        if not again and any(s[1].type.dtype != after.type.dtype for s, after in pairs):
            node, frame = self._node, self._frame
            agreed = [
                (name, self._flattener.cast(value, after.type.dtype, node, frame), result)
                for (name, value, result), after in pairs
            ]
            return self.flatten(agreed, again=True)
        tensors = [(i, o) for i, o in whole if isinstance(i, Value)]
        tensors += [(inner, outer) for outer, inner in child.captured.items()]
        inputs = [*slices, *(inner for inner, _ in tensors), *kept]
        if self.skipped:
            inputs, nexts = self._counted(child, inputs, nexts)
        names = [value.name for value in [*nexts, *results]]
        graph = child.builder.graph(
            self._fragment.name, [*nexts, *results], names, [value.name for value in inputs]
        )
        # What the body declares and does not need, the scan does not read.
        spare = {inner for inner, _ in tensors} - graph.needed
        graph = replace(graph, inputs=tuple(value for value in graph.inputs if value not in spare))
        return graph, [outer for inner, outer in tensors if inner not in spare], list(states)

    def _counted(
        self, child: Flattener, inputs: Sequence[Value], nexts: Sequence[Value]
    ) -> tuple[list[Value], list[Value]]:
        """The inputs and next states, with a counter of turns for which the states wait."""

        def apply(kind: str, **operands: Any) -> Value:
            return child.apply(kind, operands, self._node, self._frame, ())

        turn = child.builder.input(
            child.builder.unreserved("turn"), TensorType((), child.builder.integer)
        )
        runs = apply("ge", x=turn, y=self.skipped)
        waiting = [
            apply("select", condition=runs, true_value=after, false_value=before)
            for before, after in zip(inputs[len(inputs) - len(nexts) :], nexts, strict=True)
        ]
        return [*inputs, turn], [*waiting, apply("add", x=turn, y=1)]

    def kept(
        self, starts: Sequence[Any], states: Sequence[tuple[str, Value, str]], prefix: str
    ) -> list[Value]:
        """Variables of the graph in the place of the initial states, and of the counter."""
        flattener, variables = self._flattener, list[Value]()
        for start, (name, value, _) in zip(starts, states, strict=True):
            known = flattener.constants.get(start) if isinstance(start, Value) else host(start)
            if known is None:
                raise flattener.error(
                    f"state '{name}' of a stream must start as a constant", self._node, self._frame
                )
            wanted = f"{prefix}_{_escape(name)}"
            variables.append(
                pulse.state(flattener, value.type, wanted, self._node, self._frame, known)
            )
        if self.skipped:
            type = TensorType((), flattener.builder.integer)
            wanted = f"{prefix}_turn"
            variables.append(pulse.state(flattener, type, wanted, self._node, self._frame))
        return variables

    def _parameter(self, name: str, bound: Mapping[str, Any]) -> str:
        """The parameter of the body that a name stands for."""
        found = self._names.named(name)
        if found is None:
            message = f"fragment '{self._fragment.name}' has no parameter '{name}'"
            hint = f"its parameters are {listed([p.name for p in self._fragment.parameters])}"
            raise self._flattener.error(message, self._node, self._frame, hint)
        if found in bound:
            message = f"parameter '{found}' of the body is given twice"
            raise self._flattener.error(message, self._node, self._frame)
        return found

    def _slice(
        self,
        child: Flattener,
        bound: dict[str, Any],
        name: str,
        value: Value,
        axis: int,
        chunk: int,
    ) -> Value:
        shape, parameter = list(value.type.shape), self._parameter(name, bound)
        if not -len(shape) <= axis < len(shape) or chunk == 0:
            message = f"'scan' names axis {axis} in chunks of {chunk} of a tensor {value.type}"
            raise self._flattener.error(message, self._node, self._frame)
        shape[axis] = abs(chunk)
        type = TensorType(tuple(shape), value.type.dtype)
        bound[parameter] = inner = child.builder.input(parameter, type)
        whole = list(self._flattener.shape_of(value))
        child.shapes[inner] = [*whole[:axis], abs(chunk), *whole[axis:][1:]]
        return inner

    def _enter(self, child: Flattener, bound: dict[str, Any], name: str, value: Any) -> Any:
        """What the body has for a value from outside: known values as they are."""
        parameter = self._parameter(name, bound)
        if not isinstance(value, Value):
            bound[parameter] = value
            return None
        inner = child.builder.input(parameter, value.type)
        child.shapes[inner] = self._flattener.shape_of(value)
        stored = self._flattener.constants.get(value)
        if stored is not None:
            child.constants[inner] = stored
        bound[parameter] = inner
        return inner

    def _refuse_unbound(self, bound: Mapping[str, Any]) -> None:
        missing = [p.name for p in self._fragment.parameters if p.name not in bound]
        if missing:
            message = f"nothing is given to {', '.join(map(repr, missing))} of the body"
            hint = "each of its parameters must be in 'scan', 'full' or 'state'"
            raise self._flattener.error(message, self._node, self._frame, hint)

    def _result(self, child: Flattener, inner: Frame, known: _Names, name: str) -> Value:
        found = known.named(name) or name
        value = child.lookup(s.Identifier(self._node.offset, found), inner)
        return child.tensor(value, "", self._node, inner)


class _Names:
    """Identifiers, found by strings that are written alike."""

    def __init__(self, identifiers: Iterable[str]) -> None:
        self._known = set(identifiers)

    @cached_property
    def _alike(self) -> dict[str, list[str]]:
        """The identifiers that are escaped alike."""
        found: dict[str, list[str]] = {}
        for identifier in self._known:
            found.setdefault(_escape(identifier), []).append(identifier)
        return found

    def named(self, name: str) -> str | None:
        """The identifier that a string stands for: itself, or the only one that is alike."""
        escaped = _escape(name)
        for form in (name, escaped):
            if form in self._known:
                return form
        alike = self._alike.get(escaped, [])
        return alike[0] if len(alike) == 1 else None


def _escape(name: str) -> str:
    """A name as tract writes it where it has no identifiers in quotes.

    Letters and digits of any alphabet stay, all else becomes an underscore, and another one goes in
    front of what does not begin with a letter or an underscore: `/rnn/X.0` is `__rnn_X_0`.
    """
    before = "" if name[:1].isalpha() or name[:1] == "_" else "_"
    return before + "".join(c if c.isalnum() else "_" for c in name)
