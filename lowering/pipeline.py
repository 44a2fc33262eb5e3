"""Traces a function, rewrites it by the passes of a target, and splits it for preparation.

    program, arguments, tree = traced(function, parameters, inputs)
    parts = lower(differentiable(program), target)

With `optimize="strict"` the program is checked after each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jax import Array

from lowering import jaxpr_evaluation, jaxprs
from lowering.contexts import holding, is_enabled
from lowering.fallback import is_strict, or_else
from lowering.jaxpr_types import Aval, ClosedJaxpr, Equation
from lowering.jaxprs import variables
from lowering.machine import profile, using
from lowering.prepare import Split
from lowering.program import Program
from lowering.rewriting import Matcher, Rewrite, rewritten
from lowering.split import split
from lowering.targets.portable import DIFFERENTIABLE
from lowering.targets.target import Target


def name_of(run: Callable[..., Program]) -> str:
    """Return the name of a pass, which is the name of its module. `run` is the pass's function."""
    return run.__module__.rpartition(".")[2]


# A function of this type gets the name of a pass, its target, and the program before and after the
# pass.
Watch = Callable[[str, Target, Program, Program], None]
_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


def watched(watch: Watch) -> AbstractContextManager[None]:
    """Call `watch` after each pass that runs in the block of a `with` statement.

    `watch` gets the name of the pass, the target, and the program before and after the pass.
    """
    return holding(_watch, watch)


def traced(
    function: Callable[..., object], parameters: object, *arguments: object
) -> tuple[Program, list[Any], Any]:
    """Trace a function to a program that is not optimised.

    `parameters` and `arguments` are pytrees of arrays or of `jax.ShapeDtypeStruct`. Three items
    are returned: the program, the list of leaves that the program takes, and the tree of the
    function's result. The first `program.parameters` leaves come from the parameters, and
    the later leaves from the arguments. The program returns a list `results`, from which
    `jax.tree.unflatten(tree, results)` makes the function's result.
    """
    leaves, tree = jax.tree.flatten((parameters, *arguments))

    def of_leaves(*leaves: Array) -> object:
        return function(*jax.tree.unflatten(tree, leaves))

    closed, result_types = jaxpr_evaluation.make_jaxpr_and_types(of_leaves, *leaves)
    parameter_count = len(jax.tree.leaves(parameters))
    program = Program(closed, parameter_count, prepares=False)
    return program, leaves, jax.tree.structure(result_types)


def differentiable(program: Program, target: Target = DIFFERENTIABLE) -> Program:
    """Rewrite a traced program by passes that keep custom derivatives.

    jax can differentiate, batch and shard the rewritten program. By default the program is for any
    platform. If `target` is a `mesh_target`, the program is for arguments that are divided over
    the mesh of the target.
    """
    jaxprs.require_names()
    return rewrite(program, target)


def lower(program: Program, target: Target) -> Split:
    """Rewrite a program by a target's passes, and split the result into preparation and call.

    The program must be a result of `differentiable`. The returned `Split` also has the options
    for XLA. Neither arrays nor a device of the target are needed. If there may be several
    devices, the target's kernels do not compute equations whose operands may be sharded. These
    equations are left to XLA.
    """
    rewritten_program = rewrite(replace(program, prepares=True), target)
    parts = split(rewritten_program, target)
    return replace(parts, options=partial(_options, target, program, parts.later))


def _options(
    target: Target, program: Program, call: ClosedJaxpr | None, is_alone: bool
) -> dict[str, str]:
    """Return the options with which XLA compiles the call of a program.

    `call` is the second part of the split program. `is_alone` is true if the call is compiled
    alone, and false if it is compiled in a user's function. The options may depend on the speed of
    the machine, which `target.rates` describes. If `target.rates` is None, the current profile of
    `lowering.machine` describes the speed.
    """
    if target.options is None:
        return {}
    with using(target.rates or profile()):
        return target.options(program, call, is_alone)


def rewrite(program: Program, target: Target) -> Program:
    """Apply all passes of a target to a program, and return the rewritten program.

    A pass that fails is left out with a warning.
    """
    program = replace(program, is_alone=target.devices == 1, is_open=target.is_open)
    if not target.keeps_derivatives:
        program = or_else(program.low_level, lambda: program, step="low-level primitives")
    if target.has_kernels:
        program = rewritten(program, {"concatenate": _without_empty})
        # Kernels need extents that are numbers, and arguments that are not empty.
        if not program.has_items:
            return program
    watch = _watch.get()
    with using(target.rates or profile()):
        for run_pass in target.passes:
            name = name_of(run_pass)
            if not is_enabled(name):
                continue
            before = program
            run_checked = partial(_checked, run_pass, before, target)
            # A pass that fails leaves the program as it is.
            step = f"pass '{name}'"
            program = or_else(run_checked, lambda unchanged=before: unchanged, step)
            if watch:
                watch(name, target, before, program)
    return program.pruned()


def _without_empty(matcher: Matcher, equation: Equation) -> Rewrite:
    """Leave empty operands out of a concatenation, such as the empty past of a language model."""
    operands = [v for v in equation.invars if 0 not in v.aval.shape]
    are_all_empty = not operands
    is_none_empty = len(operands) == len(equation.invars)
    if are_all_empty or is_none_empty:
        return None
    if len(operands) == 1:
        return operands[0]
    return equation.replace(invars=operands)


def _checked(run: Callable[..., Program], program: Program, target: Target) -> Program:
    """Run a pass, and return the new program. In strict mode the new program is checked."""
    after = run(program, target)
    if is_strict():
        check(program, after)
    return after


def check(before: Program, after: Program) -> None:
    """Raise ValueError if a pass has made an invalid program.

    The program `after` must have the types of arguments, the types of results and the effects of
    `before`. The equations of `after` must compute each variable once, before it is read, and with
    the type of the variable.
    """
    for noun, earlier, later in (
        ("arguments", before.closed.in_avals, after.closed.in_avals),
        ("results", before.closed.out_avals, after.closed.out_avals),
    ):
        if list(map(_type, earlier)) != list(map(_type, later)):
            raise ValueError(f"{noun} were {_types(earlier)}, they are {_types(later)}")
    if before.closed.effects != after.closed.effects:
        raise ValueError(f"effects were {before.closed.effects}, they are {after.closed.effects}")
    computed = {*after.closed.jaxpr.constvars, *after.arguments}
    for equation in after.equations:
        if not computed.issuperset(variables(equation.invars)):
            raise ValueError(f"{equation.primitive} reads a variable that is not computed yet")
        if not computed.isdisjoint(equation.outvars):
            raise ValueError(f"{equation.primitive} computes a variable for a second time")
        computed.update(equation.outvars)
    if not computed.issuperset(variables(after.results)):
        raise ValueError("a result is not computed")
    # The types that the primitives infer must be the types of the variables.
    results = jax.eval_shape(after, *after.closed.in_avals)
    if list(map(_type, results)) != list(map(_type, after.closed.out_avals)):
        raise ValueError(f"results are {_types(results)} by their equations")


def _type(aval: Aval | jax.ShapeDtypeStruct) -> tuple[tuple[int, ...], Any]:
    """Return the shape and the dtype of a type."""
    return aval.shape, aval.dtype


def _types(avals: Iterable[Aval | jax.ShapeDtypeStruct]) -> str:
    """Return types as a text for messages, for example `float32[2, 3], int32[]`."""
    return ", ".join(f"{aval.dtype}{list(aval.shape)}" for aval in avals)
