"""Meanings of products of matrices and tensors, which are real numbers or quantised levels."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from string import ascii_lowercase
from typing import Any

from lowering.extents import differ
from lowering.graph import is_float
from nnef_jax.flattening.operators.attributes import flag, number, text
from nnef_jax.flattening.site import Operand, Tensor
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.filters import GROUPS, kernel_of, windows_of
from nnef_jax.formats.onnx.operators.quantizers import MICROSOFT, dynamically_quantized, is_zero
from nnef_jax.formats.onnx.operators.registry import operator

_CHANNELS_LAST = flag("channels_last")


@operator("MatMul")
def _matmul(site: NodeSite, x: Tensor, y: Tensor) -> Any:
    """Multiply matrices, which are in the last two axes.

    If x is a vector, it is a row, and if y is a vector, it is a column.
    """
    dropped: list[int] = []  # axes that are removed from the product, counted from the end
    if site.rank(x) == 1:
        x = site.unsqueezed(x, (0,))
        dropped.append(-2)
    if site.rank(y) == 1:
        y = site.unsqueezed(y, (1,))
        dropped.append(-1)
    rank = max(site.rank(x), site.rank(y))
    x = site.unsqueezed(x, range(rank - site.rank(x)))
    y = site.unsqueezed(y, range(rank - site.rank(y)))
    if not dropped:
        return site.last.matmul(x, y, transposeA=False, transposeB=False)
    product = site.step.matmul(x, y, transposeA=False, transposeB=False)
    return site.last.squeeze(product, axes=[rank + axis for axis in dropped])


@operator("Gemm")
def _gemm(
    site: NodeSite,
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    alpha: float = number("alpha", 1.0),
    beta: float = number("beta", 1.0),
    flips_a: bool = flag("transA"),
    flips_b: bool = flag("transB"),
) -> Any:
    """Compute alpha * a b + beta * bias.

    `flips_a` and `flips_b` say whether a and b are transposed.
    """
    if beta == 0:
        bias = None
    has_no_factors = alpha == 1 and beta == 1
    flips_only_b = flips_b and not flips_a
    if bias is not None and has_no_factors and flips_only_b:
        _, aligned_bias = site.aligned(a, bias)
        return site.last.linear(a, b, aligned_bias)
    add = site.step_or_last(alpha == 1 and bias is None)
    result = add.matmul(a, b, transposeA=flips_a, transposeB=flips_b)
    if alpha != 1:
        result = site.step_or_last(bias is None).mul(result, alpha)
    if bias is None:
        return result
    if beta != 1:
        bias = site.step.mul(bias, beta)
    return site.last.add(result, bias)


@operator("Einsum")
def _einsum(site: NodeSite, *inputs: Tensor, equation: str = text("equation")) -> Any:
    """Sum products of tensors as `equation` says, such as "ij,jk->ik".

    If the equation has no "->", the axes of the result are the letters that occur only once.
    """
    expr = equation.replace(" ", "")
    if "->" not in expr:  # "ij,jk" becomes "ij,jk->ik"
        letters = re.sub(r"\.\.\.|,", "", expr)
        counts = Counter(letters)
        unrepeated = sorted(letter for letter in counts if counts[letter] == 1)
        batch = "..." if "..." in expr else ""
        expr = f"{expr}->{batch}{''.join(unrepeated)}"
    operands = [site.tensor(x) for x in inputs]
    dtype = site.dtype_of()
    # Products of real numbers are summed in float32, so that 16-bit floats lose no digits.
    accumulator = "float32" if is_float(dtype) else dtype
    return site.last.einsum(operands, expr=expr, accumulator=accumulator, dtype=dtype)


# Quantised products


def product(
    site: NodeSite,
    a: Tensor,
    b: Tensor,
    zero_points: tuple[Tensor | None, Tensor | None] = (None, None),
    scales: tuple[Operand, Operand] = (1.0, 1.0),
    output: tuple[Operand, Operand] = (0, 1.0),
    dtype: str = "int32",
    *,
    transposes: tuple[bool, bool] = (False, False),
) -> Any:
    """Multiply matrices of levels. Batch axes broadcast as in numpy.

    Args:
        site: the node.
        a: levels of shape (..., rows, items). A vector is a row.
        b: levels of shape (..., items, columns). A vector is a column.
        zero_points: the zero point of a and the zero point of b. The zero point of a is one number,
            or one for each row. The zero point of b is one number, or one for each column.
        scales: the scales of a and b, with shapes as for the zero points.
        output: the zero point and the scale of the result.
        dtype: the dtype of the result.
        transposes: whether a is transposed, and whether b is.
    """
    is_row = site.rank(a) == 1
    is_column = site.rank(b) == 1
    if is_row:
        a = site.unsqueezed(a, (0,))
    if is_column:
        b = site.unsqueezed(b, (1,))
    stored_zero_a, stored_zero_b = zero_points
    scale_a, scale_b = scales
    transposes_a, transposes_b = transposes
    a, zero_a = _centred(site, a, stored_zero_a)
    b, zero_b = _centred(site, b, stored_zero_b)
    a, b = site.aligned(site.tensor(a), site.tensor(b))
    # Letters of the equation: z for rows, x for the axis of the sum, y for columns. The parameters
    # of a may vary along the rows, and all other parameters along the columns. A parameter that is
    # a single number has no letter.
    batch = ascii_lowercase[: site.rank(a) - 2]
    left = "xz" if transposes_a else "zx"
    right = "yx" if transposes_b else "xy"
    parameters = (zero_a, scale_a, zero_b, scale_b, *output)
    letters = "zzyyyy"
    terms: list[str] = []
    for parameter, letter in zip(parameters, letters, strict=True):
        has_axis = isinstance(parameter, Tensor) and _varying_axis_count(site, parameter) > 0
        terms.append(letter if has_axis else "")
    expr = f"{batch}{left},{batch}{right},,{','.join(terms)}->{batch}zy"
    no_bias = 0
    result = site.step.quantized_einsum(a, b, no_bias, *parameters, expr=expr, dtype=dtype)
    dropped: list[int] = []  # the axes of a vector's single row or column
    if is_row:
        dropped.append(len(batch))
    if is_column:
        dropped.append(len(batch) + 1)
    return site.squeezed(result, *dropped)


def _varying_axis_count(site: NodeSite, x: Tensor) -> int:
    """Return the number of axes whose extent differs from 1."""
    return sum(differ(n, 1) for n in site.shape(x))


def _centred(site: NodeSite, x: Tensor, zero: Tensor | None) -> tuple[Any, Any]:
    """Return levels and a zero point that is constant or varies along a single axis.

    A zero point that varies along several axes is subtracted from the levels instead. The returned
    zero point is then 0.
    """
    if zero is None or is_zero(zero):
        return x, 0
    if _varying_axis_count(site, zero) < 2:
        return x, zero
    centred = site.step.sub(site.cast(x, "int32"), site.cast(zero, "int32"))
    return centred, 0


def dynamic_product(
    site: NodeSite, x: Tensor, levels: Tensor, scale: Tensor, zero: Tensor | None
) -> Any:
    """Quantise the real numbers `x` by their range, and multiply them by `levels`, a matrix.

    `scale` and `zero` are the scale and the zero point of the levels, each a single number or a
    number for each column.
    """
    x_levels, x_scale, x_zero = dynamically_quantized(site, x)
    total = product(site, x_levels, levels, zero_points=(x_zero, zero))
    total = site.cast(total, site.dtype_of(scale))
    return site.step.mul(total, site.step.mul(x_scale, scale))


@operator("MatMulInteger")
def _matmul_integer(
    site: NodeSite, a: Tensor, b: Tensor, zero_a: Tensor | None = None, zero_b: Tensor | None = None
) -> Any:
    """Multiply matrices of levels; return 32-bit integers."""
    return product(site, a, b, zero_points=(zero_a, zero_b))


@operator("QLinearMatMul")
def _qlinear_matmul(site: NodeSite) -> Any:
    """Multiply matrices of levels; return levels.

    The inputs are the levels, the scale and the zero point of a, the same of b, then the scale and
    the zero point of the result.
    """
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = map(site.operand, range(8))
    return product(
        site, a, b, zero_points=(a_zero, b_zero), scales=(a_scale, b_scale),
        output=(y_zero, y_scale), dtype=site.dtype_of(7),
    )  # fmt: skip


@operator("ConvInteger")
def _conv_integer(
    site: NodeSite,
    x: Tensor,
    filter: Tensor,
    zero_x: Tensor | None = None,
    zero_filter: Tensor | None = None,
    *,
    groups: int = GROUPS,
) -> Any:
    """Convolve levels by a filter of levels; return 32-bit integers."""
    zero_of_x = 0 if zero_x is None else zero_x
    zero_of_filter = 0 if zero_filter is None else zero_filter
    # The zero point and the scale of x, then those of the filter, then those of the result.
    parameters = [zero_of_x, 1.0, zero_of_filter, 1.0, 0, 1.0]
    no_bias = 0
    window = windows_of(site, kernel_of(site))
    return site.last.quantized_conv(
        x, filter, no_bias, *parameters, groups=groups, border="constant", dtype="int32", **window
    )


@operator("QLinearConv")
@operator("QLinearConv", domain=MICROSOFT)
def _qlinear_conv(
    site: NodeSite, x: Tensor, *, groups: int = GROUPS, channels_last: bool = _CHANNELS_LAST
) -> Any:
    """Convolve levels by a filter of levels; return levels.

    If `channels_last`, the channels are the last axis of x and of the result.
    """
    if channels_last:
        rank = site.rank()
        # (batch, ..., channels) becomes (batch, channels, ...), and back.
        channels_first = site.transposed(x, (0, rank - 1, *range(1, rank - 1)))
        inner_site = replace(site, operands=[channels_first, *site.operands[1:]])
        result = _qlinear_conv(inner_site, channels_first, groups=groups, channels_last=False)
        return site.transposed(result, (0, *range(2, rank), 1))
    bias = site.unsqueezed(site.operand(8), (0,)) if site.has(8) else 0
    # The inputs have the scale before the zero point, for x, for the filter and for the result. The
    # operation has the zero point before the scale.
    parameters = [site.operand(i) for i in (2, 1, 5, 4, 7, 6)]
    window = windows_of(site, kernel_of(site, 3))
    return site.last.quantized_conv(
        x, site.operand(3), bias, *parameters, groups=groups, border="constant",
        dtype=site.dtype_of(7), **window,
    )  # fmt: skip
