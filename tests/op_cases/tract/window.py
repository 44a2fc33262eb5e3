"""Sliding windows and up-sampling as tract reads them."""

from __future__ import annotations

from typing import Any

from tests.op_cases.case import Given, Integers, OpCase, Real

from .rows import INTEGERS, TYPES, case, row

_NONE = (0, 0)
_INDEX = "one of its results is an index"
_IMAGE = Real((2, 3, 5, 6))
_FILTER = Real((4, 3, 3, 3))
_SMALL = Real((1, 4, 3, 4))


def _conv(name: str, input: Any, filter: Any, bias: Any = 0.0, **attributes: Any) -> OpCase:
    return row(f"conv_{name}", "conv", input, filter, bias, **attributes)


def _deconv(name: str, input: Any, filter: Any, bias: Any = 0.0, **attributes: Any) -> OpCase:
    return row(f"deconv_{name}", "deconv", input, filter, bias, **attributes)


def _integers(name: str, input: Any, filter: Any, bias: Any = 0, **attributes: Any) -> OpCase:
    operands = {"input": input, "filter": filter, "bias": bias}
    return case(f"conv_integers_{name}", "conv", operands, INTEGERS, **attributes)


_CONV = (
    row("conv_defaults", "conv", _IMAGE, _FILTER),
    _conv("same_even", _IMAGE, Real((4, 3, 2, 4))),
    _conv("same_stride", _IMAGE, _FILTER, stride=[2, 3]),
    _conv("same_dilation", _IMAGE, _FILTER, dilation=[2, 1]),
    _conv("explicit", _IMAGE, _FILTER, padding=[(1, 1), (0, 2)], stride=[2, 1], dilation=[1, 2]),
    _conv("all_axes_padded", _IMAGE, _FILTER, padding=[_NONE, _NONE, (1, 1), (2, 0)]),
    _conv("remainder", Real((1, 1, 6, 7)), Real((1, 1, 3, 3)), padding=[_NONE] * 2, stride=[2, 3]),
    _conv("grouped", Real((2, 4, 5, 4)), Real((6, 2, 3, 3)), Real((6,)), groups=2),
    _conv("planes", _IMAGE, Real((3, 1, 3, 3)), Real((3,)), groups=0, padding=[(1, 1), (1, 1)]),
    _conv("planes_multiplier", _IMAGE, Real((6, 1, 3, 2)), Real((6,)), groups=0),
    _conv("planes_by_count", _IMAGE, Real((3, 1, 3, 3)), groups=3, padding=[(1, 1), (1, 1)]),
    _conv("rank3", Real((2, 3, 8)), Real((4, 3, 3)), Real((4,)), padding=[(1, 1)], stride=[2]),
    _conv("rank3_dilation", Real((1, 2, 9)), Real((2, 2, 3)), padding=[(0, 4)], dilation=[2]),
    _conv("rank5", Real((1, 2, 3, 4, 3)), Real((3, 2, 2, 3, 2)), Real((3,))),
    _conv(
        "rank5_grouped",
        Real((1, 4, 3, 3, 4)),
        Real((4, 2, 2, 2, 2)),
        padding=[(0, 1), (1, 0), (1, 1)],
        stride=[1, 2, 1],
        groups=2,
    ),
    _conv("1x1", _IMAGE, Real((5, 3, 1, 1)), Real((5,)), padding=[_NONE] * 2),
    _conv("bias_scalar", _IMAGE, _FILTER, 0.5),
    _conv("bias_rank0", _IMAGE, _FILTER, Real(())),
    _conv("bias_one", _IMAGE, _FILTER, Real((1, 1))),
    _conv("bias_row", _IMAGE, _FILTER, Real((1, 4))),
    _conv("bias_rank4", _IMAGE, _FILTER, Real((1, 4, 1, 1))),
    _conv("bias_trailing_ones", _IMAGE, _FILTER, Real((4, 1, 1))),
    _conv("bias_of_one_channel", _IMAGE, Real((1, 3, 3, 3)), Given((-0.25,))),
    _integers("same", Integers((1, 2, 4, 5), -9, 10), Integers((3, 2, 3, 3), -9, 10)),
    _integers(
        "grouped",
        Integers((2, 4, 5, 6), -128, 128),
        Integers((6, 2, 3, 2), -128, 128),
        Integers((6,), -1000, 1000),
        padding=[(1, 0), (2, 1)],
        stride=[2, 1],
        dilation=[1, 2],
        groups=2,
    ),
    _integers(
        "planes", Integers((1, 3, 7), 0, 256), Integers((3, 1, 3), -9, 10), 7, groups=0, stride=[2]
    ),
)

