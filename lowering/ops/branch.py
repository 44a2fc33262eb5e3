"""A choice between two graphs.

`branch` takes a logical scalar `condition`, and `operands` that both bodies have as their inputs;
the bodies are graphs without parameters or states, with results of equal types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation
from lowering.extents import shapes_differ
from lowering.graph import Graph, TensorType
from lowering.multiply_adds import total
from lowering.ops import require, rules
from lowering.trace import Context, trace


def _branch_type(
    condition: TensorType, operands: Sequence[TensorType], then_body: Graph, else_body: Graph
) -> list[TensorType]:
    require.logical(condition=condition)
    require.one(condition=condition)
    pairs = list(zip(then_body.outputs, else_body.outputs, strict=True))
    for a, b in pairs:
        if a.type.dtype != b.type.dtype or shapes_differ(a.type.shape, b.type.shape):
            raise InvalidOperation(f"one branch has {a.type} where the other has {b.type}")
    return [a.type for a, _ in pairs]


def _branch_work(then_body: Graph, else_body: Graph) -> int:
    return max(total(then_body), total(else_body))


@rules.rule("branch", _branch_type, work=_branch_work)
def branch(
    ctx: Context, condition: Any, operands: Sequence[Any], then_body: Graph, else_body: Graph
) -> list[Array]:
    """Compute the body that the condition chooses; under vmap both are computed."""

    def run(body: Graph) -> Any:
        def compute(inputs: Sequence[Array]) -> list[Array]:
            values = trace(body, ctx, {}, {}, inputs)
            return [jnp.asarray(values[value]) for value in body.outputs]

        return compute

    chosen = jnp.asarray(condition).reshape(())
    return lax.cond(chosen, run(then_body), run(else_body), [jnp.asarray(x) for x in operands])
