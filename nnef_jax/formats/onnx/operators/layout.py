"""Functions for operators that change shapes or the order of items, such as Reshape and Concat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, show
from nnef_jax.flattening.along_axes import split_by_lengths, split_evenly
from nnef_jax.flattening.host_operations import ceil_div
from nnef_jax.flattening.operators.attributes import axis, flag, integer, integers, word
from nnef_jax.flattening.operators.registry import Meaning
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.spatial_windows import depth_to_space, space_to_depth
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator


@operator("Reshape", since=5)
def _reshape(site: NodeSite, x: Tensor, *, allows_zero: bool = flag("allowzero")) -> Any:
    """Reshape a tensor to the shape in input 1.

    An extent of 0 in the shape stands for the extent of x along the same axis. If `allows_zero`,
    an extent of 0 stands for 0 items, so that both x and the result are empty.
    """
    shape = site.integers(1)
    has_zero = any(extent is not UNKNOWN and extent == 0 for extent in shape)
    if not (allows_zero and has_zero):
        return site.last_reshape(x, shape)
    is_empty = 0 in site.known_shape()
    has_inferred_extent = -1 in shape
    if not is_empty or has_inferred_extent:
        raise InvalidShape(f"{show(site.shape())} cannot be reshaped to {shape}")
    return site.last.constant(shape=shape, value=(), dtype=site.dtype_of())


@operator("Reshape")
def _reshape_by_attribute(
    site: NodeSite, x: Tensor, *, shape: Sequence[int] = integers("shape")
) -> Any:
    """Reshape a tensor to the shape in an attribute, as before version 5."""
    return site.last_reshape(x, shape)


@operator("Flatten")
def _flatten(site: NodeSite, x: Tensor, *, axis: int = integer("axis", 1)) -> Any:
    """Reshape a tensor to a matrix.

    The axes before `axis` become the rows. `axis` and all later axes become the columns.
    """
    if axis != site.rank():  # If `axis` is the rank, the result has one column.
        axis = site.axis(axis)
    with_columns = site.reshaped(x, (-1,), first=axis)
    return site.last.reshape(with_columns, shape=(-1,), axis_start=0, axis_count=axis)


@operator("Transpose")
def _transpose(site: NodeSite, x: Tensor) -> Any:
    """Permute the axes of a tensor. By default, their order is reversed."""
    rank = site.rank()
    reverse_order = tuple(reversed(range(rank)))
    axes = site.ints("perm", reverse_order)
    if sorted(axes) != list(range(rank)):
        raise InvalidOperation(f"'perm' {list(axes)} must be an order of {rank} axes")
    return site.last.transpose(x, axes=axes)


@operator("Squeeze")
def _squeeze(site: NodeSite, x: Tensor) -> Any:
    """Remove the axes in input 1 or in the attribute `axes`, by default all axes of extent 1."""
    axes = site.axes("axes", 1)
    if axes is None:
        axes = tuple(axis for axis, extent in enumerate(site.known_shape()) if extent == 1)
    return site.last.squeeze(x, axes=sorted(axes))


@operator("Unsqueeze", since=13)
def _unsqueeze(site: NodeSite, x: Tensor) -> Any:
    """Insert axes of extent 1. Input 1 has their indices in the result."""
    return _unsqueeze_by_attribute(site, x, axes=site.integers(1))


@operator("Unsqueeze")
def _unsqueeze_by_attribute(
    site: NodeSite, x: Tensor, *, axes: Sequence[int] = integers("axes")
) -> Any:
    """Insert axes of extent 1. `axes` are their indices in the result."""
    result_rank = site.rank() + len(axes)
    new_axes = [site.axis(axis, result_rank) for axis in axes]
    return site.last.unsqueeze(x, axes=sorted(new_axes))


@operator("Concat", since=4, axis=axis("axis"))
@operator("Concat", axis=axis("axis", 1))
def _concat(site: NodeSite, *values: Tensor, axis: int) -> Any:
    """Join tensors along an axis."""
    return site.last.concat(values, axis=axis)


@operator("Split", since=18)
def _split(site: NodeSite, x: Tensor, *, axis: int = axis("axis", 0)) -> tuple[Any, ...]:
    """Split a tensor along an axis into parts. Input 1 has the lengths of the parts.

    If input 1 is left out, the parts have equal lengths, but the last part may be shorter.
    """
    if site.has(1):
        return tuple(split_by_lengths(site, x, axis, site.integers(1)))
    count = len(site.node.outputs)
    declared_count = site.int("num_outputs", count)
    if declared_count != count:
        raise InvalidOperation(f"'num_outputs' is {declared_count}, it has {count} outputs")
    # For example, 7 items in 3 parts have the lengths 3, 3 and 1.
    extent = site.known_shape()[axis]
    length = ceil_div(extent, count)
    lengths = [length] * (count - 1)
    lengths.append(extent - sum(lengths))
    return tuple(split_by_lengths(site, x, axis, lengths))


@operator("Split")
def _split_by_attribute(
    site: NodeSite, x: Tensor, *, axis: int = axis("axis", 0)
) -> tuple[Any, ...]:
    """Split a tensor along an axis. Input 1 or the attribute `split` has the lengths of the parts.

    If the node has neither input 1 nor the attribute, all parts have equal lengths.
    """
    if site.has(1):
        return tuple(split_by_lengths(site, x, axis, site.integers(1)))
    if site.has_attribute("split"):
        return tuple(split_by_lengths(site, x, axis, site.ints("split")))
    return tuple(split_evenly(site, x, axis, len(site.node.outputs)))


@operator("Tile", since=6)
def _tile(site: NodeSite, x: Tensor) -> Any:
    """Repeat a tensor along each axis. Input 1 has the number of repetitions for each axis."""
    return site.last.tile(x, repeats=site.integers(1))


@operator("Tile")
def _tile_along_axis(site: NodeSite, x: Tensor) -> Any:
    """Repeat a tensor along one axis, as before version 6.

    Input 1 is the number of repetitions, and input 2 is the axis.
    """
    axis = site.axis(site.integer(2))
    repeats = [1] * site.rank()
    repeats[axis] = site.integer(1)
    return site.last.tile(x, repeats=repeats)


def _block_meaning(move: Callable[..., object]) -> Meaning:
    """Return the function for an operator that moves items between channels and blocks of an image.

    `move` is the function that adds the operations, such as `depth_to_space`.
    """

    def meaning(site: NodeSite, *, mode: str, size: int) -> Any:
        """Move items. A block has `size` items along each spatial axis."""
        if size < 1:
            raise InvalidOperation(f"'blocksize' must be at least 1, it is {size}")
        return move(site, size, depth_first=mode == "CRD")

    return meaning


for _name, _move in (("DepthToSpace", depth_to_space), ("SpaceToDepth", space_to_depth)):
    operator(_name, mode=word("mode", "DCR", "CRD"), size=integer("blocksize"))(
        _block_meaning(_move)
    )
