"""Products of quantised tensors of tract: exact sums, scaled in 64 bits, rounded, saturated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .linear import contract, item, matmul_on_axes
from .window import conv

_LIMITS = {"i8": (-128, 127), "u8": (0, 255), "i16": (-(2**15), 2**15 - 1)}


def _requantised(total, a_scale, b_scale, c_scale, c0, dtype):
    """np.rint rounds half to even."""
    output = np.rint(total * (a_scale * b_scale / c_scale)).astype(np.int64) + c0
    output = np.clip(output, *_LIMITS[dtype]) if dtype in _LIMITS else output
    return output.astype(np.uint64 if dtype.startswith("u") else np.int64)


def einsum_q(
    inputs,
    expr,
    acc,
    output="",
    bias=0,
    a0=0,
    a_scale=1.0,
    b0=0,
    b_scale=1.0,
    c0=0,
    c_scale=1.0,
):
    left, result = expr.split("->")
    a_term, b_term, *terms = left.split(",")
    terms = terms or [""] * 7

    def spread(parameter, letters, target, shape):
        """The parameter at every place of a tensor."""
        parameter = np.asarray(parameter)
        if parameter.size == 1:
            return np.full(shape, parameter.item())
        whole = np.zeros(shape, parameter.dtype)
        for index in np.ndindex(*shape):
            whole[index] = item(parameter, letters, dict(zip(target, index, strict=True)))
        return whole

    a, b = inputs
    a = a - spread(a0, terms[1], a_term, a.shape)
    b = b - spread(b0, terms[3], b_term, b.shape)
    total = contract([a, b], [a_term, b_term], result)
    bias, a_scale, b_scale, c0, c_scale = (
        spread(parameter, letters, result, total.shape)
        for parameter, letters in zip(
            (bias, a_scale, b_scale, c0, c_scale),
            (terms[0], terms[2], terms[4], terms[5], terms[6]),
            strict=True,
        )
    )
    return _requantised(total + bias, a_scale, b_scale, c_scale, c0, output or acc)


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
    return _requantised(total, a_scale, b_scale, c_scale, c0, output_type)


def qconv(
    input,
    filter,
    bias=0,
    group=1,
    dilation=(),
    stride=(),
    padding=(),
    border="constant",
    a0=0,
    a_scale=1.0,
    b0=0,
    b_scale=1.0,
    c0=0,
    c_scale=1.0,
    output_dt="",
    groups=1,
):
    rank = input.ndim
    filter = filter - np.ravel(a0).reshape(-1, *[1] * (rank - 1))
    total = conv(input - b0, filter, bias, border, padding, stride, dilation, group * groups)
    a_scale = np.ravel(a_scale).reshape(-1, *[1] * (rank - 2))
    return _requantised(total, a_scale, b_scale, c_scale, c0, output_dt)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "tract_core_einsum_q": einsum_q,
    "tract_core_qmatmul": qmatmul,
    "tract_core_qconv": qconv,
}
