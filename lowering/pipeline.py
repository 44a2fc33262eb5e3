"""Runs the passes of a target over a program."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any

from lowering import jaxprs
from lowering.ablation import runs
from lowering.contexts import holding
from lowering.fallback import is_strict, or_else
from lowering.program import Program
from lowering.program_checks import check
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
    if target.has_kernels and not program.has_items:
        return program
    for run in target.passes:
        if runs(name := name_of(run)):
            before, kept = program, partial(_kept, program)
            program = or_else(partial(_checked, run, before, target), kept, f"pass '{name}'")
            if watch := _watch.get():
                watch(name, target, before, program)
    return program.pruned()


def _kept(program: Program) -> Program:
    return program


def _checked(run: Callable[..., Program], program: Program, target: Target) -> Program:
    found = run(program, target)
    if is_strict():
        check(program, found)
    return found
