"""What layers refuse: each rejection names the layer, the vx_status and what is wrong."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import nnef_jax
from nnef_jax import openvx
from nnef_jax.openvx import Tensor, VxError


def zeros(*shape: int, dtype: str = "int16", position: int | None = None) -> Tensor:
    return Tensor(np.zeros(shape, dtype), position)


conv = partial(openvx.convolution_layer, zeros(3, 6, 6), zeros(2, 3, 3, 3))
deconv = partial(openvx.deconvolution_layer, zeros(3, 4, 4), zeros(2, 3, 3, 3))
full = partial(openvx.fully_connected_layer, zeros(2, 8), zeros(4, 8))
pool = partial(openvx.pooling_layer, zeros(3, 6, 6), pooling_size=(2, 2))
active = partial(openvx.activation_layer, zeros(4))
norm = partial(
    openvx.normalization_layer,
    zeros(3, 6, 6),
    type="same_map",
    normalization_size=3,
    alpha=1.0,
    beta=1.0,
)
regions = partial(openvx.roi_pooling_layer, zeros(3, 6, 6), zeros(2, 4), output_shape=(2, 3, 2, 2))

REFUSED: list[tuple[Any, str, str]] = [
    (
        lambda: openvx.convolution_layer(zeros(4, 6, 6), zeros(2, 3, 3, 3)),
        "DIMENSION",
        "4 input maps",
    ),
    (lambda: openvx.convolution_layer(zeros(6, 6), zeros(2, 3, 3, 3)), "DIMENSION", "3 dimensions"),
    (lambda: conv(output_shape=(3, 4, 4)), "DIMENSION", r"must be \(2,\) and 2 extents"),
    (lambda: conv(output_shape=(2, 3, 3)), "DIMENSION", "no integer skip.*a skip of 1 gives 4"),
    (lambda: conv(output_shape=(2, 0, 4)), "DIMENSION", "extent below 1"),
    (lambda: conv(output_shape=(2, 4, 4), skip=(1, 1)), "PARAMETERS", "both given"),
    (lambda: conv(dilation=(3, 0)), "PARAMETERS", "windows span 9 items"),
    (lambda: conv(padding=(-1, 0)), "PARAMETERS", "padding must be at least 0"),
    (lambda: conv(padding=(1 << 40, 0)), "SUPPORTED", "2.*31 items"),
    (lambda: conv(padding=(1 << 40, 0), skip=(1 << 40, 1)), "SUPPORTED", "2.*31 items"),
    (lambda: conv(skip=(0, 1)), "PARAMETERS", "skip must be at least 1"),
    (lambda: conv(groups=2), "DIMENSION", "in 2 groups"),
    (lambda: conv(overflow_policy="saturated"), "PARAMETERS", "did you mean 'saturate'"),
    (lambda: conv(rounding_policy=None), "PARAMETERS", "to_zero, nearest_even, not None"),
    (lambda: conv(semantics="cts"), "PARAMETERS", "spec, khronos"),
    (lambda: conv(down_scale_size_rounding="ceil"), "PARAMETERS", "did you mean 'ceiling'"),
    (
        lambda: conv(zeros(3)),
        "DIMENSION",
        r"biases have the shape \(3,\), it must be \(2,\) or \(2, 4, 4\)",
    ),
    (lambda: conv(zeros(2, dtype="int8")), "FORMAT", "biases has int8, inputs int16"),
    (lambda: conv(zeros(2, position=4)), "FORMAT", "biases has the fixed_point_position 4"),
    (lambda: conv(output_position=7), "FORMAT", "strict=False takes any"),
    (lambda: conv(zeros(2, position=20), strict=False), "FORMAT", "more fractional bits"),
    (lambda: conv(strict=False, output_position=-32), "FORMAT", "48 bits off"),
    (
        lambda: conv(strict=False, output_position=-20, semantics="khronos"),
        "SUPPORTED",
        "strict=True",
    ),
    (lambda: deconv(a=(1, 0)), "PARAMETERS", "a along x is 1, it must be below the upscale"),
    (
        lambda: deconv(padding=(3, 0)),
        "PARAMETERS",
        "padding along x is 3, weights of size 3 allow up to 2",
    ),
    (lambda: deconv(output_shape=(2, 8, 8)), "DIMENSION", "no integer upscale"),
    (lambda: deconv(upscale=(1 << 30, 1 << 30)), "SUPPORTED", "2.*31 items"),
    (lambda: openvx.fully_connected_layer(zeros(2, 7), zeros(4, 8)), "DIMENSION", "do not fit"),
    (lambda: full(output_shape=(3, 4)), "DIMENSION", "do not fit"),
    (lambda: full(zeros(2, 4)), "DIMENSION", r"biases have the shape \(2, 4\), it must be \(4,\)"),
    (lambda: pool(pooling_type="min"), "PARAMETERS", "max, avg"),
    (lambda: pool(output_shape=(4, 3, 3)), "DIMENSION", "must be"),
    (lambda: pool(output_shape=(3, 4, 4)), "DIMENSION", "no integer skip"),
    (lambda: pool(pooling_size=(0, 2)), "PARAMETERS", "at least 1"),
    (lambda: pool(rounding="up"), "PARAMETERS", "floor, ceiling"),
    (lambda: active(function="tanh"), "PARAMETERS", "hyperbolic_tan"),
    (lambda: active(function="brelu", a=-1), "PARAMETERS", "must not be negative"),
    (lambda: active(function="linear", b=float("nan")), "PARAMETERS", "b must be finite"),
    (lambda: norm(normalization_size=4), "PARAMETERS", "3, 5 or 7, not 4"),
    (lambda: norm(normalization_size=9), "PARAMETERS", "3, 5 or 7, not 9"),
    (lambda: norm(alpha=0.0), "PARAMETERS", "alpha must be above 0"),
    (lambda: norm(type="across"), "PARAMETERS", "did you mean 'across_maps'"),
    (lambda: regions(pool_type="avg"), "SUPPORTED", "pool_type must be 'max'"),
    (
        lambda: openvx.roi_pooling_layer(zeros(3, 6, 6), zeros(2, 5), output_shape=(2, 3, 2, 2)),
        "DIMENSION",
        "input_rois",
    ),
    (
        lambda: openvx.softmax_layer(zeros(1, 1, 1, 1, 1)),
        "DIMENSION",
        "1 or 2 or 3 or 4 dimensions",
    ),
    (lambda: openvx.softmax_layer(zeros(3, position=7)), "FORMAT", "fixed_point_position 7"),
    (lambda: Tensor(np.zeros(3, np.float32)), "FORMAT", "Tensor.quantize"),
    (lambda: zeros(3, 0), "DIMENSION", r"items along each axis: \(0, 3\)"),
    (
        lambda: openvx.convolution_layer(
            zeros(1, 70, 70), zeros(1, 1, 65, 64), semantics="khronos"
        ),
        "SUPPORTED",
        "more than 4096 items.*spec",
    ),
    (lambda: regions(output_shape=(2, 3, 1 << 15, 1)), "SUPPORTED", "parts or more"),
    (lambda: zeros(3, position=99), "FORMAT", "-32 to 32, not 99"),
    (lambda: zeros(3, 4).view((0, 0), (5, 3)), "PARAMETERS", "dimension 0"),
    (lambda: zeros(3, 4).view((0,), (1, 2)), "DIMENSION", "as many starts and ends"),
    (lambda: zeros(3, 4).with_view((0,), (2,), zeros(3)), "DIMENSION", r"\(2,\), the part \(3,\)"),
    (
        lambda: zeros(3).with_view((0,), (3,), zeros(3, position=1)),
        "FORMAT",
        "must have the type and position of",
    ),
    (lambda: openvx.table_layer(zeros(3), np.zeros(9, np.int16)), "DIMENSION", r"2\*\*16 items"),
    (lambda: openvx.table_layer(zeros(3), np.zeros(9, np.int8)), "FORMAT", "table has int8"),
    (lambda: openvx.table(np.abs, np.int32, 8), "FORMAT", "not int32"),
    (
        lambda: openvx.table(lambda x: x[:3], np.int8),
        "DIMENSION",
        r"each of 256 numbers.*\(3,\)",
    ),
    (lambda: active(function="linear", a=10**400), "PARAMETERS", "a must be finite"),
    (lambda: openvx.static_weights(zeros(3)), "DIMENSION", "2 or 4 dimensions"),
]


@pytest.mark.parametrize(("use", "status", "words"), REFUSED)
def test_refused(use: Any, status: str, words: str) -> None:
    with pytest.raises(VxError, match=f"(?s)VX_ERROR_(INVALID|NOT)_{status}: .*{words}") as caught:
        use()
    assert isinstance(caught.value, nnef_jax.NnefError)
    assert caught.value.status.endswith(status)


def test_the_layer_is_named() -> None:
    with pytest.raises(
        VxError, match=r"^VX_ERROR_INVALID_PARAMETERS: pooling_layer: rounding must"
    ):
        pool(rounding="up")


WRONG_KINDS: list[tuple[Any, str]] = [
    (lambda: openvx.convolution_layer(np.zeros((3, 6, 6)), zeros(2, 3, 3, 3)), "must be a Tensor"),
    (lambda: conv(padding=1), "padding must be two integers"),
    (lambda: conv(padding=(0.5, 1)), "padding must be two integers"),
    (lambda: conv(skip=0), "skip must be two integers"),
    (lambda: deconv(upscale=0), "upscale must be two integers"),
    (lambda: pool(skip=()), "skip must be two integers"),
    (lambda: conv(np.zeros(2, np.int16)), "biases must be a Tensor"),
    (lambda: openvx.static_weights(np.zeros((2, 3))), "weights must be a Tensor"),
    (lambda: zeros(3).with_view((0,), (1,), np.zeros(1)), "part must be a Tensor"),
    (lambda: zeros(3).view(0, 1), "start and end must be integers"),
    (lambda: Tensor(np.zeros(3, np.int16), 8.0), "must be an integer, not float"),
    (lambda: conv(groups="1"), "integer"),
    (lambda: conv(groups=1.0), "integer"),
    (lambda: openvx.table_layer(zeros(3), [1, 2]), "table must be an array"),
    (lambda: conv(output_shape="abc"), "output_shape must be integers"),
    (lambda: Tensor([1, 2]), "data must be an array"),
    (lambda: active(function="linear", a="1"), "a must be a number, not str"),
    (lambda: norm(normalization_size=3.0), "integer"),
]


@pytest.mark.parametrize(("use", "words"), WRONG_KINDS)
def test_wrong_kinds_of_arguments(use: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        use()
