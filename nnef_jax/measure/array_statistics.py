"""Computes statistics of arrays: counts, extremes, moments, and histograms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

SAMPLE = 1 << 17  # A larger array is sampled. The sample has this many items.
# A sample consists of 64 contiguous blocks. Fewer pages of a mapped file are read for blocks than
# for single items.
_BLOCKS_OF_SAMPLE = 64
_BINS = 32  # A histogram has this many bins.
_CHUNK = 1 << 20  # This many items are converted to another dtype at a time.


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Statistics of numbers.

    Args:
        count: the number of finite items.
        mean: the mean of the finite items, or 0 if there are none.
        squares: the sum of (x - mean)^2 over the finite items x.
        min: the least finite item, or infinity if there are none.
        max: the greatest finite item, or -infinity if there are none.
        zeros: the number of items that are 0.
        nan: the number of items that are NaN.
        inf: the number of items that are infinite.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    min: float = math.inf
    max: float = -math.inf
    zeros: int = 0
    nan: int = 0
    inf: int = 0

    @property
    def size(self) -> int:
        """Return the number of all items."""
        return self.count + self.nan + self.inf

    @property
    def std(self) -> float:
        """Return the standard deviation of the finite items, or NaN if there are none."""
        return math.sqrt(self.squares / self.count) if self.count else math.nan


_Moments = TypeVar("_Moments", bound=Moments)


def merged(a: _Moments, b: Moments, **fields: object) -> _Moments:
    """Return the statistics of the joined numbers of `a` and `b`.

    If a subclass of `Moments` has more fields, `fields` are the values of these fields in the
    result. The formulas are from Chan, Golub and LeVeque 1983.
    """
    count = a.count + b.count
    share_of_b = b.count / count if count else 0.0
    mean_difference = b.mean - a.mean
    # `a.squares` is the sum of (x - a.mean)^2, and `b.squares` is the sum of (x - b.mean)^2. The
    # sum of (x - mean)^2 over all numbers is larger than `a.squares` + `b.squares` by
    # (b.mean - a.mean)^2 * a.count * b.count / count.
    squares_of_means = 0.0
    # If `a` is empty, this product could be infinity times 0, which is NaN.
    if a.count:
        squares_of_means = mean_difference * mean_difference * a.count * share_of_b
    return replace(
        a,
        count=count,
        mean=a.mean + mean_difference * share_of_b,
        squares=a.squares + b.squares + squares_of_means,
        min=min(a.min, b.min),
        max=max(a.max, b.max),
        zeros=a.zeros + b.zeros,
        nan=a.nan + b.nan,
        inf=a.inf + b.inf,
        **fields,
    )


def moments_of(values: NDArray[np.float64]) -> Moments:
    """Return the moments of the numbers in an array."""
    finite = values[np.isfinite(values)]
    nan = int(np.isnan(values).sum())
    if not finite.size:
        return Moments(nan=nan, inf=values.size - nan)
    mean = float(finite.mean())
    # The squares of large numbers overflow to infinity, which is not worth a warning.
    with np.errstate(over="ignore"):
        squares = float(np.square(finite - mean).sum())
    return Moments(
        count=finite.size,
        mean=mean,
        squares=squares,
        min=float(finite.min()),
        max=float(finite.max()),
        zeros=values.size - int(np.count_nonzero(values)),
        nan=nan,
        inf=values.size - finite.size - nan,
    )


def chunks(array: NDArray[np.generic], dtype: DTypeLike) -> Iterator[NDArray[Any]]:
    """Yield the items of an array, converted to another dtype, in pieces of 2^20 items."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        yield flat[start : start + _CHUNK].astype(dtype)


def statistics_of(array: ArrayLike) -> dict[str, Any]:
    """Compute statistics of an array, and return them as a dict.

    "count" is the array's size. If the array is large, only a sample is examined, and "sampled" is
    the size of the sample. All other figures are statistics of the sample.

    "zeros" and "nonfinite" are numbers of items. "min", "max", "mean", "std" and "histogram" are
    statistics of the finite items. The histogram has the number of items in each of 32 equal bins
    from min to max. If no item is finite, "min", "max", "mean" and "std" are None, and there is no
    histogram. A complex number is replaced by its magnitude.
    """
    flat = np.ravel(np.asarray(array), order="K")  # The order "K" needs no copy of the array.
    items = _sampled(flat)
    values = np.abs(items) if items.dtype.kind == "c" else items
    values = values.astype(np.float64)
    finite = values[np.isfinite(values)]
    figures: dict[str, Any] = {"count": int(flat.size), "sampled": int(items.size)}
    figures |= dict.fromkeys(("min", "max", "mean", "std"), None)
    if len(finite):
        low = float(finite.min())
        high = float(finite.max())
        # The squares of large numbers may overflow, so the numbers are scaled to at most 1.
        scale = max(abs(low), abs(high)) or 1.0
        scaled = moments_of(finite / scale)
        figures["min"] = low
        figures["max"] = high
        figures["mean"] = scaled.mean * scale
        figures["std"] = scaled.std * scale
        figures["histogram"] = histogram_of(finite, low, high, _BINS)
    figures["zeros"] = int(np.count_nonzero(values == 0))
    figures["nonfinite"] = int(values.size - finite.size)
    # The figures are for JSON, which has no infinity and no NaN.
    for name, figure in figures.items():
        if isinstance(figure, float) and not math.isfinite(figure):
            figures[name] = None
    return figures


def histogram_of(values: NDArray[np.float64], low: float, high: float, bins: int) -> list[int]:
    """Count the items in each of `bins` bins, which divide the range from low to high equally.

    If `low` equals `high`, there is one bin. There is also one bin if there are no numbers. Then
    `low` is infinity and `high` is -infinity.
    """
    if not low < high:
        return [values.size]
    # numpy cannot divide the widest possible range into bins, or a range between two neighbouring
    # numbers. So each number is scaled to its position in the range, from 0 (low) to 1 (high).
    # numpy divides this range into bins. `scale` is the largest magnitude in the range.
    scale = max(-low, high)
    scaled_low = low / scale
    scaled_high = high / scale
    positions = (values / scale - scaled_low) / (scaled_high - scaled_low)
    counts, _edges = np.histogram(positions, bins, range=(0, 1))
    return counts.tolist()


def _sampled(flat: NDArray[Any]) -> NDArray[Any]:
    """Return a sample of an array with one axis, or the array itself if it is small.

    The sample consists of blocks of equal length, which are spread evenly over the array.
    """
    if flat.size <= SAMPLE:
        return flat
    block_length = SAMPLE // _BLOCKS_OF_SAMPLE
    last_start = flat.size - block_length
    starts = np.linspace(0, last_start, _BLOCKS_OF_SAMPLE).astype(np.int64)
    return np.concatenate([flat[start : start + block_length] for start in starts])
