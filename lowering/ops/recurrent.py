"""Recurrent cells and sequences. States are operands, and the next states are results."""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidShape
from lowering.extents import differ, show, volume
from lowering.graph import ABSENT, TensorType
from lowering.kernels.precision import wide_dtype
from lowering.ops import require, rules
from lowering.tracing import Context


def _cell_type(
    block_count: int, state: tuple[str, TensorType], **products: TensorType
) -> TensorType:
    """Return a state's type. The state must have the shape of one block of each product.

    `state` is a pair of the name and the type of the state. The last axis of a product consists of
    `block_count` blocks, one for each gate.
    """
    name, state_type = state
    require.same_dtype(require.floating, **products, **{name: state_type})
    for product, type in products.items():
        if not type.shape or differ(type.shape[-1] % block_count, 0):
            raise InvalidShape(f"'{product}' {show(type.shape)} must end in {block_count} blocks")
        hidden = type.shape[-1] // block_count
        why = f"it is one of the {block_count} blocks at the end of '{product}' {show(type.shape)}"
        require.shape(name, state_type, (*type.shape[:-1], hidden), why)
    return state_type


def _lstm_type(gates: TensorType, cell: TensorType) -> tuple[TensorType, TensorType]:
    state_type = _cell_type(block_count=4, state=("cell", cell), gates=gates)
    return state_type, state_type


@rules.rule("lstm_pointwise", _lstm_type)
def lstm_pointwise(gates: Array, cell: Array) -> tuple[Array, Array]:
    """Return the output and the next cell state of an LSTM from its summed gates.

    `gates` has the shape (..., 4 * hidden), with the blocks input, output, forget and cell in
    this order. `cell` and the results have the shape (..., hidden).
    """
    input_gate, output_gate, forget_gate, cell_gate = jnp.split(jnp.asarray(gates), 4, axis=-1)
    remembered = jax.nn.sigmoid(forget_gate) * cell
    next_cell = remembered + jax.nn.sigmoid(input_gate) * jnp.tanh(cell_gate)
    return jax.nn.sigmoid(output_gate) * jnp.tanh(next_cell), next_cell


def _gru_type(state: TensorType, **gates: TensorType) -> TensorType:
    return _cell_type(block_count=3, state=("state", state), **gates)


@rules.rule("gru_pointwise", _gru_type)
def gru_pointwise(input_gates: Array, state_gates: Array, state: Array) -> Array:
    """Return the next state (..., hidden) of a GRU: u * state + (1 - u) * new.

    Here u is the update gate, and `new` is computed from the other gates. `input_gates` and
    `state_gates`, of shape (..., 3 * hidden), are the products of weights with the input and
    with the state, plus biases. The gates are update, reset and new, in this order, as in ONNX
    with `linear_before_reset`.
    """
    input_update, input_reset, input_new = jnp.split(jnp.asarray(input_gates), 3, axis=-1)
    state_update, state_reset, state_new = jnp.split(jnp.asarray(state_gates), 3, axis=-1)
    reset = jax.nn.sigmoid(input_reset + state_reset)
    new = jnp.tanh(input_new + reset * state_new)
    update = jax.nn.sigmoid(input_update + state_update)
    return new + update * (state - new)


def _sequence_type(
    input: TensorType,
    weight: TensorType,
    recurrent_weight: TensorType,
    bias: TensorType,
    initial_state: TensorType,
    emit_states: bool,
) -> tuple[TensorType, TensorType]:
    """Check the arguments of `gru_sequence`, and return the types of its results."""
    optional = {"weight": weight, "bias": bias}
    operands = {name: type for name, type in optional.items() if type != ABSENT}
    operands |= {"recurrent_weight": recurrent_weight, "initial_state": initial_state}
    require.same_dtype(require.floating, input=input, **operands)
    require.layout("[batch,time,items]", input=input)
    require.layout("[3*hidden,hidden]", recurrent_weight=recurrent_weight)
    batch, time, items = input.shape
    hidden = recurrent_weight.shape[1]
    why = "it has a row for each gate and unit"
    if weight == ABSENT:
        gates = "without 'weight' the input holds the products for all gates and units"
        require.shape("input", input, (batch, time, 3 * hidden), gates)
    else:
        require.shape("weight", weight, (3 * hidden, items), why)
    require.shape("recurrent_weight", recurrent_weight, (3 * hidden, hidden), why)
    if bias != ABSENT and differ(volume(bias.shape), 6 * hidden):
        raise InvalidShape(
            f"'bias' must have 6 times {hidden} items, its shape is {show(bias.shape)}",
            hint="they are the biases of the products with 'weight', then with 'recurrent_weight'",
        )
    if differ(volume(initial_state.shape), batch * hidden):
        raise InvalidShape(
            f"'initial_state' must have {hidden} items for each of {batch} sequences, "
            f"its shape is {show(initial_state.shape)}"
        )
    states = TensorType((batch, time if emit_states else 0, hidden), input.dtype)
    return states, TensorType((batch, 1, hidden), input.dtype)


