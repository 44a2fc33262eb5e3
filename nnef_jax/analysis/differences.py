"""Measures the difference of two arrays, and names its reason."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def difference(
    array: Array, reference: Array, rtol: float, atol: float
) -> tuple[str, dict[str, float]]:
    """Return the reason why an array differs from a reference, and a dict of figures.

    NaNs at the same position are equal, and so are infinities of the same sign. Only items that are
    finite in both arrays count in the figures. The tolerance of an item is `atol + rtol *
    max(|item|, rms)`. Here `item` is the item of the reference, and `rms` is the root mean square
    of the reference. An item that is about 0 by cancellation therefore has the tolerance of a
    typical item. The figures are:

    - absolute: the largest error.
    - relative: the largest error divided by |item|, among items other than 0.
    - excess: the largest error divided by its tolerance; above 1 if the arrays differ.
    - snr: 10 log10(sum of squares of the reference / sum of squares of the errors), in dB; infinite
      without errors.
    - ulps: the largest number of representable steps between an item and its reference, in the
      coarser of the two dtypes; NaN unless the arrays are floating-point.
    - saturated: the share of saturated items among those out of tolerance. An item is saturated if
      it is the minimum or maximum of one array, several items share this extreme, and the other
      array goes beyond it.

    The reason is "" for equal arrays, "shape", "dtype" (another kind: logical, integer,
    floating-point or complex), "nan", "inf", "saturation" if most items out of tolerance are
    saturated, or "values".
    """
    if array.shape != reference.shape:
        return "shape", {}
    if kind_of(array) != kind_of(reference):
        return "dtype", {}
    ulps = _ulps(array, reference) if kind_of(array) == "f" else float("nan")
    x = _in_64_bits(array)
    y = _in_64_bits(reference)
    with np.errstate(all="ignore"):
        is_finite = np.isfinite(x) & np.isfinite(y)
        error = np.where(is_finite, np.abs(x - y), 0.0)
        size = np.where(is_finite, np.abs(y), 0.0)
        rms = np.sqrt(np.mean(size**2)) if size.size else 0.0
        excess = np.where(error > 0, error / (atol + rtol * np.maximum(size, rms)), 0.0)
        is_wrong = excess > 1
        error_power = float(np.sum(error**2))
        snr = float("inf")
        if error_power:
            snr = 10 * float(np.log10(np.sum(size**2) / error_power))
        saturated = 0.0
        if is_wrong.any():
            saturated = float(np.mean(_saturated(x, y)[is_wrong]))
        figures = {
            "absolute": _largest(error),
            "relative": _largest(error[size > 0] / size[size > 0]),
            "excess": _largest(excess),
            "snr": snr,
            "ulps": ulps,
            "saturated": saturated,
        }
    if not np.array_equal(np.isnan(x), np.isnan(y)):
        return "nan", figures
    infinite = np.isinf(x) | np.isinf(y)
    if not np.array_equal(x[infinite], y[infinite], equal_nan=True):
        return "inf", figures
    if not is_wrong.any():
        return "", figures
    return "saturation" if figures["saturated"] > 0.5 else "values", figures


def kind_of(x: Array) -> str:
    """Return "b" for an array of bool, "i" of integers, "f" of floating-point, "c" of complex."""
    if x.dtype.kind in "biufc":
        return {"u": "i"}.get(x.dtype.kind, x.dtype.kind)
    try:
        ml_dtypes.finfo(x.dtype)
    except ValueError:
        return "i" if x.dtype.name.startswith(("int", "uint")) else x.dtype.kind
    return "f"  # bfloat16 and float8


def _in_64_bits(x: Array) -> Array:
    """Convert an array to 64 bits.

    A complex array gets a first axis of real and imaginary parts.
    """
    if x.dtype.kind == "c":
        x = np.stack([np.real(x), np.imag(x)])
    return x.astype(np.float64)


def _largest(x: Array) -> float:
    return float(x.max()) if x.size else 0.0


def _saturated(x: Array, y: Array) -> Array:
    """Return the mask of saturated items, bool, as `difference` defines them."""
    mask = np.zeros(x.shape, bool)
    if not x.size:
        return mask
    for clipped, other in ((x, y), (y, x)):
        high = np.nanmax(clipped)
        is_high = clipped == high
        mask |= (is_high.sum() > 1) & is_high & (other > high)
        low = np.nanmin(clipped)
        is_low = clipped == low
        mask |= (is_low.sum() > 1) & is_low & (other < low)
    return mask


def _ulps(a: Array, b: Array) -> float:
    """Return the largest number of representable steps between items at the same position.

    Only positions count at which both arrays are finite.
    """
    coarser = max(a.dtype, b.dtype, key=lambda dtype: float(ml_dtypes.finfo(dtype).eps))
    with np.errstate(all="ignore"):
        a = a.astype(coarser)
        b = b.astype(coarser)
        is_finite = np.isfinite(a.astype(np.float64)) & np.isfinite(b.astype(np.float64))
    steps = np.abs(_ranks(a[is_finite]) - _ranks(b[is_finite]))
    return float(np.max(steps, initial=0))


def _ranks(x: Array) -> Array:
    """Return the rank of each item among all numbers of its dtype. 0 and -0 have rank 0."""
    bits = x.dtype.itemsize * 8
    codes = np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")
    sign = codes >> (bits - 1)
    magnitude = codes & (2 ** (bits - 1) - 1)
    wide_dtype = np.float64 if bits == 64 else np.int64
    wide = magnitude.astype(wide_dtype)
    return np.where(sign.astype(bool), -wide, wide)
