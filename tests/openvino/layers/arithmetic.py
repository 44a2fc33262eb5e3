"""Layers that compute item by item, reduce, or normalise."""

from __future__ import annotations

import math

import numpy as np

from tests.openvino.layers import Known, both, new, old, real

X, Y = real(2, 3, 4), real(2, 3, 4)
P, Q = real(2, 3, 4, low=0.2), real(2, 3, 4, low=0.2, high=3)
N, M = (np.array(x, np.int32) for x in ([[7, -7, 9], [-9, 5, 1]], [[2, 2, -4], [-4, 3, 2]]))
T, F = np.array([True, False, True, False]), np.array([True, True, False, False])
SAME = np.where([True, False, True], N, M)
HIGH = np.float32([[[0.7], [2], [0.5]]])
ODD = np.array([1, np.nan, np.inf, -np.inf], np.float32)
AXES = Known(np.array([0, 2]))
_ERF = np.vectorize(math.erf)


def _softmax(x: np.ndarray, axis: int = 1) -> np.ndarray:
    e = np.exp(x)
    return e / e.sum(axis, keepdims=True)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _reduced(function: object) -> np.ndarray:
    return np.asarray(function(X, axis=(0, 2), keepdims=True))  # type: ignore[operator]


def _quantized(x: np.ndarray) -> np.ndarray:
    """Round -1 to 1 to 5 levels, numbered 0 to 4."""
    return np.clip(np.rint((x + 1) * 2), 0, 4)


