"""The parsed document of the dialect, and arguments of its invocations: shapes and scan bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from lowering.location import Source
from nnef_jax.formats.syntax import tree as s

SCAN = "tract_core_scan"
EXTERNALS = {"external": 0, "tract_core_external": 1}  # position of `shape` by operation


@dataclass(frozen=True, slots=True)
class Assertion:
    """`extension tract_assert`: a condition on symbols. `scenario` is '' for all uses."""

    scenario: str
    condition: s.Expression
    text: str
    offset: int


@dataclass(frozen=True)
class TractDocument:
    """The fragments, graph and extensions of a text, and its `tract_core_properties`."""

    source: Source
    extensions: tuple[str, ...]
    registries: tuple[str, ...]
    symbols: tuple[str, ...]
    assertions: tuple[Assertion, ...]
    properties: Mapping[str, str]
    fragments: Mapping[str, s.Fragment]
    graph: s.GraphDefinition

    @property
    def names(self) -> set[str]:
        """Return all names that the graph's body assigns."""
        return {i.name for a in self.graph.body for i in s.identifiers(a.target)}

    @property
    def variables(self) -> int:
        """Return the number of variables in the text."""
        bodies = [self.graph.body, *(f.body or () for f in self.fragments.values())]
        nodes = s.invocations(assignment.value for body in bodies for assignment in body)
        return sum(node.operation == "variable" for node in nodes)

    @property
    def pulsed(self) -> bool:
        """Tell whether each call of the network takes the next piece of a stream."""
        return not {"tract_pulse", "pulse"}.isdisjoint(self.registries) or any(
            key.startswith("pulse.") for key in self.properties
        )

    @cached_property
    def inputs(self) -> Mapping[str, s.Invocation]:
        """Return the declarations of inputs in the graph's body."""
        assignments = ((a.target, a.value) for a in self.graph.body)
        return {
            target.name: call
            for target, call in assignments
            if isinstance(target, s.Identifier) and isinstance(call, s.Invocation)
            if call.operation in EXTERNALS
        }

    @cached_property
    def input_shapes(self) -> Mapping[str, tuple[s.Expression, ...]]:
        """Return the shapes of the inputs that the graph's body declares, as expressions."""
        shapes = {
            name: _argument(call, "shape", EXTERNALS[call.operation]) or s.Array(0, ())
            for name, call in self.inputs.items()
        }
        return {n: x.items if isinstance(x, s.Array) else (x,) for n, x in shapes.items()}


def repeated_by(call: s.Invocation) -> str:
    """Return the fragment that a scan repeats, '' for any other invocation."""
    body = _argument(call, "body", 0) if call.operation == SCAN else None
    return body.value if isinstance(body, s.Literal) and isinstance(body.value, str) else ""


def _argument(call: s.Invocation, name: str, position: int) -> s.Expression | None:
    """Return the argument of a parameter by its name, else by position; None without one."""
    for i, argument in enumerate(call.arguments):
        if argument.name == name or (argument.name is None and i == position):
            return argument.value
    return None
