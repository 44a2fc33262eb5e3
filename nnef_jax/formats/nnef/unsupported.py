"""Finds the operations of a document that can neither be run nor be expanded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from lowering.location import Source, Span
from nnef_jax.formats.nnef.expressions import Calls
from nnef_jax.formats.nnef.scope import Scope
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.invocation import refuse
from nnef_jax.formats.syntax.standard import INTRODUCING


def calls_of(expressions: Iterable[s.Expression]) -> Calls:
    """Return what some expressions invoke, by operation."""
    found: defaultdict[str, list[s.Invocation]] = defaultdict(list)
    for node in s.invocations(expressions):
        found[node.operation].append(node)
    return found


def refuse_unsupported(
    bodies: Iterable[tuple[Calls, Source]],
    scope: Scope,
    has_rule: Callable[[s.Fragment], bool],
    is_atomic: Callable[[s.Fragment], bool],
) -> None:
    """Raise UnsupportedError for all the operations at once that are atomic and have no rule.

    The search starts from some bodies and goes on in those of the fragments that they call.
    """
    uses: defaultdict[str, list[Span]] = defaultdict(list)
    seen: set[int] = set()
    # With each body its fragment, and where the document leads into one that is not its own.
    pending: list[tuple[s.Fragment | None, Calls, Source, Span | None]]
    pending = [(None, *body, None) for body in bodies]
    own = {source for _, _, source, _ in pending}
    while pending:
        caller, calls, source, reached = pending.pop()
        for operation, nodes in calls.items():
            fragment = scope.lookup(operation, caller)
            if fragment is None or fragment.name in INTRODUCING or id(fragment) in seen:
                continue
            if fragment.body is None and not has_rule(fragment):
                uses[fragment.name] += [reached or s.span_in(source, node) for node in nodes]
            elif fragment.body is not None and not is_atomic(fragment):
                seen.add(id(fragment))
                into = None if fragment.source in own else reached or s.span_in(source, nodes[0])
                inner = calls_of(assignment.value for assignment in fragment.body)
                pending.append((fragment, inner, fragment.source, into))
    refuse(uses, lambda _: ("", "give the operation a body, or a rule: rules=registry"))
