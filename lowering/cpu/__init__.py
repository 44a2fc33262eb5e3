"""Layouts and kernels of a CPU for traced functions; `pipeline` lists the passes.

Another platform has a folder like this one, with the same functions and compiler's `options`.
Parts are imported in calls: `fallback` is there where jax lacks something that they need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from lowering.fallback import or_else

Function = Callable[[Any, Sequence[Any]], Any]


def optimised(function: Function, *, in_chunks: bool = False) -> Function:
    """Return the function of parameters and inputs (pytrees of arrays), laid out for a CPU.

    What depends on parameters alone is computed once for many calls, so it may be written anew.
    `in_chunks` takes a large batch a few items at a time; derivatives are slow then.
    """

    def run(parameters: Any, inputs: Sequence[Any]) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(parameters, inputs)

        def rewritten() -> list[Any]:
            from lowering.cpu.evaluate import evaluated

            known, free = jax.tree.leaves(parameters), jax.tree.leaves(inputs)
            return evaluated(closed, known, free, in_chunks=in_chunks)

        results = or_else(rewritten, lambda: jax.tree.leaves(function(parameters, inputs)))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return run


def looped(closed: Any, count: int) -> Any:
    """Return the traced function with equal steps as a loop; a `Rewrite` of a split."""
    from lowering.cpu import repeats

    return repeats.looped(closed, count)
