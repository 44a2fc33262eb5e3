"""Adds unsupported operations to the graph of a text that is shown and not run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, MutableMapping

from lowering.graph import Value
from lowering.location import Source
from nnef_jax.flattening.emission import Emission
from nnef_jax.flattening.outline import add_untyped, has_untyped, unknown
from nnef_jax.formats.syntax import tree as s


def callers_of(names: Iterable[str], fragments: Mapping[str, s.Fragment]) -> frozenset[str]:
    """Return `names` and the names of all fragments that call one of these operations.

    A fragment may call an operation directly, or by calling another fragment.
    """
    callers: defaultdict[str, list[str]] = defaultdict(list)
    for name, fragment in fragments.items():
        for node in s.invocations(assignment.value for assignment in fragment.body or ()):
            callers[node.operation].append(name)
    reached = dict.fromkeys(names)
    waiting = [*reached]
    for name in waiting:  # the list grows during the loop
        waiting += [caller for caller in dict.fromkeys(callers[name]) if caller not in reached]
        reached.update(dict.fromkeys(callers[name]))
    return frozenset(reached)


def add_if_unsupported(
    graph: Emission,
    assignment: s.Assignment,
    values: MutableMapping[str, object],
    unsupported: Collection[str],
    source: Source,
) -> bool:
    """Add untyped tensors for an assignment that cannot be evaluated.

    Such an assignment calls an operation in `unsupported`, or reads an untyped tensor in `values`.
    Return whether the assignment is one.
    """
    names = list(dict.fromkeys(s.names_in(assignment.value)))
    operands = [values[name] for name in names if name in values]
    calls = [node.operation for node in s.invocations([assignment.value])]
    operator = next((name for name in calls if name in unsupported), "")
    if not operator and not has_untyped(operands):
        return False
    kind = unknown(operator) if operator else next(iter(calls), "expression")
    targets = [identifier.name for identifier in s.identifiers(assignment.target)]
    span = s.span_in(source, assignment.value)
    read = [x for x in operands if isinstance(x, Value)]
    values.update(zip(targets, add_untyped(graph, kind, read, targets, span), strict=True))
    return True
