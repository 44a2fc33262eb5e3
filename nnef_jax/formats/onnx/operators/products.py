"""Functions for products of matrices and tensors, which are real numbers or quantised levels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
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
    """Multiply matrices, which lie in the last two axes. All earlier axes are batch axes.

    A vector x is a row, and a vector y is a column. The axis of rows or columns is then left out of
    the product: shapes (3,) and (3, 4) give (4,).
    """
    removed_axes: list[int] = []  # counted from the end: -2 for the row x, -1 for the column y
    if site.rank(x) == 1:
        x = site.unsqueezed(x, (0,))
        removed_axes.append(-2)
    if site.rank(y) == 1:
        y = site.unsqueezed(y, (1,))
        removed_axes.append(-1)
    rank = max(site.rank(x), site.rank(y))
    x = site.unsqueezed(x, range(rank - site.rank(x)))
    y = site.unsqueezed(y, range(rank - site.rank(y)))
    if not removed_axes:
        return site.last.matmul(x, y, transposeA=False, transposeB=False)
    product = site.step.matmul(x, y, transposeA=False, transposeB=False)
    return site.last.squeeze(product, axes=[rank + axis for axis in removed_axes])


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
    """Compute alpha * a @ b + beta * bias.

    `flips_a` and `flips_b` tell whether a and b are transposed before the product.
    """
    if beta == 0:
        bias = None
    has_no_factors = alpha == 1 and beta == 1
    flips_only_b = flips_b and not flips_a
    if bias is not None and has_no_factors and flips_only_b:
        # The operation `linear` computes a @ b^T + bias.
        _, aligned_bias = site.aligned(a, bias)
        return site.last.linear(a, b, aligned_bias)
    is_product_last = alpha == 1 and bias is None
    add = site.step_or_last(is_product_last)
    result = add.matmul(a, b, transposeA=flips_a, transposeB=flips_b)
    if alpha != 1:
        result = site.step_or_last(is_last=bias is None).mul(result, alpha)
    if bias is None:
        return result
    if beta != 1:
        bias = site.step.mul(bias, beta)
    return site.last.add(result, bias)


@operator("Einsum")
def _einsum(site: NodeSite, *inputs: Tensor, equation: str = text("equation")) -> Any:
    """Sum products of tensors as `equation` says, such as "ij,jk->ik".

    If the equation has no "->", the axes of the result are the letters that occur only once, in
    alphabetical order. For example, "ij,jk" is "ij,jk->ik".
    """
    expr = equation.replace(" ", "")
    if "->" not in expr:
        letters = re.sub(r"\.\.\.|,", "", expr)  # without "..." and commas
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
    """Multiply matrices of levels (quantised items). Batch axes broadcast as in numpy.

    Args:
        site: the node.
        a: levels of shape (..., rows, items). A vector is a row.
        b: levels of shape (..., items, columns). A vector is a column.
        zero_points: the zero point of a and the zero point of b. The zero point of a is one number,
            or one for each row. The zero point of b is one number, or one for each column.
        scales: the scale of a and the scale of b, with shapes as for the zero points.
        output: the zero point and the scale of the result.
        dtype: the dtype of the result.
        transposes: whether a is transposed, and whether b is transposed.
    """
    is_row = site.rank(a) == 1
    is_column = site.rank(b) == 1
    if is_row:
        a = site.unsqueezed(a, (0,))
    if is_column:
        b = site.unsqueezed(b, (1,))
    stored_zero_a, stored_zero_b = zero_points
    scale_a, scale_b = scales
    a, zero_a = _centred(site, a, stored_zero_a)
    b, zero_b = _centred(site, b, stored_zero_b)
    a, b = site.aligned(site.tensor(a), site.tensor(b))
    batch_rank = site.rank(a) - 2
    parameters = (zero_a, scale_a, zero_b, scale_b, *output)
    expr = _equation(site, batch_rank, transposes, parameters)
    no_bias = 0
    result = site.step.quantized_einsum(a, b, no_bias, *parameters, expr=expr, dtype=dtype)
    # The result has shape (*batch, rows, columns). The axis of a vector's row or column is removed.
    removed_axes: list[int] = []
    if is_row:
        removed_axes.append(batch_rank)
    if is_column:
        removed_axes.append(batch_rank + 1)
    return site.squeezed(result, *removed_axes)


def _equation(
    site: NodeSite, batch_rank: int, transposes: tuple[bool, bool], parameters: Sequence[Operand]
) -> str:
    """Return the equation of a product of quantised matrices, for `quantized_einsum`.

    An example is "azx,axy,,z,z,y,y,,->azy". Its terms are the two matrices, the bias, and the six
    parameters: the zero point and the scale of each matrix and of the result. The letters are a for
    a batch axis, z for rows, x for the axis of the sum, and y for columns.

    `transposes` tells for each matrix whether it is transposed. The parameters of the first matrix
    may vary along the rows, and all other parameters along the columns. A parameter that is a
    single number has no letter.
    """
    transposes_a, transposes_b = transposes
    batch = ascii_lowercase[:batch_rank]
    left = "xz" if transposes_a else "zx"
    right = "yx" if transposes_b else "xy"
    letters = "zzyyyy"
    terms: list[str] = []
    for parameter, letter in zip(parameters, letters, strict=True):
        has_axis = isinstance(parameter, Tensor) and _varying_axis_count(site, parameter) > 0
        terms.append(letter if has_axis else "")
    return f"{batch}{left},{batch}{right},,{','.join(terms)}->{batch}zy"


def _varying_axis_count(site: NodeSite, x: Tensor) -> int:
    """Return the number of axes whose extent differs from 1."""
    return sum(differ(n, 1) for n in site.shape(x))


def _centred(site: NodeSite, x: Tensor, zero: Tensor | None) -> tuple[Any, Any]:
    """Return the levels x and their zero point, which varies along one axis at most.

    A zero point that varies along several axes is subtracted from the levels. Then the returned
    zero point is 0.
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
    """Multiply real numbers by a matrix of quantised numbers, and return real numbers.

    `x` are the real numbers, which are quantised to levels that cover their range. `levels`,
    `scale` and `zero` are the levels, the scale and the zero point of the matrix. Scale and zero
    point are a single number each, or have a number for each column.
    """
    x_levels, x_scale, x_zero = dynamically_quantized(site, x)
    total = product(site, x_levels, levels, zero_points=(x_zero, zero))
    total = site.cast(total, site.dtype_of(scale))
    return site.step.mul(total, site.step.mul(x_scale, scale))


