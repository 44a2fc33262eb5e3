"""`tract_core_scan`: a fragment repeated over slices of tensors, with state from turn to turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

from lowering.errors import InvalidOperation
from lowering.graph import Graph, TensorType, Value
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.types import LOGICAL
from nnef_jax.formats.tract.arguments import attribute, known_integer
from nnef_jax.formats.tract.call_site import CallSite, intrinsic
from nnef_jax.formats.tract.emission import Results
from nnef_jax.formats.tract.flat_graph import FlatGraph
from nnef_jax.formats.tract.host import host
from nnef_jax.similar import listed

KIND = "tract_core_scan"
_STEPS = 1_000


def body_of(node: s.Invocation) -> str:
    """Return the fragment that a scan repeats, '' for any other invocation."""
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


@intrinsic(KIND)
def _scan(site: CallSite) -> Any:
    """Flatten the body by itself and add one operation `scan` to the graph.

    The body's parameters go by name: to slices of the scanned tensors, to whole ones, and to
    states, which start as a tensor and become a result of the body after each turn. Where a network
    gets a stream piece by piece, states stay from call to call.
    """
    name, document = site.string("body"), site.unit.document
    fragment = document.fragments.get(name)
    if fragment is None:
        raise InvalidOperation(f"the document has no fragment '{name}' for 'body'")
    site.evaluator.refuse_recursion(fragment, site.node, site.frame)
    site.spend(_STEPS)
    parts = {key: _entries(site.arguments[key], key) for key in ("scan", "full", "state", "output")}
    skip = site.integer("skip")
    streams = bool(
        document.pulsed
        and site.graph.outer is None
        and not attribute(site.arguments["reset_every_turn"], LOGICAL)
        and (parts["state"] or skip)
    )
    scanned = [
        (str(entry[0]), site.tensor(entry[1]), *_axis_and_chunk(entry[2:]))
        for entry in parts["scan"]
    ]
    states = [(str(entry[0]), site.tensor(entry[1]), str(entry[2])) for entry in parts["state"]]
    outputs = [
        (str(entry[0]), str(entry[1]), *_axis_and_chunk(entry[2:])) for entry in parts["output"]
    ]
    skipped = skip if streams else 0
    body = _Body(site, fragment, scanned, parts["full"], [o[0] for o in outputs], skipped)
    graph, whole, states = body.flatten(states)
    initial = [value for _, value, _ in states]
    if streams:
        prefix = site.names[0] if site.names else f"{site.frame.prefix}{name}"
        initial = body.kept([entry[1] for entry in parts["state"]], states, prefix)
        skip, outputs = 0, [*outputs, *[("", "last", 0, 1)] * len(initial)]
        graph = replace(graph, outputs=(*graph.outputs, *graph.outputs[: len(initial)]))
    results = site.emit(
        "scan",
        {"scanned": [value for _, value, *_ in scanned], "full": whole, "initial": initial},
        {
            "body": graph,
            "axes": [axis for *_, axis, _ in scanned],
            "chunks": [chunk for *_, chunk in scanned],
            "outputs": [tuple(rest) for _, *rest in outputs],
            "skip": skip,
        },
    )[0]
    if streams:
        for variable, last in zip(initial, results[-len(initial) :], strict=True):
            site.graph.builder.update(variable, last)
        results = results[: -len(initial)]
    return results[0] if len(results) == 1 else Results(results)


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
    chunk = known_integer(values[1], "chunk") if values[1:] else 1
    return known_integer(values[0], "axis"), chunk


@dataclass(frozen=True, slots=True)
class _Body:
    """The body of a scan as a graph of its own; the states wait for `skipped` turns of a stream."""

    site: CallSite
    fragment: s.Fragment
    scanned: Sequence[tuple[str, Value, int, int]]
    full: Sequence[tuple[Any, ...]]
    outputs: Sequence[str]
    skipped: int

    def flatten(
        self, states: Sequence[tuple[str, Value, str]], *, again: bool = False
    ) -> tuple[Graph, list[Value], list[tuple[str, Value, str]]]:
        """Return graph, whole inputs and states; initial tensors take the body's dtypes."""
        site = self.site.into(self.site.graph.body())
        graph, bound = site.graph, _Bound(self.site, self.fragment)
        slices = [self._slice(graph, bound, *entry) for entry in self.scanned]
        whole = [(self._enter(graph, bound, name, value), value) for name, value in self.full]
        kept = [self._enter(graph, bound, name, value) for name, value, _ in states]
        bound.refuse_missing()
        inner = site.evaluator.enter(self.fragment, bound.values, site.node, site.frame, ())
        known = _Names(inner.values)

        def result(name: str) -> Value:
            found = s.Identifier(site.node.offset, known.named(name) or name)
            value = site.evaluator.lookup(found, inner)
            return graph.tensor(value, "", site.node, inner)

        nexts = [result(name) for _, _, name in states]
        results = [result(name) for name in self.outputs]
        pairs = list(zip(states, nexts, strict=True))
        if not again and any(s[1].type.dtype != after.type.dtype for s, after in pairs):
            agreed = [
                (name, self.site.cast(value, after.type.dtype), result)
                for (name, value, result), after in pairs
            ]
            return self.flatten(agreed, again=True)
        tensors = [(i, o) for i, o in whole if isinstance(i, Value)]
        tensors += [(inner, outer) for outer, inner in graph.captured.items()]
        inputs = [*slices, *(inner for inner, _ in tensors), *kept]
        if self.skipped:
            inputs, nexts = self._counted(site, inputs, nexts)
        names = [value.name for value in [*nexts, *results]]
        flat = graph.builder.graph(
            self.fragment.name, [*nexts, *results], names, [value.name for value in inputs]
        )
        # The scan does not read what the body declares and does not need.
        spare = {inner for inner, _ in tensors} - flat.needed
        flat = replace(flat, inputs=tuple(value for value in flat.inputs if value not in spare))
        return flat, [outer for inner, outer in tensors if inner not in spare], list(states)

    def _counted(
        self, site: CallSite, inputs: Sequence[Value], nexts: Sequence[Value]
    ) -> tuple[list[Value], list[Value]]:
        """Add a counter of turns for which the states wait to the inputs and next states."""
        builder = site.graph.builder
        turn = builder.input(builder.unreserved("turn"), TensorType((), builder.integer))
        runs = site.apply("ge", x=turn, y=self.skipped)
        waiting = [
            site.apply("select", condition=runs, true_value=after, false_value=before)
            for before, after in zip(inputs[len(inputs) - len(nexts) :], nexts, strict=True)
        ]
        return [*inputs, turn], [*waiting, site.apply("add", x=turn, y=1)]

    def kept(
        self, starts: Sequence[Any], states: Sequence[tuple[str, Value, str]], prefix: str
    ) -> list[Value]:
        """Return new variables instead of the initial states, and one for the counter."""
        graph, variables = self.site.graph, list[Value]()
        for start, (name, value, _) in zip(starts, states, strict=True):
            known = graph.constants.get(start) if isinstance(start, Value) else host(start)
            if known is None:
                raise self.site.error(f"state '{name}' of a stream must start as a constant")
            variables.append(self.site.state(value.type, f"{prefix}_{_escape(name)}", known))
        if self.skipped:
            type = TensorType((), graph.builder.integer)
            variables.append(self.site.state(type, f"{prefix}_turn"))
        return variables

    def _slice(
        self, graph: FlatGraph, bound: _Bound, name: str, value: Value, axis: int, chunk: int
    ) -> Value:
        shape, parameter = list(value.type.shape), bound.parameter(name)
        if not -len(shape) <= axis < len(shape) or chunk == 0:
            message = f"'scan' names axis {axis} in chunks of {chunk} of a tensor {value.type}"
            raise self.site.error(message)
        shape[axis] = abs(chunk)
        whole = list(self.site.graph.shape_of(value))
        whole[axis] = abs(chunk)
        type = TensorType(tuple(shape), value.type.dtype)
        bound.values[parameter] = inner = graph.input(parameter, type, whole)
        return inner

    def _enter(self, graph: FlatGraph, bound: _Bound, name: str, value: Any) -> Any:
        """Return what the body has for a value from outside: known values as they are."""
        parameter = bound.parameter(name)
        if not isinstance(value, Value):
            bound.values[parameter] = value
            return None
        outer = self.site.graph
        stored, shape = outer.constants.get(value), outer.shape_of(value)
        bound.values[parameter] = inner = graph.input(parameter, value.type, shape, stored)
        return inner


