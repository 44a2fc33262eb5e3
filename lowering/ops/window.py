"""Box filters, pools, adaptive pools, and sampling by window indices (spec 4.3.2, 4.3.3, 4.8.3)."""

from __future__ import annotations

from typing import Unpack

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Shape, shapes_differ, show
from lowering.graph import TensorType
from lowering.kernels.correlation import bordered, spread
from lowering.kernels.precision import accumulator, widened
from lowering.kernels.windows import (
    POOL_BORDERS,
    Padding,
    Pool,
    Windows,
    basic_windows,
    extend,
    lowest,
    positions,
    require_attributes,
    require_basic,
    require_positive,
    require_reverse,
    reverse_windows,
    valid_counts,
    window_max_and_index,
)
from lowering.ops import require, rules
from lowering.tracing import Context


def _window_type(input: TensorType, **pool: Unpack[Pool]) -> TensorType:
    """Check the arguments of `max_pool`, and return the type of its result."""
    require.ordered(input=input)
    require.one_of("border", pool["border"], POOL_BORDERS)
    require_attributes(len(input.shape), pool)
    windows = basic_windows(input.shape, **pool)
    require_basic(windows)
    return TensorType(windows.downscaled, input.dtype)


def pool_type(input: TensorType, **pool: Unpack[Pool]) -> TensorType:
    """Return the type of a pool's result, which has one floating-point number for each window.

    Raises InvalidOperation or InvalidShape if the input has a wrong dtype, or if the attributes do
    not fit the input.
    """
    require.floating(input=input)
    return _window_type(input, **pool)


def _debox_type(input: TensorType, output_shape: Shape, **pool: Unpack[Pool]) -> TensorType:
    """Check the arguments of `debox`, and return the type of its result."""
    require.floating(input=input)
    require.one_of("border", pool["border"], POOL_BORDERS)
    require_attributes(len(input.shape), pool)
    if output_shape and len(output_shape) != len(input.shape):
        raise InvalidOperation(
            f"'output_shape' {list(output_shape)} must have {len(input.shape)} items"
        )
    windows = _debox_windows(input.shape, output_shape, **pool)
    if output_shape:
        require_positive("output_shape", windows.upscaled)
    require_reverse(windows, pool["padding"])
    return TensorType(windows.upscaled, input.dtype)


def _debox_windows(shape: Shape, output_shape: Shape, **pool: Unpack[Pool]) -> Windows:
    """Return the windows of a debox on an input of the shape `shape`.

    If windows do not span the batch, the batch extent of the input replaces that of
    `output_shape`.
    """
    # If an attribute has no items, windows have size 1, stride 1 and no padding along the batch.
    has_size_1 = pool["size"][:1] in ((), (1,))
    has_stride_1 = pool["stride"][:1] in ((), (1,))
    is_unpadded = pool["padding"][:1] in ((), ((0, 0),))
    keeps_batch = has_size_1 and has_stride_1 and is_unpadded
    if output_shape and keeps_batch:
        output_shape = (shape[0], *output_shape[1:])
    return reverse_windows(shape, output_shape, **pool)


@rules.rule("box", pool_type)
def box(ctx: Context, input: Array, normalize: bool, **pool: Unpack[Pool]) -> Array:
    """Return the sum of each window, or the mean if `normalize` is true.

    With the border 'ignore' the mean is over the cells that lie on the input. With other
    borders the mean is over all cells of the window.
    """
    windows = basic_windows(input.shape, **pool)
    x, padding = bordered(input, windows)
    # A sum may overflow float16 even if the mean does not. Therefore sums are computed in a wider
    # dtype.
    sum_dtype = accumulator(x.dtype)
    results = _sums(x.astype(sum_dtype), windows, windows.stride, padding)
    if normalize and windows.border == "ignore":
        # A window that lies only on padding has the sum 0 and no cell to count. With the divisor 1
        # its mean is 0.
        counts = np.maximum(valid_counts(windows, ctx.fold), 1)
        results = results / counts.astype(sum_dtype)
    elif normalize:
        results = results / windows.volume
    return results.astype(x.dtype)


