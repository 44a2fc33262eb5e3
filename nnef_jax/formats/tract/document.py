"""The parsed document of the dialect, and access to arguments of its invocations.

The arguments are shapes of inputs and bodies of scans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from lowering.location import Source
from nnef_jax.formats.syntax import tree as s

SCAN = "tract_core_scan"
# For each operation that declares an input: the index of the argument `shape`.
EXTERNALS = {"external": 0, "tract_core_external": 1}


@dataclass(frozen=True, slots=True)
class Assertion:
    """A line `extension tract_assert` of a document, which states a condition on symbols.

    `scenario` names the use of the network for which the condition holds, or is "" for all uses.
    `text` is the text of the condition, and `offset` is its place in the document.
    """

    scenario: str
    condition: s.Expression
    text: str
    offset: int


@dataclass(frozen=True)
class TractDocument:
    """A parsed document: its extension lines, fragments and graph.

    `properties` maps names to the entries of `tract_core_properties`.
    """

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
        """Return all names that assignments in the graph's body give to values."""
        names = set[str]()
        for assignment in self.graph.body:
            names.update(identifier.name for identifier in s.identifiers(assignment.target))
        return names

    @property
    def variable_count(self) -> int:
        """Return the number of calls of `variable` in the document."""
        assignments = list(self.graph.body)
        for fragment in self.fragments.values():
            assignments += fragment.body or ()
        nodes = s.invocations(assignment.value for assignment in assignments)
        return sum(node.operation == "variable" for node in nodes)

    @property
    def is_pulsed(self) -> bool:
        """Tell whether the network reads a stream in pieces: each call takes the next piece."""
        if "tract_pulse" in self.registries or "pulse" in self.registries:
            return True
        return any(key.startswith("pulse.") for key in self.properties)

    @cached_property
    def inputs(self) -> Mapping[str, s.Invocation]:
        """Return a dict from names of inputs to their declarations in the graph's body."""
        declarations: dict[str, s.Invocation] = {}
        for assignment in self.graph.body:
            target = assignment.target
            call = assignment.value
            if not isinstance(target, s.Identifier) or not isinstance(call, s.Invocation):
                continue
            if call.operation in EXTERNALS:
                declarations[target.name] = call
        return declarations

    @cached_property
    def input_shapes(self) -> Mapping[str, tuple[s.Expression, ...]]:
        """Return a dict from names of inputs to their declared shapes.

        An extent is an expression of symbols.
        """
        shapes: dict[str, tuple[s.Expression, ...]] = {}
        for name, call in self.inputs.items():
            shape = _argument(call, "shape", EXTERNALS[call.operation])
            if shape is None:
                shapes[name] = ()
            elif isinstance(shape, s.Array):
                shapes[name] = shape.items
            else:  # the shape is a single extent
                shapes[name] = (shape,)
        return shapes


def repeated_by(call: s.Invocation) -> str:
    """Return the name of the fragment that the scan `call` repeats. Return "" for other calls."""
    if call.operation != SCAN:
        return ""
    body = _argument(call, "body", position=0)
    if isinstance(body, s.Literal) and isinstance(body.value, str):
        return body.value
    return ""


def _argument(call: s.Invocation, name: str, position: int) -> s.Expression | None:
    """Return the argument of a call for the parameter `name`, or None if there is no such argument.

    An argument belongs to the parameter if it has the parameter's name. An argument without a name
    belongs to the parameter if it is at `position` in the list of arguments.
    """
    for i, argument in enumerate(call.arguments):
        is_at_position = argument.name is None and i == position
        if is_at_position or argument.name == name:
            return argument.value
    return None
