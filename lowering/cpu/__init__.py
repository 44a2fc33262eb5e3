"""What is a CPU's: layouts and kernels for traced functions. `pipeline` lists the passes.

Execution asks a platform for these two functions, and for the compiler's `options`. Another
platform has a folder beside this one, which offers the same. The functions import their parts when
they are called, so that `fallback` is there where jax lacks something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from lowering.fallback import or_else

Function = Callable[[Any, Sequence[Any]], Any]


def optimised(function: Function, *, in_chunks: bool = False) -> Function:
    """Return the same function of parameters and inputs, laid out for a CPU.

    Both arguments are pytrees of arrays. What depends on the first alone may be computed in another
    way than written, since that is done once for many calls. `in_chunks` takes a large batch a few
    items at a time; derivatives of the result are slow then.
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
    """Return the same traced function with equal steps as a loop; a `Rewrite` of a split."""
    from lowering.cpu import repeats

    return repeats.looped(closed, count)
