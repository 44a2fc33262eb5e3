"""Statistics of arrays: counts, extremes and moments, which are merged, and histograms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

SAMPLE = 1 << 17  # items that are looked at
_BLOCKS = 64  # stretches that these are in: a mapped file is read there alone
_BINS = 32
_CHUNK = 1 << 20  # items that are widened at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Statistics of numbers.

    Args:
        count: items that are finite: `mean`, `squares`, `min` and `max` are of these.
        mean, min, max: 0, infinity and -infinity where nothing is finite.
        squares: the sum of squared distances from the mean.
        zeros, nan, inf: numbers of items.
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
        """Return the standard deviation of the finite items, NaN if there are none."""
        return math.sqrt(self.squares / self.count) if self.count else math.nan


_Moments = TypeVar("_Moments", bound=Moments)


def merged(a: _Moments, b: Moments, **others: Any) -> _Moments:
    """Return the statistics of two series of numbers together, exactly, with other fields of `a`.

    Source: Chan, Golub and LeVeque 1983.
    """
    count = a.count + b.count
    share, step = (b.count / count if count else 0.0), b.mean - a.mean
    return replace(
        a,
        count=count,
        mean=a.mean + step * share,
        squares=a.squares + b.squares + (step * step * a.count * share if a.count else 0.0),
        min=min(a.min, b.min),
        max=max(a.max, b.max),
        zeros=a.zeros + b.zeros,
        nan=a.nan + b.nan,
        inf=a.inf + b.inf,
        **others,
    )


def moments_of(values: NDArray[np.float64]) -> Moments:
    """Return the statistics of an array."""
    finite, nan = values[np.isfinite(values)], int(np.isnan(values).sum())
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


def chunks(array: NDArray[Any], dtype: Any) -> Iterator[NDArray[Any]]:
    """Yield the items of an array in a wider dtype, a million at a time."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        yield flat[start : start + _CHUNK].astype(dtype)


def statistics_of(array: Any) -> dict[str, Any]:
    """Return statistics of a stored array, of a sample of it where it is large.

    These are count, sampled, min, max, mean, std, zeros, nonfinite and a histogram. All but `count`
    are of the items looked at, `sampled` of them. min to std are of the finite ones, None where
    there are none. Of complex numbers they are of magnitudes. `histogram` has counts in `_BINS`
    bins of one width from min to max.
    """
    flat = np.ravel(np.asarray(array), order="K")
    items = _sampled(flat)
    values = np.abs(items) if items.dtype.kind == "c" else items
    values = values.astype(np.float64)
    finite = values[np.isfinite(values)]
    found: dict[str, Any] = {"count": int(flat.size), "sampled": int(items.size)}
    found |= dict.fromkeys(("min", "max", "mean", "std"), None)
    if len(finite):
        low, high = float(finite.min()), float(finite.max())
        scale = max(abs(low), abs(high)) or 1.0  # so that squares do not overflow
        scaled = moments_of(finite / scale)
        found |= {"min": low, "max": high, "mean": scaled.mean * scale, "std": scaled.std * scale}
        found["histogram"] = histogram_of(finite, low, high, _BINS)
    found["zeros"] = int(np.count_nonzero(values == 0))
    found["nonfinite"] = int(values.size - finite.size)
    return {
        k: None if isinstance(x, float) and not math.isfinite(x) else x for k, x in found.items()
    }


def histogram_of(values: NDArray[np.float64], low: float, high: float, bins: int) -> list[int]:
    """Return how many numbers are in each of equal parts of a range, all if it is a single number.

    The range may be the widest, or that of two neighbours, which numpy does not divide.
    """
    if not low < high:
        return [values.size]
    scale = max(-low, high)
    low, high = low / scale, high / scale
    return np.histogram((values / scale - low) / (high - low), bins, (0, 1))[0].tolist()


def _sampled(flat: Any) -> Any:
    if flat.size <= SAMPLE:
        return flat
    length = SAMPLE // _BLOCKS
    starts = np.linspace(0, flat.size - length, _BLOCKS).astype(np.int64)
    return np.concatenate([flat[start : start + length] for start in starts])
