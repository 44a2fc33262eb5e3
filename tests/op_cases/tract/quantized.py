"""Products of quantised tensors of tract. Scales that are powers of two keep ties exact."""

from __future__ import annotations

from typing import Any

from tests.op_cases.case import Given, Integers, OpCase

from .rows import INTEGERS, case

_A = Integers((3, 4), -128, 128)
_B = Integers((4, 5), -128, 128)
_SCALES = {"a_scale": 0.5, "b_scale": 0.25, "c_scale": 64.0}
_ZEROS = {"a0": 7, "b0": -3, "c0": 11}
_ODD = {"a_scale": 0.0123, "b_scale": 0.057, "c_scale": 1.31}
_ROWS = Given((0.5, 0.125, 0.25))
_COLUMNS = Given((0.5, 0.125, 0.25, 1.0, 2.0))


_PARAMETERS = ("bias", "a0", "a_scale", "b0", "b_scale", "c0", "c_scale")
_OF_PRODUCTS = ("bias", "a_zero_point", "a_scale", "b_zero_point", "b_scale")
_OF_CONV = ("bias", "filter_zero_point", "filter_scale", "input_zero_point", "input_scale")
_OF_OUTPUT = ("output_zero_point", "output_scale")


def _ordered(parameters: dict[str, Any], names: tuple[str, ...] = _PARAMETERS) -> dict[str, Any]:
    pairs = zip(_PARAMETERS, names, strict=True)
    return {name: parameters[short] for short, name in pairs if short in parameters}


def _einsum(name: str, expr: str, a: Any, b: Any, dtype: str, **parameters: Any) -> OpCase:
    operands = {"a": a, "b": b, **_ordered(parameters, _OF_PRODUCTS + _OF_OUTPUT)}
    return case(f"einsum_q_{name}", "quantized_einsum", operands, INTEGERS, expr=expr, dtype=dtype)


def _matmul(
    name: str, a: Any, b: Any, output: str, axes: tuple[int, ...] = (), **parameters: Any
) -> OpCase:
    return case(
        f"qmatmul_{name}",
        "tract_core_qmatmul",
        {"A": a, "B": b, **_ordered(parameters)},
        INTEGERS,
        axes=list(axes),
        output_type=output,
    )


def _conv(name: str, input: Any, filter: Any, attributes: Any, **parameters: Any) -> OpCase:
    return case(
        f"qconv_{name}",
        "quantized_conv",
        {"input": input, "filter": filter, **_ordered(parameters, _OF_CONV + _OF_OUTPUT)},
        INTEGERS,
        **attributes,
    )


_PLAIN = (0, 1, 0, 1, 0, 1)
_IMAGE = Integers((1, 2, 5, 4), 0, 256)
_FILTER = Integers((3, 2, 3, 3), -128, 128)