UNARY = [
    new("Abs", [X], np.abs(X)),
    new("Acos", [X], np.arccos(X)),
    new("Acosh", [P + 1], np.arccosh(P + 1)),
    new("Asin", [X], np.arcsin(X)),
    new("Asinh", [X], np.arcsinh(X)),
    new("Atan", [X], np.arctan(X)),
    new("Atanh", [0.9 * X], np.arctanh(0.9 * X)),
    new("Ceil", [3 * X], np.ceil(3 * X)),
    new("Ceiling", [3 * X], np.ceil(3 * X)),
    new("Copy", [X], X),
    new("Cos", [X], np.cos(X)),
    new("Cosh", [X], np.cosh(X)),
    new("Erf", [X], _ERF(X)),
    new("Exp", [X], np.exp(X)),
    new("Floor", [3 * X], np.floor(3 * X)),
    new("Gelu", [X], X * (1 + _ERF(X / math.sqrt(2))) / 2, opset="opset7"),
    new("HSwish", [4 * X], 4 * X * np.clip(4 * X + 3, 0, 6) / 6),
    new("HSigmoid", [4 * X], np.clip(4 * X + 3, 0, 6) / 6, opset="opset5"),
    new("IsNaN", [ODD], np.isnan(ODD)),
    new("IsInf", [ODD], np.inf == ODD, opset="opset10", detect_negative=False),
    new("IsFinite", [ODD], np.isfinite(ODD), opset="opset10"),
    new("Log", [P], np.log(P)),
    new("LogicalNot", [T], ~T),
    new("BitwiseNot", [N], ~N, opset="opset13"),
    new("Mish", [X], X * np.tanh(np.log1p(np.exp(X)))),
    new("Neg", [X], -X),
    new("Negative", [X], -X),
    old("Not", [P], 1 - P),
    new("Reciprocal", [P], 1 / P),
    new("ReLU", [X], np.maximum(X, 0)),
    old("ReLU", [X], np.where(X > 0, X, X / 10), negative_slope=0.1),
    old("ReLU6", [9 * X], np.clip(9 * X, 0, 6)),
    new("Round", [3 * X], np.rint(3 * X), mode="half_to_even"),
    new("Sigmoid", [X], _sigmoid(X)),
    new("Sign", [X], np.sign(X)),
    new("Sin", [X], np.sin(X)),
    new("Sinh", [X], np.sinh(X)),
    new("SoftPlus", [X], np.log1p(np.exp(X))),
    new("SoftSign", [X], X / (1 + np.abs(X)), opset="opset9"),
    new("Sqrt", [P], np.sqrt(P)),
    new("Tan", [X], np.tan(X)),
    new("Tanh", [X], np.tanh(X)),
    old("Activation", [X], _sigmoid(X), type_="sigmoid"),
    old("Activation", [X], np.where(X > 0, X, 0.5 * (np.exp(X) - 1)), type_="elu", alpha=0.5),
    old("Activation", [9 * X], np.clip(9 * X, 0, 6), type_="relu6"),
    old("Activation", [P], 1 - P, type_="not"),
    new("Elu", [X], np.where(X > 0, X, 0.5 * (np.exp(X) - 1)), alpha=0.5),
    both("Clamp", [X], np.clip(X, -0.3, 0.4), min=-0.3, max=0.4),
    old("HardSigmoid", [9 * X], np.clip(0.3 * 9 * X + 0.4, 0, 1), alpha=0.3, beta=0.4),
    new("HardSigmoid", [9 * X, Known(0.3), Known(0.4)], np.clip(0.3 * 9 * X + 0.4, 0, 1)),
    old("Selu", [X], 1.1 * np.where(X > 0, X, 1.5 * (np.exp(X) - 1)), alpha=1.5, gamma=1.1),
    new("Selu", [X, Known(1.5), Known(1.1)], 1.1 * np.where(X > 0, X, 1.5 * (np.exp(X) - 1))),
    old("Swish", [X], X * _sigmoid(2 * X), alpha=2),
    new("Swish", [X, Known(2.0)], X * _sigmoid(2 * X), opset="opset4"),
    old("PReLU", [X], np.where(X > 0, X, X * np.float32([[[0.1], [0.2], [0.3]]])),
        blobs={"weights": np.float32([0.1, 0.2, 0.3])}),
    old("PReLU", [X], np.where(X > 0, X, X * np.float32([[[0.1], [0.2], [0.3]]])),
        channel_shared=1, blobs={"weights": np.float32([0.1, 0.2, 0.3])}),
    old("Activation", [X], np.where(X > 0, X, X * np.float32([[[0.1], [0.2], [0.3]]])),
        type_="prelu", channel_shared=0, blobs={"weights": np.float32([0.1, 0.2, 0.3])}),
    old("Activation", [X], np.where(X > 0, X, 0.1 * X), type_="prelu", channel_shared=1,
        blobs={"weights": np.float32([0.1])}),
    new("PReLU", [X, Known(np.float32([0.1, 0.2, 0.3]))],
        np.where(X > 0, X, X * np.float32([[[0.1], [0.2], [0.3]]]))),
    old("Power", [P], (0.5 + 2 * P) ** 1.5, power=1.5, scale=2, shift=0.5),
]  # fmt: skip
BINARY = [
    new("Add", [X, Y], X + Y),
    new("Subtract", [X, Y], X - Y),
    new("Multiply", [X, Y], X * Y),
    new("Divide", [X, P], X / P),
    new("Divide", [N, M], np.trunc(N / M).astype(np.int32), m_pythondiv=False),
    new("Power", [P, Y], P**Y),
    new("Maximum", [X, Y], np.maximum(X, Y)),
    new("Minimum", [X, Y], np.minimum(X, Y)),
    new("Mod", [N, M], np.fmod(N, M)),
    new("FloorMod", [N, M], np.mod(N, M)),
    new("SquaredDifference", [X, Y], (X - Y) ** 2),
    new("Equal", [N, SAME], N == SAME),
    new("NotEqual", [N, SAME], N != SAME),
    new("Less", [X, Y], X < Y),
    new("LessEqual", [X, Y], X <= Y),
    new("Greater", [X, Y], X > Y),
    new("GreaterEqual", [X, Y], X >= Y),
    new("LogicalAnd", [T, F], T & F),
    new("LogicalOr", [T, F], T | F),
    new("LogicalXor", [T, F], T ^ F),
    new("BitwiseAnd", [N, M], N & M, opset="opset13"),
    new("BitwiseOr", [N, M], N | M, opset="opset13"),
    new("BitwiseXor", [N, M], N ^ M, opset="opset13"),
    new("BitwiseLeftShift", [N, np.abs(M)], N << np.abs(M), opset="opset15"),
    new("BitwiseRightShift", [N, np.abs(M)], N >> np.abs(M), opset="opset15"),
    old("Eltwise", [X, Y, P], 2 * X - Y + P, operation="sum", coeff="2,-1,1"),
    old("Eltwise", [X, Y, P], X * Y * P, operation="mul"),
    old("Eltwise", [X, Y], np.maximum(X, Y), operation="max"),
    old("Eltwise", [X, Y], (X - Y) ** 2, operation="squared_diff"),
    old("Eltwise", [P, Q], np.mod(P, Q), operation="floor_mod"),
    old("Eltwise", [X, Y], (X > Y).astype(np.float32), operation="greater"),
    old("Select", [(X > 0).astype(np.int32), X, Y], np.where(X > 0, X, Y)),
    new("Select", [X > 0, X, Y], np.where(X > 0, X, Y)),
    old("Convert", [3 * X], np.trunc(3 * X).astype(np.int32), precision="I32"),
    new("Convert", [3 * X], np.trunc(3 * X).astype(np.int32), destination_type="i32"),
    new("ConvertLike", [3 * X, N], np.trunc(3 * X).astype(np.int32), opset="opset8"),
]
REDUCED = [
    new("ReduceMax", [X, AXES], _reduced(np.max), keep_dims=True),
    new("ReduceMin", [X, AXES], _reduced(np.min), keep_dims=True),
    new("ReduceMean", [X, AXES], _reduced(np.mean), keep_dims=True),
    new("ReduceSum", [X, AXES], _reduced(np.sum), keep_dims=True),
    new("ReduceProd", [X, AXES], _reduced(np.prod), keep_dims=True),
    new("ReduceL1", [X, AXES], np.abs(X).sum((0, 2), keepdims=True), keep_dims=True),
    new("ReduceL2", [X, AXES], np.sqrt((X**2).sum((0, 2), keepdims=True)), keep_dims=True),
    new("ReduceSumSquare", [X, AXES], (X**2).sum((0, 2), keepdims=True), keep_dims=True),
    new("ReduceLogSum", [P, AXES], np.log(P.sum((0, 2), keepdims=True)), keep_dims=True),
    new("ReduceLogSumExp", [X, AXES], np.log(np.exp(X).sum((0, 2))), keep_dims=False),
    new("ReduceLogicalAnd", [X > -0.7, AXES], (X > -0.7).all((0, 2)), keep_dims=False),
    new("ReduceLogicalOr", [X > HIGH, AXES], (X > HIGH).any((0, 2)), keep_dims=False),
    new("ReduceAnd", [X > -0.7, AXES], (X > -0.7).all((0, 2)), keep_dims=False),
    new("ReduceOr", [X > HIGH, AXES], (X > HIGH).any((0, 2)), keep_dims=False),
    old("ArgMax", [X], np.argsort(-X, 1)[:, :2].astype(np.float32), axis=1, top_k=2),
    new("TopK", [X, Known(np.array(2, np.int32))],
         (-np.sort(-X, 1)[:, :2], np.argsort(-X, 1)[:, :2].astype(np.int32)),
         opset="opset3", axis=1, mode="max", sort="value"),
    new("CumSum", [X, Known(np.array(1))], np.cumsum(X, 1), opset="opset3"),
    both("SoftMax", [X], _softmax(X), axis=1),
    new("LogSoftmax", [X], np.log(_softmax(X)), opset="opset5", axis=1),
]  # fmt: skip
_PLANES = real(2, 4, 3, 3)
_CENTRED = _PLANES - _PLANES.mean((2, 3), keepdims=True)
_SPREAD = np.sqrt((_CENTRED**2).mean((2, 3), keepdims=True) + 0.1)
_MEAN, _VARIANCE, _GAMMA, _BETA = (real(4, low=0.5, high=2) for _ in range(4))


