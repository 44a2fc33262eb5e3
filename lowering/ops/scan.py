"""The repetition of a graph along an axis.

`scan` takes three arrays of tensors and these attributes:

    scanned   tensors that are cut along an axis, a chunk for each iteration; one tensor at least
    full      tensors that every iteration reads unchanged, including variables of the fragment
    initial   the states before the first iteration
    body      a Graph without parameters or states. Its inputs are a chunk of each scanned tensor,
              the full tensors and the states. Its outputs are the next states and a value for each
              item of `outputs`
    axes      the axis of each scanned tensor
    chunks    the extent of the chunks of each scanned tensor. If it is negative, the last chunk
              comes first, but the items of a chunk are not reversed
    outputs   a tuple (which, axis, chunk) for each result. If `which` is "last", the result is the
              last value. If it is "full", the values of all iterations are joined along the axis,
              in reverse order if chunk is negative (only the sign of chunk matters)
    skip      the number of iterations to leave out at the start. In these iterations states stay
              unchanged, and values are zeros

`scan` returns a tensor for each item of `outputs`. There are as many iterations as the first
scanned tensor has chunks. Other scanned tensors must have at least as many chunks. The last chunk
is padded with zeros after its items, or before its items if chunks come from the end. If there are
no iterations, the last value of a state is its initial value, and any other last value is zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Ints, Shape, ceil_div, shapes_differ, show, with_extent
from lowering.graph import Graph, TensorType, Value
from lowering.kernels.resampling import merged
from lowering.ops import require, rules
from lowering.ops.require import normal_axis
from lowering.tracing import Context, trace
from lowering.work import total

Outputs = tuple[tuple[str, int, int], ...]


def _iterations(shape: Shape, axis: int, chunk: int) -> int:
    """Return the number of chunks into which an axis of the shape `shape` is cut.

    A chunk has the extent abs(chunk).
    """
    if chunk == 0:
        raise InvalidOperation("'scan' must cut a tensor into chunks of at least 1, one has 0")
    extent = shape[normal_axis(axis, len(shape), "scan")]
    return ceil_div(extent, abs(chunk))


def _scan_type(
    scanned: Sequence[TensorType],
    full: Sequence[TensorType],
    initial: Sequence[TensorType],
    body: Graph,
    axes: Ints,
    chunks: Ints,
    outputs: Outputs,
    skip: int,
) -> list[TensorType]:
    """Check the arguments of `scan`, and return the types of its results."""
    if not scanned:
        raise InvalidOperation(
            "'scan' must name at least one tensor",
            hint="the number of its chunks is how often the body is repeated",
        )
    require.not_negative(skip=skip)
    require.length("axes", axes, len(scanned), "tensors that are cut")
    require.length("chunks", chunks, len(scanned), "tensors that are cut")
    cuts = list(zip(scanned, axes, chunks, strict=True))
    counts = [_iterations(type.shape, axis, chunk) for type, axis, chunk in cuts]
    if any(count < counts[0] for count in counts):
        raise InvalidShape(
            f"the tensors that 'scan' cuts have {', '.join(map(str, counts))} chunks: "
            "none must have fewer than the first one",
            hint=f"their shapes are {', '.join(show(type.shape) for type in scanned)}, "
            f"the chunks {list(chunks)} along the axes {list(axes)}",
        )
    chunk_types: list[TensorType] = []
    for type, axis, chunk in cuts:
        shape = with_extent(type.shape, normal_axis(axis, len(type.shape)), abs(chunk))
        chunk_types.append(TensorType(shape, type.dtype))
    first_state = len(scanned) + len(full)
    state_inputs = body.inputs[first_state:]
    # `require_body` checks afterwards that the body has enough inputs and outputs.
    for input, initial_type, value in zip(state_inputs, initial, body.outputs, strict=False):
        require_constant_state(input.name, initial_type, value.type)
    require_body(body, [*chunk_types, *full, *initial], len(initial) + len(outputs))
    values = body.outputs[len(initial) :]
    types: list[TensorType] = []
    for value, (which, axis, _) in zip(values, outputs, strict=True):
        types.append(result_type(value.type, which, axis, counts[0]))
    return types


def require_body(body: Graph, operands: Sequence[TensorType], output_count: int) -> None:
    """Refuse a body with wrong inputs or outputs.

    The inputs must have the types `operands`, and there must be `output_count` outputs.
    """
    require.length("inputs", body.inputs, len(operands), "tensors that a body is given")
    require.length("outputs", body.outputs, output_count, "results of a body")
    for value, type in zip(body.inputs, operands, strict=True):
        if value.type.dtype != type.dtype or shapes_differ(value.type.shape, type.shape):
            raise InvalidShape(f"'{value.name}' of a body is {value.type}, it is given {type}")


def require_constant_state(name: str, before: TensorType, after: TensorType) -> None:
    """Refuse a state whose type before an iteration differs from its type after the iteration."""
    if before.dtype != after.dtype:
        raise InvalidOperation(
            f"state '{name}' holds {before.dtype} at first and {after.dtype} after an iteration",
            hint="make them one type, by a cast of the initial tensor or of the result",
        )
    if shapes_differ(before.shape, after.shape):
        raise InvalidShape(
            f"state '{name}' has shape {show(before.shape)} at first and {show(after.shape)} "
            "after an iteration",
            hint="a state keeps its shape",
        )


def result_type(value: TensorType, which: str, axis: int, count: int) -> TensorType:
    """Return the type of a result of a loop with `count` iterations.

    `value` is the type that one iteration computes. For `which` "last" the result is the value
    of the last iteration. For "full" the result has the values of all iterations, joined along
    the axis.
    """
    if which == "last":
        return value
    if which != "full":
        raise InvalidOperation(f'\'output\' must ask for "full" or "last", it has {which!r}')
    axis = normal_axis(axis, len(value.shape))
    return TensorType(with_extent(value.shape, axis, value.shape[axis] * count), value.dtype)


def _scan_work(
    scanned: Sequence[TensorType], body: Graph, axes: Ints, chunks: Ints, skip: int
) -> int:
    count = _iterations(scanned[0].shape, axes[0], chunks[0])
    return max(count - skip, 0) * total(body)


@rules.rule("scan", _scan_type, work=_scan_work)
def scan(
    ctx: Context,
    scanned: Sequence[Array],
    full: Sequence[Array],
    initial: Sequence[Array],
    body: Graph,
    axes: Ints,
    chunks: Ints,
    outputs: Outputs,
    skip: int,
) -> list[Array]:
    """Run `body` for each chunk of the scanned tensors. The body is traced once.

    Tensor i of `scanned` is cut along `axes[i]` into chunks of the extent abs(chunks[i]). The body
    reads a chunk of each scanned tensor, the tensors `full` and the states, which begin as
    `initial`. It computes the next states, and a value for each item (which, axis, chunk) of
    `outputs`. The results are the last value for "last", and all values joined along the axis for
    "full". The first `skip` iterations are left out. The module's docstring has the details.

    Derivatives go through all iterations.
    """
    # The first tensor decides the number of iterations. If other tensors have more chunks, these
    # are not read.
    count = _iterations(np.shape(scanned[0]), axes[0], chunks[0])
    stacked_chunks: list[Array] = []
    for tensor, axis, chunk in zip(scanned, axes, chunks, strict=True):
        stacked_chunks.append(_parts(jnp.asarray(tensor), axis, chunk)[skip:count])
    states = [jnp.asarray(state) for state in initial]
    state_count = len(states)
    next_states = body.outputs[:state_count]
    values = body.outputs[state_count:]
    carried_values, stacked_values = carried_and_stacked(next_states, values, outputs)

    def iterate(carried: list[Array], chunks: list[Array]) -> tuple[list[Array], list[Array]]:
        """Run the body once. Return the carried values and the values that are stacked.

        Of the values in `carried`, the body reads only the states, which come first.
        """
        inputs = [*chunks, *full, *carried[:state_count]]
        computed = trace(body, ctx, parameters={}, states={}, inputs=inputs)
        carry = [jnp.asarray(computed[value]) for value in carried_values]
        return carry, [jnp.asarray(computed[value]) for value in stacked_values]

    first = states
    if len(carried_values) > state_count:
        # The carried values are the states, followed by values that are only returned. The values
        # that are only returned are zeros before the first iteration.
        chunk_types = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in stacked_chunks]
        carried_types, _ = jax.eval_shape(iterate, states, chunk_types)
        first = states + [jnp.zeros(x.shape, x.dtype) for x in carried_types[state_count:]]
    last, stacks = lax.scan(iterate, first, stacked_chunks)
    remaining_stacks = iter(stacks)
    results: list[Array] = []
    for value, (which, axis, chunk) in zip(values, outputs, strict=True):
        if which == "last":
            results.append(last[carried_values.index(value)])
        else:
            results.append(joined(next(remaining_stacks), axis, chunk, skipped=min(skip, count)))
    return results


def carried_and_stacked(
    states: Sequence[Value], values: Sequence[Value], outputs: Outputs
) -> tuple[list[Value], list[Value]]:
    """Return the carried values and the stacked values of a loop.

    An iteration hands the carried values to the next iteration. The stacked values of all
    iterations are collected. `values` has a value for each item of `outputs`: a value with the
    output "full" is stacked, and a value with the output "last" is carried. The `states` come
    first among the carried values.
    """
    carried = list(states)
    stacked: list[Value] = []
    for value, (which, _, _) in zip(values, outputs, strict=True):
        if which == "full":
            stacked.append(value)
        elif value not in carried:
            carried.append(value)
    return carried, stacked


def _parts(x: Array, axis: int, chunk: int) -> Array:
    """Cut a tensor into chunks along an axis, and stack the chunks along a new first axis.

    A chunk has the extent abs(chunk). If `chunk` is negative, the last chunk comes first. If the
    axis is not a multiple of the chunk's extent, the tensor is padded with zeros at the end, or at
    the start if `chunk` is negative.
    """
    axis = axis % x.ndim
    size = abs(chunk)
    missing = -x.shape[axis] % size  # the number of items that the last chunk lacks: -10 % 4 is 2
    if missing:
        pads = [(0, 0)] * x.ndim
        pads[axis] = (missing, 0) if chunk < 0 else (0, missing)
        x = jnp.pad(x, pads)
    chunk_count = x.shape[axis] // size
    cut = x.reshape(with_extent(x.shape, axis, chunk_count, size))
    parts = jnp.moveaxis(cut, axis, 0)
    return jnp.flip(parts, axis=0) if chunk < 0 else parts


def joined(values: Array, axis: int, chunk: int, skipped: int) -> Array:
    """Join the values of all iterations along `axis`.

    `values` has the iterations along the first axis. If `chunk` is negative, the values are joined
    in reverse order. Before the first iteration there are zeros for `skipped` iterations.
    """
    if skipped:
        values = jnp.pad(values, [(skipped, 0)] + [(0, 0)] * (values.ndim - 1))
    if chunk < 0:
        values = jnp.flip(values, axis=0)
    rank = values.ndim - 1  # the rank of the value of one iteration
    axis = axis % rank
    return merged(jnp.moveaxis(values, 0, axis), axis)
