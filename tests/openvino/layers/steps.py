"""Cells of recurrent networks, and sequences of their steps."""

from __future__ import annotations

import numpy as np

from tests.openvino.layers import Known, new, old, real

X, H, C = real(2, 3), real(2, 4), real(2, 4)  # two rows, three items, four hidden ones
STEPS = real(2, 5, 3)
_WHOLE = Known(np.array([5, 5]))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _lstm(x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute an LSTM cell. The gates are in the order forget, input, cell, output."""
    f, i, g, o = np.split(x @ W4.T + h @ R4.T + B4, 4, -1)
    c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    return _sigmoid(o) * np.tanh(c), c


def _gru(x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Compute a GRU cell. The gates are in the order update, reset, hidden."""
    (wz, wr, wh), (rz, rr, rh), (bz, br, bh) = (np.split(v, 3) for v in (W3, R3, B3))
    z, r = _sigmoid(x @ wz.T + h @ rz.T + bz), _sigmoid(x @ wr.T + h @ rr.T + br)
    return (1 - z) * np.tanh(x @ wh.T + (r * h) @ rh.T + bh) + z * h


def _gru_after(x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Compute a GRU cell that resets the recurrent product, which has its own bias."""
    (wz, wr, wh), (rz, rr, rh), (bz, br, bh, bs) = (np.split(v, n) for v, n in
                                                    ((W3, 3), (R3, 3), (B4, 4)))  # fmt: skip
    z, r = _sigmoid(x @ wz.T + h @ rz.T + bz), _sigmoid(x @ wr.T + h @ rr.T + br)
    return (1 - z) * np.tanh(x @ wh.T + r * (h @ rh.T + bs) + bh) + z * h


def _rnn(x: np.ndarray, h: np.ndarray) -> np.ndarray:
    return np.tanh(x @ W1.T + h @ R1.T + B1)


W4, R4, B4 = real(16, 3), real(16, 4), real(16)
W3, R3, B3 = real(12, 3), real(12, 4), real(12)
W1, R1, B1 = real(4, 3), real(4, 4), real(4)
_LSTM, _GRU, _RNN = (
    {"weights": np.concatenate([w, r], 1), "biases": b}
    for w, r, b in ((W4, R4, B4), (W3, R3, B3), (W1, R1, B1))
)


def _lstms() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    h, c, found = H, C, []
    for t in range(5):
        h, c = _lstm(STEPS[:, t], h, c)
        found.append(h)
    return np.stack(found, 1), h, c


def _grus() -> tuple[np.ndarray, np.ndarray]:
    """Run a sequence of GRU cells, whose second row ends after three steps."""
    h, found = H, []
    for t in range(5):
        after = _gru(STEPS[:, t], h)
        h = np.where([[True], [t < 3]], after, h)
        found.append(np.where([[True], [t < 3]], after, 0))
    return np.stack(found, 1).astype(np.float32), h


def _rnns(*, backward: bool) -> tuple[np.ndarray, np.ndarray]:
    h, found = H, []
    for t in reversed(range(5)) if backward else range(5):
        h = _rnn(STEPS[:, t], h)
        found.append(h)
    return np.stack(found[::-1] if backward else found, 1), h


def _ways(*found: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return results with an axis for the only direction."""
    return tuple(x[:, None] for x in found)


ROWS = [
    old("LSTMCell", [X, H, C], _lstm(X, H, C), blobs=_LSTM, hidden_size=4),
    new("LSTMCell", [X, H, C, *map(Known, (W4, R4, B4))], _lstm(X, H, C), opset="opset4",
        hidden_size=4),
    old("GRUCell", [X, H], _gru(X, H), blobs=_GRU, hidden_size=4),
    new("GRUCell", [X, H, *map(Known, (W3, R3, B4))], _gru_after(X, H), opset="opset3",
        hidden_size=4, linear_before_reset=True),
    old("RNNCell", [X, H], _rnn(X, H), blobs=_RNN, hidden_size=4),
    new("RNNCell", [X, H, *map(Known, (W1, R1, B1))], _rnn(X, H), hidden_size=4),
    old("LSTMSequence", [STEPS, H, C], _lstms(), blobs=_LSTM, hidden_size=4, direction="Forward",
        axis=1),
    new("LSTMSequence", [STEPS, H[:, None], C[:, None], _WHOLE,
                         *(Known(v[None]) for v in (W4, R4, B4))], _ways(*_lstms()),
        opset="opset5", hidden_size=4, direction="forward"),
    old("GRUSequence", [STEPS[:, :1], H], (_gru(STEPS[:, 0], H)[:, None], _gru(STEPS[:, 0], H)),
        blobs=_GRU, hidden_size=4, direction="Forward", axis=1),
    new("GRUSequence", [STEPS, H[:, None], Known(np.array([5, 3])),
                        *(Known(v[None]) for v in (W3, R3, B3))], _ways(*_grus()),
        opset="opset5", hidden_size=4, direction="forward"),
    old("RNNSequence", [STEPS, H], _rnns(backward=True), blobs=_RNN, hidden_size=4,
        direction="Backward", axis=1),
    new("RNNSequence", [STEPS, H[:, None], _WHOLE, *(Known(v[None]) for v in (W1, R1, B1))],
        _ways(*_rnns(backward=False)), opset="opset5", hidden_size=4, direction="forward"),
]  # fmt: skip
