"""Cells and sequences with a state, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_epilogue(preact, c_prev, hidden):
    i, o, f, g = (preact[..., n * hidden : (n + 1) * hidden] for n in range(4))
    cell = _sigmoid(f) * c_prev + _sigmoid(i) * np.tanh(g)
    return _sigmoid(o) * np.tanh(cell), cell


def gru_epilogue(xh, rh, h_prev, hidden):
    xz, xr, xn = (xh[..., n * hidden : (n + 1) * hidden] for n in range(3))
    rz, rr, rn = (rh[..., n * hidden : (n + 1) * hidden] for n in range(3))
    z = _sigmoid(xz + rz)
    r = _sigmoid(xr + rr)
    return (1 - z) * np.tanh(xn + r * rn) + z * h_prev


def gru_seq(
    x,
    w,
    r,
    b=False,
    initial_h=None,
    hidden=0,
    chunk=1,
    has_bias=False,
    reset_every_turn=False,
    emit_y=True,
    projected=False,
):
    batch, length, _ = x.shape
    bias = np.ravel(b) if has_bias else np.zeros(6 * hidden)
    y = np.zeros((batch, length, hidden))
    last = np.zeros((batch, 1, hidden))
    for n in range(batch):
        h = np.reshape(initial_h, (batch, hidden))[n]
        for t in range(length) if chunk > 0 else reversed(range(length)):
            xh = x[n, t] if projected else w @ x[n, t] + bias[: 3 * hidden]
            h = gru_epilogue(xh, r @ h + bias[3 * hidden :], h, hidden)
            y[n, t] = h
        last[n, 0] = h
    return y if emit_y else y[:, :0], last


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


def gdn_recurrent(query, key, value, log_decay, beta, initial_state):
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
    "tract_core_lstm_epilogue": lstm_epilogue,
    "tract_core_gru_epilogue": gru_epilogue,
    "tract_core_gru_seq": gru_seq,
    "tract_transformers_causal_conv1d_update": causal_conv1d_update,
    "tract_transformers_gdn_recurrent": gdn_recurrent,
}
