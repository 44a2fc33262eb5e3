"""Splits an input into phases. The items of a phase are a stride apart.

A cell of the windows covers adjacent items of one phase. Phases are few and small. Strided slices,
or the spread terms of a backward pass, would be written to memory for each cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.cpu.memory import in_memory
from lowering.kernels.windows import Windows, extend

Cell = tuple[int, ...]


def covered(x: Array, windows: Windows) -> Iterator[Array]:
    """Yield the items that each cell covers at all positions, as slices of phases in memory."""
    x = extend(x, windows.padding, "constant")
    phases: dict[Cell, Array] = {}
    for cell in np.ndindex(*windows.size):
        places = [j * d for j, d in zip(cell, windows.dilation, strict=True)]
        offsets = tuple(place % s for place, s in zip(places, windows.stride, strict=True))
        if offsets not in phases:
            phase = lax.slice(x, offsets, x.shape, windows.stride)
            phases[offsets] = in_memory(phase)
        start = [place // s for place, s in zip(places, windows.stride, strict=True)]
        stop = [first + n for first, n in zip(start, windows.downscaled, strict=True)]
        yield lax.slice(phases[offsets], start, stop)


def spread(
    arrays: Sequence[tuple[Array, float]], windows: Windows, term: Callable[..., Array]
) -> Array:
    """Return the sum over all cells of the terms that each adds to the items that it covers.

    `arrays` are pairs: an array with an item for each position, and the fill around it.
    `term(cell, *parts)` returns the term of a cell from slices of the arrays; it is 0 for fills.
    """
    size, stride, dilation = windows.size, windows.stride, windows.dilation
    paddings = [before for before, _ in windows.padding]
    # Items of a phase of the padded input, up to the input's last item.
    lengths: list[int] = []
    for extent, padding, s in zip(windows.upscaled, paddings, stride, strict=True):
        lengths.append(-(-(extent + padding) // s))  # rounded up
    before = [(k - 1) * d // s for k, d, s in zip(size, dilation, stride, strict=True)]
    after = [max(m - n, 0) for m, n in zip(lengths, windows.downscaled, strict=True)]
    edges = tuple(zip(before, after, strict=True))
    extended = [extend(x, edges, "constant", fill) for x, fill in arrays]

    def phase(offsets: Cell) -> Array | None:
        """Return the sum of the terms of a phase; None if no cell covers its items."""
        total: Array | None = None
        for cell in np.ndindex(*size):
            steps = [j * d - offset for j, d, offset in zip(cell, dilation, offsets, strict=True)]
            if any(step % s for step, s in zip(steps, stride, strict=True)):
                continue
            start = [b - step // s for b, step, s in zip(before, steps, stride, strict=True)]
            stop = [first + length for first, length in zip(start, lengths, strict=True)]
            part = term(cell, *(lax.slice(x, start, stop) for x in extended))
            total = part if total is None else total + part
        return total

    phases = [phase(offsets) for offsets in np.ndindex(*stride)]
    example = next(x for x in phases if x is not None)
    total = _interleaved([jnp.zeros_like(example) if x is None else x for x in phases], stride)
    # Cut the padding off, and add zeros behind the last covered item.
    cuts: list[tuple[int, int, int]] = []
    for padding, extent, length in zip(paddings, windows.upscaled, total.shape, strict=True):
        cuts.append((-padding, padding + extent - length, 0))
    return lax.pad(total, np.array(0, total.dtype), cuts)


def _interleaved(phases: list[Array], stride: Sequence[int]) -> Array:
    """Join phases, which are in row-major order, to an array; the reverse of splitting it."""
    for axis in reversed(range(len(stride))):
        step = stride[axis]
        if step == 1:
            continue
        rows = [phases[i : i + step] for i in range(0, len(phases), step)]
        phases = []
        for row in rows:
            shape = list(row[0].shape)
            shape[axis] *= step
            phases.append(jnp.stack(row, axis=axis + 1).reshape(shape))
    (total,) = phases
    return total