def _channels(x: np.ndarray) -> np.ndarray:
    return x[:, None, None]


def _around(x: np.ndarray) -> np.ndarray:
    """Return sums of squares over three channels."""
    padded = np.pad(x**2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    return padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]


def _groups(x: np.ndarray) -> np.ndarray:
    parts = x.reshape(2, 2, -1)
    centred = parts - parts.mean(2, keepdims=True)
    return (centred / np.sqrt((centred**2).mean(2, keepdims=True) + 0.1)).reshape(x.shape)


_ROOT = np.sqrt((_PLANES**2).sum(1, keepdims=True) + 0.1)
_HARD = _channels(_GAMMA) * (_PLANES - _channels(_MEAN)) / np.sqrt(_channels(_VARIANCE) + 0.1)
NORMALISED = [
    old("BatchNormalization", [_PLANES],
        (_PLANES - _channels(_MEAN)) / np.sqrt(_channels(_VARIANCE) + 0.1),
        blobs={"weights": _VARIANCE, "biases": _MEAN}, epsilon=0.1),
    new("BatchNormInference", [_PLANES, *map(Known, (_GAMMA, _BETA, _MEAN, _VARIANCE))],
        _HARD + _channels(_BETA), opset="opset5", epsilon=0.1),
    old("ScaleShift", [_PLANES], _PLANES * _channels(_GAMMA) + _channels(_BETA),
        blobs={"weights": _GAMMA, "biases": _BETA}),
    old("Norm", [_PLANES], _PLANES / (1 + 0.3 / 3 * _around(_PLANES)) ** 0.75,
        alpha=0.3, beta=0.75, local__size=3, region="across"),
    both("LRN", [_PLANES, Known(np.array([1]))],
         _PLANES / (2 + 0.3 / 3 * _around(_PLANES)) ** 0.75,
         alpha=0.3, beta=0.75, bias=2, size=3, k=2, local_size=3),
    old("MVN", [_PLANES], _CENTRED / _SPREAD, across_channels=0, normalize_variance=1, eps=0.1),
    new("MVN", [_PLANES, Known(np.array([2, 3]))], _CENTRED / _SPREAD, opset="opset6", eps=0.1,
        normalize_variance=True, eps_mode="inside_sqrt"),
    old("Normalize", [_PLANES], _PLANES / _ROOT * _channels(_GAMMA), across_spatial=0,
        channel_shared=0, eps=0.1, blobs={"weights": _GAMMA}),
    new("NormalizeL2", [_PLANES, Known(np.array([1]))], _PLANES / _ROOT, eps=0.1, eps_mode="add"),
    both("GRN", [_PLANES], _PLANES / _ROOT, bias=0.1),
    new("GroupNormalization", [_PLANES, Known(_GAMMA), Known(_BETA)],
        _groups(_PLANES) * _channels(_GAMMA) + _channels(_BETA), opset="opset12",
        num_groups=2, epsilon=0.1),
    new("RMS", [X, Known(np.float32([1, 2, 3, 4]))],
        X / np.sqrt((X**2).mean(-1, keepdims=True) + 0.1) * np.float32([1, 2, 3, 4]),
        opset="extension", epsilon=0.1),
    new("RMSNorm", [X, Known(np.float32([1, 2, 3, 4]))],
        X / np.sqrt((X**2).mean(-1, keepdims=True) + 0.1) * np.float32([1, 2, 3, 4]),
        opset="extension", epsilon=0.1),
    new("FakeQuantize", [2 * X, *(Known(v) for v in (-1.0, 1.0, 0.0, 4.0))],
         _quantized(2 * X), levels=5),
    both("Quantize", [2 * X, *(Known(v) for v in (-1.0, 1.0, 0.0, 4.0))],
         _quantized(2 * X), levels=5),
]  # fmt: skip
ROWS = [*UNARY, *BINARY, *REDUCED, *NORMALISED]
