"""Splits a function of parameters and inputs: what depends on parameters alone, and the rest.

    prepared = split.prepare(parameters)          # once for each set of parameters
    outputs = split.run(prepared, inputs)         # once for each call

Rules know nothing of it: the function is traced to a jaxpr, and each equation that reads only
parameters and constants goes into `prepare`. So a weight that a rule flips, transposes or scales is
stored as the kernel wants it. No constant of any size is part of the compiled function, but for
small arrays where `with_constants` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from lowering import repeats
from lowering.equations import inlined, place, read
from lowering.halves import Split

# A prepared value may be this many times larger than what it is computed from (a transformed filter
# is); beyond that it is a broadcast, which costs less to repeat inside the call than to read from
# memory.
_GROWTH = 4

# Bytes of an array that may become a constant of the compiled function, and of all of them: more
# would make it slow to compile.
_SMALL = 8 << 10
_CONSTANTS = 1 << 20


def split(
    function: Callable[[Sequence[Any], Sequence[Any]], Any],
    parameters: Any,
    inputs: Any,
    *,
    compiled: bool = True,
    differentiable: bool = False,
    loops: bool = False,
    donated: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Split:
    """Split `function(parameters, inputs)`, given sequences of arrays or ShapeDtypeStructs.

    Halves that are not compiled are for a part of a function that is traced itself. Where `run` is
    to be differentiable, functions with derivatives of their own stay whole, and what such a
    function computes of parameters is computed in each call. With `loops`, steps that differ in
    their parameters alone become a loop. So many leaves of the inputs, the first, may be `donated`:
    `run` takes them as another argument, and their memory for its results. The options are those of
    the compiler for `run`, as `jax.jit` takes them.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(parameters, inputs)
    closed = closed if differentiable else inlined(closed)
    count = len(jax.tree.leaves(parameters))
    if loops:
        closed = _looped(closed, count)
    jaxpr = closed.jaxpr
    known_roots = [*jaxpr.invars[:count], *jaxpr.constvars]
    outputs: list[Any] = list(jaxpr.outvars)
    early, late, kept = _partition(jaxpr, known_roots)
    tree = jax.tree.structure(shapes)
    indices = {variable: index for index, variable in enumerate(jaxpr.invars[:count])}
    computed = [variable for variable in kept if variable not in indices]
    used = {v for equation in early for v in equation.invars if not _is_literal(v)}
    reads = tuple(index for variable, index in indices.items() if variable in used)
    compute_flat = _function("prepare", known_roots, computed, early)
    compute_flat = jax.jit(compute_flat) if compiled else compute_flat
    run_flat = _function("run", [*kept, *jaxpr.invars[count:]], outputs, late)

    def compute(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(compute_flat(*values, *closed.consts)) if computed else ()

    def run(prepared: Sequence[Any], values: Sequence[Any], given: Sequence[Any] = ()) -> Any:
        return jax.tree.unflatten(tree, run_flat(*prepared, *given, *values))

    sources = tuple(map(indices.get, kept))
    run_as = _compiled(run, donated, options) if compiled else run
    return Split(sources, reads, compute, run_as)


def with_constants(
    run: Any,
    prepared: Sequence[jax.Array],
    donated: int,
    options: Mapping[str, Any],
) -> tuple[Callable[..., Any], tuple[jax.Array, ...]]:
    """`run` with small arrays of what is prepared as constants, and the others, which it takes.

    `run` is that of a split with as many donated inputs and these options, and so is the result.

    Each argument costs 0.5 microseconds of a call: 200 of them more than a small network computes.
    """
    small = {i: np.asarray(x) for i, x in enumerate(prepared) if x.nbytes <= _SMALL}
    if sum(x.nbytes for x in small.values()) > _CONSTANTS:
        return run, tuple(prepared)
    large = tuple(x for i, x in enumerate(prepared) if i not in small)

    def rest(large: Sequence[Any], values: Sequence[Any], given: Sequence[Any] = ()) -> Any:
        others = iter(large)
        whole = [small[i] if i in small else next(others) for i in range(len(prepared))]
        return run.__wrapped__(whole, values, given)

    return _compiled(rest, donated, options), large


def _compiled(run: Callable[..., Any], donated: int, options: Mapping[str, Any] | None) -> Any:
    given = (2,) if donated else ()
    return jax.jit(run, donate_argnums=given, compiler_options=dict(options or {}))


def _function(
    name: str, arguments: Sequence[Any], results: Sequence[Any], equations: Sequence[Any]
) -> Callable[..., Any]:
    paths = tuple(f"result[{i}]" for i in range(len(results)))
    info = core.DebugInfo(name, name, tuple(f"x{i}" for i in range(len(arguments))), paths)
    jaxpr = core.Jaxpr([], arguments, results, equations, debug_info=info)
    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, []))


