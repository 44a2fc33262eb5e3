"""Loops and branches. A loop repeats a graph until the graph computes a false condition.

`loop` takes

    count       the largest number of iterations, an integer scalar; negative for no bound
    condition   whether the first iteration runs, a logical scalar
    full        tensors that every iteration reads unchanged
    initial     the states before the first iteration
    body        a Graph without parameters or states. Its inputs are the number of the iteration,
                the full tensors and the states. Its outputs are whether the loop continues, the
                next states, and a value for each item of `outputs`
    outputs     a tuple (which, axis, sign) for each result. If `which` is "last", the result is the
                last value. If it is "full", the values of all iterations are joined along the axis,
                in reverse order if sign is negative. Iterations that do not run give zeros
    limit       the largest number of iterations that `count` may allow, or -1 if it is unknown. If
                it is unknown, no result can be "full"
    most        if `limit` is -1: the largest number of iterations in a run, or -1 if it is unknown.
                If both are unknown, there are no derivatives in reverse mode

`loop` returns a tensor for each item of `outputs`. If there are no iterations, the last value of a
state is its initial value, and any other last value is zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation
from lowering.extents import is_static, shapes_differ
from lowering.forward_only import with_derivatives_of
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

# The items are: whether the loop continues, the number of the iteration, and the carried values.
_Carry = tuple[Array, Array, list[Array]]
# A function of this type runs an iteration. Its arguments are the number of the iteration and the
# carried values. It returns whether the loop continues, the next carried values, and the values
# that are stacked.
_Iterate = Callable[[Array, Sequence[Array]], tuple[Array, list[Array], list[Array]]]


def _loop_type(
    count: TensorType,
    condition: TensorType,
    full: Sequence[TensorType],
    initial: Sequence[TensorType],
    body: Graph,
    outputs: Outputs,
    limit: int,
    most: int = -1,
) -> list[TensorType]:
    """Check the arguments of `loop`, and return the types of its results."""
    require.one_integer(count=count)
    require.logical(condition=condition)
    require.one(condition=condition)
    if not body.outputs:
        raise InvalidOperation("the body has no output that tells whether the loop continues")
    next_condition, *values = body.outputs
    require.logical(condition=next_condition.type)
    require.one(condition=next_condition.type)
    state_count = len(initial)
    state_inputs = body.inputs[len(body.inputs) - state_count :]
    # `require_body` checks afterwards that the body has enough inputs and outputs.
    for input, initial_type, value in zip(state_inputs, initial, values, strict=False):
        require_constant_state(input.name, initial_type, value.type)
    iteration_number = TensorType((), count.dtype)
    input_types = [iteration_number, *full, *initial]
    require_body(body, input_types, 1 + state_count + len(outputs))
    if limit < 0 and any(which == "full" for which, _, _ in outputs):
        raise InvalidOperation(
            "the values of all iterations are joined, but the number of iterations is unknown",
            hint="make the loop's largest number of iterations a constant",
        )
    types: list[TensorType] = []
    for value, (which, axis, _) in zip(values[state_count:], outputs, strict=True):
        types.append(result_type(value.type, which, axis, limit))
    return types


def _loop_work(body: Graph, limit: int) -> int:
    """Return the work of all iterations. An unknown number of iterations counts as one."""
    return max(limit, 1) * total(body)


@rules.rule("loop", _loop_type, work=_loop_work)
def loop(
    ctx: Context,
    count: Array,
    condition: Array,
    full: Sequence[Array],
    initial: Sequence[Array],
    body: Graph,
    outputs: Outputs,
    limit: int,
    most: int = -1,
) -> list[Array]:
    """Run `body` until it computes a false condition. The body is traced once.

    The body reads the number of the iteration, the tensors `full` and the states, which begin
    as `initial`. It computes whether the loop continues, the next states, and a value for each
    item (which, axis, sign) of `outputs`. The results are the last value for "last", and all
    values joined along the axis for "full". The module's docstring has the details.

    There are at most `count` iterations, or any number if `count` is negative. If `limit` is not
    negative, the loop becomes a `lax.scan` with `limit` steps, which skips the body after the last
    iteration. If `limit` is negative, the loop becomes a `lax.while_loop`.

    jax does not differentiate a `lax.while_loop` in reverse mode. If `most` is not negative, the
    derivatives of the loop are those of a `lax.scan` with `most` steps. A run without derivatives
    has the `lax.while_loop`, whose time does not grow with `most`.
    """
    states = [jnp.asarray(state) for state in initial]
    state_count = len(states)
    bound = jnp.asarray(count).reshape(())
    next_condition = body.outputs[0]
    next_states = body.outputs[1 : 1 + state_count]
    values = body.outputs[1 + state_count :]
    carried_values, stacked_values = carried_and_stacked(next_states, values, outputs)

    def iteration(bound: Array, full: Sequence[Any]) -> _Iterate:
        """Return the function that runs the body for a largest number of iterations."""

        def iterate(
            number: Array, carried: Sequence[Array]
        ) -> tuple[Array, list[Array], list[Array]]:
            """Run the body once. Return whether to run it again, and carried and stacked values.

            Of the values in `carried`, the body reads only the states, which come first.
            """
            inputs = [number, *full, *carried[:state_count]]
            computed = trace(body, ctx, parameters={}, states={}, inputs=inputs)
            goes_on = jnp.asarray(computed[next_condition]).reshape(())
            goes_on &= (bound < 0) | (number + 1 < bound)  # below 0 there is no bound
            carry = [jnp.asarray(computed[value]) for value in carried_values]
            return goes_on, carry, [jnp.asarray(computed[value]) for value in stacked_values]

        return iterate

    iterate = iteration(bound, full)
    number_type = jax.ShapeDtypeStruct((), bound.dtype)
    _, carried_types, stacked_types = jax.eval_shape(iterate, number_type, states)
    # The carried values are the states, followed by values that are only returned. The values that
    # are only returned are zeros before the first iteration.
    first = states + [jnp.zeros(x.shape, x.dtype) for x in carried_types[state_count:]]
    begins = jnp.asarray(condition).reshape(()) & (bound != 0)

    if limit >= 0:
        numbers = jnp.arange(limit, dtype=bound.dtype)
        last, stacks = _scanned(iterate, begins, first, numbers, stacked_types)
    elif most >= 0:
        # Numpy arrays are constants of the trace, and stay constants of the body.
        arrays = {i: x for i, x in enumerate(full) if not is_static(x)}

        def as_while(
            bound: Array, begins: Array, first: list[Array], arrays: Mapping[int, Array]
        ) -> list[Array]:
            inputs = [arrays.get(i, x) for i, x in enumerate(full)]
            number = jnp.zeros((), bound.dtype)
            return _repeated(iteration(bound, inputs), begins, first, number)

        def as_scan(
            bound: Array, begins: Array, first: list[Array], arrays: Mapping[int, Array]
        ) -> list[Array]:
            inputs = [arrays.get(i, x) for i, x in enumerate(full)]
            numbers = jnp.arange(most, dtype=bound.dtype)
            last, _ = _scanned(iteration(bound, inputs), begins, first, numbers, stacked_types)
            return last

        stacks: list[Array] = []
        last = with_derivatives_of(as_while, as_scan)(bound, begins, first, arrays)
    else:
        first_number = jnp.zeros((), bound.dtype)
        last = _repeated(iterate, begins, first, first_number)
        stacks = []
        reason = "the number of its iterations is known only at run time"
        hint = (
            "make its largest number of iterations a constant, by load(..., values=...) if an "
            "input holds it, or differentiate forwards, by jax.jvp or jax.jacfwd"
        )
        last = ctx.forward_only(last, reason, hint)
    remaining_stacks = iter(stacks)
    results: list[Array] = []
    for value, (which, axis, sign) in zip(values, outputs, strict=True):
        if which == "last":
            results.append(last[carried_values.index(value)])
        else:
            results.append(joined(next(remaining_stacks), axis, sign, skipped=0))
    return results


def _scanned(
    iterate: _Iterate,
    begins: Array,
    first: list[Array],
    numbers: Array,
    stacked_types: Sequence[Any],
) -> tuple[list[Array], list[Array]]:
    """Run iterations in a `lax.scan`. Return the last carried values, and the stacked values.

    `numbers` has the numbers of all iterations that may run, and `first` has the carried values
    at the start. After `iterate` has returned false, iterations are skipped and stack zeros.
    `stacked_types` has the types of the stacked values of one iteration. `begins` tells whether
    the first iteration runs.
    """

    def skip(number: Array, carried: list[Array]) -> tuple[Array, list[Array], list[Array]]:
        """Return false, unchanged carried values, and zeros to stack."""
        return jnp.asarray(False), carried, [jnp.zeros(x.shape, x.dtype) for x in stacked_types]

    def step(
        carry: tuple[Array, list[Array]], number: Array
    ) -> tuple[tuple[Array, list[Array]], list[Array]]:
        is_running, carried = carry
        goes_on, next_carried, items = lax.cond(is_running, iterate, skip, number, carried)
        return (goes_on, next_carried), items

    (_, last), stacks = lax.scan(step, (begins, first), numbers)
    return last, stacks


def _repeated(iterate: _Iterate, begins: Array, first: list[Array], number: Array) -> list[Array]:
    """Run iterations in a `lax.while_loop`, and return the last carried values.

    `begins` tells whether there are iterations. `number` is the number of the first iteration,
    and `first` has the carried values before this iteration.
    """

    def continues(carry: _Carry) -> Array:
        goes_on, _, _ = carry
        return goes_on

    def next_carry(carry: _Carry) -> _Carry:
        _, number, carried = carry
        goes_on, next_carried, _ = iterate(number, carried)
        return goes_on, number + 1, next_carried

    _, _, last = lax.while_loop(continues, next_carry, (begins, number, first))
    return last


def _branch_type(
    condition: TensorType, operands: Sequence[TensorType], then_body: Graph, else_body: Graph
) -> list[TensorType]:
    """Check the arguments of `branch`, and return the types of its results."""
    require.logical(condition=condition)
    require.one(condition=condition)
    types: list[TensorType] = []
    for then_value, else_value in zip(then_body.outputs, else_body.outputs, strict=True):
        then_type, else_type = then_value.type, else_value.type
        if then_type.dtype != else_type.dtype or shapes_differ(then_type.shape, else_type.shape):
            raise InvalidOperation(f"one branch has {then_type} where the other has {else_type}")
        types.append(then_type)
    return types


def _branch_work(then_body: Graph, else_body: Graph) -> int:
    return max(total(then_body), total(else_body))


@rules.rule("branch", _branch_type, work=_branch_work)
def branch(
    ctx: Context, condition: Array, operands: Sequence[Array], then_body: Graph, else_body: Graph
) -> list[Array]:
    """Return the results of `then_body` if the condition is true, and otherwise of `else_body`.

    The condition is a logical scalar. The bodies are graphs without parameters or states. Both
    bodies take `operands` as inputs, and have results of equal types. Under `jax.vmap` the
    results of both bodies are computed.
    """

    def function_of(body: Graph) -> Callable[[Sequence[Array]], list[Array]]:
        """Return a function that evaluates a graph on its inputs, for `lax.cond`."""

        def evaluate(inputs: Sequence[Array]) -> list[Array]:
            arrays = trace(body, ctx, parameters={}, states={}, inputs=inputs)
            return [jnp.asarray(arrays[value]) for value in body.outputs]

        return evaluate

    is_true = jnp.asarray(condition).reshape(())
    arrays = [jnp.asarray(operand) for operand in operands]
    return lax.cond(is_true, function_of(then_body), function_of(else_body), arrays)
