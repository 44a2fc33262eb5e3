"""Functions for QuantizeLinear, which quantises tensors, and for the inverse DequantizeLinear."""

from __future__ import annotations

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
# Prefixes of the names of dtypes.
_SMALL_FLOATS = ("float8_", "float4_")
_INTEGERS = ("int", "uint")
# The difference of two levels of these dtypes may need more digits than a 16-bit float has.
_LONG_LEVELS = ("int16", "uint16", "int32")


def is_zero(x: object) -> bool:
    """Tell whether an operand is left out, or is a constant tensor of zeros."""
    if isinstance(x, Constant):
        return not np.any(x.array.astype(np.float32))
    return x is None


def broadcastable(site: NodeSite, x: Tensor, parameter: Tensor, axis: int, block: int = 0) -> Any:
    """Return `parameter`, a scale or a zero point, in a shape that broadcasts to x.

    If `block` is 0, the parameter has a single item, or an item for each item of x along `axis`.
    Otherwise the parameter has the rank of x, and along `axis` it has an item for each block of
    `block` items of x.
    """
    shape = site.shape(parameter)
    rank = site.rank(x)
    has_blocks = block != 0
    has_one_item = all(extent == 1 for extent in shape)
    if has_one_item and not has_blocks:
        return site.reshaped(parameter, ())
    axis = site.axis(axis, rank)
    is_vector = len(shape) == 1
    if is_vector and not has_blocks:
        new_axes = [i for i in range(rank) if i != axis]
        return site.unsqueezed(parameter, new_axes)
    if len(shape) != rank or block < 1:
        raise InvalidShape(
            f"a scale or zero point {show(shape)} does not fit {show(site.shape(x))} and blocks of "
            f"{block}"
        )
    return _repeated_in_blocks(site, x, parameter, axis, block)


def _repeated_in_blocks(site: NodeSite, x: Tensor, parameter: Tensor, axis: int, block: int) -> Any:
    """Repeat each item of a parameter `block` times along an axis, up to the extent of x.

    With blocks of 2, the items [a, b] become [a, a, b, b]. If x has 3 items along the axis, the
    result is [a, a, b]. Raises InvalidShape if the number of blocks does not fit x.
    """
    repeated_shape = list(site.known_shape(parameter))
    block_count = repeated_shape[axis]
    repeated_shape[axis] = block_count * block
    # The repetitions lie along a new axis after `axis`. Then the two axes become one.
    repeats = [1] * (site.rank(x) + 1)
    repeats[axis + 1] = block
    unsqueezed = site.unsqueezed(parameter, (axis + 1,))
    tiled = site.step.tile(unsqueezed, repeats=repeats)
    repeated = site.reshaped(tiled, repeated_shape)
    item_count = site.extent(x, axis)
    # The last block may have fewer items, but at least one.
    fits = (block_count - 1) * block < item_count <= block_count * block
    if not fits:
        raise InvalidShape(f"{item_count} items do not fit {block_count} blocks of {block}")
    return site.part(repeated, axis, first=0, last=item_count)


def quantized(
    site: NodeSite,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    dtype: str,
    *,
    saturates: bool = True,
) -> Any:
    """Compute x / scale + zero point, rounded to the nearest number of a dtype.

    A number halfway between two numbers is rounded to the even one. Scale and zero point broadcast
    to x. x and the scale have the same dtype. Numbers beyond the range of the dtype are clipped. If
    the dtype is an 8-bit float and not `saturates`, such numbers become infinite or NaN instead.
    """
    step = site.step
    # If the divisor is a broadcast number, XLA computes a product instead of a division. This
    # rounds some halves wrongly. `select` hides from XLA that the scale is a broadcast number. The
    # condition x = x is true unless x is NaN.
    hidden_scale = step.select(step.eq(x, x), scale, 1)
    levels = step.div(x, hidden_scale)
    if site.dtype_of(levels) != "float64":
        levels = site.cast(levels, "float32")
    is_integer = dtype.startswith(_INTEGERS)
    if is_integer:
        levels = step.round(levels, ties="even")
    if zero_point is not None and not is_zero(zero_point):
        levels = step.add(levels, site.cast(zero_point, site.dtype_of(levels)))
    clips = saturates or dtype.startswith("float4")
    if clips and not is_integer:
        # The cast below clips integers, but not floats.
        largest = float(jnp.finfo(dtype).max)
        levels = step.min(step.max(levels, -largest), largest)
    return step.cast(levels, dtype=dtype)