def _known_equations(jaxpr: Any, roots: Iterable[Any]) -> dict[Any, Any]:
    """The equation of each variable that depends on the roots alone."""
    known: dict[Any, Any] = dict.fromkeys(roots)
    for equation in jaxpr.eqns:
        if not equation.effects and all(_is_literal(v) or v in known for v in equation.invars):
            known.update((variable, equation) for variable in equation.outvars)
    return known


def _looped(closed: Any, count: int) -> Any:
    """The same function, of which the first `count` arguments are parameters, with a loop."""
    jaxpr = closed.jaxpr
    early, late, kept = _partition(jaxpr, [*jaxpr.invars[:count], *jaxpr.constvars])
    loop = repeats.find(late, jaxpr.outvars, set(kept))
    if loop is None:
        return closed

    def run(*arguments: Any) -> list[Any]:
        values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))
        for equation in (*early, *late[: loop.start]):
            place(equation, values)
        loop.run(values)
        for equation in late[loop.stop :]:
            place(equation, values)
        return [read(v, values) for v in jaxpr.outvars]

    return jax.make_jaxpr(run)(*closed.in_avals)


def _partition(jaxpr: Any, roots: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Equations to evaluate early, those to evaluate late, and the variables handed over."""
    known = _known_equations(jaxpr, roots)
    sources = _source_sizes(jaxpr, known, roots)
    late = {id(e) for e in jaxpr.eqns if not all(v in known for v in e.outvars)}
    by_id = {id(e): e for e in jaxpr.eqns}
    pending = [
        v
        for e in jaxpr.eqns
        if id(e) in late
        for v in e.invars
        if not _is_literal(v) and v in known
    ]
    pending += [v for v in jaxpr.outvars if not _is_literal(v) and v in known]
    kept: dict[Any, None] = {}
    while pending:
        variable = pending.pop()
        equation = known[variable]
        if equation is None or _size(variable) <= _GROWTH * sources[variable]:
            kept[variable] = None
        elif id(equation) not in late:
            late.add(id(equation))
            pending += [v for v in equation.invars if not _is_literal(v)]
    needed = set(kept)
    early: list[Any] = []
    for equation in reversed(jaxpr.eqns):
        if (
            any(v in needed for v in equation.outvars)
            and known.get(equation.outvars[0]) is equation
        ):
            early.append(equation)
            needed.update(v for v in equation.invars if not _is_literal(v))
    return early[::-1], [e for e in by_id.values() if id(e) in late], list(kept)


def _source_sizes(jaxpr: Any, known: dict[Any, Any], roots: Iterable[Any]) -> dict[Any, int]:
    """For each known variable the number of items of the largest root that it comes from.

    What is concatenated comes from as many as its parts together.
    """
    sizes = {variable: _size(variable) for variable in roots}
    for equation in jaxpr.eqns:
        if any(known.get(variable) is equation for variable in equation.outvars):
            operands = [sizes[v] for v in equation.invars if not _is_literal(v)]
            together = sum if equation.primitive.name in ("concatenate", "stack") else max
            found = together(operands) if operands else 0
            sizes.update((variable, found) for variable in equation.outvars)
    return sizes


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)


def _is_literal(variable: Any) -> bool:
    return isinstance(variable, core.Literal)
