"""Splits a function of parameters and inputs: what depends on parameters alone, and the rest.

    prepared = split.prepare(parameters)          # once for each set of parameters
    outputs = split.run(prepared, inputs)         # once for each call

Rules know nothing of it: the function is traced to a jaxpr, and each equation that reads only
parameters and constants goes into `prepare`. So a weight that a rule flips, transposes or scales is
stored as the kernel wants it. No constant of any size is part of the compiled function, but for
small arrays where `with_constants` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from lowering.fallback import or_else
from lowering.halves import Split

# A traced function to another one with the same results, given how many arguments are parameters.
Rewrite = Callable[[Any, int], Any]

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
    rewrite: Rewrite | None = None,
    donated: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Split:
    """Split `function(parameters, inputs)`, given sequences of arrays or ShapeDtypeStructs.

    Args:
        compiled: False for a part of a function that is traced itself.
        differentiable: functions with derivatives of their own stay whole, and what such a function
            computes of parameters is computed in each call.
        rewrite: gives another traced function with the same results, which is then split.
        donated: so many leaves of the inputs, the first, are another argument of `run`, which takes
            their memory for its results.
        options: those of the compiler for `run`, as `jax.jit` takes them.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(parameters, inputs)
    count = len(jax.tree.leaves(parameters))
    tree = jax.tree.structure(shapes)

    def run_as(flat: Callable[..., Any]) -> Any:
        def run(prepared: Sequence[Any], values: Sequence[Any], given: Sequence[Any] = ()) -> Any:
            return jax.tree.unflatten(tree, flat(*prepared, *given, *values))

        return _compiled(run, donated, options) if compiled else run

    def in_parts() -> Split:
        from lowering.jaxprs import inlined
        from lowering.partition import divided

        traced = closed if differentiable else inlined(closed)
        traced = traced if rewrite is None else rewrite(traced, count)
        sources, reads, compute_flat, run_flat = divided(traced.jaxpr, count)
        compute_flat = jax.jit(compute_flat) if compiled else compute_flat

        def compute(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(compute_flat(*values, *traced.consts)) if None in sources else ()

        return Split(sources, reads, compute, run_as(run_flat))

    def as_one() -> Split:
        arguments = jax.tree.structure((parameters, inputs))

        def run(*leaves: Any) -> list[Any]:
            return jax.tree.leaves(function(*jax.tree.unflatten(arguments, leaves)))

        return Split(tuple(range(count)), (), lambda _: (), run_as(run))

    return or_else(in_parts, as_one)


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
