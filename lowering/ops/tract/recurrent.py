"""Recurrent cells and sequences: LSTM and GRU (registry tract_core), gated delta rule and causal
convolution with a state (registry tract_transformers).

A state that tract keeps from one call to the next is an operand here, and the next one a result:
every call starts from the operand.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Shape, differ, shapes_differ, show, volume
from lowering.graph import TensorType
from lowering.kernels.precision import wide_dtype
from lowering.ops import rules
from lowering.ops.typing import require_real, require_same_dtype
from lowering.trace import Context


def _require_shape(name: str, found: TensorType, wanted: Shape, why: str) -> None:
    if shapes_differ(found.shape, wanted):
        raise InvalidShape(
            f"'{name}' must have shape {show(wanted)}, it has {show(found.shape)}", hint=why
        )


def _require_rank(rank: int, layout: str, **operands: TensorType) -> None:
    for name, operand in operands.items():
        if len(operand.shape) != rank:
            raise InvalidShape(f"'{name}' must be {layout}, its shape is {show(operand.shape)}")


# Cells: what follows on the matrix products


def _cell_type(
    blocks: int, hidden: int, state: tuple[str, TensorType], **products: TensorType
) -> TensorType:
    name, before = state
    require_real(**products, **{name: before})
    require_same_dtype(**products, **{name: before})
    for product, found in products.items():
        if not found.shape or differ(found.shape[-1], blocks * hidden):
            raise InvalidShape(
                f"'{product}' {show(found.shape)} must end in {blocks} blocks of 'hidden' "
                f"{hidden} items"
            )
        why = f"it is '{product}' {show(found.shape)} with 'hidden' {hidden} items at the end"
        _require_shape(name, before, (*found.shape[:-1], hidden), why)
    return before


def _lstm_type(
    preact: TensorType, c_prev: TensorType, hidden: int
) -> tuple[TensorType, TensorType]:
    cell = _cell_type(4, hidden, ("c_prev", c_prev), preact=preact)
    return cell, cell


@rules.rule("tract_core_lstm_epilogue", _lstm_type)
def lstm_epilogue(preact: Any, c_prev: Any, hidden: int) -> tuple[Array, Array]:
    """The output and the cell of an LSTM from the sum of its products and biases.

    The last axis of `preact` holds the gates in the order of ONNX: input, output, forget, cell.
    """
    i, o, f, g = jnp.split(jnp.asarray(preact), 4, axis=-1)
    cell = jax.nn.sigmoid(f) * c_prev + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def _gru_type(xh: TensorType, rh: TensorType, h_prev: TensorType, hidden: int) -> TensorType:
    return _cell_type(3, hidden, ("h_prev", h_prev), xh=xh, rh=rh)


@rules.rule("tract_core_gru_epilogue", _gru_type)
def gru_epilogue(xh: Any, rh: Any, h_prev: Any, hidden: int) -> Array:
    """The state of a GRU from the products of the input and of the state, biases added.

    The last axis holds the gates in the order of ONNX: update, reset, new. This is the form in
    which the reset gate applies after the product (`linear_before_reset`).
    """
    xz, xr, xn = jnp.split(jnp.asarray(xh), 3, axis=-1)
    rz, rr, rn = jnp.split(jnp.asarray(rh), 3, axis=-1)
    new = jnp.tanh(xn + jax.nn.sigmoid(xr + rr) * rn)
    return new + jax.nn.sigmoid(xz + rz) * (h_prev - new)


# Sequences


def _gru_seq_type(
    x: TensorType,
    w: TensorType,
    r: TensorType,
    b: TensorType,
    initial_h: TensorType,
    hidden: int,
    chunk: int,
    has_bias: bool,
    reset_every_turn: bool,
    emit_y: bool,
    projected: bool,
) -> tuple[TensorType, TensorType]:
    biases = {"b": b} if has_bias else {}
    require_real(x=x, w=w, r=r, initial_h=initial_h, **biases)
    require_same_dtype(x=x, w=w, r=r, initial_h=initial_h, **biases)
    if chunk not in (1, -1):
        raise InvalidOperation(
            f"'chunk' must be 1, or -1 for the sequence from its end, it is {chunk}"
        )
    _require_rank(3, "[batch,time,items]", x=x)
    batch, time, items = x.shape
    if projected:
        why = "its items are those of the product with 'w' already"
        _require_shape("x", x, (batch, time, 3 * hidden), why)
    else:
        _require_shape("w", w, (3 * hidden, items), "it has a row for each gate and unit")
    _require_shape("r", r, (3 * hidden, hidden), "it has a row for each gate and unit")
    if has_bias and differ(volume(b.shape), 6 * hidden):
        raise InvalidShape(
            f"'b' must have 6 times 'hidden' {hidden} items, its shape is {show(b.shape)}",
            hint="they are the biases of the products with 'w', then of those with 'r'",
        )
    if differ(volume(initial_h.shape), batch * hidden):
        raise InvalidShape(
            f"'initial_h' must have 'hidden' {hidden} items for each of {batch} sequences, "
            f"its shape is {show(initial_h.shape)}"
        )
    sequence = TensorType((batch, time if emit_y else 0, hidden), x.dtype)
    return sequence, TensorType((batch, 1, hidden), x.dtype)


def _gru_seq_work(x: TensorType, w: TensorType, r: TensorType, projected: bool) -> int:
    return volume(x.shape[:2]) * (volume(r.shape) + (0 if projected else volume(w.shape)))


@rules.rule("tract_core_gru_seq", _gru_seq_type, work=_gru_seq_work)
def gru_seq(
    ctx: Context,
    x: Any,
    w: Any,
    r: Any,
    b: Any,
    initial_h: Any,
    hidden: int,
    chunk: int,
    has_bias: bool,
    reset_every_turn: bool,
    emit_y: bool,
    projected: bool,
) -> tuple[Array, Array]:
    """A GRU over sequences [batch,time,items]: all states [batch,time,hidden], and the last one.

    `w` [3*hidden,items], `r` [3*hidden,hidden] and `b` (6*hidden items, those of `w` first) are as
    in ONNX, gates in the order of `gru_epilogue`. With `projected`, x is the product with w and its
    bias already. Chunk -1 goes through the sequences from their end. Without `emit_y` all states
    are a tensor without items. Each call starts from initial_h [batch,1,hidden], whatever
    `reset_every_turn` says.
    """
    x, r = jnp.asarray(x), jnp.asarray(r)
    biases = jnp.asarray(b).reshape(2, 1, 3 * hidden) if has_bias else jnp.zeros((2, 1, 1), x.dtype)
    if not projected:
        x = jnp.einsum("bti,gi->btg", x, jnp.asarray(w), precision=ctx.precision) + biases[:1]

    def step(h: Array, xh: Array) -> tuple[Array, Array]:
        rh = jnp.einsum("bh,gh->bg", h, r, precision=ctx.precision) + biases[1]
        h = gru_epilogue(xh, rh, h, hidden)
        return h, h

    first = jnp.asarray(initial_h).reshape(x.shape[0], hidden)
    last, states = lax.scan(step, first, jnp.moveaxis(x, 1, 0), reverse=chunk < 0)
    sequence = jnp.moveaxis(states, 0, 1)
    return sequence if emit_y else sequence[:, :0], last[:, None]


_TAPS = 4


def _conv_type(
    input: TensorType, weight: TensorType, initial_state: TensorType
) -> tuple[TensorType, TensorType]:
    require_real(input=input, weight=weight, initial_state=initial_state)
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


def _conv_work(input: TensorType) -> int:
    return volume(input.shape) * _TAPS


@rules.rule("tract_transformers_causal_conv1d_update", _conv_type, work=_conv_work)
def causal_conv1d_update(input: Any, weight: Any, initial_state: Any) -> tuple[Array, Array]:
    """silu of the convolution of each channel with its own filter, and the last inputs.

    One step in time. Each item of the input is a channel, whatever shape it has. Weight and state
    have four items for each channel, in the order of the channels: the taps, the last of which is
    for the input itself, and the last four inputs, the first of which is not seen any more.
    Computed in float32 at least; shapes and dtypes of the results are those of input and state.
    tract has the operation in float16 alone. It is of the linear attention of Qwen3.5.
    """
    x, state = jnp.asarray(input), jnp.asarray(initial_state)
    dtype = wide_dtype(x, weight, state)
    past = state.astype(dtype).reshape(-1, _TAPS)[:, 1:]
    seen = jnp.concatenate([past, x.astype(dtype).reshape(-1, 1)], axis=1)
    total = jnp.sum(seen * jnp.asarray(weight, dtype).reshape(-1, _TAPS), axis=1)
    output = jax.nn.silu(total).reshape(x.shape).astype(x.dtype)
    return output, seen.reshape(state.shape).astype(state.dtype)


def _delta_type(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    log_decay: TensorType,
    beta: TensorType,
    initial_state: TensorType,
) -> tuple[TensorType, TensorType]:
    operands = {"query": query, "key": key, "value": value, "log_decay": log_decay, "beta": beta}
    require_real(**operands, initial_state=initial_state)
    _require_rank(4, "[batch,time,heads,width]", query=query, value=value)
    batch, time, heads, width = query.shape
    _require_shape("key", key, query.shape, "it has the shape of 'query'")
    groups = value.shape[2]
    why = "it has the shape of 'query', but may have more heads"
    _require_shape("value", value, (batch, time, groups, width), why)
    if differ(groups % heads, 0):
        raise InvalidShape(
            f"the heads of 'value' {show(value.shape)} must be a multiple of those of 'query' "
            f"{show(query.shape)}"
        )
    why = "it has a number for each time and head of 'value'"
    _require_shape("log_decay", log_decay, (batch, time, groups), why)
    _require_shape("beta", beta, (batch, time, groups), why)
    why = "it has a matrix for each head of 'value'"
    _require_shape("initial_state", initial_state, (batch, groups, width, width), why)
    return TensorType(value.shape, query.dtype), initial_state


def _delta_work(value: TensorType) -> int:
    # In each step the state is read by the key, changed by an outer product, read by the query.
    return volume(value.shape) * value.shape[-1] * 3


@rules.rule("tract_transformers_gdn_recurrent", _delta_type, work=_delta_work)
def gdn_recurrent(
    ctx: Context, query: Any, key: Any, value: Any, log_decay: Any, beta: Any, initial_state: Any
) -> tuple[Array, Array]:
    """The gated delta rule along the time: outputs [batch,time,heads,width] and the last state.

    The state S [width,width] of a head goes from key to value. In each step it decays by
    exp(log_decay), learns the value in the place of what it has for the key, beta of the
    difference, and is read by the query:

        S <- exp(log_decay) S;  S <- S + k (beta (v - k S))^T;  output = q S

    with q and k of length 1 (epsilon 1e-6 under the root) and q over the root of the width. Where
    value has more heads than query and key, each of these serves as many consecutive ones. Computed
    in float32 at least; the dtypes are those of query and state. Gated DeltaNet (Yang et al. 2024),
    as in Qwen3.5.
    """
    sequences = (query, key, value, log_decay, beta)
    dtype = wide_dtype(*sequences, initial_state)
    q, k, v, decay, rate = (jnp.moveaxis(jnp.asarray(x, dtype), 1, 0) for x in sequences)
    groups, width = v.shape[2] // q.shape[2], q.shape[-1]
    q = jnp.repeat(_unit(q), groups, axis=2) / math.sqrt(width)
    k = jnp.repeat(_unit(k), groups, axis=2)
    decay = jnp.exp(decay)[..., None, None]

    def read(vectors: Array, memory: Array) -> Array:
        return jnp.einsum("bhi,bhij->bhj", vectors, memory, precision=ctx.precision)

    def step(memory: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, v, decay, rate = now
        memory = memory * decay
        change = (v - read(k, memory)) * rate[..., None]
        memory = memory + k[..., :, None] * change[..., None, :]
        return memory, read(q, memory)

    last, outputs = lax.scan(step, jnp.asarray(initial_state, dtype), (q, k, v, decay, rate))
    return jnp.moveaxis(outputs, 0, 1).astype(query.dtype), last.astype(initial_state.dtype)


def _unit(x: Array) -> Array:
    return x * lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + 1e-6)
