"""Keeps the compiler from computing an updated tensor once for each of its readers.

A step of a language model writes a row of a cache. The new cache is a result of the step, and
attention reads it. For a batch of 1, XLA's compiler fuses the update with the reshape before
attention's product. It then updates two copies of the cache, and copies the cache four times for
each token. Behind a barrier, the cache is updated once and in place. jax 0.10 removes barriers
before the fusion, so there the copies stay.
"""

from __future__ import annotations

from jax import Array, lax

from lowering.jaxpr_types import Equation
from lowering.program import Program
from lowering.rewriting import Computed, Matcher, in_loops, rewritten
from lowering.targets.target import Target


@in_loops
def run(program: Program, target: Target) -> Program:
    """Put a barrier behind each update of a slice, if the updated tensor has several readers."""
    return rewritten(program, {"dynamic_update_slice": _behind_barrier})


def _behind_barrier(matcher: Matcher, equation: Equation) -> Computed | None:
    """Return an update with a barrier behind it, or None if its result has one reader."""
    if matcher.program.uses[matcher.original.outvars[0]] < 2:
        return None

    def updated(x: Array, update: Array, *starts: Array) -> Array:
        return lax.optimization_barrier(lax.dynamic_update_slice(x, update, starts))

    return Computed(updated, equation.invars)
