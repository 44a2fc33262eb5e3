"""Products and convolutions of quantised tensors, summed exactly in integers of 32 bits."""

from __future__ import annotations

from dataclasses import replace
from string import ascii_lowercase
from typing import Any

from lowering.extents import differ
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator
from nnef_jax.formats.onnx.operators.filters import kernel_of, windows_of
from nnef_jax.formats.onnx.operators.quantizers import dynamically, is_zero


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

    def axis(x: Any, letter: str) -> str:
        return letter if not isinstance(x, float | int) and not _is_one(site, x) else ""

    places = [
        axis(zero_a, "z"), axis(scales[0], "z"), axis(zero_b, "y"), axis(scales[1], "y"),
        axis(output[0], "y"), axis(output[1], "y"),
    ]  # fmt: skip
    expr = f"{batch}{left},{batch}{right},,{','.join(places)}->{batch}zy"
    operands = {
        "a": a, "b": b, "bias": 0, "a_zero_point": zero_a, "a_scale": scales[0],
        "b_zero_point": zero_b, "b_scale": scales[1], "output_zero_point": output[0],
        "output_scale": output[1],
    }  # fmt: skip
    found = site.insert("quantized_einsum", operands, expr=expr, dtype=dtype)
    rank = len(batch) + 2
    axes = [rank - 2 + i for i, is_vector in enumerate(vectors) if is_vector]
    return site.insert("squeeze", {"input": found}, axes=tuple(axes)) if axes else found


def _is_one(site: NodeSite, x: Any) -> bool:
    return not any(differ(n, 1) for n in site.shape(x))


def _centred(site: NodeSite, x: Any, zero: Any) -> tuple[Any, Any]:
    """Return a tensor and its zero point, subtracted where it has several axes."""
    if is_zero(zero):
        return x, 0
    if sum(differ(n, 1) for n in site.shape(zero)) < 2:
        return x, zero
    return site.term("sub", site.cast(x, "int32"), site.cast(zero, "int32")), 0


def dynamic_product(site: NodeSite, x: Any, levels: Any, scale: Any, zero: Any) -> Any:
    """Multiply real numbers, quantised by their range, by levels; scales are one, or a column's."""
    x, x_scale, x_zero = dynamically(site, x)
    total = site.cast(product(site, x, levels, (x_zero, zero)), site.dtype_of(scale))
    return site.term("mul", total, site.term("mul", x_scale, scale))


@operator("MatMulInteger")
def _matmul_integer(site: NodeSite) -> Any:
    zero_points = site.optional(2), site.optional(3)
    return product(site, site.operand(0), site.operand(1), zero_points)


@operator("QLinearMatMul")
def _qlinear_matmul(site: NodeSite) -> Any:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = map(site.operand, range(8))
    scales = a_scale, b_scale
    return product(site, a, b, (a_zero, b_zero), scales, (y_zero, y_scale), site.dtype_of(7))


@operator("ConvInteger")
def _conv_integer(site: NodeSite) -> Any:
    zero_points = [site.operand(i) if site.has(i) else 0 for i in (2, 3)]
    return _convolved(site, 1, 0, zero_points, (1.0, 1.0), (0, 1.0), "int32")


@operator("QLinearConv")
@operator("QLinearConv", domain="com.microsoft")
def _qlinear_conv(site: NodeSite) -> Any:
    if site.flag("channels_last"):
        rank, attributes = site.rank(), {**site.node.attributes, "channels_last": 0}
        x = site.transposed(site.operand(0), (0, rank - 1, *range(1, rank - 1)))
        node = replace(site.node, attributes=attributes)
        found = _qlinear_conv(replace(site, node=node, operands=[x, *site.operands[1:]]))
        return site.transposed(found, (0, *range(2, rank), 1))
    bias = site.unsqueezed(site.operand(8), (0,)) if site.has(8) else 0
    zero_points, scales = ([site.operand(i), site.operand(i + 3)] for i in (2, 1))
    output = site.operand(7), site.operand(6)
    return _convolved(site, 3, bias, zero_points, scales, output, site.dtype_of(7))


def _convolved(
    site: NodeSite, i: int, bias: Any, zero_points: Any, scales: Any, output: Any, dtype: str
) -> Any:
    """Convolve input 0 with the filter that input `i` is."""
    window = windows_of(site, kernel_of(site, i))
    operands = {
        "input": site.operand(0), "filter": site.operand(i), "bias": bias,
        "input_zero_point": zero_points[0], "input_scale": scales[0],
        "filter_zero_point": zero_points[1], "filter_scale": scales[1],
        "output_zero_point": output[0], "output_scale": output[1],
    }  # fmt: skip
    groups = site.int("group", 1)
    return site.emit(
        "quantized_conv", operands, groups=groups, border="constant", dtype=dtype, **window
    )
