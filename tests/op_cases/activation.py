"""Activation functions (spec 4.8.1)."""

from __future__ import annotations

from .case import Given, OpCase, Real

_X = Real((2, 3, 4), -3.0, 3.0)
_OFF_ZERO = Real((2, 3, 4), -3.0, 3.0, avoid=(0.0,))
_FAR = Given((-1000.0, -100.0, -30.0, 0.5, 30.0, 100.0, 1000.0))

CASES = (
    OpCase("sigmoid", "sigmoid", {"x": _X}),
    OpCase("sigmoid_far", "sigmoid", {"x": _FAR}),
    OpCase("relu", "relu", {"x": _OFF_ZERO}),
    OpCase("relu_rank1", "relu", {"x": Real((7,), avoid=(0.0,))}),
    OpCase("relu_rank5", "relu", {"x": Real((1, 2, 2, 1, 3), avoid=(0.0,))}),
    OpCase(
        "relu_at_zero",
        "relu",
        {"x": Given((-1.0, 0.0, 1.0))},
        not_differentiable="it has a kink at 0",
    ),
    OpCase("softabs", "softabs", {"x": _X}, {"epsilon": 0.1}),
    OpCase("softabs_small", "softabs", {"x": _OFF_ZERO}, {"epsilon": 0.001}),
    OpCase("softmax_rank2", "softmax", {"x": Real((3, 5), -3.0, 3.0)}),
    OpCase("softmax_rank4", "softmax", {"x": Real((2, 3, 2, 2), -3.0, 3.0)}),
    OpCase("softmax_axis0", "softmax", {"x": Real((3, 4), -3.0, 3.0)}, {"axes": [0]}),
    OpCase("softmax_last", "softmax", {"x": Real((2, 3, 4), -3.0, 3.0)}, {"axes": [2]}),
    OpCase("softmax_axes_2_3", "softmax", {"x": Real((2, 2, 3, 2), -3.0, 3.0)}, {"axes": [2, 3]}),
    OpCase("softmax_axes_3_1", "softmax", {"x": Real((2, 3, 2, 2), -3.0, 3.0)}, {"axes": [3, 1]}),
    OpCase("softmax_far", "softmax", {"x": Given(((-1000.0, 0.0, 1000.0), (500.0, 501.0, 499.0)))}),
    OpCase("softplus", "softplus", {"x": _X}),
    OpCase("softplus_far", "softplus", {"x": _FAR}),
    OpCase("elu", "elu", {"x": _OFF_ZERO}),
    OpCase("elu_alpha", "elu", {"x": _OFF_ZERO}, {"alpha": 0.7}),
    OpCase("elu_far", "elu", {"x": _FAR}, {"alpha": 2.0}),
    OpCase("selu", "selu", {"x": _OFF_ZERO}),
    OpCase("selu_both", "selu", {"x": _OFF_ZERO}, {"alpha": 1.2, "lambda": 0.9}),
    OpCase("selu_lambda", "selu", {"x": _OFF_ZERO}, {"lambda": 2.0}),
    OpCase("gelu", "gelu", {"x": _X}),
    OpCase("gelu_far", "gelu", {"x": _FAR}),
    OpCase("silu", "silu", {"x": _X}),
    OpCase("silu_far", "silu", {"x": _FAR}),
    OpCase("prelu_channel", "prelu", {"x": _OFF_ZERO, "alpha": Real((1, 3), 0.1, 0.9)}),
    OpCase("prelu_full", "prelu", {"x": _OFF_ZERO, "alpha": Real((2, 3, 4), 0.1, 0.9)}),
    OpCase("prelu_literal", "prelu", {"x": _OFF_ZERO, "alpha": 0.25}),
    OpCase("prelu_large", "prelu", {"x": _OFF_ZERO, "alpha": Given(((1.5, -0.5, 2.0),))}),
    OpCase("leaky_relu", "leaky_relu", {"x": _OFF_ZERO}, {"alpha": 0.1}),
    OpCase("leaky_relu_steep", "leaky_relu", {"x": _OFF_ZERO}, {"alpha": 1.5}),
)
