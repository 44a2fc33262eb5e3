"""Statistics of stored arrays for the page: of all items, or of a sample where there are many."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLE = 1 << 17  # items that are looked at
_BLOCKS = 64  # stretches that these are in: a mapped file is read there alone
_BINS = 32


def statistics_of(array: Any) -> dict[str, Any]:
    """Return count, sampled, min, max, mean, std, zeros, nonfinite and a histogram of an array.

    All but `count` are of the items looked at, `sampled` of them. min to std are of the finite
    ones, None where there are none. Of complex numbers they are of magnitudes. `histogram` has
    counts in `_BINS` bins of one width from min to max.
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
        scaled = finite / scale
        found |= {"min": low, "max": high}
        found |= {"mean": float(scaled.mean()) * scale, "std": float(scaled.std()) * scale}
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
