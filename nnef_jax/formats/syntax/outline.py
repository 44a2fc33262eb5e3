"""Adds unsupported operations to the graph of a text that is shown and not run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, MutableMapping

from lowering.graph import Value
from lowering.location import Source
from nnef_jax.flattening.emission import Emission
from nnef_jax.flattening.outline import add_untyped, has_untyped, unknown
from nnef_jax.formats.syntax import tree


def callers_of(names: Iterable[str], fragments: Mapping[str, tree.Fragment]) -> frozenset[str]:
    """Return `names`, and the names of all fragments that call operations with these names.

    A fragment may call an operation directly, or by way of other fragments.
    """
    # For each operation, the names of the fragments that call the operation directly.
    callers: defaultdict[str, list[str]] = defaultdict(list)
    for name, fragment in fragments.items():
        for node in tree.invocations(assignment.value for assignment in fragment.body or ()):
            callers[node.operation].append(name)
    reached = set(names)
    waiting = list(reached)
    while waiting:
        for caller in callers[waiting.pop()]:
            if caller not in reached:
                reached.add(caller)
                waiting.append(caller)
    return frozenset(reached)


def add_if_unsupported(
    graph: Emission,
    assignment: tree.Assignment,
    values: MutableMapping[str, object],
    unsupported: Collection[str],
    source: Source,
) -> bool:
    """Add untyped tensors to a graph for an assignment, if the assignment cannot be evaluated.

    An assignment cannot be evaluated if it calls an operation in `unsupported`, or if it reads an
    untyped tensor. `values` has the values of names, and gets the untyped tensors too. Return
    whether tensors were added: False if the assignment can be evaluated.
    """
    names = dict.fromkeys(tree.names_in(assignment.value))
    operands = [values[name] for name in names if name in values]
    calls = [node.operation for node in tree.invocations([assignment.value])]
    unsupported_calls = [operation for operation in calls if operation in unsupported]
    if not unsupported_calls and not has_untyped(operands):
        return False
    if unsupported_calls:
        kind = unknown(unsupported_calls[0])
    else:
        kind = calls[0] if calls else "expression"
    targets = [identifier.name for identifier in tree.identifiers(assignment.target)]
    span = tree.span_in(source, assignment.value)
    tensors = [operand for operand in operands if isinstance(operand, Value)]
    results = add_untyped(graph, kind, tensors, targets, span)
    values.update(zip(targets, results, strict=True))
    return True
