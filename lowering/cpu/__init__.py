"""Layouts and kernels of a CPU for traced functions; `pipeline` lists the passes.

No other platform has such a folder: a network runs there as it is written, as `direct` says it.
Parts are imported in calls: `fallback` is there where jax lacks something that they need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

from lowering.fallback import or_else
from lowering.prepare import Split, split

Function = Callable[[Any, Sequence[Any]], Any]
Role = Literal["value", "forward", "backward"]


def optimised(
    function: Function, *, in_chunks: bool = False, alone: bool | None = None
) -> Function:
    """Return the function of parameters and inputs (pytrees of arrays), laid out for a CPU.

    What depends on parameters alone is computed once for many calls, so it may be written anew.
    `in_chunks` takes a large batch a few items at a time; derivatives are slow then. It is `alone`
    where nothing is sharded, as a batch in chunks is.
    """
    alone = in_chunks if alone is None else alone

    def run(parameters: Any, inputs: Sequence[Any]) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(parameters, inputs)

        def rewritten() -> list[Any]:
            from lowering.cpu.evaluate import evaluated

            known, free = jax.tree.leaves(parameters), jax.tree.leaves(inputs)
            return evaluated(closed, known, free, in_chunks=in_chunks, alone=alone)

        results = or_else(rewritten, lambda: jax.tree.leaves(function(parameters, inputs)))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return run


def folded(closed: Any, known: Sequence[Any], free: Sequence[Any]) -> list[Any]:
    """Evaluate a traced function of parameters and inputs, scales made part of filters."""

    def evaluated() -> list[Any]:
        from lowering.cpu import evaluate

        return evaluate.folded(closed, known, free)

    return or_else(evaluated, lambda: _as_written(closed, *known, *free))


def rewritten(closed: Any, operands: Sequence[Any], role: Role, *, alone: bool) -> list[Any]:
    """Evaluate a traced function, none of whose operands is known before, on one device if `alone`.

    A function may be the forward or the backward pass of another: its tangents, or gradients.
    """

    def evaluated() -> list[Any]:
        from lowering.cpu import evaluate

        return evaluate.evaluated(closed, (), operands, role=role, alone=alone)

    return or_else(evaluated, lambda: _as_written(closed, *operands))


def _as_written(closed: Any, *operands: Any) -> list[Any]:
    from lowering.jaxprs import as_function

    return as_function(closed)(*operands)


def split_for_cpu(
    closed: Any, parameters: Sequence[Any], inputs: Sequence[Any], *, in_chunks: bool
) -> Split:
    """Split a traced function: what kernels need of parameters, and the rest.

    `in_chunks` is that of `optimised`.
    """

    def function(parameters: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        from lowering.cpu import evaluate

        return evaluate.evaluated(closed, parameters, inputs, in_chunks=in_chunks, alone=in_chunks)

    return split(function, parameters, inputs, rewrite=looped)


def looped(closed: Any, count: int) -> Any:
    """Return the traced function with equal steps as a loop; a `Rewrite` of a split."""
    from lowering.cpu import repeats

    return repeats.looped(closed, count)
