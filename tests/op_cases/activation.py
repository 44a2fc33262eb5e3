"""Activation functions (spec 4.8.1)."""

from __future__ import annotations

from .case import Given, Real, row

_X = Real((2, 3, 4), -3.0, 3.0)
_OFF_ZERO = Real((2, 3, 4), -3.0, 3.0, avoid=(0.0,))
_FAR = Given((-1000.0, -100.0, -30.0, 0.5, 30.0, 100.0, 1000.0))

CASES = (
    row("sigmoid", "sigmoid", _X),
    row("sigmoid_far", "sigmoid", _FAR),
    row("relu", "relu", _OFF_ZERO),
    row("relu_rank1", "relu", Real((7,), avoid=(0.0,))),
    row("relu_rank5", "relu", Real((1, 2, 2, 1, 3), avoid=(0.0,))),
    row("relu_at_zero", "relu", Given((-1.0, 0.0, 1.0)), not_differentiable="it has a kink at 0"),
    row("softabs", "softabs", _X, epsilon=0.1),
    row("softabs_small", "softabs", _OFF_ZERO, epsilon=0.001),
    row("softmax_rank2", "softmax", Real((3, 5), -3.0, 3.0)),
    row("softmax_rank4", "softmax", Real((2, 3, 2, 2), -3.0, 3.0)),
    row("softmax_axis0", "softmax", Real((3, 4), -3.0, 3.0), axes=[0]),
    row("softmax_last", "softmax", Real((2, 3, 4), -3.0, 3.0), axes=[2]),
    row("softmax_axes_2_3", "softmax", Real((2, 2, 3, 2), -3.0, 3.0), axes=[2, 3]),
    row("softmax_axes_3_1", "softmax", Real((2, 3, 2, 2), -3.0, 3.0), axes=[3, 1]),
    row("softmax_far", "softmax", Given(((-1000.0, 0.0, 1000.0), (500.0, 501.0, 499.0)))),
    row("softplus", "softplus", _X),
    row("softplus_far", "softplus", _FAR),
    row("elu", "elu", _OFF_ZERO),
    row("elu_alpha", "elu", _OFF_ZERO, alpha=0.7),
    row("elu_far", "elu", _FAR, alpha=2.0),
    row("selu", "selu", _OFF_ZERO),
    row("selu_both", "selu", _OFF_ZERO, alpha=1.2, **{"lambda": 0.9}),
    row("selu_lambda", "selu", _OFF_ZERO, **{"lambda": 2.0}),
    row("gelu", "gelu", _X),
    row("gelu_far", "gelu", _FAR),
    row("silu", "silu", _X),
    row("silu_far", "silu", _FAR),
    row("prelu_channel", "prelu", _OFF_ZERO, Real((1, 3), 0.1, 0.9)),
    row("prelu_full", "prelu", _OFF_ZERO, Real((2, 3, 4), 0.1, 0.9)),
    row("prelu_literal", "prelu", _OFF_ZERO, 0.25),
    row("prelu_large", "prelu", _OFF_ZERO, Given(((1.5, -0.5, 2.0),))),
    row("leaky_relu", "leaky_relu", _OFF_ZERO, alpha=0.1),
    row("leaky_relu_steep", "leaky_relu", _OFF_ZERO, alpha=1.5),
)
