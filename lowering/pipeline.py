"""The road from a function to XLA: it is traced, rewritten by the passes of a target, and split.

    program, arguments, tree = traced(function, parameters, inputs)
    parts = lower(differentiable(program), target)

What passes make is checked where a fault of theirs is to be an error.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from lowering import jaxprs
from lowering.contexts import holding, runs
from lowering.fallback import is_strict, or_else
from lowering.jaxprs import is_literal, variables
from lowering.machine import profile, using
from lowering.prepare import Split
from lowering.program import Matcher, Program, rewritten
from lowering.split import split
from lowering.targets.portable import DIFFERENTIABLE
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


def traced(
    function: Callable[..., Any], parameters: Any, *arguments: Any
) -> tuple[Program, list[Any], Any]:
    """Return the program of a function as it is written, its arguments, and its result's tree.

    Arguments are pytrees of arrays, or of `jax.ShapeDtypeStruct`. They are returned as one list of
    leaves, those of the parameters first, `program.parameters` in number. Programs return a list,
    and `jax.tree.unflatten(tree, results)` is the function's result.
    """
    leaves, tree = jax.tree.flatten((parameters, *arguments))

    def flat(*leaves: Any) -> Any:
        return function(*jax.tree.unflatten(tree, leaves))

    closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*leaves)
    count = len(jax.tree.leaves(parameters))
    return Program(closed, count, prepares=False), leaves, jax.tree.structure(shapes)


def differentiable(program: Program, target: Target = DIFFERENTIABLE) -> Program:
    """Return a traced program after the passes that keep its derivatives, which are taken of it.

    It is for any platform, or for that of a mesh, and then its arguments are divided. The program
    is called with the leaves of its arguments, under any transformation of jax.
    """
    jaxprs.require_names()
    return rewrite(program, target)


def lower(program: Program, target: Target) -> Split:
    """Lower a program for a target: return its preparing part, its call, and XLA's options for it.

    The program is one that `differentiable` returned. Types of its arguments are enough for all of
    it, and no device of the target is asked for.
    Where it runs on several devices, or nobody knows on how many, no kernel takes what is sharded.
    """
    parts = split(rewrite(replace(program, prepares=True), target), target.platform)
    return replace(parts, options=partial(_options, target, program, parts.later))


def _options(target: Target, program: Program, call: Any, is_alone: bool) -> dict[str, str]:
    if target.options is None:
        return {}
    with using(target.rates or profile()):
        return target.options(program, call, is_alone)


def rewrite(program: Program, target: Target) -> Program:
    """Return a program after all passes of a target."""
    program = replace(program, is_alone=target.devices == 1, is_open=target.is_open)
    if not target.keeps_derivatives:
        program = or_else(program.low_level, lambda: program, "low-level primitives")
    if target.has_kernels:
        program = rewritten(program, {"concatenate": _without_empty})
        if not program.has_items:
            return program
    with using(target.rates or profile()):
        for run in target.passes:
            if runs(name := name_of(run)):
                before = program
                checked = partial(_checked, run, before, target)
                program = or_else(checked, lambda kept=before: kept, f"pass '{name}'")
                if watch := _watch.get():
                    watch(name, target, before, program)
    return program.pruned()


def _without_empty(matcher: Matcher, equation: Any) -> Any:
    """Join no operands without items, as an empty past of a language model."""
    operands = [v for v in equation.invars if 0 not in v.aval.shape]
    if not operands or len(operands) == len(equation.invars):
        return None
    return equation.replace(invars=operands) if len(operands) > 1 else operands[0]


def _checked(run: Callable[..., Program], program: Program, target: Target) -> Program:
    after = run(program, target)
    if is_strict():
        check(program, after)
    return after


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
    computed = {*after.closed.jaxpr.constvars, *after.arguments}
    for equation in after.equations:
        if not computed.issuperset(variables(equation.invars)):
            raise ValueError(f"{equation.primitive} reads what is not computed before it")
        if not computed.isdisjoint(equation.outvars):
            raise ValueError(f"{equation.primitive} computes a variable for a second time")
        computed.update(equation.outvars)
    if any(v not in computed for v in after.results if not is_literal(v)):
        raise ValueError("a result is not computed")
    # What each equation says of its results is what its primitive makes of the operands.
    results = jax.eval_shape(after, *after.closed.in_avals)
    if list(map(_type, results)) != list(map(_type, after.closed.out_avals)):
        raise ValueError(f"results are {_types(results)} by their equations")


def _type(aval: Any) -> tuple[Any, Any]:
    return aval.shape, aval.dtype


def _types(avals: Any) -> str:
    return ", ".join(f"{aval.dtype}{list(aval.shape)}" for aval in avals)
