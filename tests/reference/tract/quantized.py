"""Products of quantised tensors of tract: exact sums, scaled in 64 bits, rounded, saturated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .linear import contract, item, matmul_on_axes
from .window import conv

_DTYPES = {"i8": "int8", "u8": "uint8", "i32": "int32"}


def _requantised(total, a_scale, b_scale, output_scale, zero_point, dtype):
    """np.rint rounds half to even."""
    output = np.rint(total * (a_scale * b_scale / output_scale)).astype(np.int64) + zero_point
    limits = np.iinfo(dtype)
    output = np.clip(output, limits.min, limits.max) if limits.bits < 32 else output
    return output.astype(f"{limits.kind}8")


def quantized_einsum(
    a,
    b,
    expr,
    dtype,
    bias=0,
    a_zero_point=0,
    a_scale=1.0,
    b_zero_point=0,
    b_scale=1.0,
    output_zero_point=0,
    output_scale=1.0,
):
    left, result = expr.split("->")
    a_term, b_term, *terms = left.split(",")
    terms = terms or [""] * 7

    def spread(parameter, letters, target, shape):
        """Broadcast a parameter to the shape of a tensor."""
        parameter = np.asarray(parameter)
        if parameter.size == 1:
            return np.full(shape, parameter.item())
        whole = np.zeros(shape, parameter.dtype)
        for index in np.ndindex(*shape):
            whole[index] = item(parameter, letters, dict(zip(target, index, strict=True)))
        return whole

    a = a - spread(a_zero_point, terms[1], a_term, a.shape)
    b = b - spread(b_zero_point, terms[3], b_term, b.shape)
    total = contract([a, b], [a_term, b_term], result)
    bias, a_scale, b_scale, zero_point, output_scale = (
        spread(parameter, letters, result, total.shape)
        for parameter, letters in zip(
            (bias, a_scale, b_scale, output_zero_point, output_scale),
            (terms[0], terms[2], terms[4], terms[5], terms[6]),
            strict=True,
        )
    )
    return _requantised(total + bias, a_scale, b_scale, output_scale, zero_point, dtype)


def einsum_q(inputs, expr, acc, a_scale, b_scale, c_scale):
    """Its result has the type of the sums."""
    scales = {"a_scale": a_scale, "b_scale": b_scale, "output_scale": c_scale}
    return quantized_einsum(*inputs, expr, _DTYPES[acc], **scales)


def qmatmul(
    A,
    B,
    bias=0,
    axes=(),
    a0=0,
    a_scale=1.0,
    b0=0,
    b_scale=1.0,
    c0=0,
    c_scale=1.0,
    output_type="i32",
):
    last = (A.ndim - 2, A.ndim - 1)
    axes = axes or last * 3

    def along(parameter, axis):
        parameter = np.ravel(parameter)
        return parameter.reshape([-1 if k == axis % A.ndim else 1 for k in range(A.ndim)])

    a_m, _, _, b_n, c_m, c_n = axes
    total = matmul_on_axes(A - along(a0, a_m), B - along(b0, b_n), axes) + along(bias, c_m)
    a_scale, b_scale = along(a_scale, c_m), along(b_scale, c_n)
    return _requantised(total, a_scale, b_scale, c_scale, c0, _DTYPES[output_type])


def quantized_conv(
    input,
    filter,
    dtype,
    bias=0,
    filter_zero_point=0,
    filter_scale=1.0,
    input_zero_point=0,
    input_scale=1.0,
    output_zero_point=0,
    output_scale=1.0,
    border="constant",
    padding=(),
    stride=(),
    dilation=(),
    groups=1,
):
    rank = input.ndim
    filter = filter - np.ravel(filter_zero_point).reshape(-1, *[1] * (rank - 1))
    input = input - input_zero_point
    total = conv(input, filter, bias, border, padding, stride, dilation, groups)
    scale = np.ravel(filter_scale).reshape(-1, *[1] * (rank - 2))
    return _requantised(total, scale, input_scale, output_scale, output_zero_point, dtype)


def qconv(input, filter, a_scale, b0, b_scale, c_scale, group, output_dt):
    """Groups under the name that tract declares."""
    scales = {"filter_scale": a_scale, "input_scale": b_scale, "output_scale": c_scale}
    dtype = _DTYPES[output_dt]
    return quantized_conv(input, filter, dtype, input_zero_point=b0, groups=group, **scales)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "quantized_einsum": quantized_einsum,
    "quantized_conv": quantized_conv,
    "tract_core_einsum_q": einsum_q,
    "tract_core_qmatmul": qmatmul,
    "tract_core_qconv": qconv,
}