def _sequence_work(input: TensorType, weight: TensorType, recurrent_weight: TensorType) -> int:
    """Return the multiply-adds of the products with both weights, in all sequences and steps."""
    work_of_step = volume(recurrent_weight.shape)
    if weight != ABSENT:
        work_of_step += volume(weight.shape)
    batch_and_time = volume(input.shape[:2])
    return batch_and_time * work_of_step


@rules.rule("gru_sequence", _sequence_type, work=_sequence_work)
def gru_sequence(
    ctx: Context,
    input: Array,
    weight: Array | Literal[False],
    recurrent_weight: Array,
    bias: Array | Literal[False],
    initial_state: Array,
    reverse: bool,
    emit_states: bool,
) -> tuple[Array, Array]:
    """Run a GRU over sequences (batch, time, items), and return all states and the last state.

    `weight` (3 * hidden, items), `recurrent_weight` (3 * hidden, hidden) and `bias` (6 *
    hidden) are as in ONNX. All states have the shape (batch, time, hidden). The initial state
    and the last state have the shape (batch, 1, hidden).

    If `weight` is False, the input holds the products with the weight, and the first half of
    `bias` is ignored. If `reverse` is true, the GRU starts at the last time step. If
    `emit_states` is false, the first result is empty, of shape (batch, 0, hidden).
    """
    x = jnp.asarray(input)
    recurrent = jnp.asarray(recurrent_weight)
    hidden = recurrent.shape[1]
    if bias is False:
        biases = jnp.zeros((2, 1, 1), x.dtype)  # broadcasts to all gates
    else:
        biases = jnp.asarray(bias).reshape(2, 1, 3 * hidden)
    # The biases are added to products of the shapes [batch,time,gates] and [batch,gates].
    input_bias, state_bias = biases[:1], biases[1]
    if weight is not False:
        weight = jnp.asarray(weight)
        x = jnp.einsum("bti,gi->btg", x, weight, precision=ctx.precision) + input_bias

    def step(state: Array, input_gates: Array) -> tuple[Array, Array]:
        """Return the next state twice: for the next time step, and for the first result."""
        product = jnp.einsum("bh,gh->bg", state, recurrent, precision=ctx.precision)
        next_state = gru_pointwise(input_gates, product + state_bias, state)
        return next_state, next_state

    first = jnp.asarray(initial_state).reshape(x.shape[0], hidden)
    last, states = lax.scan(step, first, jnp.moveaxis(x, 1, 0), reverse=reverse)
    states = jnp.moveaxis(states, 0, 1)
    if not emit_states:
        states = states[:, :0]
    return states, last[:, None]


_TAPS = 4  # the number of taps of each channel in `causal_conv1d_update`


def _update_type(
    input: TensorType, weight: TensorType, initial_state: TensorType
) -> tuple[TensorType, TensorType]:
    """Check the arguments of `causal_conv1d_update`, and return the types of its results."""
    require.floating(input=input, weight=weight, initial_state=initial_state)
    channels = volume(input.shape)
    if not weight.shape or differ(weight.shape[-1], _TAPS):
        raise InvalidShape(
            f"the last axis of 'weight' must have {_TAPS} taps, its shape is {show(weight.shape)}"
        )
    for name, type in (("weight", weight), ("initial_state", initial_state)):
        if differ(volume(type.shape), channels * _TAPS):
            raise InvalidShape(
                f"'{name}' {show(type.shape)} must have {_TAPS} items for each of the {channels} "
                f"items of 'input' {show(input.shape)}"
            )
    return input, initial_state


@rules.rule("causal_conv1d_update", _update_type, work=lambda input: volume(input.shape) * _TAPS)
def causal_conv1d_update(input: Array, weight: Array, initial_state: Array) -> tuple[Array, Array]:
    """Convolve each channel for one time step. Return silu of the results, and the next state.

    Each item of the input is a channel, whatever the shape of the input is. `weight` has four
    taps for each channel, of which the last is multiplied by the input. The state has the last
    four inputs of each channel. The computation is in float32 or a wider dtype. The first
    result has the shape and dtype of `input`, and the second has the shape and dtype of
    `initial_state`. Qwen3.5's linear attention uses this operation.
    """
    x = jnp.asarray(input)
    state = jnp.asarray(initial_state)
    dtype = wide_dtype(x, weight, state)
    # The new input replaces the oldest of the last four inputs of each channel. `inputs` has the
    # shape (channels, 4).
    previous = state.astype(dtype).reshape(-1, _TAPS)[:, 1:]
    inputs = jnp.concatenate([previous, x.astype(dtype).reshape(-1, 1)], axis=1)
    taps = jnp.asarray(weight, dtype).reshape(-1, _TAPS)
    total = jnp.sum(inputs * taps, axis=1)
    output = jax.nn.silu(total).reshape(x.shape).astype(x.dtype)
    return output, inputs.reshape(state.shape).astype(state.dtype)


