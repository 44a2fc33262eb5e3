"""Runs the passes of a target over a program, and checks what they made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax

from lowering import jaxprs
from lowering.ablation import runs
from lowering.contexts import holding
from lowering.fallback import is_strict, or_else
from lowering.jaxprs import is_literal, variables
from lowering.program import Program
from lowering.targets.portable import WRITTEN
from lowering.targets.target import Target


def name_of(run: Callable[..., Program]) -> str:
    """Return a pass's name, that of its module."""
    return run.__module__.rpartition(".")[2]


# Takes a pass's name, its target, and the program before and after it.
Watch = Callable[[str, Target, Program, Program], None]
_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


def watched(watch: Watch) -> AbstractContextManager[None]:
    """Show the program after each pass meanwhile."""
    return holding(_watch, watch)


def written(closed: Any, parameters: int, target: Target = WRITTEN) -> Program:
    """Return the program of a traced function, so many of whose arguments are parameters."""
    jaxprs.require_names()
    return compiled(Program(closed, parameters, prepares=False), target)


def compiled(program: Program, target: Target) -> Program:
    """Return a program after all passes."""
    if target.platform is not None:
        program = or_else(program.low_level, lambda: program, "low-level primitives")
    if target.has_kernels and not program.has_items:
        return program
    for run in target.passes:
        if runs(name := name_of(run)):
            before = program
            checked = partial(_checked, run, before, target)
            program = or_else(checked, lambda kept=before: kept, f"pass '{name}'")
            if watch := _watch.get():
                watch(name, target, before, program)
    return program.pruned()


def _checked(run: Callable[..., Program], program: Program, target: Target) -> Program:
    found = run(program, target)
    if is_strict():
        check(program, found)
    return found


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