def _sums(x: Array, windows: Windows, stride: Shape, padding: Padding) -> Array:
    """Return the sum of each window. `stride` and `padding` replace those of `windows`."""
    zero = np.array(0, x.dtype)
    return lax.reduce_window(
        x,
        init_value=zero,
        computation=lax.add,
        window_dimensions=windows.size,
        window_strides=stride,
        padding=padding,
        window_dilation=windows.dilation,
    )


@rules.rule("debox", _debox_type)
def debox(input: Array, output_shape: Shape, normalize: bool, **pool: Unpack[Pool]) -> Array:
    """Add each item to all cells of its window in the result.

    If `normalize` is true, the item is first divided by the number of cells of a window.
    """
    windows = _debox_windows(input.shape, output_shape, **pool)
    x, padding = spread(input, windows)
    # Put zeros between the items, which are then `windows.stride` apart. Windows of this input
    # have stride 1.
    edges: list[tuple[int, int, int]] = []
    for (before, after), stride in zip(padding, windows.stride, strict=True):
        edges.append((before, after, stride - 1))
    x = lax.pad(x, np.array(0, x.dtype), edges)
    total = _sums(x, windows, stride=(1,) * x.ndim, padding=((0, 0),) * x.ndim)
    return total / windows.volume if normalize else total


@rules.rule("max_pool", _window_type)
def max_pool(input: Array, **pool: Unpack[Pool]) -> Array:
    """Return the maximum of each window.

    With the border 'constant' the padding is zeros, which are greater than negative items. The
    derivative goes to the first of equal maxima.
    """
    x = jnp.asarray(input)
    windows = basic_windows(input.shape, **pool)
    padding, border = windows.padding, windows.border
    is_dilated = any(dilation > 1 for dilation in windows.dilation)
    if is_dilated:
        # `reduce_window` has no derivative in reverse mode for dilated windows.
        maximum, _ = window_max_and_index(x, windows, border)
        return maximum
    if border != "ignore":
        # `reduce_window` would pad with the initial value, which suits only the border 'ignore'.
        x = extend(x, padding, border)
        padding = ((0, 0),) * x.ndim
    return lax.reduce_window(
        x,
        init_value=lowest(x.dtype),
        computation=lax.max,
        window_dimensions=windows.size,
        window_strides=windows.stride,
        padding=padding,
    )


@rules.rule("avg_pool", pool_type)
def avg_pool(ctx: Context, input: Array, **pool: Unpack[Pool]) -> Array:
    """Return the mean of each window.

    With the border 'ignore' the mean is over the cells that lie on the input. With other
    borders the mean is over all cells of the window.
    """
    return box(ctx, input, normalize=True, **pool)


@rules.rule("rms_pool", pool_type)
def rms_pool(ctx: Context, input: Array, **pool: Unpack[Pool]) -> Array:
    """Return the root mean square of each window. Where the root is 0, its derivative is 0."""
    mean = avg_pool(ctx, jnp.square(input), **pool)
    # This selection keeps the infinite derivative of the root at 0 out of the result.
    positive = jnp.where(mean > 0, mean, 1)
    return jnp.where(mean > 0, jnp.sqrt(positive), mean)


def _index_type(input: TensorType, **pool: Unpack[Pool]) -> TensorType:
    return TensorType(pool_type(input, **pool).shape, "int32")


@rules.rule("argmax_pool", _index_type, not_differentiable="its result is an index")
def argmax_pool(input: Array, **pool: Unpack[Pool]) -> Array:
    """Return the index of the maximum within each window, or of the first of equal maxima.

    Indices count the cells of a window in row-major order.
    """
    _, index = max_pool_with_index(input, **pool)
    return index


def _max_and_index_type(
    input: TensorType, first_axis: int = -1, **pool: Unpack[Pool]
) -> tuple[TensorType, TensorType]:
    """Check the arguments of `max_pool_with_index`, and return the types of its results."""
    output = _window_type(input, **pool)
    if first_axis >= 0 and pool["border"] != "ignore":
        raise InvalidOperation(
            f"'first_axis' needs the border 'ignore', the border is '{pool['border']}'"
        )
    return output, TensorType(output.shape, "int32")


