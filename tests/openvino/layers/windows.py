"""Layers of windows and products."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.openvino import reference
from tests.openvino.layers import Known, new, old, real

X, W, B = real(1, 2, 5, 6), real(4, 2, 3, 2), real(4)
GROUPED, BACK = real(4, 1, 3, 2), real(2, 4, 3, 2)
WINDOW = {"strides": "2,1", "dilations": "1,1", "pads_begin": "1,0", "pads_end": "0,1"}
OLD = {"kernel": "3,2", "output": 4, **WINDOW}
NONE = {"strides": "1,1", "pads_begin": "0,0", "pads_end": "0,0"}


def _padded(x: np.ndarray, value: float = 0) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 1)), constant_values=value)


def _conv(x: np.ndarray, w: np.ndarray, groups: int = 1) -> np.ndarray:
    """Convolve with the strides and pads of WINDOW."""
    x = _padded(x)
    out = np.zeros(
        (len(x), len(w), (x.shape[2] - w.shape[2]) // 2 + 1, x.shape[3] - w.shape[3] + 1)
    )
    inputs, outputs = x.shape[1] // groups, len(w) // groups
    for n, o, i, j in np.ndindex(*out.shape):
        first = o // outputs * inputs
        cells = x[n, first : first + inputs, 2 * i : 2 * i + w.shape[2], j : j + w.shape[3]]
        out[n, o, i, j] = (cells * w[o]).sum()
    return out.astype(np.float32)


def _deconv(x: np.ndarray, w: np.ndarray, groups: int = 1) -> np.ndarray:
    """Spread each item over a window; filters are [inputs,outputs / groups,...]."""
    n, channels, height, width = x.shape
    outputs, inputs = w.shape[1], channels // groups
    rows, columns = 2 * (height - 1) + w.shape[2], width - 1 + w.shape[3]
    out = np.zeros((n, outputs * groups, rows, columns))
    for c, i, j in np.ndindex(channels, height, width):
        first = c // inputs * outputs
        spread = x[:, c, i, j][:, None, None, None] * w[c][None]
        part = out[:, first : first + outputs, 2 * i : 2 * i + w.shape[2], j : j + w.shape[3]]
        part += spread
    return out[:, :, 1:, :-1].astype(np.float32)


def _cells(x: np.ndarray, size: int = 2, stride: int = 2) -> np.ndarray:
    """Return the windows [n,c,h,w,items] of a square."""
    n, c, h, w = x.shape
    rows, columns = (h - size) // stride + 1, (w - size) // stride + 1
    out = np.empty((n, c, rows, columns, size**2), x.dtype)
    for i, j in np.ndindex(rows, columns):
        part = x[:, :, stride * i : stride * i + size, stride * j : stride * j + size]
        out[:, :, i, j] = part.reshape(n, c, -1)
    return out


def _binary(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, 1, -1).astype(np.float32)


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    return scores / scores.sum(-1, keepdims=True) @ v


_BITS = np.packbits((W > 0).reshape(-1), bitorder="little")
_SIGNS = (X > 0).astype(np.float32)
_OFFSETS = 0.7 * real(1, 12, 2, 6)
_BENT = {"groups": 1, "offset_groups": 1, "padded_bilinear": False, "stride": (2, 1),
         "padding": ((1, 0), (0, 1)), "dilation": (1, 1)}  # fmt: skip


def _deformed(**changes: Any) -> np.ndarray:
    found = reference.deformable_conv(X, _OFFSETS, W, False, **{**_BENT, **changes})
    return found.astype(np.float32)


_OUT = _conv(X, W) + B[:, None, None]
_SMALL, _ROWS, _FLAT, _MORE = real(1, 2, 2, 3), real(3, 4), real(2, 4), real(2, 3)
_Q, _K, _V = real(1, 2, 3, 4), real(1, 2, 5, 4), real(1, 2, 5, 4)
CONVOLVED = [
    old("Convolution", [X], _OUT, blobs={"weights": W, "biases": B}, group=1, **OLD),
    old("Convolution", [X], _conv(X, GROUPED, 2), blobs={"weights": GROUPED}, group=2, **OLD),
    new("Convolution", [X, Known(W)], _conv(X, W), **WINDOW),
    new("GroupConvolution", [X, Known(GROUPED.reshape(2, 2, 1, 3, 2))], _conv(X, GROUPED, 2),
        **WINDOW),
    old("Deconvolution", [_SMALL], _deconv(_SMALL, BACK) + B[:, None, None],
        blobs={"weights": BACK, "biases": B}, group=1, **OLD),
    new("ConvolutionBackpropData", [_SMALL, Known(BACK)], _deconv(_SMALL, BACK), **WINDOW),
    new("GroupConvolutionBackpropData", [_SMALL, Known(BACK.reshape(2, 1, 4, 3, 2))],
        _deconv(_SMALL, BACK, 2), **WINDOW),
    old("BinaryConvolution", [_SIGNS], _conv(_binary(X), _binary(W)), blobs={"weights": _BITS},
        mode="xnor-popcount", pad_value=0, input=2, group=1, **OLD),
    new("BinaryConvolution", [_SIGNS, Known(_BITS, "u1", W.shape)],
        _conv(_binary(X), _binary(W)), mode="xnor-popcount", pad_value=0, **WINDOW),
    old("DeformableConvolution", [X, _OFFSETS], _deformed(), blobs={"weights": W}, group=1,
        deformable_group=1, **OLD),
    new("DeformableConvolution", [X, _OFFSETS, Known(W)], _deformed(), opset="opset8", **WINDOW),
]  # fmt: skip
POOLED = [
    old("Pooling", [X], _cells(X).max(-1), kernel="2,2", strides="2,2", pool__method="max"),
    old("Pooling", [X], _cells(X).mean(-1), kernel="2,2", strides="2,2", pool__method="avg"),
    old("Pooling", [X], _cells(np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 0)))).mean(-1),
        kernel="2,2", strides="2,2", pads_begin="1,0", pads_end="0,0", pool__method="avg",
        exclude__pad=False),
    new("AvgPool", [X], _cells(X).mean(-1), kernel="2,2", **(NONE | {"strides": "2,2"})),
    new("MaxPool", [X], _cells(X).max(-1), kernel="2,2", **(NONE | {"strides": "2,2"})),
    new("AdaptiveAvgPool", [X, Known(np.array([3, 2]))],
        reference.adaptive_avg_pool(X, (3, 2)), opset="opset8"),
    new("AdaptiveMaxPool", [X, Known(np.array([3, 2]))],
        tuple(reference.adaptive_max_pool(X, (3, 2))), opset="opset8", index_element_type="i64"),
]  # fmt: skip
MULTIPLIED = [
    old("FullyConnected", [_FLAT], _FLAT @ _ROWS.T + B[:3], out__size=3,
        blobs={"weights": _ROWS, "biases": B[:3]}),
    old("InnerProduct", [_FLAT], _FLAT @ _ROWS.T, out__size=3, blobs={"weights": _ROWS}),
    old("GEMM", [_FLAT, _ROWS, _MORE], 2 * _FLAT @ _ROWS.T + 0.5 * _MORE,
        alpha=2, beta=0.5, transpose_b=True),
    new("MatMul", [_FLAT, _ROWS], _FLAT @ _ROWS.T, transpose_b=True),
    new("ScaledDotProductAttention", [_Q, _K, _V], _attention(_Q, _K, _V), opset="opset13",
        causal=False),
]  # fmt: skip
ROWS = [*CONVOLVED, *POOLED, *MULTIPLIED]
