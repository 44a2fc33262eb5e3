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

    The reason is "" if the arrays are equal within the tolerances. Otherwise it is the first of
    these reasons that applies:

    - "shape": another shape.
    - "dtype": another kind of numbers: logical, integer, floating-point or complex.
    - "nan": NaNs at other positions.
    - "inf": infinities at other positions, or with another sign.
    - "saturation": most items out of tolerance are saturated. `_saturated` explains the word.
    - "values": any other difference.

    The docstring of `_figures` explains the figures. For the reasons "shape" and "dtype" the dict
    is empty.
    """
    if array.shape != reference.shape:
        return "shape", {}
    if kind_of(array) != kind_of(reference):
        return "dtype", {}
    x = _in_64_bits(array)
    y = _in_64_bits(reference)
    figures, has_wrong_items = _figures(x, y, rtol, atol)
    figures["ulps"] = _ulps(array, reference) if kind_of(array) == "f" else float("nan")
    have_equal_nans = np.array_equal(np.isnan(x), np.isnan(y))
    if not have_equal_nans:
        return "nan", figures
    is_infinite = np.isinf(x) | np.isinf(y)
    have_equal_infinities = np.array_equal(x[is_infinite], y[is_infinite], equal_nan=True)
    if not have_equal_infinities:
        return "inf", figures
    if not has_wrong_items:
        return "", figures
    reason = "saturation" if figures["saturated"] > 0.5 else "values"
    return reason, figures


def _figures(x: Array, y: Array, rtol: float, atol: float) -> tuple[dict[str, float], bool]:
    """Return figures of the difference of `x` from the reference `y`, and whether an item is wrong.

    An item is wrong if its error exceeds its tolerance, `atol + rtol * max(|item of y|, rms)`,
    where `rms` is the root mean square of `y`. Cancellation can make an item of `y` about 0. Such
    an item still has the tolerance of a typical item. Items that are not finite are ignored.

    - absolute: the largest error.
    - relative: the largest quotient error / |item of y|, among items of y other than 0.
    - excess: the largest quotient error / tolerance.
    - snr: the signal-to-noise ratio in dB, infinite without errors.
    - ulps: the largest error, counted in steps between neighbouring numbers of the coarser dtype;
      NaN unless the arrays are floating-point. `difference` adds this figure.
    - saturated: the share of saturated items among the wrong items.
    """
    with np.errstate(all="ignore"):
        # An item that is not finite in one of the arrays gets the error 0 and the magnitude 0.
        is_finite = np.isfinite(x) & np.isfinite(y)
        errors = np.where(is_finite, np.abs(x - y), 0.0)
        magnitudes = np.where(is_finite, np.abs(y), 0.0)
        is_not_zero = magnitudes > 0
        rms = np.sqrt(np.mean(magnitudes**2)) if magnitudes.size else 0.0
        tolerances = atol + rtol * np.maximum(magnitudes, rms)
        excesses = np.where(errors > 0, errors / tolerances, 0.0)
        is_wrong = excesses > 1
        has_wrong_items = bool(is_wrong.any())
        saturated_share = 0.0
        if has_wrong_items:
            saturated_share = float(np.mean(_saturated(x, y)[is_wrong]))
        figures = {
            "absolute": _largest(errors),
            "relative": _largest(errors[is_not_zero] / magnitudes[is_not_zero]),
            "excess": _largest(excesses),
            "snr": _signal_to_noise(magnitudes, errors),
            "saturated": saturated_share,
        }
    return figures, has_wrong_items


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
    # For dtypes such as bfloat16, float8 and int4, numpy's kind is "V". `ml_dtypes.finfo` tells
    # them apart: it raises ValueError for a dtype that is not floating-point.
    try:
        ml_dtypes.finfo(x.dtype)
    except ValueError:
        is_integer = x.dtype.name.startswith(("int", "uint"))
        return "i" if is_integer else kind
    return "f"


def _in_64_bits(x: Array) -> Array:
    """Convert an array to 64 bits. A complex array [...] becomes a real array [2, ...].

    The new first axis has the real and the imaginary parts.
    """
    if x.dtype.kind == "c":
        x = np.stack([np.real(x), np.imag(x)])
    return x.astype(np.float64)


def _signal_to_noise(magnitudes: Array, errors: Array) -> float:
    """Return the signal-to-noise ratio in dB, which is infinite without errors.

    The ratio is 10 log10(sum of squared magnitudes / sum of squared errors). `magnitudes` belong to
    the items of the reference.
    """
    error_power = float(np.sum(errors**2))
    if not error_power:
        return float("inf")
    return 10 * float(np.log10(np.sum(magnitudes**2) / error_power))


def _largest(x: Array) -> float:
    return float(x.max()) if x.size else 0.0


def _saturated(x: Array, y: Array) -> Array:
    """Return the mask of the positions at which `x` or `y` is saturated.

    An array is saturated at a position if three conditions hold. Its item is the array's minimum
    or maximum. Several of its items are equal to this extreme. The item of the other array is
    beyond the extreme. For example, compared with [9, 6, 1], the array [6, 6, 1] is saturated at
    the first position.
    """
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
    """Return the largest distance between items of `a` and `b` at the same position.

    The unit is one step between neighbouring numbers of the coarser dtype. Positions at which an
    array is not finite are ignored.
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
    """Return the rank of each item among all numbers of its dtype.

    0 and -0 have the rank 0, the smallest positive number has the rank 1, and so on. Negative
    numbers have negative ranks.
    """
    bits = x.dtype.itemsize * 8
    codes = np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")
    # In a floating-point number, the first bit is the sign. The remaining bits, read as an integer,
    # are the rank of the magnitude.
    is_negative = (codes >> (bits - 1)).astype(bool)
    magnitudes = codes & (2 ** (bits - 1) - 1)
    # The difference of two ranks of 64 bits may exceed the range of int64.
    wide_dtype = np.float64 if bits == 64 else np.int64
    ranks = magnitudes.astype(wide_dtype)
    return np.where(is_negative, -ranks, ranks)