_DECONV = (
    row("deconv_defaults", "deconv", _SMALL, Real((2, 4, 3, 3))),
    _deconv("same_stride", _SMALL, Real((2, 4, 3, 3)), stride=[2, 2]),
    _deconv("same_even", _SMALL, Real((2, 4, 4, 2)), Real((2,)), stride=[2, 3]),
    _deconv("same_stride_above_size", Real((1, 2, 4)), Real((3, 2, 2)), stride=[3]),
    _deconv("twofold", _SMALL, Real((2, 4, 2, 2)), Real((2,)), padding=[_NONE] * 2, stride=[2, 2]),
    _deconv(
        "cut", _SMALL, Real((2, 4, 4, 4)), Given((-0.5,)), padding=[(1, 1), (1, 1)], stride=[2, 2]
    ),
    # What torch calls an output padding of 1: one less is cut behind.
    _deconv("output_padding", _SMALL, Real((2, 4, 3, 3)), padding=[(1, 0), (1, 0)], stride=[2, 2]),
    _deconv(
        "dilation",
        _SMALL,
        Real((2, 4, 3, 2)),
        padding=[(1, 1), (0, 2)],
        stride=[2, 1],
        dilation=[2, 3],
    ),
    _deconv("grouped", _SMALL, Real((6, 2, 2, 3)), Real((1, 6)), stride=[2, 1], groups=2),
    _deconv("planes", _SMALL, Real((4, 1, 3, 3)), groups=0, padding=[(1, 1), (1, 1)]),
    _deconv("planes_by_count", _SMALL, Real((8, 1, 2, 2)), groups=4, stride=[2, 2]),
    _deconv(
        "output_shape_spatial",
        _SMALL,
        Real((2, 4, 3, 3)),
        padding=[(1, 1), (1, 1)],
        stride=[2, 2],
        output_shape=[6, 7],
    ),
    _deconv(
        "output_shape_all_axes",
        _SMALL,
        Real((2, 4, 3, 3)),
        padding=[(1, 1), (1, 1)],
        stride=[2, 2],
        output_shape=[1, 2, 5, 8],
    ),
    _deconv("output_shape_same", _SMALL, Real((2, 4, 3, 3)), stride=[2, 2], output_shape=[5, 8]),
    _deconv(
        "output_shape_past_the_windows",
        Real((1, 2, 3)),
        Real((2, 2, 2)),
        padding=[_NONE],
        stride=[3],
        output_shape=[10],
    ),
    _deconv("rank3", Real((2, 3, 5)), Real((4, 3, 3)), Real((1, 4, 1)), padding=[(1, 1)]),
    _deconv("rank5", Real((1, 2, 2, 3, 2)), Real((3, 2, 2, 2, 3)), Real((3,)), stride=[2, 1, 2]),
    # Up-sampling of each plane, written with batch and channels among the spatial axes.
    _deconv(
        "rank6",
        Real((1, 1, 1, 2, 2, 3)),
        Real((1, 1, 1, 1, 2, 2), 1.0, 1.5),
        padding=[_NONE] * 6,
        stride=[1, 1, 2, 2],
    ),
)

