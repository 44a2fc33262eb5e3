"""Statistics of the weights of a network: ranges, moments, zeros, bits, distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowering.extents import show
from nnef_jax.errors import InputError
from nnef_jax.measure.array_statistics import Moments, chunks, histogram_of, merged, moments_of
from nnef_jax.model import Model
from nnef_jax.options import numpy_of, require
from nnef_jax.results import Axes, Result, Table, axes, literally, table_of
from nnef_jax.workings import require_arrays

_BINS = 16
_BLOCKS = "▁▂▃▄▅▆▇█"
_SAMPLE = 1 << 18  # The number of items from which on an array is sampled for the distribution.

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Weight:
    """Statistics of one array of numbers.

    Attributes:
        shape, dtype: the shape and the dtype of the array.
        min, max, mean, std: statistics of the finite items; NaN if no item is finite.
        zeros: the share of items that are 0.
        nan, inf: the numbers of NaN and of infinite items.
        bits: log2 of the number of different values. For weights that were stored in 8 bits it is
            at most 8.
        histogram: the numbers of items in 16 equal parts of the range.
        sampled: whether `bits` and `histogram` are computed from about 262144 evenly spaced items,
            and not from all items.
    """

    shape: tuple[int, ...]
    dtype: str
    min: float
    max: float
    mean: float
    std: float
    zeros: float
    nan: int
    inf: int
    bits: float
    histogram: tuple[int, ...]
    sampled: bool


@dataclass(frozen=True, eq=False, repr=False)
class WeightStatistics(Result):
    """Statistics of arrays by label, in the order of the document.

    `to_dict` also returns the statistics by label.
    """

    weights: Mapping[str, Weight]

    def table(self) -> Table:
        """Return a table with a line for each array. The last column is a small histogram."""
        columns = ["label", "shape", "dtype", "min", "max", "mean", "std", "zeros %", "bits"]
        has_nonfinite = any(x.nan or x.inf for x in self.weights.values())
        if has_nonfinite:
            columns += ["NaN", "inf"]
        rows: list[list[Any]] = []
        for label, x in self.weights.items():
            row: list[Any] = [label, show(x.shape), x.dtype, x.min, x.max, x.mean, x.std]
            row += [round(100 * x.zeros, 2), round(x.bits, 1)]
            if has_nonfinite:
                row += [x.nan, x.inf]
            rows.append([*row, sparkline(x.histogram)])
        items = sum(math.prod(x.shape) for x in self.weights.values())
        title = f"{len(self.weights)} arrays, {items:,} numbers"
        return table_of(title, [*columns, "histogram"], rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw each array's range, and a bar from mean - std to mean + std. Return the axes."""
        ax = axes(ax, (7.2, 0.9 + 0.3 * len(self.weights)))
        rows = list(self.weights.values())
        positions = np.arange(len(rows))
        ax.hlines(positions, [x.min for x in rows], [x.max for x in rows], color="0.75", lw=2)
        left = [x.mean - x.std for x in rows]
        width = [2 * x.std for x in rows]
        ax.barh(positions, width, left=left, height=0.6, color="#1f4e79", alpha=0.85)
        ax.plot([x.mean for x in rows], positions, "|", color="white", markersize=9)
        ax.axvline(0, color="0.85", lw=1, zorder=0)
        ax.set_yticks(positions, map(literally, self.weights), fontsize=8)
        ax.invert_yaxis()
        ax.tick_params(axis="x", labelsize=8)
        ax.set_xlabel("range, and one standard deviation around the mean", fontsize=9)
        return ax


def weight_statistics(weights: Model | Mapping[str, ArrayLike]) -> WeightStatistics:
    """Return statistics of the parameters and the initial state of a model, or of arrays by label.

    Arrays may be gradients, or differences between weights. numpy computes the statistics in 64
    bits. A complex number counts as two numbers.

    Raises InputError for a value that is not an array of numbers.

    >>> print(nnef_jax.weight_statistics(model))
    """
    if isinstance(weights, Model):
        require_arrays(weights)
        weights = {**weights.params, **weights.init_state()}
    require("weights", weights, Mapping, "a nnef_jax.Model or a dict of arrays by label")
    return WeightStatistics({label: _statistics(label, x) for label, x in weights.items()})


def sparkline(counts: tuple[int, ...]) -> str:
    """Draw a histogram as a line of text."""
    most = max(counts, default=0)
    if not most:
        return " " * len(counts)
    highest = len(_BLOCKS) - 1
    return "".join([_BLOCKS[math.ceil(highest * count / most)] for count in counts])


def _statistics(label: str, weight: ArrayLike) -> Weight:
    array = numpy_of(weight, InputError, f"'{label}' is no array")
    flat = array.reshape(-1)
    if np.issubdtype(flat.dtype, np.complexfloating):
        flat = flat.view(f"f{flat.itemsize // 2}")
    try:
        flat[:1].astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"'{label}' holds no numbers, its dtype is {array.dtype}") from None
    moments = reduce(merged, map(moments_of, chunks(flat, np.float64)), Moments())
    step = max(1, math.ceil(flat.size / _SAMPLE))
    sample = flat[::step]
    numbers = sample.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    has_finite = moments.count > 0
    return Weight(
        shape=array.shape,
        dtype=str(array.dtype),
        min=moments.min if has_finite else math.nan,
        max=moments.max if has_finite else math.nan,
        mean=moments.mean if has_finite else math.nan,
        std=moments.std,
        zeros=moments.zeros / max(1, flat.size),
        nan=moments.nan,
        inf=moments.inf,
        bits=math.log2(max(1, len(np.unique(finite)))),
        histogram=tuple(histogram_of(finite, moments.min, moments.max, _BINS)),
        sampled=sample.size < flat.size,
    )
