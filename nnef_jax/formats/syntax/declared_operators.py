"""Makes entries of the operator table for operations that are declared as fragments."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from nnef_jax.flattening.operators.table import AttributeEntry, OperatorEntry, Role
from nnef_jax.formats.syntax import tree
from nnef_jax.formats.syntax.printing import print_expression
from nnef_jax.formats.syntax.types import has_tensor

_LITERALS = {"true": True, "false": False}


def entry_of(
    fragment: tree.Fragment,
    role: Role,
    kinds: Iterable[str] = (),
    *,
    name: str = "",
    domain: str = "",
) -> OperatorEntry:
    """Return the row of the operator table for a fragment's declaration.

    The row has the alias `name`, or the fragment's name if `name` is "". `kinds` are the kinds of
    the operations that the operator may become.
    """
    parameters = [x for x in fragment.parameters if not has_tensor(x.type)]
    return OperatorEntry(
        name or fragment.name,
        domain,
        attributes=tuple(map(_attribute_entry, parameters)),
        role=role,
        kinds=tuple(sorted(kinds)),
    )


def _attribute_entry(parameter: tree.FormalParameter) -> AttributeEntry:
    """Return the entry for a parameter that is an attribute."""
    type = str(parameter.type)
    if parameter.default is None:
        return AttributeEntry(parameter.name, type, is_required=True)
    text = print_expression(parameter.default)
    # Except for "true" and "false", defaults in NNEF's language have the syntax of Python.
    default = _LITERALS[text] if text in _LITERALS else ast.literal_eval(text)
    return AttributeEntry(parameter.name, type, default)
