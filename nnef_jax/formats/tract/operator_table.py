"""The operations that documents of tract may call, by the registry that declares each."""

from __future__ import annotations

from collections.abc import Iterator

from nnef_jax.flattening.operator_table import OperatorEntry
from nnef_jax.formats.syntax.declared_operators import entry_of
from nnef_jax.formats.tract.declarations import REFUSED, declarations, registry_of
from nnef_jax.formats.tract.intrinsics import INTRINSICS
from nnef_jax.formats.tract.operations import meanings


def entries() -> Iterator[OperatorEntry]:
    """Yield the entries, in the order of the declarations."""
    for name, fragment in declarations().items():
        domain, meaning = registry_of(fragment.name), meanings().get(fragment.name)
        if fragment.name in REFUSED:
            continue
        if meaning is not None:
            yield entry_of(fragment, "operation", [meaning.kind], name=name, domain=domain)
        elif fragment.name in INTRINSICS or fragment.body is None:
            yield entry_of(fragment, "structure", name=name, domain=domain)
        else:
            yield entry_of(fragment, "definition", name=name, domain=domain)
    for name, reason in REFUSED.items():
        yield OperatorEntry(name, registry_of(name), role="refused", refusal=reason)
