"""Index based sampling (spec 4.3.3) and max pooling (4.8.3)."""

from __future__ import annotations

from typing import Any

from .case import Given, Integers, Real, row

_INDEX = "its results are integers"
_NONE = (0, 0)
_PADS = [_NONE, _NONE, (2, 1), (1, 2)]
_IMAGE = Real((2, 2, 4, 5), distinct=True)

# The same windows for the maximum, its index, and both.
_WINDOWS: dict[str, tuple[Real, dict[str, Any]]] = {
    "rank1": (Real((7,), distinct=True), {"size": [3], "stride": [2]}),
    "rank2": (
        Real((3, 6), distinct=True),
        {"size": [1, 2], "padding": [_NONE, _NONE], "stride": [1, 2]},
    ),
    "1d_auto": (Real((1, 2, 7), distinct=True), {"size": [1, 1, 3]}),
    "1d_ignore": (Real((1, 2, 7), distinct=True), {"size": [1, 1, 4], "border": "ignore"}),
    "2d_auto": (_IMAGE, {"size": [1, 1, 3, 3]}),
    "2d_auto_even_stride": (_IMAGE, {"size": [1, 1, 2, 2], "stride": [1, 1, 2, 2]}),
    "2d_valid": (
        _IMAGE,
        {"size": [1, 1, 2, 3], "padding": [_NONE] * 4, "stride": [1, 1, 2, 1]},
    ),
    "2d_constant_negative": (
        Real((1, 2, 4, 4), -2.0, -0.5, distinct=True),
        {"size": [1, 1, 3, 3], "padding": _PADS},
    ),
    "2d_ignore_negative": (
        Real((1, 2, 4, 4), -2.0, -0.5, distinct=True),
        {"size": [1, 1, 3, 3], "border": "ignore", "padding": _PADS},
    ),
    "2d_replicate": (_IMAGE, {"size": [1, 1, 3, 3], "border": "replicate", "padding": _PADS}),
    "2d_reflect": (_IMAGE, {"size": [1, 1, 3, 3], "border": "reflect", "padding": _PADS}),
    "2d_reflect_even": (
        _IMAGE,
        {"size": [1, 1, 3, 3], "border": "reflect-even", "padding": _PADS},
    ),
    "2d_dilation": (_IMAGE, {"size": [1, 1, 2, 3], "dilation": [1, 1, 2, 2]}),
    "2d_ignore_stride_dilation": (
        Real((1, 2, 6, 7), distinct=True),
        {
            "size": [1, 1, 3, 2],
            "border": "ignore",
            "stride": [1, 1, 2, 3],
            "dilation": [1, 1, 2, 3],
        },
    ),
    "2d_stride_above_size": (
        Real((1, 2, 7, 8), distinct=True),
        {"size": [1, 1, 2, 2], "stride": [1, 1, 3, 3]},
    ),
    "2d_overlap": (
        Real((1, 1, 6, 6), distinct=True),
        {
            "size": [1, 1, 3, 3],
            "border": "ignore",
            "padding": [_NONE, _NONE, (1, 1), (1, 1)],
            "stride": [1, 1, 2, 2],
        },
    ),
    "channels": (Real((1, 5, 3), distinct=True), {"size": [1, 3, 1]}),
    "channels_valid": (
        Real((2, 4, 2, 2), distinct=True),
        {"size": [1, 2, 1, 1], "padding": [_NONE] * 4, "stride": [1, 2, 1, 1]},
    ),
    "batch": (Real((4, 2, 3), distinct=True), {"size": [2, 1, 2], "border": "ignore"}),
    "3d": (
        Real((1, 2, 3, 3, 4), distinct=True),
        {"size": [1, 1, 2, 3, 2], "border": "ignore", "stride": [1, 1, 1, 2, 2]},
    ),
    "rank6": (Real((1, 2, 2, 1, 3, 2), distinct=True), {"size": [1, 1, 2, 1, 2, 1]}),
}

_TIES = Given((((1.0, 1.0, 0.0, 2.0, 2.0, 2.0),),))