def dequantized(
    site: NodeSite, x: Tensor, scale: Tensor, zero_point: Tensor | None, dtype: str = ""
) -> Any:
    """Compute (x - zero point) * scale in a dtype, by default the dtype of the scale.

    The result is rounded only once. To ensure this, the difference of integer levels is computed in
    32-bit integers, and the product is computed in a float that represents the difference exactly.
    A 16-bit float represents each difference of 8-bit levels exactly. It does not represent each
    difference of 16-bit or 32-bit levels.
    """
    scale_dtype = site.dtype_of(scale)
    level_dtype = site.dtype_of(x)
    dtype = dtype or scale_dtype
    product_dtype = scale_dtype
    needs_wide_product = dtype != scale_dtype or level_dtype in _LONG_LEVELS
    if needs_wide_product:
        product_dtype = "float64" if "float64" in (scale_dtype, dtype) else "float32"
    difference = x
    if zero_point is not None and not is_zero(zero_point):
        has_integers = level_dtype.startswith(_INTEGERS)
        difference_dtype = "int32" if has_integers else product_dtype
        levels = site.cast(x, difference_dtype)
        difference = site.step.sub(levels, site.cast(zero_point, difference_dtype))
    difference = site.cast(difference, product_dtype)
    product = site.step.mul(difference, site.cast(scale, product_dtype))
    return site.cast(product, dtype)


def _broadcastable_parameters(
    site: NodeSite, x: Tensor, scale: Tensor, zero_point: Tensor | None, axis: int, block: int
) -> tuple[Any, Any]:
    """Return a scale and a zero point in shapes that broadcast to x; see `broadcastable`."""
    if site.dtype_of(scale).startswith(_SMALL_FLOATS):
        # The network does not compute in floats of 8 or 4 bits.
        scale = site.cast(scale, site.graph.builder.real)
    scale = broadcastable(site, x, scale, axis, block)
    if zero_point is not None:
        zero_point = broadcastable(site, x, zero_point, axis, block)
    return scale, zero_point


def _quantize_linear(
    site: NodeSite, x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *,
    axis: int, block: int, code: int, precision: int, saturates: bool,
) -> Any:  # fmt: skip
    """Quantise x to levels, which are integers or small floats.

    `code` stands for the dtype of the levels. `precision` stands for the dtype in which x is
    divided by the scale. Both are codes of dtypes, or 0 for the default. For `axis` and `block` see
    `broadcastable`, and for `saturates` see `quantized`.
    """
    scale, zero_point = _broadcastable_parameters(site, x, scale, zero_point, axis, block)
    level_dtype = dtype_of(code) if code else ""
    if site.has(2):
        zero_dtype = site.dtype_of(2)
        level_dtype = level_dtype or zero_dtype
        if level_dtype != zero_dtype:
            raise InvalidOperation(f"'output_dtype' must be {zero_dtype}, the dtype of input 2")
    level_dtype = level_dtype or "uint8"
    division_dtype = site.dtype_of(scale)
    if precision:
        division_dtype = site.computation_dtype(dtype_of(precision))
    x = site.cast(x, division_dtype)
    scale = site.cast(scale, division_dtype)
    return quantized(site, x, scale, zero_point, level_dtype, saturates=saturates)


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
    """Convert levels to real numbers.

    `code` is the code of the dtype of the real numbers, or 0 for the default. For `axis` and
    `block` see `broadcastable`.
    """
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

    The scale and the zero point are computed from x, so that the levels 0 to 255 cover all numbers
    of x and the number 0.
    """
    step = site.step
    axes = tuple(range(site.rank(x)))
    least = step.min_reduce(x, axes=axes) if axes else x
    low = step.min(site.reshaped(least, ()), 0)
    greatest = step.max_reduce(x, axes=axes) if axes else x
    high = step.max(site.reshaped(greatest, ()), 0)
    scale = step.div(step.sub(high, low), 255)
    zero_point = quantized(site, step.neg(low), scale, zero_point=None, dtype="uint8")
    levels = quantized(site, x, scale, zero_point, dtype="uint8")
    return levels, scale, zero_point
