"""Meanings of quantisation, QuantizeLinear, and of its inverse, DequantizeLinear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from nnef_jax.flattening.operators.attributes import flag, integer
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator
from nnef_jax.formats.onnx.tensor_types import dtype_of

MICROSOFT = "com.microsoft"
_SMALL_FLOATS = ("float8_", "float4_")
_INTEGERS = ("int", "uint")
_LONG = ("int16", "uint16", "int32")


def is_zero(x: object) -> bool:
    """Tell whether an operand is left out, or is a known tensor of zeros."""
    return x is None or (isinstance(x, Constant) and not np.any(x.array.astype(np.float32)))


def broadcastable(site: NodeSite, x: Tensor, parameter: Tensor, axis: int, block: int = 0) -> Any:
    """Return a scale or zero point in a shape that broadcasts to x.

    The parameter has one item, or one for each item of x along `axis`. If `block` is not 0, the
    parameter has the rank of x, and along `axis` it has one item for every `block` items of x.
    """
    shape = site.shape(parameter)
    rank = site.rank(x)
    if all(n == 1 for n in shape) and not block:
        return site.reshaped(parameter, ())
    axis = site.axis(axis, rank)
    if len(shape) == 1 and not block:
        return site.unsqueezed(parameter, [i for i in range(rank) if i != axis])
    if len(shape) != rank or block < 1:
        raise InvalidShape(
            f"a scale or zero point {show(shape)} does not fit {show(site.shape(x))} and blocks of "
            f"{block}"
        )
    extents = list(site.known_shape(parameter))
    extents[axis] *= block
    repeats = [1] * (rank + 1)
    repeats[axis + 1] = block
    unsqueezed = site.unsqueezed(parameter, (axis + 1,))
    repeated = site.reshaped(site.step.tile(unsqueezed, repeats=repeats), extents)
    items = site.extent(x, axis)
    fits = extents[axis] - block < items <= extents[axis]
    if not fits:
        raise InvalidShape(f"{items} items do not fit {extents[axis] // block} blocks of {block}")
    return site.part(repeated, axis, 0, items)


def quantized(
    site: NodeSite,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    dtype: str,
    *,
    saturates: bool = True,
) -> Any:
    """Compute x / scale + zero point, rounded to the nearest number of a dtype. Halves go to even.

    Scale and zero point broadcast to x. x and the scale have the same dtype. If not `saturates`,
    numbers beyond the range of an 8-bit float become infinite or NaN; otherwise they are clipped.
    """
    step = site.step
    # `select` hides from XLA that the scale is a broadcast number. XLA replaces a division by such
    # a number by a product, which rounds some halves wrongly.
    levels = step.div(x, step.select(step.eq(x, x), scale, 1))
    if site.dtype_of(levels) != "float64":
        levels = site.cast(levels, "float32")
    is_integer = dtype.startswith(_INTEGERS)
    if is_integer:
        levels = step.round(levels, ties="even")
    if zero_point is not None and not is_zero(zero_point):
        levels = step.add(levels, site.cast(zero_point, site.dtype_of(levels)))
    if not is_integer and (saturates or dtype.startswith("float4")):
        most = float(jnp.finfo(dtype).max)
        levels = step.min(step.max(levels, -most), most)
    return step.cast(levels, dtype=dtype)


def dequantized(
    site: NodeSite, x: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: str = ""
) -> Any:
    """Compute (x - zero point) * scale in a dtype, by default the dtype of the scale.

    The result is rounded only once. To ensure this, the difference of integer levels is computed in
    32-bit integers. A difference of 8-bit levels is also exact in the 16-bit floats, and longer
    levels are scaled in float32 at least.
    """
    scale_dtype = site.dtype_of(scale)
    level_dtype = site.dtype_of(x)
    dtype = dtype or scale_dtype
    product_dtype = scale_dtype
    if dtype != scale_dtype or level_dtype in _LONG:
        product_dtype = "float64" if "float64" in (scale_dtype, dtype) else "float32"
    difference_dtype = "int32" if level_dtype.startswith(_INTEGERS) else product_dtype
    if zero_point is not None and not is_zero(zero_point):
        x = site.step.sub(site.cast(x, difference_dtype), site.cast(zero_point, difference_dtype))
    product = site.step.mul(site.cast(x, product_dtype), site.cast(scale, product_dtype))
    return site.cast(product, dtype)


def _broadcastable_parameters(
    site: NodeSite, x: Tensor, scale: Tensor, zero_point: Tensor | None, axis: int, block: int
) -> tuple[Any, Any]:
    if site.dtype_of(scale).startswith(_SMALL_FLOATS):
        scale = site.cast(scale, site.graph.builder.real)
    scale = broadcastable(site, x, scale, axis, block)
    if zero_point is not None:
        zero_point = broadcastable(site, x, zero_point, axis, block)
    return scale, zero_point


def _quantize_linear(
    site: NodeSite, x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *,
    axis: int, block: int, code: int, precision: int, saturates: bool,
) -> Any:  # fmt: skip
    scale, zero_point = _broadcastable_parameters(site, x, scale, zero_point, axis, block)
    dtype = dtype_of(code) if code else ""
    if site.has(2):
        zero_dtype = site.dtype_of(2)
        dtype = dtype or zero_dtype
        if dtype != zero_dtype:
            raise InvalidOperation(f"'output_dtype' must be {zero_dtype}, the dtype of input 2")
    dtype = dtype or "uint8"
    wide = site.computation_dtype(dtype_of(precision)) if precision else site.dtype_of(scale)
    x = site.cast(x, wide)
    scale = site.cast(scale, wide)
    return quantized(site, x, scale, zero_point, dtype, saturates=saturates)


def _dequantize_linear(
    site: NodeSite,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None = None,
    *,
    axis: int,
    block: int,
    code: int,
) -> Any:
    dtype = site.computation_dtype(dtype_of(code)) if code else ""
    scale, zero_point = _broadcastable_parameters(site, x, scale, zero_point, axis, block)
    return dequantized(site, x, scale, zero_point, dtype)


for _domain in ("", MICROSOFT):
    operator(
        "QuantizeLinear", domain=_domain, axis=integer("axis", 1),
        block=integer("block_size", 0), code=integer("output_dtype", 0),
        precision=integer("precision", 0), saturates=flag("saturate", True),
    )(_quantize_linear)  # fmt: skip
    operator(
        "DequantizeLinear", domain=_domain, axis=integer("axis", 1),
        block=integer("block_size", 0), code=integer("output_dtype", 0),
    )(_dequantize_linear)  # fmt: skip


@operator("DynamicQuantizeLinear")
def dynamically_quantized(site: NodeSite, x: Tensor) -> tuple[Any, Any, Any]:
    """Quantise real numbers to uint8; return the levels, the scale and the zero point.

    The scale and the zero point are computed from x, so that the levels can represent all numbers
    of x and 0.
    """
    step = site.step
    axes = tuple(range(site.rank(x)))

    def range_end(reduce: Callable[..., Tensor], bound: Callable[..., Tensor]) -> Tensor:
        extreme = reduce(x, axes=axes) if axes else x
        return bound(site.reshaped(extreme, ()), 0)

    low = range_end(step.min_reduce, step.min)
    high = range_end(step.max_reduce, step.max)
    scale = step.div(step.sub(high, low), 255)
    zero_point = quantized(site, step.neg(low), scale, None, "uint8")
    return quantized(site, x, scale, zero_point, "uint8"), scale, zero_point