CASES = (
    *(row(f"max_pool_{name}", "max_pool", x, **window) for name, (x, window) in _WINDOWS.items()),
    *(
        row(f"argmax_pool_{name}", "argmax_pool", x, **window, not_differentiable=_INDEX)
        for name, (x, window) in _WINDOWS.items()
    ),
    *(
        row(f"max_pool_with_index_{name}", "max_pool_with_index", x, **window)
        for name, (x, window) in _WINDOWS.items()
    ),
    row(
        "argmax_pool_ties",
        "argmax_pool",
        _TIES,
        size=[1, 1, 3],
        border="ignore",
        not_differentiable=_INDEX,
    ),
    row(
        "argmax_pool_ties_with_border",
        "argmax_pool",
        Given((((0.0, -1.0, 0.0, -1.0, -1.0, 0.0),),)),
        size=[1, 1, 3],
        not_differentiable=_INDEX,
    ),
    row(
        "max_pool_with_index_ties",
        "max_pool_with_index",
        _TIES,
        size=[1, 1, 2],
        padding=[_NONE] * 3,
        stride=[1, 1, 2],
        not_differentiable="equal values share a maximum",
    ),
    row("sample_1d_auto", "sample", Real((1, 2, 7)), Integers((1, 2, 7), 0, 3), size=[1, 1, 3]),
    row(
        "sample_1d_valid",
        "sample",
        Real((1, 2, 9)),
        Integers((1, 2, 4), 0, 3),
        size=[1, 1, 3],
        padding=[_NONE] * 3,
        stride=[1, 1, 2],
    ),
    row(
        "sample_2d_constant",
        "sample",
        Real((1, 2, 4, 5)),
        Integers((1, 2, 5, 6), 0, 9),
        size=[1, 1, 3, 3],
        padding=_PADS,
    ),
    row(
        "sample_2d_replicate",
        "sample",
        Real((1, 2, 4, 5)),
        Integers((1, 2, 5, 6), 0, 9),
        size=[1, 1, 3, 3],
        border="replicate",
        padding=_PADS,
    ),
    row(
        "sample_2d_reflect",
        "sample",
        Real((1, 2, 4, 5)),
        Integers((1, 2, 5, 6), 0, 9),
        size=[1, 1, 3, 3],
        border="reflect",
        padding=_PADS,
    ),
    row(
        "sample_2d_reflect_even_dilation",
        "sample",
        Real((1, 2, 4, 5)),
        Integers((1, 2, 4, 5), 0, 6),
        size=[1, 1, 2, 3],
        border="reflect-even",
        dilation=[1, 1, 2, 2],
    ),
    row(
        "sample_2d_stride_dilation",
        "sample",
        Real((2, 2, 6, 7)),
        Integers((2, 2, 3, 4), 0, 6),
        size=[1, 1, 3, 2],
        stride=[1, 1, 2, 2],
        dilation=[1, 1, 1, 2],
    ),
    row(
        "sample_channels",
        "sample",
        Real((1, 6, 3)),
        Integers((1, 3, 3), 0, 2),
        size=[1, 2, 1],
        padding=[_NONE] * 3,
        stride=[1, 2, 1],
    ),
    row("sample_rank2", "sample", Real((3, 6)), Integers((3, 3), 0, 2), size=[1, 2], stride=[1, 2]),
    row(
        "sample_3d",
        "sample",
        Real((1, 1, 3, 4, 4)),
        Integers((1, 1, 3, 2, 2), 0, 12),
        size=[1, 1, 2, 2, 3],
        border="replicate",
        stride=[1, 1, 1, 2, 2],
    ),
    row(
        "desample_1d_auto",
        "desample",
        Real((1, 2, 4)),
        Integers((1, 2, 4), 0, 2),
        size=[1, 1, 2],
        stride=[1, 1, 2],
    ),
    row(
        "desample_1d_overlap",
        "desample",
        Real((1, 2, 5)),
        Integers((1, 2, 5), 0, 3),
        size=[1, 1, 3],
    ),
    row(
        "desample_1d_gaps",
        "desample",
        Real((1, 2, 3)),
        Integers((1, 2, 3), 0, 2),
        size=[1, 1, 2],
        padding=[_NONE] * 3,
        stride=[1, 1, 4],
    ),
    row(
        "desample_2d_valid",
        "desample",
        Real((2, 2, 2, 3)),
        Integers((2, 2, 2, 3), 0, 4),
        size=[1, 1, 2, 2],
        padding=[_NONE] * 4,
        stride=[1, 1, 2, 2],
    ),
    row(
        "desample_2d_padding_overlap",
        "desample",
        Real((1, 2, 3, 4)),
        Integers((1, 2, 3, 4), 0, 9),
        size=[1, 1, 3, 3],
        padding=[_NONE, _NONE, (1, 1), (1, 0)],
        stride=[1, 1, 2, 1],
    ),
    row(
        "desample_2d_output_shape",
        "desample",
        Real((1, 2, 3, 3)),
        Integers((1, 2, 3, 3), 0, 4),
        size=[1, 1, 2, 2],
        padding=[_NONE] * 4,
        stride=[1, 1, 2, 2],
        output_shape=[1, 2, 7, 6],
    ),
    row(
        "desample_2d_output_shape_auto",
        "desample",
        Real((1, 1, 3, 3)),
        Integers((1, 1, 3, 3), 0, 9),
        size=[1, 1, 3, 3],
        stride=[1, 1, 2, 2],
        output_shape=[1, 1, 5, 6],
    ),
    row(
        "desample_2d_dilation",
        "desample",
        Real((1, 1, 3, 4)),
        Integers((1, 1, 3, 4), 0, 6),
        size=[1, 1, 2, 3],
        padding=[_NONE, _NONE, (0, 1), (1, 1)],
        dilation=[1, 1, 2, 2],
    ),
    row(
        "desample_channels",
        "desample",
        Real((1, 3, 2)),
        Integers((1, 3, 2), 0, 2),
        size=[1, 2, 1],
        padding=[_NONE] * 3,
        stride=[1, 2, 1],
    ),
    row(
        "desample_rank2",
        "desample",
        Real((2, 3)),
        Integers((2, 3), 0, 2),
        size=[1, 2],
        stride=[1, 2],
    ),
    row(
        "desample_3d",
        "desample",
        Real((1, 1, 2, 2, 2)),
        Integers((1, 1, 2, 2, 2), 0, 8),
        size=[1, 1, 2, 2, 2],
        stride=[1, 1, 2, 1, 2],
    ),
)
