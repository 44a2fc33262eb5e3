"""Pads axes whose extent, or whose padding, depends on numbers of items that a run counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowering.extents import is_symbolic
from lowering.graph import Value
from lowering.symbol_values import symbols_in
from nnef_jax.flattening.along_axes import cropped
from nnef_jax.flattening.site import Operand, Site, Tensor
from nnef_jax.flattening.tensor_graph import TensorGraph


def padded_lists(
    site: Site[TensorGraph],
    x: Tensor,
    padding: Sequence[tuple[Any, Any]],
    border: str,
    value: Operand = 0.0,
) -> tuple[Tensor, list[tuple[Any, Any]]]:
    """Pad the axes of a tensor that the operation `pad` cannot pad.

    The operation cannot pad an axis whose padding depends on numbers of items. If the border is not
    constant, the operation cannot pad a list at all.

    Args:
        site: the layer or node.
        x: the tensor.
        padding: a pair (before, after) for each axis. A negative number removes items.
        border: an attribute `border` of the operation `pad`, or "wrap".
        value: the items to add if the border is "constant".

    Returns:
        The tensor, and the padding that remains to be added. The padding of each padded axis is
            (0, 0).
    """
    counted_symbols = site.graph.symbols.most
    is_list = border != "constant" and site.graph.is_list(x)
    remaining_padding: list[tuple[Any, Any]] = []
    for axis, (before, after) in enumerate(padding):
        is_counted = not symbols_in((before, after)).isdisjoint(counted_symbols)
        is_padded = (before, after) != (0, 0)
        if is_counted or (is_list and is_padded):
            if not is_counted:
                x = cropped(site, x, {axis: (before, after)})
                before, after = max(before, 0), max(after, 0)
            x = _padded_by_indices(site, x, axis, before, after, border, value)
            remaining_padding.append((0, 0))
        else:
            remaining_padding.append((before, after))
    return x, remaining_padding


def _padded_by_indices(
    site: Site[TensorGraph], x: Tensor, axis: int, before: Any, after: Any, border: str,
    value: Operand,
) -> Value:  # fmt: skip
    """Pad an axis by items that are looked up by their indices. The result is a list.

    The arguments are as for `padded_lists`.
    """
    graph, step = site.graph, site.step
    extent = site.known_shape(x)[axis]
    new_extent = before + extent + after
    length = graph.extent_tensor(extent, site.span)
    last = step.max(step.sub(length, 1), 0)
    positions = site.positions(graph.bound(new_extent))
    places = step.sub(positions, graph.extent_tensor(before, site.span))
    if border == "wrap":
        # The remainder has the sign of the place, which may be negative.
        divisor = step.add(last, 1)
        indices = step.rem(step.add(step.rem(places, divisor), divisor), divisor)
    elif border.startswith("reflect"):
        # Items are mirrored at the ends of the axis again and again. Along an axis of 3 items, the
        # places 0, 1, 2, 3, 4 have the indices 0, 1, 2, 1, 0. With "reflect-even", the places from
        # 0 to 5 have the indices 0, 1, 2, 2, 1, 0: the mirror is half an item behind the end.
        is_even = border == "reflect-even"
        from_mirror = step.select(step.lt(places, 0), step.sub(-int(is_even), places), places)
        period = step.max(step.mul(step.add(last, int(is_even)), 2), 1)
        remainder = step.rem(from_mirror, period)
        mirrored = step.sub(step.sub(period, int(is_even)), remainder)
        indices = step.min(remainder, mirrored)
    else:
        indices = step.min(places, last)
    y = step.gather(x, step.max(indices, 0), axis=axis)
    if border == "constant":
        is_item = step.and_(step.ge(places, 0), step.lt(places, length))
        new_axes = tuple(i for i in range(site.rank(x)) if i != axis)
        if new_axes:
            is_item = step.unsqueeze(is_item, axes=new_axes)
        y = step.select(is_item, y, value)
    if not is_symbolic(new_extent):
        return y
    count = graph.extent_tensor(new_extent, site.span)
    return site.listed(y, axis, count, new_extent)