_PLANES = Real((2, 2, 5, 6), distinct=True)
_PADS = [_NONE, _NONE, (1, 1), (1, 2)]
# The same windows for the maximum, and for both the maximum and its index.
_WINDOWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "halves": (_PLANES, {"size": [1, 1, 2, 2], "padding": [_NONE] * 4, "stride": [1, 1, 2, 2]}),
    "same": (_PLANES, {"size": [1, 1, 3, 3]}),
    "same_even_stride": (_PLANES, {"size": [1, 1, 2, 4], "stride": [1, 1, 2, 3]}),
    "padded_negative": (
        Real((1, 2, 5, 6), -2.0, -0.5, distinct=True),
        {"size": [1, 1, 3, 3], "padding": _PADS, "stride": [1, 1, 2, 2]},
    ),
    "ignore_negative": (
        Real((1, 2, 5, 6), -2.0, -0.5, distinct=True),
        {"size": [1, 1, 3, 3], "border": "ignore", "padding": _PADS},
    ),
    "dilation": (
        _PLANES,
        {"size": [1, 1, 2, 3], "padding": [_NONE] * 4, "dilation": [1, 1, 3, 2]},
    ),
    "dilation_negative_stride": (
        Real((1, 1, 6, 6), -2.0, -0.5, distinct=True),
        {
            "size": [1, 1, 3, 2],
            "padding": [_NONE, _NONE, (2, 2), (1, 1)],
            "stride": [1, 1, 2, 1],
            "dilation": [1, 1, 2, 3],
        },
    ),
    "rank3": (Real((2, 2, 7), distinct=True), {"size": [1, 1, 3], "stride": [1, 1, 2]}),
    "rank5": (
        Real((1, 2, 3, 4, 3), distinct=True),
        {"size": [1, 1, 2, 2, 2], "padding": [_NONE] * 5, "stride": [1, 1, 1, 2, 1]},
    ),
    "no_batch": (
        Real((2, 4, 5), distinct=True),
        {"size": [1, 2, 2], "padding": [_NONE, (1, 0), (0, 1)], "stride": [1, 2, 2]},
    ),
}
_WHOLE: dict[str, tuple[Any, dict[str, Any]]] = {
    "integers": (
        Integers((1, 2, 5, 6), -99, -9),
        {"size": [1, 1, 3, 3], "padding": _PADS, "stride": [1, 1, 2, 2]},
    ),
    "integers_dilation": (
        Integers((1, 1, 6, 6), -99, -9),
        {"size": [1, 1, 2, 2], "padding": _PADS, "dilation": [1, 1, 2, 3]},
    ),
    "ties": (Given((((3, 3, 1, 1, 2, 2, 2),),)), {"size": [1, 1, 3]}),
}

_POOLS = (
    *(
        row(f"max_pool_{name}", "max_pool", x, **attributes)
        for name, (x, attributes) in _WINDOWS.items()
    ),
    *(
        row(f"max_pool_{name}", "max_pool", x, not_differentiable=TYPES, **attributes)
        for name, (x, attributes) in _WHOLE.items()
    ),
    *(
        row(
            f"max_pool_with_index_{name}",
            "max_pool_with_index",
            x,
            not_differentiable=_INDEX,
            **attributes,
        )
        for name, (x, attributes) in (_WINDOWS | _WHOLE).items()
    ),
)

_UPSAMPLING = (
    row("nearest_upsample_2d", "nearest_upsample", _IMAGE, factor=[2, 3]),
    row("nearest_upsample_1d", "nearest_upsample", Real((2, 3, 4)), factor=[3]),
    row("nearest_upsample_last_axis", "nearest_upsample", _IMAGE, factor=[2]),
    row("nearest_upsample_ones", "nearest_upsample", _IMAGE, factor=[1, 1]),
    row(
        "nearest_upsample_integers",
        "nearest_upsample",
        Integers((1, 2, 3, 2), -99, 100),
        not_differentiable=TYPES,
        factor=[2, 2],
    ),
    row("multilinear_upsample_2d", "multilinear_upsample", _IMAGE, factor=[2, 3]),
    row("multilinear_upsample_last_axis", "multilinear_upsample", _IMAGE, factor=[4]),
    *(
        row(
            f"multilinear_upsample_{method}_{name}",
            "multilinear_upsample",
            Real(shape),
            factor=factor,
            method=method,
            border="replicate",
        )
        for method in ("symmetric", "asymmetric", "aligned")
        for name, shape, factor in (
            ("1d", (1, 2, 5), [3]),
            ("2d", (1, 2, 3, 4), [2, 2]),
            ("3d", (1, 1, 2, 3, 2), [2, 1, 3]),
            ("single", (1, 2, 1, 3), [2, 2]),
        )
    ),
)

CASES: tuple[OpCase, ...] = (*_CONV, *_DECONV, *_POOLS, *_UPSAMPLING)
