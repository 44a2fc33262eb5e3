"""Convolution and deconvolution (spec 4.3.1), and the separable ones (4.8.2)."""

from __future__ import annotations

from .case import OpCase, Real

_IMAGE = Real((2, 2, 5, 6))
_FILTER = Real((3, 2, 3, 3))
_SMALL = Real((2, 3, 3, 4))
_BACK = Real((3, 2, 3, 3))
_PADS = [(2, 2), (1, 2)]

CASES = (
    # 1-D
    OpCase("conv_1d_auto", "conv", {"input": Real((2, 3, 7)), "filter": Real((4, 3, 3))}),
    OpCase(
        "conv_1d_bias_stride",
        "conv",
        {"input": Real((2, 3, 8)), "filter": Real((4, 3, 3)), "bias": Real((1, 4))},
        {"stride": [2]},
    ),
    OpCase(
        "conv_1d_stride_above_size",
        "conv",
        {"input": Real((1, 2, 9)), "filter": Real((2, 2, 2))},
        {"stride": [4]},
    ),
    OpCase(
        "conv_1d_dilation_reflect",
        "conv",
        {"input": Real((1, 2, 8)), "filter": Real((2, 2, 3))},
        {"border": "reflect", "padding": [(3, 2)], "dilation": [3]},
    ),
    OpCase(
        "conv_1d_planes",
        "conv",
        {"input": Real((1, 3, 6)), "filter": Real((6, 1, 3))},
        {"groups": 0},
    ),
    # 2-D
    OpCase("conv_2d_auto", "conv", {"input": _IMAGE, "filter": _FILTER}),
    OpCase("conv_2d_auto_even", "conv", {"input": _IMAGE, "filter": Real((3, 2, 2, 4))}),
    OpCase(
        "conv_2d_1x1", "conv", {"input": _IMAGE, "filter": Real((4, 2, 1, 1)), "bias": Real((1, 4))}
    ),
    OpCase(
        "conv_2d_1x1_stride",
        "conv",
        {"input": _IMAGE, "filter": Real((4, 2, 1, 1))},
        {"stride": [2, 3]},
    ),
    OpCase("conv_2d_bias_literal", "conv", {"input": _IMAGE, "filter": _FILTER, "bias": 0.5}),
    OpCase("conv_2d_bias_one", "conv", {"input": _IMAGE, "filter": _FILTER, "bias": Real((1, 1))}),
    OpCase(
        "conv_2d_bias_rank4",
        "conv",
        {"input": _IMAGE, "filter": _FILTER, "bias": Real((1, 3, 1, 1))},
    ),
    OpCase(
        "conv_2d_valid", "conv", {"input": _IMAGE, "filter": _FILTER}, {"padding": [(0, 0), (0, 0)]}
    ),
    OpCase(
        "conv_2d_asymmetric",
        "conv",
        {"input": _IMAGE, "filter": _FILTER},
        {"padding": [(0, 2), (3, 1)]},
    ),
    OpCase("conv_2d_auto_stride", "conv", {"input": _IMAGE, "filter": _FILTER}, {"stride": [2, 2]}),
    OpCase(
        "conv_2d_auto_stride_3_2", "conv", {"input": _IMAGE, "filter": _FILTER}, {"stride": [3, 2]}
    ),
    OpCase(
        "conv_2d_remainder",
        "conv",
        {"input": Real((1, 1, 6, 7)), "filter": Real((1, 1, 3, 3))},
        {"padding": [(0, 0), (0, 0)], "stride": [2, 3]},
    ),
    OpCase(
        "conv_2d_auto_dilation", "conv", {"input": _IMAGE, "filter": _FILTER}, {"dilation": [2, 3]}
    ),
    OpCase(
        "conv_2d_stride_dilation",
        "conv",
        {"input": Real((1, 2, 7, 8)), "filter": _FILTER},
        {"padding": [(1, 2), (2, 0)], "stride": [2, 1], "dilation": [2, 2]},
    ),
    OpCase(
        "conv_2d_replicate",
        "conv",
        {"input": _IMAGE, "filter": _FILTER},
        {"border": "replicate", "padding": _PADS},
    ),
    OpCase(
        "conv_2d_reflect",
        "conv",
        {"input": _IMAGE, "filter": _FILTER},
        {"border": "reflect", "padding": _PADS},
    ),
    OpCase(
        "conv_2d_reflect_even",
        "conv",
        {"input": _IMAGE, "filter": _FILTER},
        {"border": "reflect-even", "padding": _PADS},
    ),
    OpCase(
        "conv_2d_replicate_auto_stride",
        "conv",
        {"input": _IMAGE, "filter": Real((3, 2, 4, 4))},
        {"border": "replicate", "stride": [2, 2]},
    ),
    OpCase(
        "conv_2d_reflect_groups_dilation",
        "conv",
        {"input": Real((1, 4, 6, 6)), "filter": Real((2, 2, 3, 2))},
        {"border": "reflect", "padding": [(2, 2), (1, 1)], "dilation": [2, 2], "groups": 2},
    ),
    OpCase(
        "conv_2d_groups",
        "conv",
        {"input": Real((2, 4, 4, 4)), "filter": Real((6, 2, 3, 3)), "bias": Real((1, 6))},
        {"groups": 2},
    ),
    OpCase(
        "conv_2d_planes",
        "conv",
        {"input": Real((2, 3, 4, 4)), "filter": Real((3, 1, 3, 3)), "bias": Real((1, 3))},
        {"groups": 0},
    ),
    OpCase(
        "conv_2d_planes_multiplier_stride",
        "conv",
        {"input": Real((1, 3, 5, 5)), "filter": Real((6, 1, 3, 3))},
        {"stride": [2, 2], "groups": 0},
    ),
    OpCase(
        "conv_2d_planes_by_count",
        "conv",
        {"input": Real((1, 3, 4, 4)), "filter": Real((3, 1, 2, 3))},
        {"padding": [(1, 0), (0, 1)], "groups": 3},
    ),
    OpCase(
        "conv_2d_planes_replicate",
        "conv",
        {"input": Real((1, 2, 4, 4)), "filter": Real((2, 1, 3, 3))},
        {"border": "replicate", "padding": [(1, 1), (2, 0)], "groups": 0},
    ),
    OpCase("conv_2d_one_pixel", "conv", {"input": Real((1, 2, 1, 1)), "filter": _FILTER}),
    # 3-D
    OpCase(
        "conv_3d_auto", "conv", {"input": Real((1, 2, 3, 3, 4)), "filter": Real((2, 2, 3, 2, 2))}
    ),
    OpCase(
        "conv_3d_groups",
        "conv",
        {"input": Real((1, 4, 3, 3, 3)), "filter": Real((4, 2, 2, 2, 2)), "bias": Real((1, 4))},
        {"padding": [(0, 1), (1, 0), (1, 1)], "stride": [1, 2, 1], "groups": 2},
    ),
    OpCase(
        "conv_3d_reflect_even",
        "conv",
        {"input": Real((1, 1, 3, 2, 3)), "filter": Real((1, 1, 3, 2, 3))},
        {"border": "reflect-even", "padding": [(1, 1), (1, 0), (2, 1)]},
    ),
    # Reverse
    OpCase("deconv_1d_auto", "deconv", {"input": Real((2, 3, 5)), "filter": Real((3, 2, 3))}),
    OpCase(
        "deconv_1d_bias_stride",
        "deconv",
        {"input": Real((1, 3, 4)), "filter": Real((3, 2, 4)), "bias": Real((1, 2))},
        {"padding": [(1, 1)], "stride": [2]},
    ),
    OpCase(
        "deconv_1d_stride_above_size",
        "deconv",
        {"input": Real((1, 2, 4)), "filter": Real((2, 1, 2))},
        {"stride": [3]},
    ),
    OpCase("deconv_2d_auto", "deconv", {"input": _SMALL, "filter": _BACK}),
    OpCase(
        "deconv_2d_auto_stride", "deconv", {"input": _SMALL, "filter": _BACK}, {"stride": [2, 2]}
    ),
    OpCase(
        "deconv_2d_auto_even_stride",
        "deconv",
        {"input": _SMALL, "filter": Real((3, 2, 4, 2)), "bias": 0.25},
        {"stride": [2, 3]},
    ),
    OpCase("deconv_2d_1x1", "deconv", {"input": _SMALL, "filter": Real((3, 2, 1, 1))}),
    OpCase(
        "deconv_2d_full",
        "deconv",
        {"input": _SMALL, "filter": _BACK},
        {"padding": [(0, 0), (0, 0)]},
    ),
    OpCase(
        "deconv_2d_asymmetric",
        "deconv",
        {"input": _SMALL, "filter": _BACK, "bias": Real((1, 2))},
        {"padding": [(0, 1), (2, 1)], "stride": [2, 1]},
    ),
    OpCase(
        "deconv_2d_dilation",
        "deconv",
        {"input": _SMALL, "filter": _BACK},
        {"padding": [(1, 1), (2, 2)], "dilation": [2, 2]},
    ),
    OpCase(
        "deconv_2d_stride_dilation",
        "deconv",
        {"input": _SMALL, "filter": _BACK},
        {"padding": [(1, 0), (1, 2)], "stride": [3, 2], "dilation": [2, 3]},
    ),
    OpCase(
        "deconv_2d_output_shape",
        "deconv",
        {"input": _SMALL, "filter": _BACK},
        {"padding": [(1, 1), (1, 1)], "stride": [2, 2], "output_shape": [2, 2, 6, 7]},
    ),
    OpCase(
        "deconv_2d_output_shape_auto",
        "deconv",
        {"input": _SMALL, "filter": _BACK},
        {"stride": [2, 2], "output_shape": [2, 2, 5, 7]},
    ),
    OpCase(
        "deconv_2d_groups",
        "deconv",
        {"input": Real((1, 4, 3, 3)), "filter": Real((4, 3, 2, 2)), "bias": Real((1, 6))},
        {"stride": [2, 2], "groups": 2},
    ),
    OpCase(
        "deconv_2d_planes",
        "deconv",
        {"input": Real((1, 3, 3, 3)), "filter": Real((3, 1, 3, 3))},
        {"padding": [(1, 0), (1, 0)], "stride": [2, 2], "groups": 0},
    ),
    OpCase(
        "deconv_2d_planes_multiplier",
        "deconv",
        {"input": Real((1, 4, 3, 3)), "filter": Real((4, 1, 2, 3))},
        {"stride": [2, 2], "output_shape": [1, 2, 6, 6], "groups": 0},
    ),
    OpCase(
        "deconv_2d_replicate",
        "deconv",
        {"input": _SMALL, "filter": _BACK},
        {"border": "replicate", "padding": [(1, 1), (0, 1)]},
    ),
    OpCase(
        "deconv_2d_replicate_stride",
        "deconv",
        {"input": _SMALL, "filter": _BACK},
        {"border": "replicate", "stride": [2, 2]},
    ),
    OpCase(
        "deconv_2d_reflect",
        "deconv",
        {"input": _SMALL, "filter": _BACK},
        {"border": "reflect", "padding": [(1, 1), (1, 1)]},
    ),
    OpCase(
        "deconv_2d_reflect_even",
        "deconv",
        {"input": _SMALL, "filter": _BACK},
        {"border": "reflect-even", "padding": [(1, 0), (2, 1)], "stride": [2, 1]},
    ),
    OpCase(
        "deconv_3d_stride",
        "deconv",
        {"input": Real((1, 2, 2, 2, 3)), "filter": Real((2, 2, 3, 2, 2)), "bias": Real((1, 2))},
        {"stride": [2, 1, 2]},
    ),
    OpCase(
        "deconv_3d_asymmetric",
        "deconv",
        {"input": Real((1, 2, 2, 3, 2)), "filter": Real((2, 1, 2, 3, 2))},
        {"padding": [(0, 1), (1, 0), (0, 0)], "stride": [2, 1, 1]},
    ),
    # Separable
    OpCase(
        "separable_conv",
        "separable_conv",
        {
            "input": Real((1, 2, 4, 5)),
            "plane_filter": Real((2, 1, 3, 3)),
            "point_filter": Real((3, 2, 1, 1)),
            "bias": Real((1, 3)),
        },
    ),
    OpCase(
        "separable_conv_multiplier_groups",
        "separable_conv",
        {
            "input": Real((1, 2, 5, 5)),
            "plane_filter": Real((4, 1, 2, 3)),
            "point_filter": Real((2, 2, 1, 1)),
        },
        {
            "border": "replicate",
            "padding": [(1, 1), (0, 2)],
            "stride": [2, 1],
            "dilation": [1, 2],
            "groups": 2,
        },
    ),
    OpCase(
        "separable_deconv",
        "separable_deconv",
        {
            "input": Real((1, 3, 3, 3)),
            "plane_filter": Real((2, 1, 3, 3)),
            "point_filter": Real((3, 2, 1, 1)),
            "bias": Real((1, 2)),
        },
        {"stride": [2, 2]},
    ),
    OpCase(
        "separable_deconv_output_shape",
        "separable_deconv",
        {
            "input": Real((1, 4, 3, 3)),
            "plane_filter": Real((2, 1, 3, 2)),
            "point_filter": Real((4, 1, 1, 1)),
        },
        {
            "padding": [(1, 1), (0, 0)],
            "stride": [2, 2],
            "output_shape": [1, 2, 6, 7],
            "groups": 2,
        },
    ),
)