@rules.rule("max_pool_with_index", _max_and_index_type)
def max_pool_with_index(
    input: Array, first_axis: int = -1, **pool: Unpack[Pool]
) -> tuple[Array, Array]:
    """Return the maximum of each window, and the index of the first cell with the maximum.

    Indices count the cells of the window in row-major order. If `first_axis` is not negative,
    they instead count the items of the input in row-major order, over the axes from
    `first_axis` on.
    """
    x = jnp.asarray(input)
    windows = basic_windows(input.shape, **pool)
    maximum, index = window_max_and_index(x, windows, windows.border)
    if first_axis < 0:
        return maximum, index
    input_index = jnp.zeros(index.shape, index.dtype)
    cells = positions(index, windows)
    for axis in range(first_axis, x.ndim):
        padding_before, _ = windows.padding[axis]
        coordinate = cells[axis] - padding_before
        # Padding has the maximum only if all items are the lowest number. In this case take the
        # first cell on the input: the cells are `dilation` items apart.
        coordinate = jnp.where(coordinate < 0, coordinate % windows.dilation[axis], coordinate)
        input_index = input_index * x.shape[axis] + coordinate
    return maximum, input_index


def _sample_type(input: TensorType, index: TensorType, **pool: Unpack[Pool]) -> TensorType:
    output = pool_type(input, **pool)
    _require_index(index, output.shape, "the output")
    return output


@rules.rule("sample", _sample_type)
def sample(input: Array, index: Array, **pool: Unpack[Pool]) -> Array:
    """Return one item of each window: the item in the cell with the number `index`.

    The cells of a window are numbered in row-major order. With the borders 'constant' and
    'ignore' items outside of the input are 0.
    """
    windows = basic_windows(input.shape, **pool)
    x = jnp.asarray(extend(input, windows.padding, windows.border))
    return x.at[positions(index, windows)].get(mode="clip")


def _desample_type(
    input: TensorType, index: TensorType, output_shape: Shape, **pool: Unpack[Pool]
) -> TensorType:
    # Items that an index puts on the padding are dropped, so that the border does not matter.
    _require_index(index, input.shape, "the input")
    require.one_of("border", pool["border"], POOL_BORDERS)
    pool["border"] = "constant"
    return _debox_type(input, output_shape, **pool)


@rules.rule("desample", _desample_type)
def desample(input: Array, index: Array, output_shape: Shape, **pool: Unpack[Pool]) -> Array:
    """Add each item to cell number `index` of the item's window, as the reverse of `sample`.

    The cells of a window are numbered in row-major order.
    """
    windows = _debox_windows(input.shape, output_shape, **pool)
    covered: list[int] = []  # the extents that the windows span, with the padding
    edges: list[tuple[int, int, int]] = []
    for axis, count in enumerate(windows.downscaled):
        extent = (count - 1) * windows.stride[axis] + windows.dilated[axis]
        covered.append(extent)
        # Cut off the cells on the padding, and add zeros where no window covers the result.
        before, _ = windows.padding[axis]
        edges.append((-before, windows.upscaled[axis] + before - extent, 0))
    is_cell = (index >= 0) & (index < windows.volume)
    zero = np.array(0, input.dtype)
    cells = jnp.zeros(covered, input.dtype)
    cells = cells.at[positions(index, windows)].add(jnp.where(is_cell, input, zero))
    return lax.pad(cells, zero, edges)


def _require_index(index: TensorType, shape: Shape, owner: str) -> None:
    """Refuse an index unless it has integers and the shape `shape`.

    `owner` is the name of the tensor of this shape in the error.
    """
    require.integer(index=index)
    if shapes_differ(index.shape, shape):
        raise InvalidShape(
            f"'index' {show(index.shape)} must have the shape of {owner}, {show(shape)}"
        )


# For each index of each window, the host computes this number of items: whether the index is inside
# the window, and its weight in the mean.
_ITEMS_OF_INDEX = 8


