"""The order of items and the shapes that they stand in: reshaped, joined, cut, repeated."""

from __future__ import annotations

from typing import Any

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, show
from nnef_jax.flattening.along_axes import cut, divided
from nnef_jax.flattening.spatial_windows import depth_to_space, space_to_depth
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator


@operator("Reshape")
def _reshape(site: NodeSite, x: Any) -> Any:
    """Reshape; 0 copies the extent of the input unless `allowzero`."""
    wanted = site.integers(1) if site.has(1) else list(site.ints("shape"))
    if site.flag("allowzero") and any(n is not UNKNOWN and n == 0 for n in wanted):
        if 0 not in site.known_shape() or -1 in wanted:
            raise InvalidShape(f"{show(site.shape())} cannot be reshaped to {wanted}")
        return site.last.constant(shape=wanted, value=(), dtype=site.dtype_of())
    return site.last_reshape(x, wanted)


@operator("Flatten")
def _flatten(site: NodeSite, x: Any) -> Any:
    """Return a matrix: axes before one make its rows, the others its columns."""
    axis, rank = site.int("axis", 1), site.rank()
    axis = rank if axis == rank else site.axis(axis)
    x = site.reshaped(x, (-1,), axis)
    return site.last.reshape(x, shape=(-1,), axis_start=0, axis_count=axis)


@operator("Transpose")
def _transpose(site: NodeSite, x: Any) -> Any:
    rank = site.rank()
    axes = site.ints("perm", tuple(range(rank))[::-1])
    if sorted(axes) != list(range(rank)):
        raise InvalidOperation(f"'perm' {list(axes)} is no order of {rank} axes")
    return site.last.transpose(x, axes=axes)


@operator("Squeeze")
def _squeeze(site: NodeSite, x: Any) -> Any:
    axes = site.axes(1)
    if axes is None:
        axes = tuple(i for i, n in enumerate(site.known_shape()) if n == 1)
    return site.last.squeeze(x, axes=sorted(axes))


@operator("Unsqueeze")
def _unsqueeze(site: NodeSite, x: Any) -> Any:
    axes = site.integers(1) if site.has(1) else site.ints("axes")
    rank = site.rank() + len(axes)
    return site.last.unsqueeze(x, axes=sorted(site.axis(a, rank) for a in axes))


@operator("Split")
def _split(site: NodeSite, x: Any) -> tuple[Any, ...]:
    """Cut along an axis into parts of given lengths, or as equal as can be."""
    axis, count = site.axis_of("axis", 0), len(site.node.outputs)
    if site.has(1):
        return tuple(cut(site, x, axis, site.integers(1)))
    if "split" in site.node.attributes:
        return tuple(cut(site, x, axis, site.ints("split")))
    parts = site.int("num_outputs", count)
    if parts != count:
        raise InvalidOperation(f"'num_outputs' is {parts}, it has {count} outputs")
    if site.version < 18:
        return tuple(divided(site, x, axis, count))
    extent = site.known_shape()[axis]
    length = -(-extent // count)
    return tuple(cut(site, x, axis, [length] * (count - 1) + [extent - length * (count - 1)]))


@operator("Tile")
def _tile(site: NodeSite, x: Any) -> Any:
    repeats = site.integers(1)
    if site.version < 6:
        repeats = [1] * site.rank()
        repeats[site.axis(site.integer(2))] = site.integer(1)
    return site.last.tile(x, repeats=repeats)


@operator("DepthToSpace", "SpaceToDepth")
def _blocks(site: NodeSite) -> Any:
    """Move blocks of channels into space, or back."""
    move = depth_to_space if site.operator == "DepthToSpace" else space_to_depth
    is_fast = site.choice("mode", "DCR", "CRD", default="DCR") == "CRD"
    size = site.int("blocksize")
    if size < 1:
        raise InvalidOperation(f"'blocksize' must be at least 1, it is {size}")
    return move(site, size, depth_first=is_fast)
