"""Operations on items by their indices: gather, scatter, top-k and one-hot.

Resulting indices are int32. Negative indices count from the end. Reading beyond the axis gives NaN
for floating-point numbers, the least number for signed integers, the greatest number for unsigned
integers, and true for logical values. Writing beyond the axis does nothing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, shapes_differ, show, with_extent
from lowering.graph import TensorType
from lowering.ops import require, rules
from lowering.ops.require import normal_axis

_REDUCTIONS = ("none", "add", "mul", "min", "max")


def _index(indices: Array) -> Array:
    """Return indices as int32, unless they have 64 bits."""
    indices = jnp.asarray(indices)
    has_64_bits = indices.dtype.itemsize == 8
    return indices if has_64_bits else indices.astype(jnp.int32)


def _gather_elements_type(input: TensorType, indices: TensorType, axis: int) -> TensorType:
    _require_elements(input, indices, axis)
    return TensorType(indices.shape, input.dtype)


def _require_elements(input: TensorType, indices: TensorType, axis: int) -> None:
    """Refuse indices that are not integers, or that have a wrong shape.

    Indices must have the rank of the input. Only along `axis` may they be longer than the input.
    """
    require.integer(indices=indices)
    axis = normal_axis(axis, len(input.shape))
    _require_same_rank("indices", indices.shape, "input", input.shape)
    for other_axis, extent in enumerate(input.shape):
        if other_axis != axis and indices.shape[other_axis] > extent:
            raise InvalidShape(
                f"'indices' {show(indices.shape)} must not be larger than 'input' "
                f"{show(input.shape)} except along axis {axis}, at axis {other_axis} it is"
            )


def _require_same_rank(name: str, shape: Shape, target_name: str, target: Shape) -> None:
    """Raise InvalidShape if two shapes have different ranks. The names are for the error."""
    if len(shape) != len(target):
        raise InvalidShape(
            f"'{name}' {show(shape)} must have as many axes as '{target_name}' {show(target)}"
        )


@rules.rule("gather_elements", _gather_elements_type)
def gather_elements(input: Array, indices: Array, axis: int) -> Array:
    """Return the items at indices along an axis (ONNX GatherElements).

    The result has the shape of `indices`. Along axes other than `axis`, `indices` may be
    shorter than the input.
    """
    x = jnp.asarray(input)
    index = _index(indices)
    axis = axis % x.ndim
    # Cut the input to the extents of the indices along all other axes.
    extents = with_extent(index.shape, axis, x.shape[axis])
    addressed = lax.slice(x, [0] * x.ndim, extents)
    return jnp.take_along_axis(addressed, index, axis)


def _gather_nd_type(input: TensorType, indices: TensorType, batch_dims: int) -> TensorType:
    """Check the arguments of `gather_nd`, and return the type of its result."""
    require.integer(indices=indices)
    # At least one axis of each operand is no batch axis.
    most_batch_axes = min(len(input.shape), len(indices.shape)) - 1
    if most_batch_axes < 0:
        raise InvalidShape(
            f"'input' {show(input.shape)} and 'indices' {show(indices.shape)} must have axes"
        )
    _require_batch(input.shape, indices.shape, batch_dims, most_batch_axes)
    count = _coordinate_count(indices.shape, len(input.shape) - batch_dims)
    shape = indices.shape[:-1] + input.shape[batch_dims + count :]
    return TensorType(shape, input.dtype)


def _require_batch(input: Shape, indices: Shape, batch_dims: int, most: int) -> None:
    """Refuse a number of batch axes above `most`, and shapes with different batch extents.

    The batch axes are the first `batch_dims` axes of the shapes `input` and `indices`.
    """
    operands = f"'input' {show(input)} and 'indices' {show(indices)}"
    if not 0 <= batch_dims <= most:
        message = f"'batch_dims' must lie in [0,{most}] for {operands}, it is {batch_dims}"
        raise InvalidOperation(message)
    if shapes_differ(input[:batch_dims], indices[:batch_dims]):
        message = f"the first {batch_dims} extents of {operands} must be equal, they are the batch"
        raise InvalidShape(message)


def _coordinate_count(indices: Shape, rank: int) -> int:
    """Return the last extent of `indices`: the number of input axes that an index addresses.

    `indices` is a shape. Raises InvalidShape if the extent is unknown, or is not from 1 to
    `rank`.
    """
    count = indices[-1] if indices else 0
    if count is UNKNOWN:
        raise InvalidShape(
            f"the last extent of 'indices' {show(indices)} must be known: it is the number of axes "
            "that they address",
            hint="give the shape of the inputs",
        )
    if not 1 <= count <= rank:
        raise InvalidShape(
            f"'indices' {show(indices)} must have a last axis of 1 to {rank} coordinates, "
            "an item for each axis of 'input' that they address"
        )
    return count


def _coordinates(indices: Array) -> tuple[Array, ...]:
    """Split indices (..., axes) into one array (...) for each addressed axis."""
    index = _index(indices)
    return tuple(index[..., axis] for axis in range(index.shape[-1]))


@rules.rule("gather_nd", _gather_nd_type)
def gather_nd(input: Array, indices: Array, batch_dims: int) -> Array:
    """Return the sub-tensors at the coordinates in the last axis of the indices (ONNX GatherND).

    The first `batch_dims` axes of the input and the indices are batch axes, which are not
    addressed.
    """

    def read(x: Array, indices: Array) -> Array:
        return x.at[_coordinates(indices)].get(mode="fill")

    for _ in range(batch_dims):
        read = jax.vmap(read)
    return read(jnp.asarray(input), jnp.asarray(indices))


def _require_reduction(input: TensorType, updates: TensorType, reduction: str) -> None:
    """Refuse an unknown reduction, and dtypes for which a reduction is not defined."""
    require.same_dtype(input=input, updates=updates)
    require.one_of("reduction", reduction, _REDUCTIONS)
    if reduction in ("add", "mul"):
        require.number(input=input)
    elif reduction != "none":
        require.ordered(input=input)


def _scatter_elements_type(
    input: TensorType, indices: TensorType, updates: TensorType, axis: int, reduction: str
) -> TensorType:
    """Check the arguments of `scatter_elements`, and return the type of its result."""
    _require_reduction(input, updates, reduction)
    _require_elements(input, indices, axis)
    if not updates.shape:
        return input  # a scalar update fits all indices
    _require_same_rank("updates", updates.shape, "indices", indices.shape)
    extents = zip(updates.shape, indices.shape, strict=True)
    if any(update_extent < index_extent for update_extent, index_extent in extents):
        raise InvalidShape(
            f"'updates' {show(updates.shape)} must have an item for each of 'indices' "
            f"{show(indices.shape)}"
        )
    return input


@rules.rule("scatter_elements", _scatter_elements_type)
def scatter_elements(
    input: Array, indices: Array, updates: Array, axis: int, reduction: str
) -> Array:
    """Return the input with each update at its index along the axis (ONNX ScatterElements).

    If several updates have the same index, 'none' writes one of them, which on most platforms
    is the last. The reductions 'add', 'mul', 'min' and 'max' combine all updates at an index
    with the input's item. Equal extremes share the derivative. `indices` may be smaller than
    `input`. As in torch, `indices` may also be smaller than `updates`. Then updates outside of
    the shape of `indices` are not written. A scalar update is written at all indices.
    """
    x = jnp.asarray(input)
    index = _index(indices)
    axis = axis % x.ndim
    # Along axes other than `axis`, an update is written at the position that it has in `updates`.
    coordinates: list[Array] = []
    for input_axis in range(x.ndim):
        if input_axis == axis:
            coordinates.append(index)
        else:
            coordinates.append(lax.broadcasted_iota(index.dtype, index.shape, input_axis))
    updates = jnp.asarray(updates)
    if updates.ndim == 0:
        updates = jnp.broadcast_to(updates, index.shape)
    written_updates = lax.slice(updates, [0] * x.ndim, index.shape)
    return _scatter(x, tuple(coordinates), written_updates, reduction)


def _scatter_nd_type(
    input: TensorType, indices: TensorType, updates: TensorType, reduction: str
) -> TensorType:
    """Check the arguments of `scatter_nd`, and return the type of its result."""
    _require_reduction(input, updates, reduction)
    require.integer(indices=indices)
    if indices.shape[-1:] == (UNKNOWN,):
        return input  # without the number of coordinates, the shape of the updates is unknown
    count = _coordinate_count(indices.shape, len(input.shape))
    expected = indices.shape[:-1] + input.shape[count:]
    why = "it is that of 'indices' without the last axis, then that of a sub-tensor of 'input'"
    require.shape("updates", updates, expected, why)
    return input


@rules.rule("scatter_nd", _scatter_nd_type)
def scatter_nd(input: Array, indices: Array, updates: Array, reduction: str) -> Array:
    """Return the input with updates at the coordinates in the last axis of indices (ScatterND).

    If several updates have the same coordinates, 'none' writes one of them, which on most platforms
    is the last. The reductions 'add', 'mul', 'min' and 'max' combine all updates at equal
    coordinates with the input's item. Source: ScatterND of ONNX.
    """
    return _scatter(jnp.asarray(input), _coordinates(indices), jnp.asarray(updates), reduction)


def _scatter(x: Array, coordinates: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """Write updates into x at coordinates, or combine updates and items of x by a reduction."""
    target = x.at[coordinates]
    match reduction:
        case "mul":
            return _multiply(x, coordinates, updates)
        case "add":
            return target.add(updates, mode="drop")
        case "min":
            return target.min(updates, mode="drop")
        case "max":
            return target.max(updates, mode="drop")
        case _:
            return target.set(updates, mode="drop")


@jax.custom_jvp
def _multiply(x: Array, coordinates: tuple[Array, ...], updates: Array) -> Array:
    """Multiply the items of x at coordinates by updates."""
    return x.at[coordinates].multiply(updates, mode="drop")


@_multiply.defjvp
def _multiply_jvp(
    primals: tuple[Array, tuple[Array, ...], Array], tangents: tuple[Array, object, Array]
) -> tuple[Array, Array]:
    """Return the products, and their tangents.

    jax differentiates products only if the indices are unique. The derivative by an update is the
    product of the other updates at the same index. For the updates 2, 3 and 0 these products are 0,
    0 and 6. If one of the other updates is 0, their product is 0. If none of the other updates is
    0, their product is that of all non-zero updates at the index, divided by this update unless
    this update is 0.
    """
    x, coordinates, updates = primals
    x_tangent, _, update_tangents = tangents
    is_zero = updates == 0
    zero_or_one = is_zero.astype(jnp.int32)
    # Compute, at each index, the product of the updates that are not 0, and the number of zeros.
    factors = jnp.where(is_zero, 1.0, updates)
    product = _multiply(jnp.ones_like(x), coordinates, factors)
    zero_counts = jnp.zeros(x.shape, jnp.int32).at[coordinates].add(zero_or_one, mode="drop")
    # Compute, for each update, the product of the other updates at the same index. An update of 0
    # has no other zero at its index if the index has one zero. Any other update has no other zero
    # if the index has no zeros.
    has_no_other_zero = zero_counts.at[coordinates].get(mode="fill") == zero_or_one
    quotients = product.at[coordinates].get(mode="fill", fill_value=0) / factors
    other_products = jnp.where(has_no_other_zero, quotients, 0.0)
    # Add up, at each index, the tangent of the product of all updates.
    tangent_terms = update_tangents * other_products
    product_tangent = jnp.zeros_like(x).at[coordinates].add(tangent_terms, mode="drop")
    all_products = jnp.where(zero_counts == 0, product, 0.0)
    tangent = x_tangent * all_products + x * product_tangent
    return _multiply(x, coordinates, updates), tangent


def _topk_type(input: TensorType, k: int, axis: int) -> tuple[TensorType, TensorType]:
    """Check the arguments of `topk`, and return the types of its results."""
    require.ordered(input=input)
    axis = normal_axis(axis, len(input.shape))
    if k < 1 or k > input.shape[axis]:
        raise InvalidOperation(
            f"'k' must lie in [1,{input.shape[axis]}] for axis {axis} of 'input' "
            f"{show(input.shape)}, it is {k}"
        )
    shape = with_extent(input.shape, axis, k)
    return TensorType(shape, input.dtype), TensorType(shape, "int32")


@rules.rule("topk", _topk_type)
def topk(input: Array, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
    """Return the k largest or smallest items along the axis in order, and their indices.

    The largest come first if `largest` is true, otherwise the smallest. Of equal items the one
    with the lower index comes first. NaN counts as infinity. The derivative goes to the chosen
    items.
    """
    x = jnp.asarray(input)
    axis = axis % x.ndim
    key = lax.stop_gradient(x)
    is_floating = jnp.issubdtype(x.dtype, jnp.floating)
    if is_floating:
        # lax.top_k orders zeros and NaNs by their signs.
        key = jnp.where(key == 0, 0.0, key)
        key = jnp.where(jnp.isnan(key), jnp.inf, key)
    if not largest:
        # ~key reverses the order of integers. -key would overflow for the least integer.
        key = -key if is_floating else ~key
    _, indices = lax.top_k(jnp.moveaxis(key, axis, -1), k)
    indices = jnp.moveaxis(indices, -1, axis)
    return jnp.take_along_axis(x, indices, axis), indices


def _one_hot_type(indices: TensorType, axis: int, depth: int) -> TensorType:
    """Check the arguments of `one_hot`, and return the type of its result."""
    require.integer(indices=indices)
    axis = normal_axis(axis, len(indices.shape) + 1)
    if depth < 1:
        raise InvalidOperation(f"'depth' must be positive, it is {depth}")
    require.int32(depth=depth)
    return TensorType((*indices.shape[:axis], depth, *indices.shape[axis:]), "float32")


@rules.rule("one_hot", _one_hot_type, not_differentiable="its operand holds indices")
def one_hot(indices: Array, axis: int, depth: int, off_value: float, on_value: float) -> Array:
    """Return `on_value` at the indices along a new axis, and `off_value` elsewhere, in float32.

    The new axis has the number `axis` in the result and the extent `depth`. A negative index
    counts from the end. At an index out of range all items of the result are `off_value`.
    """
    index = _index(indices)
    axis = axis % (index.ndim + 1)
    from_start = jnp.where(index < 0, index + depth, index)
    expanded = jnp.expand_dims(from_start, axis)  # with extent 1 along the new axis
    shape = with_extent(expanded.shape, axis, depth)
    positions = lax.broadcasted_iota(expanded.dtype, shape, axis)
    return jnp.where(expanded == positions, jnp.float32(on_value), jnp.float32(off_value))


def _gather_in_batches_type(
    input: TensorType, indices: TensorType, axis: int, batch_dims: int
) -> TensorType:
    """Check the arguments of `gather_in_batches`, and return the type of its result."""
    require.integer(indices=indices)
    require.axis(axis, len(input.shape))
    _require_batch(input.shape, indices.shape, batch_dims, min(axis, len(indices.shape)))
    shape = (*input.shape[:axis], *indices.shape[batch_dims:], *input.shape[axis + 1 :])
    return TensorType(shape, input.dtype)


@rules.rule("gather_in_batches", _gather_in_batches_type)
def gather_in_batches(input: Array, indices: Array, axis: int, batch_dims: int) -> Array:
    """Return the sub-tensors at indices along an axis, with separate indices for each batch item.

    The first `batch_dims` axes of the input and of the indices are batch axes. The other axes
    of `indices` replace `axis`.
    """

    def take(x: Array, index: Array) -> Array:
        return jnp.take(x, index, axis=axis - batch_dims)

    for _ in range(batch_dims):
        take = jax.vmap(take)
    return take(jnp.asarray(input), _index(indices))


def _reverse_sequence_type(
    input: TensorType, lengths: TensorType, batch_axis: int, time_axis: int
) -> TensorType:
    require.integer(lengths=lengths)
    require.axes((batch_axis, time_axis), len(input.shape), "the axes")
    require.shape("lengths", lengths, (input.shape[batch_axis],), "it has a length for each item")
    return input


@rules.rule("reverse_sequence", _reverse_sequence_type)
def reverse_sequence(input: Array, lengths: Array, batch_axis: int, time_axis: int) -> Array:
    """Reverse the first `lengths[i]` items of sequence i. The items after them do not move.

    The sequences lie along `time_axis`. Sequence i has the index i along `batch_axis`.
    """
    x = jnp.asarray(input)
    time = jnp.arange(x.shape[time_axis], dtype=jnp.int32)[None, :]
    ends = _index(lengths)[:, None]
    source_time = jnp.where(time < ends, ends - 1 - time, time)  # (batch, time)
    shape = [1] * x.ndim
    shape[batch_axis], shape[time_axis] = source_time.shape
    if time_axis < batch_axis:
        source_time = source_time.T  # in the order of the axes of x
    return jnp.take_along_axis(x, source_time.reshape(shape), axis=time_axis)
