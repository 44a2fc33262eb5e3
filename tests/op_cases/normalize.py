"""Normalisations (spec 4.8.4). Inputs of those that divide by a root keep away from 0."""

from __future__ import annotations

from .case import Real, row

_X = Real((2, 3, 4, 3))
_POSITIVE = Real((2, 3, 4, 3), 0.2, 1.5)
_DISTINCT = Real((2, 3, 4, 3), distinct=True)
_CHANNEL = Real((1, 3))

CASES = (
    row("lrn_channels", "local_response_normalization", _X, size=[1, 3, 1, 1]),
    row(
        "lrn_parameters",
        "local_response_normalization",
        Real((1, 6, 2, 2)),
        size=[1, 5, 1, 1],
        alpha=0.3,
        beta=0.75,
        bias=2.0,
    ),
    row("lrn_even", "local_response_normalization", Real((1, 6, 2)), size=[1, 4, 1], alpha=0.5),
    row("lrn_spatial", "local_response_normalization", _X, size=[1, 1, 3, 3], beta=1.0),
    row("local_mean", "local_mean_normalization", _X, size=[1, 1, 3, 3]),
    row("local_mean_1d", "local_mean_normalization", Real((1, 2, 6)), size=[1, 1, 4]),
    row("local_variance", "local_variance_normalization", _DISTINCT, size=[1, 1, 3, 3]),
    row(
        "local_variance_bias",
        "local_variance_normalization",
        _DISTINCT,
        size=[1, 3, 1, 1],
        bias=0.5,
    ),
    row(
        "local_variance_epsilon",
        "local_variance_normalization",
        _DISTINCT,
        size=[1, 1, 3, 3],
        bias=0.1,
        epsilon=0.6,
    ),
    row(
        "local_contrast",
        "local_contrast_normalization",
        _DISTINCT,
        size=[1, 1, 3, 3],
        tolerance=5e-5,
    ),
    row(
        "local_contrast_bias_epsilon",
        "local_contrast_normalization",
        _DISTINCT,
        size=[1, 3, 3, 1],
        bias=0.3,
        epsilon=0.7,
    ),
    row("l1_channel", "l1_normalization", _DISTINCT, axes=[1]),
    row("l1_bias", "l1_normalization", _DISTINCT, axes=[2, 3], bias=0.5),
    row("l1_epsilon", "l1_normalization", _DISTINCT, axes=[1], bias=0.1, epsilon=1.5),
    row("l2_channel", "l2_normalization", _DISTINCT, axes=[1]),
    row("l2_bias", "l2_normalization", _POSITIVE, axes=[2, 3], bias=0.5),
    row("l2_epsilon", "l2_normalization", _DISTINCT, axes=[1], epsilon=1.0),
    row("l2_unsorted", "l2_normalization", _DISTINCT, axes=[3, 1], bias=0.1),
    row(
        "batch_normalization",
        "batch_normalization",
        _X,
        _CHANNEL,
        Real((1, 3), 0.3, 2.0),
        _CHANNEL,
        _CHANNEL,
        epsilon=0.001,
    ),
    row(
        "batch_normalization_rank2",
        "batch_normalization",
        Real((4, 3)),
        _CHANNEL,
        Real((1, 3), 0.3, 2.0),
        _CHANNEL,
        _CHANNEL,
        epsilon=0.1,
    ),
    row(
        "batch_normalization_literals",
        "batch_normalization",
        _X,
        _CHANNEL,
        Real((1, 3), 0.3, 2.0),
        0.0,
        1.0,
        epsilon=0.001,
    ),
    row(
        "batch_normalization_full",
        "batch_normalization",
        Real((2, 3, 2)),
        Real((2, 3, 2)),
        Real((2, 3, 2), 0.3, 2.0),
        Real((1, 3, 1)),
        Real((1, 3, 2)),
        epsilon=0.0,
    ),
)