class _Bound:
    """The values of the parameters of a body, each given once."""

    def __init__(self, site: CallSite, fragment: s.Fragment) -> None:
        self.values: dict[str, Any] = {}
        self._site = site
        self._fragment = fragment
        self._names = _Names(parameter.name for parameter in fragment.parameters)

    def parameter(self, name: str) -> str:
        """Return the parameter that a name stands for, which has no value yet."""
        found = self._names.named(name)
        if found is None:
            message = f"fragment '{self._fragment.name}' has no parameter '{name}'"
            hint = f"its parameters are {listed([p.name for p in self._fragment.parameters])}"
            raise self._site.error(message, hint)
        if found in self.values:
            raise self._site.error(f"parameter '{found}' of the body is given twice")
        return found

    def refuse_missing(self) -> None:
        missing = [p.name for p in self._fragment.parameters if p.name not in self.values]
        if missing:
            message = f"nothing is given to {', '.join(map(repr, missing))} of the body"
            hint = "each of its parameters must be in 'scan', 'full' or 'state'"
            raise self._site.error(message, hint)


class _Names:
    """Identifiers, found by strings that are written alike."""

    def __init__(self, identifiers: Iterable[str]) -> None:
        self._known = set(identifiers)

    @cached_property
    def _alike(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for identifier in self._known:
            found.setdefault(_escape(identifier), []).append(identifier)
        return found

    def named(self, name: str) -> str | None:
        """Return the identifier that a string stands for: itself, or the only one that is alike."""
        escaped = _escape(name)
        for form in (name, escaped):
            if form in self._known:
                return form
        alike = self._alike.get(escaped, [])
        return alike[0] if len(alike) == 1 else None


def _escape(name: str) -> str:
    """Write a name as tract does without quotes: `/rnn/X.0` as `__rnn_X_0`; any alphabet stays."""
    before = "" if name[:1].isalpha() or name[:1] == "_" else "_"
    return before + "".join(c if c.isalnum() else "_" for c in name)