def _delta_type(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    log_decay: TensorType,
    beta: TensorType,
    initial_state: TensorType,
) -> tuple[TensorType, TensorType]:
    """Check the arguments of `gated_delta_rule`, and return the types of its results."""
    operands = {"query": query, "key": key, "value": value, "log_decay": log_decay, "beta": beta}
    require.floating(**operands, initial_state=initial_state)
    require.layout("[batch,time,heads,width]", query=query, value=value)
    batch, time, heads, width = query.shape
    require.shape("key", key, query.shape, "it has the shape of 'query'")
    value_heads = value.shape[2]
    why = "it has the shape of 'query', but may have more heads"
    require.shape("value", value, (batch, time, value_heads, width), why)
    if differ(value_heads % heads, 0):
        raise InvalidShape(
            f"the heads of 'value' {show(value.shape)} must be a multiple of those of 'query' "
            f"{show(query.shape)}"
        )
    why = "it has a number for each time and head of 'value'"
    require.shape("log_decay", log_decay, (batch, time, value_heads), why)
    require.shape("beta", beta, (batch, time, value_heads), why)
    why = "it has a matrix for each head of 'value'"
    require.shape("initial_state", initial_state, (batch, value_heads, width, width), why)
    return TensorType(value.shape, query.dtype), initial_state


def _delta_work(value: TensorType) -> int:
    # Each time step multiplies the state by the key, adds an outer product to the state, and
    # multiplies the state by the query.
    return volume(value.shape) * value.shape[-1] * 3


@rules.rule("gated_delta_rule", _delta_type, work=_delta_work)
def gated_delta_rule(
    ctx: Context,
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array,
    beta: Array,
    initial_state: Array,
) -> tuple[Array, Array]:
    """Return the outputs of the gated delta rule (batch, time, heads, width), and the last state.

    The state S of a head is a matrix (width, width), which maps a key to a value. A time step
    computes

        S <- exp(log_decay) S;  S <- S + k (beta (v - k S))^T;  output = q S

    where q is the query, k the key and v the value. q and k are normalised to length 1 (with
    epsilon 1e-6 under the root), and q is then divided by sqrt(width). If value has g times as many
    heads as query and key, each head of query and key serves g consecutive heads of value.

    The computation is in float32 at least. The results have the dtypes of query and state. Source:
    Gated DeltaNet, Yang et al. 2024, as in Qwen3.5.
    """
    sequences = (query, key, value, log_decay, beta)
    dtype = wide_dtype(*sequences, initial_state)
    # The sequences get the shape (time, batch, heads, width). The sequences of log decays and of
    # rates (`beta`) have no axis of the width.
    time_first = [jnp.moveaxis(jnp.asarray(sequence, dtype), 1, 0) for sequence in sequences]
    queries, keys, values, log_decays, rates = time_first
    heads_per_key = values.shape[2] // queries.shape[2]
    width = queries.shape[-1]
    queries = jnp.repeat(_unit(queries), heads_per_key, axis=2) / math.sqrt(width)
    keys = jnp.repeat(_unit(keys), heads_per_key, axis=2)
    decays = jnp.exp(log_decays)[..., None, None]  # (time, batch, heads, 1, 1)

    def read(vectors: Array, memory: Array) -> Array:
        """Return the product of the vector and the state of each head."""
        return jnp.einsum("bhi,bhij->bhj", vectors, memory, precision=ctx.precision)

    def step(memory: Array, items: tuple[Array, ...]) -> tuple[Array, Array]:
        """Return the states after a time step, and the outputs of this step."""
        q, k, v, decay, rate = items
        decayed = memory * decay
        change = (v - read(k, decayed)) * rate[..., None]
        new_memory = decayed + k[..., :, None] * change[..., None, :]
        return new_memory, read(q, new_memory)

    start = jnp.asarray(initial_state, dtype)
    last, outputs = lax.scan(step, start, (queries, keys, values, decays, rates))
    return jnp.moveaxis(outputs, 0, 1).astype(query.dtype), last.astype(initial_state.dtype)


def _unit(x: Array) -> Array:
    """Return x / sqrt(sum(x^2) + 1e-6), with the sum over the last axis."""
    squared_length = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return x * lax.rsqrt(squared_length + 1e-6)
