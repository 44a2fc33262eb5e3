"""Products of quantised tensors, with zero points and scales as operands (registry tract_core).

An integer q stands for the real number (q - zero point) * scale. Products are summed in int32,
exactly, with a bias in the unit a_scale * b_scale. The sum times a_scale * b_scale / c_scale is
rounded, half to even, and with c0 added saturated to the type of the result. That factor is applied
in float32: a result of 8 or 16 bits is the exact one, or its neighbour where the exact number is
within 2**-21 of itself from the middle between the two. A factor of 1 leaves int32 as it is.

Zero points and scales have one item, or one for each channel where the operation says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Shape, differ, show
from lowering.graph import TensorType
from lowering.kernels import contraction
from lowering.kernels.windows import Padding
from lowering.ops import rules
from lowering.ops.conv import conv_work
from lowering.ops.tract.conv import conv_shape, convolve
from lowering.ops.tract.linear import (
    einsum_work,
    legacy_terms,
    legacy_work,
    require_legacy,
)
from lowering.ops.tract.typing import require_one
from lowering.ops.typing import is_integer, require_integer, require_real

_PARAMETERS = ("bias", "a0", "a_scale", "b0", "b_scale", "c0", "c_scale")
_INTEGERS = "its operands are integers"


def _einsum_q_type(
    inputs: list[TensorType],
    expr: str,
    acc: str,
    output: str,
    bias: TensorType,
    a0: TensorType,
    a_scale: TensorType,
    b0: TensorType,
    b_scale: TensorType,
    c0: TensorType,
    c_scale: TensorType,
) -> TensorType:
    terms, result = contraction.parse(expr, [len(x.shape) for x in inputs])
    if len(inputs) != 2 or len(terms) not in (2, 2 + len(_PARAMETERS)):
        raise InvalidOperation(
            f"'expr' names the axes of {len(terms)} tensors, there are {len(inputs)} inputs",
            hint="there must be two, and in 'expr' their axes, or also those of bias, a0, a_scale, "
            "b0, b_scale, c0 and c_scale",
        )
    a, b = inputs
    require_integer(**{"inputs[0]": a, "inputs[1]": b}, bias=bias, a0=a0, b0=b0, c0=c0)
    require_real(a_scale=a_scale, b_scale=b_scale, c_scale=c_scale)
    shape = contraction.contracted_shape([a.shape, b.shape], terms[:2], result)
    places = {"a0": (terms[0], a.shape), "b0": (terms[1], b.shape)}
    parameters = zip(
        _PARAMETERS,
        (bias, a0, a_scale, b0, b_scale, c0, c_scale),
        _parameter_terms(terms),
        strict=True,
    )
    for name, type, letters in parameters:
        _require_channels(name, type.shape, letters, *places.get(name, (result, shape)))
    return _result_type(shape, output or acc)


@rules.rule("tract_core_einsum_q", _einsum_q_type, work=einsum_work, not_differentiable=_INTEGERS)
def einsum_q(
    inputs: Sequence[Any],
    expr: str,
    acc: str,
    output: str,
    bias: Any,
    a0: Any,
    a_scale: Any,
    b0: Any,
    b_scale: Any,
    c0: Any,
    c_scale: Any,
) -> Array:
    """`tract_core_einsum` of two quantised tensors, to the type `output`.

    `expr` may name the axes of the parameters too, as in `mk,kn,m,,m,,,,->mn`: one letter where a
    parameter has an item for each channel. Scales, bias and c0 are then along an axis of the
    result, a0 and b0 along one of their own tensor.
    """
    terms, result = contraction.parse(expr, [len(x.shape) for x in inputs])
    bias_letter, a0_letter, a_letter, b0_letter, b_letter, c0_letter, c_letter = _parameter_terms(
        terms
    )
    a, b = inputs
    total = contraction.contract(
        (
            _wide(a) - _along(_wide(a0), a0_letter, terms[0]),
            _wide(b) - _along(_wide(b0), b0_letter, terms[1]),
        ),
        terms[:2],
        result,
        jnp.int32,
        None,
    )
    return _requantised(
        total + _along(_wide(bias), bias_letter, result),
        _along(a_scale, a_letter, result),
        _along(b_scale, b_letter, result),
        _along(c_scale, c_letter, result),
        _along(_wide(c0), c0_letter, result),
        output or acc,
    )


def _qmatmul_type(
    A: TensorType,
    B: TensorType,
    bias: TensorType,
    axes: tuple[int, ...],
    a0: TensorType,
    a_scale: TensorType,
    b0: TensorType,
    b_scale: TensorType,
    c0: TensorType,
    c_scale: TensorType,
    output_type: str,
) -> TensorType:
    require_legacy(A, B, axes)
    expr = _legacy_expr(axes, len(A.shape))
    return _einsum_q_type(
        [A, B], expr, "int32", output_type, bias, a0, a_scale, b0, b_scale, c0, c_scale
    )


@rules.rule("tract_core_qmatmul", _qmatmul_type, work=legacy_work, not_differentiable=_INTEGERS)
def qmatmul(
    A: Any,
    B: Any,
    bias: Any,
    axes: tuple[int, ...],
    a0: Any,
    a_scale: Any,
    b0: Any,
    b_scale: Any,
    c0: Any,
    c_scale: Any,
    output_type: str,
) -> Array:
    """`tract_core_matmul` of quantised tensors, to the type `output_type`.

    Bias, a0 and a_scale may have an item for each row of the result, b0 and b_scale for each
    column.
    """
    expr = _legacy_expr(axes, A.ndim)
    return einsum_q([A, B], expr, "int32", output_type, bias, a0, a_scale, b0, b_scale, c0, c_scale)


def _qconv_type(
    input: TensorType,
    filter: TensorType,
    bias: TensorType,
    group: int,
    dilation: Shape,
    stride: Shape,
    padding: Padding,
    border: str,
    a0: TensorType,
    a_scale: TensorType,
    b0: TensorType,
    b_scale: TensorType,
    c0: TensorType,
    c_scale: TensorType,
    output_dt: str,
    groups: int,
) -> TensorType:
    require_integer(input=input, filter=filter, bias=bias, a0=a0, b0=b0, c0=c0)
    require_real(a_scale=a_scale, b_scale=b_scale, c_scale=c_scale)
    shape = conv_shape(
        input.shape,
        filter.shape,
        bias.shape,
        border,
        padding,
        stride,
        dilation,
        _group_count(group, groups),
    )
    require_one(b0=b0, b_scale=b_scale, c0=c0, c_scale=c_scale)
    for name, type in (("a0", a0), ("a_scale", a_scale)):
        _require_channels(name, type.shape, "c", "c", shape[1:2])
    return _result_type(shape, output_dt or input.dtype)


@rules.rule("tract_core_qconv", _qconv_type, work=conv_work, not_differentiable=_INTEGERS)
def qconv(
    input: Any,
    filter: Any,
    bias: Any,
    group: int,
    dilation: Shape,
    stride: Shape,
    padding: Padding,
    border: str,
    a0: Any,
    a_scale: Any,
    b0: Any,
    b_scale: Any,
    c0: Any,
    c_scale: Any,
    output_dt: str,
    groups: int,
) -> Array:
    """`conv` of quantised tensors, to the type `output_dt`, or the input's where that is empty.

    a0 and a_scale are the filter's, and may have an item for each output channel; b0 and b_scale
    are the input's, whose padding is the real number 0. What is declared as `group` is written
    `groups`.
    """
    rank = input.ndim
    total = convolve(
        _wide(input) - _along(_wide(b0), "", ""),
        _wide(filter) - _along(_wide(a0), "c", "c" + "x" * (rank - 1)),
        _wide(bias),
        padding,
        stride,
        dilation,
        _group_count(group, groups),
        None,
    )
    return _requantised(
        total,
        _along(a_scale, "c", "bc" + "x" * (rank - 2)),
        _along(b_scale, "", ""),
        _along(c_scale, "", ""),
        _along(_wide(c0), "", ""),
        output_dt or str(input.dtype),
    )


def _group_count(group: int, groups: int) -> int:
    return group if groups == 1 else groups


def _parameter_terms(terms: Sequence[str]) -> Sequence[str]:
    return terms[2:] or ("",) * len(_PARAMETERS)


def _legacy_expr(axes: Sequence[int], rank: int) -> str:
    a, b, c = legacy_terms(axes, rank)
    return f"{a},{b},m,m,m,n,n,,->{c}"


def _require_channels(name: str, found: Shape, letter: str, term: str, shape: Shape) -> None:
    """Refuse a parameter of several items that are not along the one axis of that letter."""
    several = [extent for extent in found if differ(extent, 1)]
    if not several:
        return
    extent = shape[term.index(letter)] if len(letter) == 1 and term.count(letter) == 1 else 1
    if len(several) > 1 or differ(several[0], extent):
        raise InvalidShape(
            f"'{name}' {show(found)} must have one item"
            + (f", or {extent} for as many channels" if extent != 1 else ""),
        )


def _result_type(shape: Shape, dtype: str) -> TensorType:
    if not is_integer(dtype):
        raise InvalidOperation(
            f"the result must be of integers, it is of {dtype}",
            hint="`tract_core_cast` makes real numbers of a result of type 'i32'",
        )
    return TensorType(shape, dtype)


def _wide(x: Any) -> Array:
    return jnp.asarray(x).astype(jnp.int32)


def _along(x: Any, letter: str, term: str) -> Array:
    """A parameter's items along the axis of that letter; a single one for all."""
    x = jnp.asarray(x)
    return x.reshape(() if x.size == 1 else [-1 if name == letter else 1 for name in term])


def _requantised(
    total: Array, a_scale: Array, b_scale: Array, c_scale: Array, c0: Array, dtype: str
) -> Array:
    a_scale, b_scale, c_scale = (x.astype(jnp.float32) for x in (a_scale, b_scale, c_scale))
    factor = a_scale * b_scale / c_scale
    scaled = jnp.round(total.astype(jnp.float32) * factor).astype(jnp.int32)
    scaled = jnp.where(factor == 1, total, scaled)
    limits = jnp.iinfo(dtype)
    if limits.bits < 32:
        scaled = jnp.clip(scaled, limits.min - c0, limits.max - c0)
    return (scaled + c0).astype(dtype)
