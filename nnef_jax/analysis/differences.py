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
    - ulps: the largest distance between an item and its reference, in steps between representable
      numbers of the coarser of the two dtypes; NaN unless the arrays are floating-point.
    - saturated: the share of saturated items among the items out of tolerance. An item is saturated
      if it is the minimum or maximum of one array, several items of this array are equal to this
      extreme, and the item of the other array is beyond it.

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
        # An item that is not finite in one of the arrays gets the error 0 and the size 0.
        is_finite = np.isfinite(x) & np.isfinite(y)
        errors = np.where(is_finite, np.abs(x - y), 0.0)
        sizes = np.where(is_finite, np.abs(y), 0.0)
        is_not_zero = sizes > 0
        rms = np.sqrt(np.mean(sizes**2)) if sizes.size else 0.0
        tolerances = atol + rtol * np.maximum(sizes, rms)
        excesses = np.where(errors > 0, errors / tolerances, 0.0)
        is_wrong = excesses > 1
        saturated = 0.0
        if is_wrong.any():
            saturated = float(np.mean(_saturated(x, y)[is_wrong]))
        figures = {
            "absolute": _largest(errors),
            "relative": _largest(errors[is_not_zero] / sizes[is_not_zero]),
            "excess": _largest(excesses),
            "snr": _signal_to_noise(sizes, errors),
            "ulps": ulps,
            "saturated": saturated,
        }
    have_equal_nans = np.array_equal(np.isnan(x), np.isnan(y))
    if not have_equal_nans:
        return "nan", figures
    is_infinite = np.isinf(x) | np.isinf(y)
    have_equal_infinities = np.array_equal(x[is_infinite], y[is_infinite], equal_nan=True)
    if not have_equal_infinities:
        return "inf", figures
    if not is_wrong.any():
        return "", figures
    return "saturation" if saturated > 0.5 else "values", figures


def kind_of(x: Array) -> str:
    """Return the kind of the numbers in an array.

    The result is "b" for bool, "i" for integers, "f" for floating-point and "c" for complex
    numbers. For anything else it is numpy's kind of the dtype.
    """
    kind = x.dtype.kind
    if kind == "u":
        return "i"
    if kind in "bifc":
        return kind
    # numpy gives dtypes such as bfloat16, float8 and int4 the kind "V". Only for the
    # floating-point dtypes among them, `ml_dtypes.finfo` raises no error.
    try:
        ml_dtypes.finfo(x.dtype)
    except ValueError:
        is_integer = x.dtype.name.startswith(("int", "uint"))
        return "i" if is_integer else kind
    return "f"


def _in_64_bits(x: Array) -> Array:
    """Convert an array to 64 bits.

    A complex array gets a first axis of real and imaginary parts.
    """
    if x.dtype.kind == "c":
        x = np.stack([np.real(x), np.imag(x)])
    return x.astype(np.float64)


def _signal_to_noise(sizes: Array, errors: Array) -> float:
    """Return the signal-to-noise ratio in dB, which is infinite without errors.

    `sizes` are the magnitudes of the reference's items, and `errors` are the errors of the items.
    """
    error_power = float(np.sum(errors**2))
    if not error_power:
        return float("inf")
    return 10 * float(np.log10(np.sum(sizes**2) / error_power))


def _largest(x: Array) -> float:
    return float(x.max()) if x.size else 0.0


def _saturated(x: Array, y: Array) -> Array:
    """Return the mask of saturated items, bool, as `difference` defines them."""
    is_saturated = np.zeros(x.shape, bool)
    if not x.size:
        return is_saturated
    for clipped, other in ((x, y), (y, x)):
        high = np.nanmax(clipped)
        is_high = clipped == high
        if is_high.sum() > 1:
            is_saturated |= is_high & (other > high)
        low = np.nanmin(clipped)
        is_low = clipped == low
        if is_low.sum() > 1:
            is_saturated |= is_low & (other < low)
    return is_saturated


def _ulps(a: Array, b: Array) -> float:
    """Return the largest distance between two items at the same position of two arrays.

    The distance is counted in steps between representable numbers of the coarser dtype. Positions
    at which an array is not finite do not count.
    """
    coarser_dtype = max(a.dtype, b.dtype, key=lambda dtype: float(ml_dtypes.finfo(dtype).eps))
    with np.errstate(all="ignore"):
        coarse_a = a.astype(coarser_dtype)
        coarse_b = b.astype(coarser_dtype)
        is_finite_a = np.isfinite(coarse_a.astype(np.float64))
        is_finite_b = np.isfinite(coarse_b.astype(np.float64))
    is_finite = is_finite_a & is_finite_b
    steps = np.abs(_ranks(coarse_a[is_finite]) - _ranks(coarse_b[is_finite]))
    return float(np.max(steps, initial=0))


def _ranks(x: Array) -> Array:
    """Return the rank of each item among all numbers of its dtype. 0 and -0 have rank 0."""
    bits = x.dtype.itemsize * 8
    codes = np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")
    # In a floating-point number, the first bit is the sign. The remaining bits, read as an integer,
    # are the rank of the magnitude.
    is_negative = (codes >> (bits - 1)).astype(bool)
    magnitudes = codes & (2 ** (bits - 1) - 1)
    wide_dtype = np.float64 if bits == 64 else np.int64
    ranks = magnitudes.astype(wide_dtype)
    return np.where(is_negative, -ranks, ranks)
