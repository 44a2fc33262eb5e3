"""Cells and sequences with a state, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_pointwise(gates, cell):
    hidden = cell.shape[-1]
    i, o, f, g = (gates[..., n * hidden : (n + 1) * hidden] for n in range(4))
    cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(g)
    return _sigmoid(o) * np.tanh(cell), cell


def gru_pointwise(input_gates, state_gates, state):
    hidden = state.shape[-1]
    xz, xr, xn = (input_gates[..., n * hidden : (n + 1) * hidden] for n in range(3))
    rz, rr, rn = (state_gates[..., n * hidden : (n + 1) * hidden] for n in range(3))
    z = _sigmoid(xz + rz)
    r = _sigmoid(xr + rr)
    return (1 - z) * np.tanh(xn + r * rn) + z * state


def gru_sequence(
    input, weight, recurrent_weight, initial_state, bias=False, reverse=False, emit_states=True
):
    batch, length, _ = input.shape
    hidden = recurrent_weight.shape[1]
    bias = np.zeros(6 * hidden) if bias is False else np.ravel(bias)
    states = np.zeros((batch, length, hidden))
    last = np.zeros((batch, 1, hidden))
    for n in range(batch):
        h = np.reshape(initial_state, (batch, hidden))[n]
        for t in reversed(range(length)) if reverse else range(length):
            x = input[n, t]
            x = x if weight is False else weight @ x + bias[: 3 * hidden]
            h = gru_pointwise(x, recurrent_weight @ h + bias[3 * hidden :], h)
            states[n, t] = h
        last[n, 0] = h
    return states if emit_states else states[:, :0], last


def gru_seq(x, w, r, b, initial_h, hidden, chunk, has_bias, reset_every_turn, projected):
    return gru_sequence(x, False, r, initial_h, b)


def causal_conv1d_update(input, weight, initial_state):
    channels = input.size
    flat_input, taps, state = input.ravel(), weight.ravel(), initial_state.ravel()
    output, final = np.zeros(channels), np.zeros(4 * channels)
    for c in range(channels):
        for tap in range(3):
            final[4 * c + tap] = state[4 * c + tap + 1]
        final[4 * c + 3] = flat_input[c]
        total = sum(final[4 * c + tap] * taps[4 * c + tap] for tap in range(4))
        output[c] = total / (1 + np.exp(-total))
    return output.reshape(input.shape), final.reshape(initial_state.shape)


def gated_delta_rule(query, key, value, log_decay, beta, initial_state):
    batch, length, heads, width = value.shape
    served = heads // query.shape[2]
    output = np.zeros(value.shape)
    final = np.zeros(initial_state.shape)
    for n, h in np.ndindex(batch, heads):
        memory = initial_state[n, h]
        for t in range(length):
            q, k = query[n, t, h // served], key[n, t, h // served]
            q = q / np.sqrt(np.sum(q**2) + 1e-6) / np.sqrt(width)
            k = k / np.sqrt(np.sum(k**2) + 1e-6)
            memory = np.exp(log_decay[n, t, h]) * memory
            memory = memory + np.outer(k, beta[n, t, h] * (value[n, t, h] - k @ memory))
            output[n, t, h] = q @ memory
        final[n, h] = memory
    return output, final


OPERATIONS: dict[str, Callable[..., Any]] = {
    "lstm_pointwise": lstm_pointwise,
    "gru_pointwise": gru_pointwise,
    "gru_sequence": gru_sequence,
    "tract_core_gru_seq": gru_seq,
    "causal_conv1d_update": causal_conv1d_update,
    "gated_delta_rule": gated_delta_rule,
}
