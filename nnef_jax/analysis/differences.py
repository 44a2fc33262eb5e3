"""How far two arrays are apart, in figures, and why they are where they are."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def difference(
    found: Array, wanted: Array, rtol: float, atol: float
) -> tuple[str, dict[str, float]]:
    """Return why an array differs from the one wanted, "" where not, and what is measured of it.

    NaNs at the same place are equal, so are infinities of one sign; other figures are of the items
    that are finite in both. The tolerance of a wanted item is `atol + rtol * max(|item|, rms)`, the
    root mean square of all: what cancels to about zero may be as wrong as the rest of a tensor.

    - absolute: the largest error; relative: the largest divided by |item|, where that is not 0.
    - excess: the largest error in tolerances, above 1 where the arrays differ.
    - snr: 10 log10(sum of squares of what is wanted / that of errors), infinite without errors.
    - ulps: the largest number of steps of the coarser of both dtypes between an item and the wanted
      one, of real numbers; NaN for others.
    - saturated: the share of the items that are out of tolerance where one array has an extreme
      that several of its items have, and the other goes on beyond it.

    The reason is "shape", "dtype" (logical, integer, real and complex numbers are told apart),
    "nan", "inf", "saturation" if most items out of tolerance are saturated, else "values".
    """
    if found.shape != wanted.shape:
        return "shape", {}
    if kind_of(found) != kind_of(wanted):
        return "dtype", {}
    ulps = _ulps(found, wanted) if kind_of(found) == "f" else float("nan")
    x, y = _wide(found), _wide(wanted)
    with np.errstate(all="ignore"):
        ok = np.isfinite(x) & np.isfinite(y)
        error = np.where(ok, np.abs(x - y), 0.0)
        size = np.where(ok, np.abs(y), 0.0)
        rms = np.sqrt(np.mean(size**2)) if size.size else 0.0
        excess = np.where(error > 0, error / (atol + rtol * np.maximum(size, rms)), 0.0)
        wrong = excess > 1
        power = float(np.sum(error**2))
        measured = {
            "absolute": _largest(error),
            "relative": _largest(error[size > 0] / size[size > 0]),
            "excess": _largest(excess),
            "snr": 10 * float(np.log10(np.sum(size**2) / power)) if power else float("inf"),
            "ulps": ulps,
            "saturated": float(np.mean(_saturated(x, y)[wrong])) if wrong.any() else 0.0,
        }
    if not np.array_equal(np.isnan(x), np.isnan(y)):
        return "nan", measured
    infinite = np.isinf(x) | np.isinf(y)
    if not np.array_equal(x[infinite], y[infinite], equal_nan=True):
        return "inf", measured
    if not wrong.any():
        return "", measured
    return "saturation" if measured["saturated"] > 0.5 else "values", measured


def kind_of(x: Array) -> str:
    """Return "b", "i", "f" or "c" for logical, integer, real or complex numbers."""
    if x.dtype.kind in "biufc":
        return {"u": "i"}.get(x.dtype.kind, x.dtype.kind)
    try:
        ml_dtypes.finfo(x.dtype)
    except ValueError:
        return "i" if x.dtype.name.startswith(("int", "uint")) else x.dtype.kind
    return "f"  # bfloat16 and the like


def _wide(x: Array) -> Array:
    """Return real numbers of 64 bits; complex ones with an axis for their two parts."""
    if x.dtype.kind == "c":
        x = np.stack([np.real(x), np.imag(x)])
    return x.astype(np.float64)


def _largest(x: Array) -> float:
    return float(x.max()) if x.size else 0.0


def _saturated(x: Array, y: Array) -> Array:
    """Tell which items are an extreme that several of theirs have, the other being beyond it."""
    found = np.zeros(x.shape, bool)
    for one, other in ((x, y), (y, x)):
        if one.size:
            low, high = np.nanmin(one), np.nanmax(one)
            top, bottom = one == high, one == low
            found |= (top.sum() > 1) & top & (other > high)
            found |= (bottom.sum() > 1) & bottom & (other < low)
    return found


def _ulps(a: Array, b: Array) -> float:
    """Return the largest number of representable steps between items that are finite in both."""
    coarser = max(a.dtype, b.dtype, key=lambda dtype: float(ml_dtypes.finfo(dtype).eps))
    with np.errstate(all="ignore"):
        a, b = a.astype(coarser), b.astype(coarser)
        ok = np.isfinite(a.astype(np.float64)) & np.isfinite(b.astype(np.float64))
    steps = [_order(x[ok]) for x in (a, b)]
    return float(np.max(np.abs(steps[0] - steps[1]), initial=0))


def _order(x: Array) -> Array:
    """Return numbers that follow one another as the representable ones do; both zeros are 0."""
    bits = x.dtype.itemsize * 8
    codes = np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")
    sign, rest = codes >> (bits - 1), codes & (2 ** (bits - 1) - 1)
    wide = rest.astype(np.float64 if bits == 64 else np.int64)
    return np.where(sign.astype(bool), -wide, wide)
