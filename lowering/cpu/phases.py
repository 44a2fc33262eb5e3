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
        distances = [j * d for j, d in zip(cell, windows.dilation, strict=True)]
        offsets = tuple(n % s for n, s in zip(distances, windows.stride, strict=True))
        if offsets not in phases:
            phase = lax.slice(padded, offsets, padded.shape, windows.stride)
            phases[offsets] = materialised(phase)
        start = [n // s for n, s in zip(distances, windows.stride, strict=True)]
        stop = [first + n for first, n in zip(start, windows.downscaled, strict=True)]
        yield lax.slice(phases[offsets], start, stop)


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
    paddings = [first_padding for first_padding, _ in windows.padding]
    # The numbers of items of a phase of the padded input, up to the input's last item.
    lengths: list[int] = []
    for extent, padding, s in zip(windows.upscaled, paddings, stride, strict=True):
        lengths.append(ceil_div(extent + padding, s))
    # A window begins up to this many positions before an item that it covers. Fills are added
    # there.
    fronts = [(k - 1) * d // s for k, d, s in zip(size, dilation, stride, strict=True)]
    backs = [max(m - n, 0) for m, n in zip(lengths, windows.downscaled, strict=True)]
    edges = tuple(zip(fronts, backs, strict=True))
    extended = [extend(x, edges, "constant", fill) for x, fill in arrays]

    def sums_of_phase(offsets: Cell) -> Array | None:
        """Return the sums of one phase of the input, or None if no cell covers its items.

        The items of the phase are at `offsets` from multiples of the stride.
        """
        total: Array | None = None
        for cell in np.ndindex(*size):
            # The distances from the phase's first item to the cell, in the window at position 0.
            steps = [j * d - offset for j, d, offset in zip(cell, dilation, offsets, strict=True)]
            if any(step % s for step, s in zip(steps, stride, strict=True)):
                continue  # the cell covers items of another phase
            start = [
                front - step // s for front, step, s in zip(fronts, steps, stride, strict=True)
            ]
            stop = [first + length for first, length in zip(start, lengths, strict=True)]
            slices = [lax.slice(x, start, stop) for x in extended]
            part = term(cell, *slices)
            total = part if total is None else total + part
        return total

    sums = [sums_of_phase(offsets) for offsets in np.ndindex(*stride)]
    example = next(x for x in sums if x is not None)
    phases = [jnp.zeros_like(example) if x is None else x for x in sums]
    total = _interleaved(phases, stride)
    # Cut off the padding, and add zeros after the last covered item.
    cuts: list[tuple[int, int, int]] = []
    for padding, extent, length in zip(paddings, windows.upscaled, total.shape, strict=True):
        cuts.append((-padding, padding + extent - length, 0))
    return lax.pad(total, np.array(0, total.dtype), cuts)


def _interleaved(phases: list[Array], stride: Sequence[int]) -> Array:
    """Return the array that consists of the phases in a list.

    Phase `offsets` has the items at `offsets` from multiples of the stride. The list has the
    phases in the row-major order of their offsets.
    """
    arrays = phases
    for axis in reversed(range(len(stride))):
        step = stride[axis]
        if step == 1:
            continue
        joined: list[Array] = []
        for i in range(0, len(arrays), step):
            # The offsets of these arrays differ only along `axis`, so that their items alternate
            # there.
            neighbours = arrays[i : i + step]
            shape = list(neighbours[0].shape)
            shape[axis] *= step
            joined.append(jnp.stack(neighbours, axis=axis + 1).reshape(shape))
        arrays = joined
    (total,) = arrays
    return total
