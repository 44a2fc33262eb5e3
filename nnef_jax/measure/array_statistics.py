"""Computes statistics of arrays: counts, extremes, moments, and histograms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

SAMPLE = 1 << 17  # An array of more items is sampled. The sample has this many items.
# A sample consists of 64 contiguous blocks. Fewer pages of a mapped file are read for blocks than
# for single items.
_BLOCKS_OF_SAMPLE = 64
_BINS = 32  # A histogram has this many bins.
_CHUNK = 1 << 20  # This many items are converted to another dtype at a time.


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Statistics of numbers.

    Args:
        count: the number of finite items. `mean`, `squares`, `min` and `max` are statistics of the
            finite items.
        mean, min, max: the mean, the least and the greatest item. They are 0, infinity and
            -infinity if no item is finite.
        squares: the sum of (x - mean)^2 over the finite items x.
        zeros, nan, inf: how many items are 0, how many are NaN, and how many are infinite.
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
    """Return the statistics of the numbers of `a` and `b` together.

    If `a` is of a subclass of `Moments`, `fields` are new values for fields that only the subclass
    has. Source: Chan, Golub and LeVeque 1983.
    """
    count = a.count + b.count
    share_of_b = b.count / count if count else 0.0
    mean_difference = b.mean - a.mean
    # `a.squares` is a sum of squares around the mean of a, and `b.squares` around the mean of b.
    # The sum of squares around the common mean is larger by `squares_of_means`.
    squares_of_means = 0.0
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

    The keys are count, sampled, min, max, mean, std, zeros, nonfinite and histogram. `count` is the
    array's size. All other figures are statistics of `sampled` items, which are fewer than `count`
    for a large array. min, max, mean, std and histogram are statistics of the finite items only. If
    no item is finite, min, max, mean and std are None, and there is no histogram. Complex numbers
    count by their magnitude. `histogram` has the number of items in each of 32 equal bins from min
    to max.
    """
    flat = np.ravel(np.asarray(array), order="K")
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
    for name, figure in figures.items():
        if isinstance(figure, float) and not math.isfinite(figure):
            figures[name] = None
    return figures


def histogram_of(values: NDArray[np.float64], low: float, high: float, bins: int) -> list[int]:
    """Count the items in each of `bins` bins, which divide the range from low to high equally.

    If `low` equals `high`, there is one bin. The numbers are scaled first, because numpy cannot
    divide the widest possible range, or a range between two neighbouring numbers, into bins.
    """
    if not low < high:
        return [values.size]
    scale = max(-low, high)
    scaled_low = low / scale
    scaled_high = high / scale
    # `low` has the position 0, and `high` has the position 1.
    positions = (values / scale - scaled_low) / (scaled_high - scaled_low)
    counts, _ = np.histogram(positions, bins, (0, 1))
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
