"""Normalisations (spec 4.8.4). Inputs of those that divide by a root keep away from 0."""

from __future__ import annotations

from .case import OpCase, Real

_X = Real((2, 3, 4, 3))
_POSITIVE = Real((2, 3, 4, 3), 0.2, 1.5)
_DISTINCT = Real((2, 3, 4, 3), distinct=True)
_CHANNEL = Real((1, 3))

CASES = (
    OpCase("lrn_channels", "local_response_normalization", {"input": _X}, {"size": [1, 3, 1, 1]}),
    OpCase(
        "lrn_parameters",
        "local_response_normalization",
        {"input": Real((1, 6, 2, 2))},
        {"size": [1, 5, 1, 1], "alpha": 0.3, "beta": 0.75, "bias": 2.0},
    ),
    OpCase(
        "lrn_even",
        "local_response_normalization",
        {"input": Real((1, 6, 2))},
        {"size": [1, 4, 1], "alpha": 0.5},
    ),
    OpCase(
        "lrn_spatial",
        "local_response_normalization",
        {"input": _X},
        {"size": [1, 1, 3, 3], "beta": 1.0},
    ),
    OpCase("local_mean", "local_mean_normalization", {"input": _X}, {"size": [1, 1, 3, 3]}),
    OpCase(
        "local_mean_1d", "local_mean_normalization", {"input": Real((1, 2, 6))}, {"size": [1, 1, 4]}
    ),
    OpCase(
        "local_variance",
        "local_variance_normalization",
        {"input": _DISTINCT},
        {"size": [1, 1, 3, 3]},
    ),
    OpCase(
        "local_variance_bias",
        "local_variance_normalization",
        {"input": _DISTINCT},
        {"size": [1, 3, 1, 1], "bias": 0.5},
    ),
    OpCase(
        "local_variance_epsilon",
        "local_variance_normalization",
        {"input": _DISTINCT},
        {"size": [1, 1, 3, 3], "bias": 0.1, "epsilon": 0.6},
    ),
    OpCase(
        "local_contrast",
        "local_contrast_normalization",
        {"input": _DISTINCT},
        {"size": [1, 1, 3, 3]},
        tolerance=5e-5,
    ),
    OpCase(
        "local_contrast_bias_epsilon",
        "local_contrast_normalization",
        {"input": _DISTINCT},
        {"size": [1, 3, 3, 1], "bias": 0.3, "epsilon": 0.7},
    ),
    OpCase("l1_channel", "l1_normalization", {"input": _DISTINCT}, {"axes": [1]}),
    OpCase("l1_bias", "l1_normalization", {"input": _DISTINCT}, {"axes": [2, 3], "bias": 0.5}),
    OpCase(
        "l1_epsilon",
        "l1_normalization",
        {"input": _DISTINCT},
        {"axes": [1], "bias": 0.1, "epsilon": 1.5},
    ),
    OpCase("l2_channel", "l2_normalization", {"input": _DISTINCT}, {"axes": [1]}),
    OpCase("l2_bias", "l2_normalization", {"input": _POSITIVE}, {"axes": [2, 3], "bias": 0.5}),
    OpCase("l2_epsilon", "l2_normalization", {"input": _DISTINCT}, {"axes": [1], "epsilon": 1.0}),
    OpCase("l2_unsorted", "l2_normalization", {"input": _DISTINCT}, {"axes": [3, 1], "bias": 0.1}),
    OpCase(
        "batch_normalization",
        "batch_normalization",
        {
            "input": _X,
            "mean": _CHANNEL,
            "variance": Real((1, 3), 0.3, 2.0),
            "offset": _CHANNEL,
            "scale": _CHANNEL,
        },
        {"epsilon": 0.001},
    ),
    OpCase(
        "batch_normalization_rank2",
        "batch_normalization",
        {
            "input": Real((4, 3)),
            "mean": _CHANNEL,
            "variance": Real((1, 3), 0.3, 2.0),
            "offset": _CHANNEL,
            "scale": _CHANNEL,
        },
        {"epsilon": 0.1},
    ),
    OpCase(
        "batch_normalization_literals",
        "batch_normalization",
        {
            "input": _X,
            "mean": _CHANNEL,
            "variance": Real((1, 3), 0.3, 2.0),
            "offset": 0.0,
            "scale": 1.0,
        },
        {"epsilon": 0.001},
    ),
    OpCase(
        "batch_normalization_full",
        "batch_normalization",
        {
            "input": Real((2, 3, 2)),
            "mean": Real((2, 3, 2)),
            "variance": Real((2, 3, 2), 0.3, 2.0),
            "offset": Real((1, 3, 1)),
            "scale": Real((1, 3, 2)),
        },
        {"epsilon": 0.0},
    ),
)
