"""Loops, which repeat a graph until a condition that the graph computes is false, and branches.

`loop` takes

    count       the largest number of iterations, an integer scalar; negative for no bound
    condition   whether the first iteration runs, a logical scalar
    full        tensors that every iteration reads unchanged
    initial     the states before the first iteration
    body        a Graph without parameters or states. Its inputs are the number of the iteration,
                the full tensors and the states. Its outputs are whether the loop continues, the
                next states, and a value for each item of `outputs`
    outputs     a tuple (which, axis, sign) for each result. "last" is the last value. "full" joins
                the values of all iterations along the axis, in reverse order if sign is negative,
                and ends in zeros for iterations that do not run
    limit       the largest number of iterations that `count` may have, or -1 if it is unknown. If
                it is unknown, no result can be "full", and there are no derivatives in reverse mode

`loop` returns a tensor for each item of `outputs`. If there are no iterations, the last value of a
state is its initial value, and any other last value is zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation
from lowering.extents import shapes_differ
from lowering.graph import Graph, TensorType
from lowering.ops import require, rules
from lowering.ops.scan import (
    Outputs,
    carried_and_stacked,
    joined,
    require_body,
    require_constant_state,
    result_type,
)
from lowering.tracing import Context, trace
from lowering.work import total

# Whether the loop continues, the number of the iteration, and the carried values.
_Carry = tuple[Array, Array, list[Array]]
# A function of the number of an iteration and the carried values. It returns whether the loop
# continues, the next carried values, and the values that are stacked.
_Iterate = Callable[[Array, Sequence[Array]], tuple[Array, list[Array], list[Array]]]


def _loop_type(
    count: TensorType,
    condition: TensorType,
    full: Sequence[TensorType],
    initial: Sequence[TensorType],
    body: Graph,
    outputs: Outputs,
    limit: int,
) -> list[TensorType]:
    require.one_integer(count=count)
    require.logical(condition=condition)
    require.one(condition=condition)
    if not body.outputs:
        raise InvalidOperation("the body has no output that tells whether the loop continues")
    next_condition, *values = body.outputs
    require.logical(condition=next_condition.type)
    require.one(condition=next_condition.type)
    names = [value.name for value in body.inputs[len(body.inputs) - len(initial) :]]
    for name, before, after in zip(names, initial, values, strict=False):
        require_constant_state(name, before, after.type)
    one = TensorType((), count.dtype)
    require_body(body, [one, *full, *initial], 1 + len(initial) + len(outputs))
    if limit < 0 and any(which == "full" for which, *_ in outputs):
        raise InvalidOperation(
            "the values of all iterations are joined, but the number of iterations is unknown",
            hint="make the loop's largest number of iterations a constant",
        )
    return [
        result_type(value.type, which, axis, limit)
        for value, (which, axis, _) in zip(values[len(initial) :], outputs, strict=True)
    ]


@rules.rule("loop", _loop_type, work=lambda body, limit: max(limit, 1) * total(body))
def loop(
    ctx: Context,
    count: Array,
    condition: Array,
    full: Sequence[Array],
    initial: Sequence[Array],
    body: Graph,
    outputs: Outputs,
    limit: int,
) -> list[Array]:
    """Run `body` until it computes a false condition. The body is traced once.

    The module's docstring describes the parameters. If `limit` is not negative, the loop
    becomes a `lax.scan` with `limit` steps, which skips the body after the last iteration.
    Otherwise it becomes a `lax.while_loop`.
    """
    states = [jnp.asarray(x) for x in initial]
    bound = jnp.asarray(count).reshape(())
    next_states = body.outputs[1 : 1 + len(states)]
    values = body.outputs[1 + len(states) :]
    carried_values, stacked = carried_and_stacked(next_states, values, outputs)

    def iterate(i: Array, carried: Sequence[Array]) -> tuple[Array, list[Array], list[Array]]:
        computed = trace(body, ctx, {}, {}, [i, *full, *carried[: len(states)]])
        goes_on = jnp.asarray(computed[body.outputs[0]]).reshape(())
        goes_on &= (bound < 0) | (i + 1 < bound)
        carry = [jnp.asarray(computed[value]) for value in carried_values]
        return goes_on, carry, [jnp.asarray(computed[value]) for value in stacked]

    index = jax.ShapeDtypeStruct((), bound.dtype)
    _, later, parts = jax.eval_shape(iterate, index, states)
    first = states + [jnp.zeros(x.shape, x.dtype) for x in later[len(states) :]]
    begins = jnp.asarray(condition).reshape(()) & (bound != 0)

    if limit >= 0:
        numbers = jnp.arange(limit, dtype=bound.dtype)
        last, stacks = _scanned(iterate, begins, first, numbers, parts)
    else:
        last, stacks = _repeated(iterate, begins, first, jnp.zeros((), bound.dtype)), []
        reason = "the number of its iterations is known only at run time"
        hint = (
            "make its largest number of iterations a constant, by load(..., values=...) if an "
            "input holds it, or differentiate forwards, by jax.jvp or jax.jacfwd"
        )
        last = ctx.forward_only(last, reason, hint)
    stack = iter(stacks)
    results: list[Array] = []
    for value, (which, axis, sign) in zip(values, outputs, strict=True):
        if which == "last":
            results.append(last[carried_values.index(value)])
        else:
            results.append(joined(next(stack), axis, sign, 0))
    return results


def _scanned(
    iterate: _Iterate, begins: Array, first: list[Array], numbers: Array, parts: Sequence[Any]
) -> tuple[list[Array], list[Array]]:
    """Run iterations in a `lax.scan`. Return the last carried values, and the stacked values.

    `numbers` has the numbers of all iterations that may run, and `first` has the carried values
    at the start. After `iterate` has returned false, iterations are skipped and stack zeros.
    `parts` has the types of the stacked values of one iteration. `begins` tells whether the
    first iteration runs.
    """

    def skipped(i: Array, carried: list[Array]) -> tuple[Array, list[Array], list[Array]]:
        return jnp.asarray(False), carried, [jnp.zeros(x.shape, x.dtype) for x in parts]

    def step(
        carry: tuple[Array, list[Array]], i: Array
    ) -> tuple[tuple[Array, list[Array]], list[Array]]:
        is_running, carried = carry
        goes_on, after, stacked_items = lax.cond(is_running, iterate, skipped, i, carried)
        return (goes_on, after), stacked_items

    (_, last), stacks = lax.scan(step, (begins, first), numbers)
    return last, stacks


def _repeated(iterate: _Iterate, begins: Array, first: list[Array], number: Array) -> list[Array]:
    """Run iterations in a `lax.while_loop`, and return the last carried values.

    `begins` tells whether there are iterations. `number` is the number of the first iteration,
    and `first` has the carried values before it.
    """

    def continues(carry: _Carry) -> Array:
        goes_on, _, _ = carry
        return goes_on

    def next_carry(carry: _Carry) -> _Carry:
        _, i, carried = carry
        goes_on, after, _ = iterate(i, carried)
        return goes_on, i + 1, after

    _, _, last = lax.while_loop(continues, next_carry, (begins, number, first))
    return last


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
    ctx: Context, condition: Array, operands: Sequence[Array], then_body: Graph, else_body: Graph
) -> list[Array]:
    """Return the results of `then_body` if the condition is true, and otherwise of `else_body`.

    The condition is a logical scalar. The bodies are graphs without parameters or states. Both
    take `operands` as inputs, and their results have equal types. Under `jax.vmap` both bodies
    are computed.
    """

    def function_of(body: Graph) -> Callable[[Sequence[Array]], list[Array]]:
        def evaluate(inputs: Sequence[Array]) -> list[Array]:
            values = trace(body, ctx, {}, {}, inputs)
            return [jnp.asarray(values[value]) for value in body.outputs]

        return evaluate

    is_true = jnp.asarray(condition).reshape(())
    arrays = [jnp.asarray(x) for x in operands]
    return lax.cond(is_true, function_of(then_body), function_of(else_body), arrays)
