"""Products of matrices and of more tensors; those of quantised ones are sums in integers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from string import ascii_lowercase
from typing import Any

from lowering.extents import differ
from lowering.graph import is_float
from nnef_jax.flattening.site import Tensor
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.filters import kernel_of, windows_of
from nnef_jax.formats.onnx.operators.quantizers import MICROSOFT, dynamically, is_zero
from nnef_jax.formats.onnx.operators.registry import operator


@operator("MatMul")
def _matmul(site: NodeSite, x: Any, y: Any) -> Any:
    """Multiply matrices in the last two axes; a vector is a row on the left, a column behind."""
    gone = [axis for axis, v in ((-2, x), (-1, y)) if site.rank(v) == 1]
    x = site.unsqueezed(x, (0,)) if site.rank(x) == 1 else x
    y = site.unsqueezed(y, (1,)) if site.rank(y) == 1 else y
    rank = max(site.rank(x), site.rank(y))
    x, y = (site.unsqueezed(v, range(rank - site.rank(v))) for v in (x, y))
    found = site.step_or_last(not gone).matmul(x, y, transposeA=False, transposeB=False)
    axes = sorted(rank + axis for axis in gone)
    return site.last.squeeze(found, axes=axes) if gone else found


@operator("Gemm")
def _gemm(site: NodeSite, a: Any, b: Any, bias: Any = None) -> Any:
    """Return alpha * A * B + beta * C, each matrix transposed if so asked."""
    alpha, beta = site.number("alpha", 1.0), site.number("beta", 1.0)
    flips = {"transposeA": site.flag("transA"), "transposeB": site.flag("transB")}
    has_bias = bias is not None and beta != 0
    if [*flips.values()] == [False, True] and alpha == beta == 1 and has_bias:
        return site.last.linear(a, b, site.aligned(a, bias)[1])
    found = site.step_or_last(alpha == 1 and not has_bias).matmul(a, b, **flips)
    if alpha != 1:
        found = site.step_or_last(not has_bias).mul(found, alpha)
    if not has_bias:
        return found
    return site.last.add(found, bias if beta == 1 else site.step.mul(bias, beta))


@operator("Einsum")
def _einsum(site: NodeSite, *inputs: Any) -> Any:
    """Sum products; a result that is not given has the letters that are there once, in order."""
    expr = site.text("equation").replace(" ", "")
    if "->" not in expr:
        counts = Counter(re.sub(r"\.\.\.|,", "", expr))
        once = "".join(sorted(x for x, count in counts.items() if count == 1))
        expr = f"{expr}->{'...' if '...' in expr else ''}{once}"
    dtype = site.dtype_of()
    wide = "float32" if is_float(dtype) else dtype
    return site.last.einsum([*map(site.tensor, inputs)], expr=expr, accumulator=wide, dtype=dtype)


# Quantised


def product(
    site: NodeSite,
    a: Any,
    b: Any,
    zero_points: tuple[Any, Any] = (None, None),
    scales: tuple[Any, Any] = (1.0, 1.0),
    output: tuple[Any, Any] = (0, 1.0),
    dtype: str = "int32",
    *,
    flags: tuple[bool, bool] = (False, False),
) -> Any:
    """Multiply matrices as numpy does; scales and zero points are one a matrix, row or column.

    `output` has the zero point and scale of the result, whose dtype is given.
    """
    vectors = [site.rank(x) == 1 for x in (a, b)]
    a, b = (
        site.unsqueezed(x, (i,)) if is_vector else x
        for i, (x, is_vector) in enumerate(zip((a, b), vectors, strict=True))
    )
    (a, zero_a), (b, zero_b) = (
        _centred(site, x, zero) for x, zero in zip((a, b), zero_points, strict=True)
    )
    a, b = site.aligned(site.tensor(a), site.tensor(b))
    batch = ascii_lowercase[: site.rank(a) - 2]
    left, right = ("xz" if flags[0] else "zx"), ("yx" if flags[1] else "xy")
    given = (zero_a, scales[0], zero_b, scales[1], *output)
    places = [
        letter if isinstance(x, Tensor) and any(differ(n, 1) for n in site.shape(x)) else ""
        for x, letter in zip(given, "zzyyyy", strict=True)
    ]
    expr = f"{batch}{left},{batch}{right},,{','.join(places)}->{batch}zy"
    found = site.step.quantized_einsum(a, b, 0, *given, expr=expr, dtype=dtype)
    rank = len(batch) + 2
    return site.squeezed(found, *(rank - 2 + i for i, gone in enumerate(vectors) if gone))


def _centred(site: NodeSite, x: Any, zero: Any) -> tuple[Any, Any]:
    """Return a tensor and its zero point, subtracted where it has several axes."""
    if is_zero(zero):
        return x, 0
    if sum(differ(n, 1) for n in site.shape(zero)) < 2:
        return x, zero
    return site.step.sub(site.cast(x, "int32"), site.cast(zero, "int32")), 0


def dynamic_product(site: NodeSite, x: Any, levels: Any, scale: Any, zero: Any) -> Any:
    """Multiply real numbers, quantised by their range, by levels; scales are one, or a column's."""
    x, x_scale, x_zero = dynamically(site, x)
    total = site.cast(product(site, x, levels, (x_zero, zero)), site.dtype_of(scale))
    return site.step.mul(total, site.step.mul(x_scale, scale))


@operator("MatMulInteger")
def _matmul_integer(site: NodeSite, a: Any, b: Any, zero_a: Any = None, zero_b: Any = None) -> Any:
    return product(site, a, b, (zero_a, zero_b))


@operator("QLinearMatMul")
def _qlinear_matmul(site: NodeSite) -> Any:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = map(site.operand, range(8))
    scales = a_scale, b_scale
    return product(site, a, b, (a_zero, b_zero), scales, (y_zero, y_scale), site.dtype_of(7))


@operator("ConvInteger")
def _conv_integer(site: NodeSite, x: Any, filter: Any) -> Any:
    zero_points = [site.operand(i) if site.has(i) else 0 for i in (2, 3)]
    return _convolved(site, x, 1, 0, [zero_points[0], 1.0, zero_points[1], 1.0, 0, 1.0], "int32")


@operator("QLinearConv")
@operator("QLinearConv", domain=MICROSOFT)
def _qlinear_conv(site: NodeSite) -> Any:
    if site.flag("channels_last"):
        rank, attributes = site.rank(), {**site.node.attributes, "channels_last": 0}
        x = site.transposed(site.operand(0), (0, rank - 1, *range(1, rank - 1)))
        node = replace(site.node, attributes=attributes)
        found = _qlinear_conv(replace(site, node=node, operands=[x, *site.operands[1:]]))
        return site.transposed(found, (0, *range(2, rank), 1))
    bias = site.unsqueezed(site.operand(8), (0,)) if site.has(8) else 0
    levels = [site.operand(i) for i in (2, 1, 5, 4, 7, 6)]
    return _convolved(site, site.operand(0), 3, bias, levels, site.dtype_of(7))


def _convolved(site: NodeSite, x: Any, i: int, bias: Any, levels: Sequence[Any], dtype: str) -> Any:
    """Convolve with the filter that input `i` is; levels are zero points and scales in turn."""
    return site.last.quantized_conv(
        x, site.operand(i), bias, *levels, groups=site.int("group", 1), border="constant",
        dtype=dtype, **windows_of(site, kernel_of(site, i)),
    )  # fmt: skip
