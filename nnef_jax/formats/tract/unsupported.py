"""Finds operations of a document that cannot run, and operations that read padded results."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from lowering import Registry
from lowering.graph import Graph, Operation, Value
from lowering.location import Span
from nnef_jax.errors import NnefError, UnsupportedError, raise_all
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.invocation import refuse
from nnef_jax.formats.tract import declarations
from nnef_jax.formats.tract.document import TractDocument, repeated_by
from nnef_jax.formats.tract.intrinsics import INTRINSICS
from nnef_jax.formats.tract.operations import has_meaning
from nnef_jax.limits import Meter
from nnef_jax.wording.similar import did_you_mean


def refuse_unsupported(document: TractDocument, rules: Registry, meter: Meter) -> None:
    """Raise UnsupportedError if the graph reaches operations that cannot run.

    The error names all these operations. `rules` are the user's rules. An operation with such a
    rule can run.
    """
    refuse(unsupported(document, rules), lambda name: _explained(name, meter))


def unsupported(document: TractDocument, rules: Registry) -> dict[str, list[Span]]:
    """Return the operations in the graph that cannot run, with their places.

    `rules` are the user's rules. An operation with such a rule can run.
    """
    uses: dict[str, list[Span]] = {}
    for node in _reached(document, rules):
        name = node.operation
        if name not in document.fragments and name not in rules and not _runs(name):
            uses.setdefault(name, []).append(s.span_in(document.source, node))
    return uses


# Maps kinds to the axis of the result along which the number of items depends on the data. Results
# are padded to the largest possible number of items along this axis.
_PADDED = {"non_zero": 1, "non_max_suppression": 0}


def padded_outputs(graph: Graph) -> Iterator[tuple[Value, str, int]]:
    """Yield each padded output of the graph, with the name of the output and the padded axis."""
    for operation in graph.operations:
        for name, value in zip(graph.output_names, graph.outputs, strict=True):
            if operation.kind in _PADDED and value in operation.writes():
                yield value, name, _PADDED[operation.kind]


def refuse_readers_of_padding(graph: Graph) -> None:
    """Raise UnsupportedError if an operation reads a padded result, or a scan's body has one."""
    hint = "end the network before it, and go on outside of the network"
    errors: list[NnefError] = []
    for operation, message in chain(_readers_of_padding(graph), _padded_in_bodies(graph)):
        errors.append(
            UnsupportedError(message, span=operation.span, calls=operation.calls, hint=hint)
        )
    raise_all(errors)


def _readers_of_padding(graph: Graph) -> Iterator[tuple[Operation, str]]:
    """Yield pairs: an operation that reads a padded result, and the message of the error."""
    padded: set[Value] = set()
    for operation in graph.operations:
        for value in operation.reads():
            if value in padded:
                reason = "whose extent depends on the data: it is padded with -1"
                yield operation, f"'{operation.name}' reads '{value.name}', {reason}"
        if operation.kind in _PADDED:
            padded.update(operation.writes())


def _padded_in_bodies(graph: Graph) -> Iterator[tuple[Operation, str]]:
    """Yield pairs: an operation with a padded result in a body, and the message of the error."""
    for operation in _in_bodies(graph):
        if operation.kind in _PADDED:
            reason = "in the body of a scan has an extent that depends on the data"
            yield operation, f"'{operation.name}' {reason}"


def _in_bodies(graph: Graph) -> Iterator[Operation]:
    """Yield the operations in the bodies of a graph's operations, also in bodies within bodies."""
    for operation in graph.operations:
        for _, attribute in operation.attributes:
            if isinstance(attribute, Graph):
                yield from attribute.operations
                yield from _in_bodies(attribute)


def _reached(document: TractDocument, rules: Registry) -> Iterator[s.Invocation]:
    """Yield the invocations in the graph's body, and in all fragments that are called from it.

    The bodies of fragments for which the user has rules are left out.
    """
    visited: set[str] = set()
    pending = [[assignment.value for assignment in document.graph.body]]
    while pending:
        for node in s.invocations(pending.pop()):
            yield node
            for name in (node.operation, repeated_by(node)):
                fragment = document.fragments.get(name)
                if fragment is not None and name not in visited and name not in rules:
                    visited.add(name)
                    expressions = [assignment.value for assignment in fragment.body or ()]
                    for parameter in fragment.parameters:
                        if parameter.default is not None:
                            expressions.append(parameter.default)
                    pending.append(expressions)


def _runs(name: str) -> bool:
    """Tell whether an operation is declared by tract, and can run without a user's rule."""
    fragment = declarations.declarations().get(name)
    if fragment is None:
        return False
    if fragment.body is not None or has_meaning(fragment.name):
        return True
    return INTRINSICS.get(fragment.name) is not None


def _explained(name: str, meter: Meter) -> tuple[str, str]:
    """Return the origin of an unsupported operation and a hint, as texts for an error."""
    registry = declarations.registry_of(name)
    origin = f" of registry {registry}" if registry else ""
    if name in declarations.REFUSED:
        hint = declarations.REFUSED[name]
    elif name in declarations.declarations():
        hint = "load(..., rules=registry) takes a rule for it"
    else:
        prefix = f"{registry}_" if registry else ""
        names = [other for other in declarations.declarations() if other.startswith(prefix)]
        hint = did_you_mean(name, names, meter=meter, most=1, cutoff=0.85)
        hint = hint or "neither the document nor a registry of tract has an operation of this name"
    return origin, hint
