"""Computes statistics of a network's weights: ranges, moments, zeros, bits, distribution."""

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

_BINS = 16  # A histogram has this many bins.
_BLOCKS = "▁▂▃▄▅▆▇█"
# For `bits` and `histogram`, an array with more items than this number is sampled.
_SAMPLE = 1 << 18

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Weight:
    """Statistics of one array of numbers.

    Attributes:
        shape, dtype: the shape and the dtype of the array.
        min, max, mean, std: statistics of the finite items; NaN if no item is finite.
        zeros: the share of items that are 0, from 0 to 1.
        nan, inf: the number of items that are NaN, and the number of infinite items.
        bits: log2 of the number of different finite values. For weights that were stored in 8 bits,
            `bits` is at most 8.
        histogram: the number of items in each of 16 equal parts of the range from min to max.
        sampled: whether `bits` and `histogram` are computed from a sample: at most 262144 evenly
            spaced items.
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

    In the result of `to_dict`, "weights" maps labels to statistics.
    """

    weights: Mapping[str, Weight]

    def table(self) -> Table:
        """Return a table with a line for each array. The last column is a small histogram."""
        columns = ["label", "shape", "dtype", "min", "max", "mean", "std", "zeros %", "bits"]
        has_nonfinite = any(weight.nan or weight.inf for weight in self.weights.values())
        if has_nonfinite:
            columns += ["NaN", "inf"]
        columns.append("histogram")
        rows: list[list[Any]] = []
        for label, weight in self.weights.items():
            row: list[Any] = [label, show(weight.shape), weight.dtype]
            row += [weight.min, weight.max, weight.mean, weight.std]
            row += [round(100 * weight.zeros, 2), round(weight.bits, 1)]
            if has_nonfinite:
                row += [weight.nan, weight.inf]
            row.append(sparkline(weight.histogram))
            rows.append(row)
        items = sum(math.prod(weight.shape) for weight in self.weights.values())
        title = f"{len(self.weights)} arrays, {items:,} numbers"
        return table_of(title, columns, rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw each array's range, and a bar from mean - std to mean + std. Return the axes."""
        ax = axes(ax, (7.2, 0.9 + 0.3 * len(self.weights)))
        positions = np.arange(len(self.weights))
        weights = self.weights.values()
        least = np.array([weight.min for weight in weights])
        greatest = np.array([weight.max for weight in weights])
        means = np.array([weight.mean for weight in weights])
        deviations = np.array([weight.std for weight in weights])
        ax.hlines(positions, least, greatest, color="0.75", lw=2)
        # Each bar goes from mean - std to mean + std.
        left_ends = means - deviations
        ax.barh(positions, 2 * deviations, left=left_ends, height=0.6, color="#1f4e79", alpha=0.85)
        ax.plot(means, positions, "|", color="white", markersize=9)
        ax.axvline(0, color="0.85", lw=1, zorder=0)
        ax.set_yticks(positions, map(literally, self.weights), fontsize=8)
        ax.invert_yaxis()
        ax.tick_params(axis="x", labelsize=8)
        ax.set_xlabel("range, and one standard deviation around the mean", fontsize=9)
        return ax


def weight_statistics(weights: Model | Mapping[str, ArrayLike]) -> WeightStatistics:
    """Return statistics of the parameters and the initial state of a model, or of arrays by label.

    Arrays may be gradients, or differences between weights. numpy computes the statistics in 64
    bits. The real part and the imaginary part of a complex number are two items.

    Raises InputError for a value that is not an array of numbers.

    >>> print(nnef_jax.weight_statistics(model))
    """
    if isinstance(weights, Model):
        require_arrays(weights)
        weights = {**weights.params, **weights.init_state()}
    require("weights", weights, Mapping, "a nnef_jax.Model or a dict of arrays by label")
    return WeightStatistics({label: _statistics(label, x) for label, x in weights.items()})


def sparkline(counts: tuple[int, ...]) -> str:
    """Draw a histogram as a line of text: "▁▃█" for the counts 0, 2 and 9."""
    largest_count = max(counts, default=0)
    if largest_count == 0:
        return " " * len(counts)
    highest_block = len(_BLOCKS) - 1
    heights = [math.ceil(highest_block * count / largest_count) for count in counts]
    return "".join([_BLOCKS[height] for height in heights])


def _statistics(label: str, weight: ArrayLike) -> Weight:
    """Return the statistics of one array. Raises InputError if it holds no numbers."""
    array = numpy_of(weight, InputError, f"'{label}' is no array")
    flat = array.reshape(-1)
    if np.issubdtype(flat.dtype, np.complexfloating):
        # A complex number becomes two real numbers, each with half of its bytes.
        flat = flat.view(f"f{flat.itemsize // 2}")
    try:
        # The conversion of one item shows whether the items are numbers.
        flat[:1].astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"'{label}' holds no numbers, its dtype is {array.dtype}") from None
    moments_of_chunks = map(moments_of, chunks(flat, np.float64))
    moments = reduce(merged, moments_of_chunks, Moments())
    least, greatest, mean = math.nan, math.nan, math.nan
    if moments.count > 0:
        least, greatest, mean = moments.min, moments.max, moments.mean
    # `bits` and `histogram` are statistics of a sample.
    step = max(1, math.ceil(flat.size / _SAMPLE))
    sample = flat[::step]
    numbers = sample.astype(np.float64)
    finite_numbers = numbers[np.isfinite(numbers)]
    # The numbers 1 are for empty arrays: they avoid a division by 0 and the logarithm of 0. `zeros`
    # and `bits` are then 0.
    item_count = max(1, flat.size)
    value_count = max(1, len(np.unique(finite_numbers)))
    return Weight(
        shape=array.shape,
        dtype=str(array.dtype),
        min=least,
        max=greatest,
        mean=mean,
        std=moments.std,
        zeros=moments.zeros / item_count,
        nan=moments.nan,
        inf=moments.inf,
        bits=math.log2(value_count),
        histogram=tuple(histogram_of(finite_numbers, moments.min, moments.max, _BINS)),
        sampled=sample.size < flat.size,
    )
