"""Splits an input into phases. The items of a phase are a stride apart.

A cell of the windows covers adjacent items of one phase. Phases are few and small. Without phases,
strided slices, or the spread terms of a backward pass, would be written to memory for each cell.
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
    """Yield, for each cell of the windows, the items that it covers at all their positions.

    The items are slices of phases, which are kept in memory. A phase has the items of x that
    are a stride apart.
    """
    padded = extend(x, windows.padding, "constant")
    phases: dict[Cell, Array] = {}
    for cell in np.ndindex(*windows.size):
        # An offset is the index of the first item of the phase, along each axis.
        offsets: list[int] = []
        # The cell covers the items of the phase from a start to a stop, along each axis. With the
        # stride 2 and 4 positions, cell 3 covers the items 3, 5, 7 and 9 of the input. They are the
        # items 1 to 4 of the phase with the offset 1, so that the start is 1 and the stop is 5.
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

    A window gives an item the term of the cell that lies on the item. `arrays` has pairs: an
    array with an item for each position of the windows, and a number that fills the array
    outside of these positions. `term(cell, *slices)` returns the terms of a cell at some
    positions, from slices of the arrays at these positions. The term of the filling numbers
    must be 0.
    """
    size, stride, dilation = windows.size, windows.stride, windows.dilation
    axes = range(len(size))
    first_paddings = [before for before, _ in windows.padding]
    # A length is the number of items of a phase along an axis. The phase has items of the padded
    # input up to the input's last item.
    lengths: list[int] = []
    # A front is the number of positions that are added before the first position, along an axis. A
    # window that covers an item begins at most this number of positions before the item.
    fronts: list[int] = []
    edges: list[tuple[int, int]] = []
    for axis in axes:
        length = ceil_div(windows.upscaled[axis] + first_paddings[axis], stride[axis])
        front = (size[axis] - 1) * dilation[axis] // stride[axis]
        back = max(length - windows.downscaled[axis], 0)
        lengths.append(length)
        fronts.append(front)
        edges.append((front, back))
    extended = [extend(array, tuple(edges), "constant", fill) for array, fill in arrays]

    def sums_of_phase(offsets: Cell) -> Array | None:
        """Return the sums of one phase of the input, or None if no cell covers its items.

        The items of the phase are at `offsets` from multiples of the stride.
        """
        total: Array | None = None
        for cell in np.ndindex(*size):
            # A distance leads from the phase's first item to the cell of the window at position 0,
            # along an axis.
            distances = [cell[axis] * dilation[axis] - offsets[axis] for axis in axes]
            if any(distances[axis] % stride[axis] for axis in axes):
                continue  # the cell covers items of another phase
            starts = [fronts[axis] - distances[axis] // stride[axis] for axis in axes]
            stops = [starts[axis] + lengths[axis] for axis in axes]
            slices = [lax.slice(array, starts, stops) for array in extended]
            terms = term(cell, *slices)
            total = terms if total is None else total + terms
        return total

    sums = [sums_of_phase(offsets) for offsets in np.ndindex(*stride)]
    example = next(total for total in sums if total is not None)
    phases = [jnp.zeros_like(example) if total is None else total for total in sums]
    result = _interleaved(phases, stride)
    # Cut off the padding, and add zeros after the last covered item. A negative number cuts items.
    cuts: list[tuple[int, int, int]] = []
    for axis in axes:
        before = first_paddings[axis]
        end = before + windows.upscaled[axis]
        cuts.append((-before, end - result.shape[axis], 0))
    return lax.pad(result, np.array(0, result.dtype), cuts)


def _interleaved(phases: list[Array], stride: Sequence[int]) -> Array:
    """Return the array that consists of the phases in a list.

    Phase `offsets` has the items at `offsets` from multiples of the stride. The list has the
    phases in the row-major order of their offsets.
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
            # The offsets of these arrays differ only along `axis`, so that their items alternate
            # there.
            neighbours = arrays[start : start + count]
            shape = list(neighbours[0].shape)
            shape[axis] *= count
            alternating = jnp.stack(neighbours, axis=axis + 1)
            joined.append(alternating.reshape(shape))
        arrays = joined
    (total,) = arrays
    return total