def _adaptive_type(input: TensorType, output_size: Shape) -> TensorType:
    """Check the arguments of `adaptive_avg_pool`, and return the type of its result."""
    require.floating(input=input)
    if len(output_size) != len(input.shape) - 2:
        raise InvalidShape(
            f"'output_size' {list(output_size)} must have an item for each spatial axis of "
            f"'input' {show(input.shape)}"
        )
    require_positive("output_size", output_size)
    for extent, count in zip(input.shape[2:], output_size, strict=True):
        require.indexable(windows=TensorType((count, extent), "bool"))
    return TensorType((*input.shape[:2], *output_size), input.dtype)


def _adaptive_windows(ctx: Context, extent: int, count: int) -> NDArray[np.bool_]:
    """Return the mask (count, extent) of the indices in each of `count` windows along an axis.

    The windows are those of torch's adaptive pools. For an extent e, window i of n covers the
    indices from floor(i e / n) to before ceil((i + 1) e / n).
    """
    # This call may raise an error if the host would compute too many items.
    ctx.fold(_ITEMS_OF_INDEX * count * extent)
    number = np.arange(count)[:, None]
    index = np.arange(extent)[None, :]
    start = number * extent // count
    end = -((-(number + 1) * extent) // count)  # (number + 1) * extent / count, rounded up
    return (index >= start) & (index < end)


@rules.rule("adaptive_avg_pool", _adaptive_type)
def adaptive_avg_pool(ctx: Context, input: Array, output_size: Shape) -> Array:
    """Return the mean of each window, for `output_size[i]` windows along spatial axis i.

    The windows are those of torch's adaptive pools, which cover the whole axis.
    """
    x = widened(jnp.asarray(input))
    for axis, count in enumerate(output_size, 2):
        windows = _adaptive_windows(ctx, x.shape[axis], count).astype(x.dtype)
        weights = windows / windows.sum(axis=1, keepdims=True)
        # Sum over the axis of x and axis 1 of the weights. The windows become the last axis.
        means = jnp.tensordot(x, weights, ((axis,), (1,)), precision="highest")
        x = jnp.moveaxis(means, -1, axis)
    return x.astype(jnp.asarray(input).dtype)


def _adaptive_max_type(input: TensorType, output_size: Shape) -> tuple[TensorType, TensorType]:
    output = _adaptive_type(input, output_size)
    require.indexable(input=TensorType(input.shape[2:], input.dtype))
    return output, TensorType(output.shape, "int32")


@rules.rule("adaptive_max_pool", _adaptive_max_type)
def adaptive_max_pool(ctx: Context, input: Array, output_size: Shape) -> tuple[Array, Array]:
    """Return the maximum of each window, and the index of this maximum in the channel.

    There are `output_size[i]` windows along spatial axis i, as in torch's adaptive pools. Indices
    count the items of a channel in row-major order.
    """
    x = jnp.asarray(input)
    extents = x.shape[2:]
    indices = jnp.arange(int(np.prod(extents)), dtype=jnp.int32).reshape(extents)
    indices = jnp.broadcast_to(indices, x.shape)
    for axis, count in enumerate(output_size, 2):
        mask = jnp.asarray(_adaptive_windows(ctx, x.shape[axis], count))
        # Put an axis of windows before the axis of items.
        item_axis = axis + 1
        mask_shape = [1] * (x.ndim + 1)
        mask_shape[axis], mask_shape[item_axis] = mask.shape
        is_in_window = mask.reshape(mask_shape)
        candidates = jnp.where(is_in_window, jnp.expand_dims(x, axis), lowest(x.dtype))
        candidate_indices = jnp.broadcast_to(jnp.expand_dims(indices, axis), candidates.shape)
        best = jnp.argmax(candidates, axis=item_axis, keepdims=True)
        # The axis of windows replaces the axis of items.
        x = jnp.take_along_axis(candidates, best, item_axis).squeeze(item_axis)
        indices = jnp.take_along_axis(candidate_indices, best, item_axis).squeeze(item_axis)
    return x, indices
