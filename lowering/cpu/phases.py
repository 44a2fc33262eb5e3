"""Splits an input into phases. The items of a phase are a stride apart.

A cell of the windows covers adjacent items of one phase. Phases are few and small. Without phases,
XLA would write an array to memory for each cell: a strided slice, or in a backward pass the terms
with zeros between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.cpu.memory import materialised
from lowering.extents import ceil_div
from lowering.kernels.windows import Windows, extend

Cell = tuple[int, ...]


def covered(x: Array, windows: Windows) -> Iterator[Array]:
    """Yield the items that each cell of the windows covers at all positions of the windows.

    The items are slices of phases. The phases are kept in memory. A phase has the items of the
    padded x that are a stride apart: with the stride 2, the items 0, 2, 4 and so on are a phase.
    """
    padded = extend(x, windows.padding, "constant")
    phases: dict[Cell, Array] = {}
    for cell in np.ndindex(*windows.size):
        # With the stride 2 and 4 positions, cell 3 covers the items 3, 5, 7 and 9 of the input. The
        # phase with the offset 1 has the items 1, 3, 5 and so on. In this phase, the covered items
        # have the indices 1 to 4: the start is 1 and the stop is 5.
        offsets: list[int] = []
        starts: list[int] = []
        stops: list[int] = []
        for axis, cell_index in enumerate(cell):
            start, offset = divmod(cell_index * windows.dilation[axis], windows.stride[axis])
            offsets.append(offset)
            starts.append(start)
            stops.append(start + windows.downscaled[axis])
        key = tuple(offsets)
        if key not in phases:
            phase = lax.slice(padded, offsets, padded.shape, windows.stride)
            phases[key] = materialised(phase)
        yield lax.slice(phases[key], starts, stops)


def scattered_sums(
    arrays: Sequence[tuple[Array, float]], windows: Windows, term: Callable[..., Array]
) -> Array:
    """Return, for each item of the input, the sum of terms of all windows that cover the item.

    A window gives an item the term of the cell that lies on the item. For example, windows of 3
    cells with the stride 2 at the positions 0 and 1 cover 5 items. The sums are t(0, 0), t(1, 0),
    t(2, 0) + t(0, 1), t(1, 1) and t(2, 1), where t(c, p) is the term of cell c at position p.

    Args:
        arrays: pairs of an array and a number. The array has an item for each position of the
            windows, and the number fills the array outside of these positions.
        windows: the windows. Their up-scaled shape is the shape of the input.
        term: a function `term(cell, *slices)` that returns the terms of a cell at some positions,
            from slices of the arrays at these positions. The term of the filling numbers must be 0.
    """
    lengths: list[int] = []
    fronts: list[int] = []
    edges: list[tuple[int, int]] = []
    for axis, (before, _) in enumerate(windows.padding):
        stride = windows.stride[axis]
        # A phase has this number of items, from the start of the padding to the input's last item.
        length = ceil_div(before + windows.upscaled[axis], stride)
        # This number of positions is added before position 0. Windows at these positions would
        # cover the first items by their last cells.
        front = (windows.size[axis] - 1) * windows.dilation[axis] // stride
        back = max(length - windows.downscaled[axis], 0)
        lengths.append(length)
        fronts.append(front)
        edges.append((front, back))
    extended = [extend(array, tuple(edges), "constant", fill) for array, fill in arrays]
    sums: list[Array | None] = []
    for offsets in np.ndindex(*windows.stride):
        sums.append(_sums_of_phase(offsets, extended, windows, fronts, lengths, term))
    example = next(total for total in sums if total is not None)
    phases = [jnp.zeros_like(example) if total is None else total for total in sums]
    result = _interleaved(phases, windows.stride)
    # Cut off the padding, and add zeros after the last covered item. A negative number cuts items.
    cuts: list[tuple[int, int, int]] = []
    for axis, (before, _) in enumerate(windows.padding):
        end = before + windows.upscaled[axis]
        cuts.append((-before, end - result.shape[axis], 0))
    return lax.pad(result, np.array(0, result.dtype), cuts)


def _sums_of_phase(
    offsets: Cell,
    arrays: Sequence[Array],
    windows: Windows,
    fronts: Sequence[int],
    lengths: Sequence[int],
    term: Callable[..., Array],
) -> Array | None:
    """Return the sums of one phase of the input, or None if no cell covers items of the phase.

    Args:
        offsets: the index of the phase's first item, along each axis.
        arrays: arrays with an item for each position of the windows, with additional positions
            before position 0.
        windows: the windows.
        fronts: the number of additional positions before position 0, along each axis.
        lengths: the number of items of the phase, along each axis.
        term: see `scattered_sums`.
    """
    axes = range(len(offsets))
    total: Array | None = None
    for cell in np.ndindex(*windows.size):
        # The cell of the window at position 0 lies this number of items after the phase's first
        # item, along each axis.
        distances = [cell[axis] * windows.dilation[axis] - offsets[axis] for axis in axes]
        if any(distances[axis] % windows.stride[axis] for axis in axes):
            continue  # the cell covers items of another phase
        # For one window, `cell` lies on the phase's first item. The position of this window is
        # -(distance / stride): it is -2 for the distance 4 and the stride 2.
        starts = [fronts[axis] - distances[axis] // windows.stride[axis] for axis in axes]
        stops = [starts[axis] + lengths[axis] for axis in axes]
        slices = [lax.slice(array, starts, stops) for array in arrays]
        terms = term(cell, *slices)
        total = terms if total is None else total + terms
    return total


def _interleaved(phases: list[Array], stride: Sequence[int]) -> Array:
    """Return the array that consists of the phases in a list.

    With the stride 3 along an axis, the phase with the offset 1 has the items 1, 4, 7 and so on.
    The list has the phases in the row-major order of their offsets.
    """
    # Join the phases along one axis after another, beginning with the last axis. Phases whose
    # offsets differ only along the last axis are neighbours in the list.
    arrays = phases
    for axis in reversed(range(len(stride))):
        count = stride[axis]
        if count == 1:
            continue
        joined: list[Array] = []
        for start in range(0, len(arrays), count):
            # The offsets of these arrays differ only along `axis`, so that the items of the arrays
            # alternate along this axis.
            neighbours = arrays[start : start + count]
            shape = list(neighbours[0].shape)
            shape[axis] *= count
            alternating = jnp.stack(neighbours, axis=axis + 1)
            joined.append(alternating.reshape(shape))
        arrays = joined
    (total,) = arrays
    return total
