"""Checks a program after a pass: whether it is well formed, and has the types that it had.

Tests ask for it, and `optimize="strict"`.
"""

from __future__ import annotations

from typing import Any

import jax

from lowering.jaxprs import is_literal, variables
from lowering.program import Program


def check(before: Program, after: Program) -> None:
    """Raise ValueError where a program is no function of the same types as the one before."""
    for what, old, new in (
        ("arguments", before.closed.in_avals, after.closed.in_avals),
        ("results", before.closed.out_avals, after.closed.out_avals),
    ):
        if list(map(_type, old)) != list(map(_type, new)):
            raise ValueError(f"{what} were {_types(old)}, they are {_types(new)}")
    if before.closed.effects != after.closed.effects:
        raise ValueError(f"effects were {before.closed.effects}, they are {after.closed.effects}")
    known = {*after.closed.jaxpr.constvars, *after.arguments}
    for equation in after.equations:
        if not known.issuperset(variables(equation.invars)):
            raise ValueError(f"{equation.primitive} reads what is not computed before it")
        if not known.isdisjoint(equation.outvars):
            raise ValueError(f"{equation.primitive} computes a variable for a second time")
        known.update(equation.outvars)
    if any(v not in known for v in after.results if not is_literal(v)):
        raise ValueError("a result is not computed")
    # What each equation says of its results is what its primitive makes of the operands.
    found = jax.eval_shape(after, *after.closed.in_avals)
    if list(map(_type, found)) != list(map(_type, after.closed.out_avals)):
        raise ValueError(f"results are {_types(found)} by their equations")


def _type(aval: Any) -> tuple[Any, Any]:
    return aval.shape, aval.dtype


def _types(avals: Any) -> str:
    return ", ".join(f"{aval.dtype}{list(aval.shape)}" for aval in avals)
