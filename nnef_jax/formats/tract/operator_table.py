"""The table of the operations that tract's documents may call, each with its registry."""

from __future__ import annotations

from collections.abc import Iterator

from nnef_jax.flattening.operators.inspection import inspected
from nnef_jax.flattening.operators.table import OperatorEntry
from nnef_jax.formats.syntax.declared_operators import entry_of
from nnef_jax.formats.tract.call_site import CallSite
from nnef_jax.formats.tract.declarations import REFUSED, declarations, registry_of
from nnef_jax.formats.tract.intrinsics import INTRINSICS
from nnef_jax.formats.tract.operations import has_meaning
from nnef_jax.formats.tract.operators import OPERATORS


def entries() -> Iterator[OperatorEntry]:
    """Yield the entries of all operations, in the order of the declarations."""
    for name, fragment in declarations().items():
        domain = registry_of(fragment.name)
        if fragment.name in REFUSED:
            continue
        if has_meaning(fragment.name):
            operator = OPERATORS.get(fragment.name)
            kinds = inspected(operator, CallSite).kinds if operator else {fragment.name}
            yield entry_of(fragment, "operation", kinds, name=name, domain=domain)
        elif INTRINSICS.get(fragment.name) or fragment.body is None:
            yield entry_of(fragment, "structure", name=name, domain=domain)
        else:
            yield entry_of(fragment, "definition", name=name, domain=domain)
    for name, reason in REFUSED.items():
        yield OperatorEntry(name, registry_of(name), role="refused", refusal=reason)
