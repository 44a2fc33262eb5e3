"""From the codes in a quantised tensor file to the real numbers that they stand for (spec 7.1).

With n bits, and q a code:

    min_max_linear_quantize     (q + p) / r * (max - min) + min: the lowest code is min, the highest
                                max. p = 2^(n-1) - symmetric where signed, else 0;
                                r = 2^n - 1, less 1 where signed and symmetric
    linear_quantize             the same, never symmetric; signed where the file's item type is
    zero_point_linear_quantize  (q - zero_point) * scale
    logarithmic_quantize        2^(t - (2^n - 1) + q), with t = ceil(log2(max)). Where the file's
                                item type is signed, sign(q) * 2^(t - (2^(n-1) - 1) + |q|) and
                                0 for code 0: the highest code is 2^t in either case

All these are values that the operation itself yields, in the form of 1.0 final. The standard leaves
open how logarithmic codes hold a sign; here the item type of the file tells whether they do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.extents import show
from lowering.kernels.broadcast import expand
from nnef_jax.errors import DataError, UnsupportedError
from nnef_jax.formats.syntax.quantizer import ALGORITHMS, Quantizer
from nnef_jax.limits import Meter
from nnef_jax.storage.tensorfile import TensorFile

_BYTES = 24  # a real number in float64, and two of what it is computed from


def dequantize(stored: TensorFile, quantizer: Quantizer, member: str, meter: Meter) -> NDArray[Any]:
    """Return the real numbers, in float64, of the codes in a tensor file.

    Raises DataError for codes that the algorithm does not have, UnsupportedError for an algorithm
    that is a fragment of the document, ShapeError for a wrong number of values for the channels.
    """
    codes = stored.array
    if quantizer.operation not in ALGORITHMS:
        raise UnsupportedError(
            f"{member} holds quantised codes, and what they stand for by fragment "
            f"'{quantizer.operation}' is not known",
            span=quantizer.span(),
            hint=f"store real numbers, or use one of {', '.join(ALGORITHMS)}",
        )
    meter.expand(_BYTES * codes.size, member)
    given = {name: _argument(quantizer, name, codes.shape) for name in quantizer.arguments}
    bits, signed = given["bits"], given.get("signed", stored.signed)
    symmetric = given.get("symmetric", False)
    _check_codes(codes, bits, signed, quantizer, member)
    q = codes.astype(np.float64)
    match quantizer.operation:
        case "zero_point_linear_quantize":
            return (q - given["zero_point"]) * given["scale"]
        case "logarithmic_quantize":
            top = np.ceil(np.log2(given["max"])) - (2.0 ** (bits - signed) - 1)
            sign = np.sign(q) if signed else 1.0
            np.abs(q, out=q)
            np.add(q, top, out=q)
            np.exp2(q, out=q)
            return np.multiply(q, sign, out=q)
        case _:
            lowest = 2.0 ** (bits - 1) - symmetric if signed else 0.0
            steps = 2.0**bits - 1 - (signed and symmetric)
            low, high = given["min"], given["max"]
            return (q + lowest) / steps * (high - low) + low


def _argument(quantizer: Quantizer, name: str, shape: tuple[int, ...]) -> Any:
    value = quantizer.value(name, shape, variable=True)
    if not isinstance(value, np.ndarray):
        return value
    value = expand(value, len(shape))
    pairs = zip(value.shape, shape, strict=False)
    if value.ndim != len(shape) or any(a not in (1, b) for a, b in pairs):
        shown = f"'{name}' of shape {show(value.shape)}"
        message = f"{shown} does not broadcast to shape {show(shape)}"
        raise DataError(message, span=quantizer.span(name))
    return value


def _check_codes(
    codes: NDArray[Any], bits: int, signed: bool, quantizer: Quantizer, member: str
) -> None:
    if not codes.size:
        return
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    least, most = int(codes.min()), int(codes.max())
    if least < low or most > high:
        kind = "signed" if signed else "unsigned"
        raise DataError(
            f"{member} holds codes from {least} to {most}, the {bits} {kind} bits of "
            f"'{quantizer.operation}' are codes from {low} to {high}",
            span=quantizer.span(),
        )
