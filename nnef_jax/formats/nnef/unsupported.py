"""Finds the operations of a document that can neither be run nor be expanded."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lowering.location import Source, Span
from nnef_jax.errors import UnsupportedError, raise_all
from nnef_jax.formats.nnef.scope import Scope
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.standard import INTRODUCING

Body = tuple[
    s.Fragment | None, Iterable[s.Expression], Source
]  # the fragment that it belongs to, if any


def refuse_unsupported(
    bodies: Iterable[Body],
    scope: Scope,
    has_rule: Callable[[s.Fragment], bool],
    is_atomic: Callable[[s.Fragment], bool],
) -> None:
    """Raise UnsupportedError for all the operations at once that are atomic and have no rule.

    The search starts from some bodies and goes on in those of the fragments that they call.
    """
    uses: dict[str, list[Span]] = {}
    seen: set[int] = set()
    # With each body where the document leads into it, for fragments that are not the document's
    # own.
    pending: list[tuple[Body, Span | None]] = [(body, None) for body in bodies]
    sources = {body[2] for body, _ in pending}
    while pending:
        (caller, expressions, source), reached = pending.pop()
        runs: set[str] = set()  # what needs no second look in this body
        for node in s.invocations(expressions):
            if node.operation in runs:
                continue
            fragment = scope.lookup(node.operation, caller)
            if fragment is None or fragment.name in INTRODUCING:
                continue
            span = reached or s.span_in(source, node)
            if fragment.body is None:
                if not has_rule(fragment):
                    uses.setdefault(fragment.name, []).append(span)
                    continue
            elif not is_atomic(fragment) and id(fragment) not in seen:
                seen.add(id(fragment))
                body = (
                    fragment,
                    [assignment.value for assignment in fragment.body],
                    fragment.source,
                )
                pending.append((body, None if fragment.source in sources else span))
            runs.add(node.operation)
    first = {name: min(spans, key=lambda span: span.offset) for name, spans in uses.items()}
    raise_all(
        [
            UnsupportedError(
                f"there is no rule for operation '{name}', used {len(uses[name])} "
                f"time{'s' * (len(uses[name]) > 1)}",
                span=first[name],
                hint="give the operation a body, or a rule by load(..., rules=registry)",
            )
            for name in sorted(uses, key=lambda name: first[name].offset)
        ]
    )