@operator("MatMulInteger")
def _matmul_integer(
    site: NodeSite, a: Tensor, b: Tensor, zero_a: Tensor | None = None, zero_b: Tensor | None = None
) -> Any:
    """Multiply matrices of quantised integers (levels); return 32-bit integers."""
    return product(site, a, b, zero_points=(zero_a, zero_b))


@operator("QLinearMatMul")
def _qlinear_matmul(site: NodeSite) -> Any:
    """Multiply matrices of levels; return levels.

    Inputs 0 to 2 are the levels, the scale and the zero point of a. Inputs 3 to 5 are the levels,
    the scale and the zero point of b. Inputs 6 and 7 are the scale and the zero point of the
    result.
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
    # A zero point and a scale for x, for the filter and for the result.
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

    Inputs 0 to 2 are the levels, the scale and the zero point of x. Inputs 3 to 5 are the levels,
    the scale and the zero point of the filter. Inputs 6 and 7 are the scale and the zero point of
    the result, and input 8 is the bias. If `channels_last`, the channels are the last axis of x and
    of the result.
    """
    if channels_last:
        rank = site.rank()
        # (batch, ..., channels) becomes (batch, channels, ...).
        channels_first = site.transposed(x, (0, rank - 1, *range(1, rank - 1)))
        inner_site = replace(site, operands=[channels_first, *site.operands[1:]])
        result = _qlinear_conv(inner_site, channels_first, groups=groups, channels_last=False)
        # (batch, channels, ...) becomes (batch, ..., channels).
        return site.transposed(result, (0, *range(2, rank), 1))
    bias = site.unsqueezed(site.operand(8), (0,)) if site.has(8) else 0
    # The operation takes the zero point before the scale.
    parameters = [site.operand(i) for i in (2, 1, 5, 4, 7, 6)]
    filter_input = 3
    window = windows_of(site, kernel_of(site, filter_input))
    return site.last.quantized_conv(
        x, site.operand(filter_input), bias, *parameters, groups=groups, border="constant",
        dtype=site.dtype_of(7), **window,
    )  # fmt: skip