CASES: tuple[OpCase, ...] = (
    _einsum("sums", "mk,kn->mn", _A, _B, "int32"),
    _einsum("zero_points", "mk,kn->mn", _A, _B, "int32", a0=7, b0=-3, c0=11),
    _einsum("i8", "mk,kn->mn", _A, _B, "int8", **_ZEROS, **_SCALES),
    _einsum("u8", "mk,kn->mn", _A, _B, "uint8", **_ZEROS, **_SCALES),
    _einsum("saturated", "mk,kn->mn", _A, _B, "uint8", c0=128, **(_SCALES | {"c_scale": 1.0})),
    _einsum("odd_scales", "mk,kn->mn", _A, _B, "int8", **_ZEROS, **_ODD),
    case(
        "einsum_q_acc_is_the_default",
        "tract_core_einsum_q",
        {"inputs": [_A, _B], **_SCALES},
        INTEGERS,
        expr="mk,kn->mn",
        acc="i32",
    ),
    _einsum(
        "ties",
        "i,i->i",
        Given((-5, -3, -1, 1, 3, 5)),
        Given((1, 1, 1, 1, 1, 1)),
        "int8",
        a_scale=0.5,
    ),
    _einsum("bias", "mk,kn->mn", _A, _B, "int8", bias=-555, **_SCALES),
    _einsum(
        "parameters_named",
        "mk,kn,,,,,,,->mn",
        _A,
        _B,
        "int8",
        bias=Integers((), -999, 1000),
        a0=Integers((), -9, 10),
        **_SCALES,
    ),
    _einsum(
        "per_row",
        "mk,kn,m,m,m,,,,->mn",
        _A,
        _B,
        "int8",
        bias=Integers((3,), -999, 1000),
        a0=Integers((3,), -9, 10),
        a_scale=_ROWS,
        b_scale=0.25,
        c_scale=64.0,
    ),
    _einsum(
        "per_column",
        "mk,kn,n,,,n,n,n,n->nm",
        _A,
        _B,
        "uint8",
        bias=Integers((5,), -999, 1000),
        b0=Integers((5,), -9, 10),
        b_scale=_COLUMNS,
        c0=Integers((5,), 100, 150),
        c_scale=Given((32.0, 64.0, 128.0, 32.0, 16.0)),
    ),
    _einsum(
        "zero_points_along_the_sum",
        "mk,kn,,k,,,,,->mn",
        _A,
        _B,
        "int32",
        a0=Integers((4,), -9, 10),
    ),
    _einsum(
        "batch",
        "bmk,bkn->bmn",
        Integers((2, 2, 3), 0, 256),
        Integers((1, 3, 2), -128, 128),
        "uint8",
        **_ZEROS,
        **(_SCALES | {"c_scale": 128.0}),
    ),
    _matmul("sums", _A, _B, "i32", _PLAIN),
    _matmul("defaults", _A, _B, "i32"),
    _matmul("i8", _A, _B, "i8", _PLAIN, bias=-99, **_ZEROS, **_SCALES),
    _matmul("u8_odd_scales", _A, _B, "u8", _PLAIN, **_ZEROS, **_ODD),
    _matmul("negative_axes", _A, _B, "i8", (-2, -1, -2, -1, -2, -1), **_ZEROS, **_SCALES),
    _matmul(
        "transposed", Integers((4, 3), -128, 128), _B, "i8", (1, 0, 0, 1, 1, 0), **_ZEROS, **_SCALES
    ),
    _matmul(
        "per_channel",
        Integers((2, 3, 4), -128, 128),
        Integers((2, 4, 5), -128, 128),
        "i8",
        (1, 2, 1, 2, 1, 2),
        bias=Integers((3,), -999, 1000),
        a0=Integers((3,), -9, 10),
        a_scale=_ROWS,
        b0=Integers((5,), -9, 10),
        b_scale=_COLUMNS,
        c_scale=64.0,
    ),
    _conv("same", _IMAGE, _FILTER, {"dtype": "int32"}),
    _conv(
        "u8",
        _IMAGE,
        _FILTER,
        {"padding": [(1, 1), (1, 1)], "stride": [2, 1], "dtype": "uint8"},
        bias=Integers((3,), -9999, 10000),
        a0=3,
        a_scale=0.25,
        b0=128,
        b_scale=0.5,
        c0=100,
        c_scale=256.0,
    ),
    _conv(
        "per_channel",
        _IMAGE,
        _FILTER,
        {"padding": [(0, 1), (2, 0)], "dilation": [2, 1], "dtype": "int8"},
        bias=Integers((1, 3, 1, 1), -9999, 10000),
        a0=Integers((3,), -9, 10),
        a_scale=_ROWS,
        b0=5,
        c_scale=512.0,
    ),
    _conv(
        "odd_scales",
        _IMAGE,
        _FILTER,
        {"padding": [(0, 0), (0, 0)], "dtype": "uint8"},
        b0=131,
        c0=127,
        **_ODD,
    ),
    _conv(
        "groups",
        Integers((1, 4, 6), -128, 128),
        Integers((4, 2, 3), -128, 128),
        {"groups": 2, "dtype": "int8"},
        **_SCALES,
    ),
    case(
        "qconv_group_planes",
        "tract_core_qconv",
        {"input": Integers((2, 3, 6), -128, 128), "filter": Integers((3, 1, 3), -128, 128)}
        | {"a_scale": 0.5, "b0": 1, "b_scale": 0.25, "c_scale": 64.0},
        INTEGERS,
        group=0,
        output_dt="i8",
    ),
)
