"""Box filters (spec 4.3.2) and the pools made of them (4.8.3): every axis may have a window."""

from __future__ import annotations

from .case import OpCase, Real

_IMAGE = Real((2, 2, 4, 5))
_NONE = (0, 0)
_PADS = [_NONE, _NONE, (2, 1), (1, 2)]

CASES = (
    OpCase("box_rank1", "box", {"input": Real((7,))}, {"size": [3]}),
    OpCase("box_rank2", "box", {"input": Real((3, 5))}, {"size": [1, 3], "stride": [1, 2]}),
    OpCase("box_1d_auto", "box", {"input": Real((1, 2, 7))}, {"size": [1, 1, 3]}),
    OpCase(
        "box_1d_dilation",
        "box",
        {"input": Real((1, 2, 8))},
        {"size": [1, 1, 3], "dilation": [1, 1, 3]},
    ),
    OpCase("box_2d_auto", "box", {"input": _IMAGE}, {"size": [1, 1, 3, 3]}),
    OpCase("box_2d_auto_even", "box", {"input": _IMAGE}, {"size": [1, 1, 2, 4]}),
    OpCase("box_2d_normalize", "box", {"input": _IMAGE}, {"size": [1, 1, 3, 2], "normalize": True}),
    OpCase(
        "box_2d_valid",
        "box",
        {"input": _IMAGE},
        {"size": [1, 1, 2, 3], "padding": [_NONE] * 4, "stride": [1, 1, 2, 2]},
    ),
    OpCase(
        "box_2d_asymmetric",
        "box",
        {"input": _IMAGE},
        {"size": [1, 1, 3, 3], "padding": [_NONE, _NONE, (0, 2), (3, 0)]},
    ),
    OpCase(
        "box_2d_ignore",
        "box",
        {"input": _IMAGE},
        {"size": [1, 1, 3, 3], "border": "ignore", "padding": _PADS},
    ),
    OpCase(
        "box_2d_ignore_normalize",
        "box",
        {"input": _IMAGE},
        {"size": [1, 1, 3, 3], "border": "ignore", "padding": _PADS, "normalize": True},
    ),
    OpCase(
        "box_2d_replicate",
        "box",
        {"input": _IMAGE},
        {"size": [1, 1, 3, 3], "border": "replicate", "padding": _PADS},
    ),
    OpCase(
        "box_2d_reflect",
        "box",
        {"input": _IMAGE},
        {"size": [1, 1, 3, 3], "border": "reflect", "padding": _PADS},
    ),
    OpCase(
        "box_2d_reflect_even_normalize",
        "box",
        {"input": _IMAGE},
        {"size": [1, 1, 3, 3], "border": "reflect-even", "padding": _PADS, "normalize": True},
    ),
    OpCase(
        "box_2d_stride_dilation",
        "box",
        {"input": Real((1, 2, 7, 6))},
        {"size": [1, 1, 3, 2], "stride": [1, 1, 2, 1], "dilation": [1, 1, 2, 3]},
    ),
    OpCase("box_channels", "box", {"input": Real((2, 5, 3, 2))}, {"size": [1, 3, 1, 1]}),
    OpCase(
        "box_channels_stride",
        "box",
        {"input": Real((1, 6, 3))},
        {"size": [1, 2, 1], "padding": [_NONE] * 3, "stride": [1, 2, 1]},
    ),
    OpCase(
        "box_batch_and_channels",
        "box",
        {"input": Real((3, 4, 3))},
        {"size": [2, 3, 1], "border": "replicate", "padding": [(1, 0), (1, 1), _NONE]},
    ),
    OpCase("box_all_axes", "box", {"input": Real((2, 3, 3, 4))}, {"size": [2, 2, 2, 2]}),
    OpCase(
        "box_3d",
        "box",
        {"input": Real((1, 2, 3, 4, 3))},
        {"size": [1, 1, 2, 3, 2], "stride": [1, 1, 1, 2, 1], "normalize": True},
    ),
    OpCase("box_rank6", "box", {"input": Real((1, 2, 3, 1, 3, 2))}, {"size": [1, 1, 2, 1, 3, 1]}),
    OpCase(
        "box_subsample",
        "box",
        {"input": _IMAGE},
        {"size": [1, 1, 1, 1], "padding": [_NONE] * 4, "stride": [1, 1, 3, 2]},
    ),
    # Reverse
    OpCase("debox_rank2", "debox", {"input": Real((2, 4))}, {"size": [1, 3], "stride": [1, 2]}),
    OpCase("debox_1d_auto", "debox", {"input": Real((1, 2, 5))}, {"size": [1, 1, 3]}),
    OpCase(
        "debox_1d_stride_above_size",
        "debox",
        {"input": Real((1, 2, 3))},
        {"size": [1, 1, 2], "stride": [1, 1, 4]},
    ),
    OpCase(
        "debox_2d_auto_stride",
        "debox",
        {"input": Real((1, 2, 3, 4))},
        {"size": [1, 1, 3, 2], "stride": [1, 1, 2, 2]},
    ),
    OpCase(
        "debox_2d_padding",
        "debox",
        {"input": Real((1, 2, 3, 4))},
        {"size": [1, 1, 3, 3], "padding": [_NONE, _NONE, (1, 0), (1, 2)], "stride": [1, 1, 2, 1]},
    ),
    OpCase(
        "debox_2d_normalize",
        "debox",
        {"input": Real((1, 2, 3, 4))},
        {"size": [1, 1, 3, 2], "padding": [_NONE] * 4, "normalize": True},
    ),
    OpCase(
        "debox_2d_normalize_stride",
        "debox",
        {"input": Real((1, 2, 3, 3))},
        {"size": [1, 1, 3, 3], "stride": [1, 1, 2, 2], "normalize": True},
    ),
    OpCase(
        "debox_2d_dilation",
        "debox",
        {"input": Real((1, 1, 3, 4))},
        {"size": [1, 1, 2, 3], "padding": [_NONE, _NONE, (0, 1), (1, 1)], "dilation": [1, 1, 3, 2]},
    ),
    OpCase(
        "debox_2d_output_shape",
        "debox",
        {"input": Real((1, 2, 3, 3))},
        {
            "size": [1, 1, 2, 3],
            "padding": [_NONE, _NONE, _NONE, (1, 1)],
            "stride": [1, 1, 2, 2],
            "output_shape": [1, 2, 7, 6],
        },
    ),
    OpCase(
        "debox_2d_ignore",
        "debox",
        {"input": Real((1, 2, 3, 3))},
        {"size": [1, 1, 3, 3], "border": "ignore"},
    ),
    OpCase(
        "debox_2d_replicate",
        "debox",
        {"input": Real((1, 2, 3, 4))},
        {"size": [1, 1, 3, 3], "border": "replicate", "padding": [_NONE, _NONE, (1, 1), (0, 1)]},
    ),
    OpCase(
        "debox_2d_reflect_stride",
        "debox",
        {"input": Real((1, 2, 3, 4))},
        {"size": [1, 1, 3, 3], "border": "reflect", "stride": [1, 1, 2, 2]},
    ),
    OpCase(
        "debox_2d_reflect_even",
        "debox",
        {"input": Real((1, 1, 3, 3))},
        {"size": [1, 1, 2, 3], "border": "reflect-even", "normalize": True},
    ),
    OpCase(
        "debox_channels",
        "debox",
        {"input": Real((1, 3, 4))},
        {"size": [1, 2, 1], "padding": [_NONE] * 3, "stride": [1, 2, 1]},
    ),
    OpCase(
        "debox_3d",
        "debox",
        {"input": Real((1, 2, 2, 2, 3))},
        {"size": [1, 1, 2, 2, 3], "stride": [1, 1, 2, 1, 2]},
    ),
    # Pools
    OpCase("avg_pool_1d", "avg_pool", {"input": Real((2, 2, 7))}, {"size": [1, 1, 3]}),
    OpCase("avg_pool_2d_auto", "avg_pool", {"input": _IMAGE}, {"size": [1, 1, 3, 3]}),
    OpCase(
        "avg_pool_2d_auto_stride",
        "avg_pool",
        {"input": _IMAGE},
        {"size": [1, 1, 2, 2], "stride": [1, 1, 2, 2]},
    ),
    OpCase(
        "avg_pool_2d_ignore_auto_stride",
        "avg_pool",
        {"input": _IMAGE},
        {"size": [1, 1, 3, 3], "border": "ignore", "stride": [1, 1, 2, 2]},
    ),
    OpCase(
        "avg_pool_2d_ignore_dilation",
        "avg_pool",
        {"input": _IMAGE},
        {"size": [1, 1, 3, 2], "border": "ignore", "dilation": [1, 1, 2, 2]},
    ),
    OpCase(
        "avg_pool_2d_stride_above_size",
        "avg_pool",
        {"input": Real((1, 2, 8, 7))},
        {"size": [1, 1, 2, 2], "stride": [1, 1, 3, 3]},
    ),
    OpCase(
        "avg_pool_2d_reflect",
        "avg_pool",
        {"input": _IMAGE},
        {"size": [1, 1, 3, 3], "border": "reflect", "padding": _PADS},
    ),
    OpCase(
        "avg_pool_global",
        "avg_pool",
        {"input": _IMAGE},
        {"size": [1, 1, 4, 5], "padding": [_NONE] * 4},
    ),
    OpCase("avg_pool_channels", "avg_pool", {"input": Real((1, 5, 3))}, {"size": [1, 3, 1]}),
    OpCase(
        "avg_pool_3d",
        "avg_pool",
        {"input": Real((1, 1, 3, 4, 4))},
        {"size": [1, 1, 2, 2, 3], "border": "ignore", "stride": [1, 1, 1, 2, 2]},
    ),
    OpCase("rms_pool_1d", "rms_pool", {"input": Real((1, 2, 6), 0.2, 1.0)}, {"size": [1, 1, 3]}),
    OpCase(
        "rms_pool_2d_ignore",
        "rms_pool",
        {"input": Real((1, 2, 4, 5), distinct=True)},
        {"size": [1, 1, 3, 2], "border": "ignore", "stride": [1, 1, 2, 2]},
    ),
    OpCase(
        "rms_pool_2d_replicate_dilation",
        "rms_pool",
        {"input": Real((1, 2, 5, 5), distinct=True)},
        {
            "size": [1, 1, 2, 3],
            "border": "replicate",
            "padding": [_NONE, _NONE, (1, 1), (2, 2)],
            "dilation": [1, 1, 2, 2],
        },
    ),
    OpCase(
        "rms_pool_channels",
        "rms_pool",
        {"input": Real((2, 4, 2), distinct=True)},
        {"size": [1, 2, 1]},
    ),
)
