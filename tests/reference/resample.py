"""Up- and down-sampling along the spatial axes (spec 4.3.4)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from .borders import extended
from .table import operation


@operation
def nearest_downsample(input, factor):
    batch, channels, *extents = input.shape
    output = np.zeros([batch, channels, *(X // f for X, f in zip(extents, factor, strict=True))])
    for b, c, *i in np.ndindex(*output.shape):
        output[b, c, *i] = input[b, c, *(i_k * f for i_k, f in zip(i, factor, strict=True))]
    return output


@operation
def area_downsample(input, factor):
    batch, channels, *extents = input.shape
    output = np.zeros([batch, channels, *(X // f for X, f in zip(extents, factor, strict=True))])
    for b, c, *i in np.ndindex(*output.shape):
        block = [slice(i_k * f, i_k * f + f) for i_k, f in zip(i, factor, strict=True)]
        output[b, c, *i] = np.mean(input[b, c, *block])
    return output


@operation
def nearest_upsample(input, factor):
    batch, channels, *extents = input.shape
    output = np.zeros([batch, channels, *(x * f for x, f in zip(extents, factor, strict=True))])
    for b, c, *i in np.ndindex(*output.shape):
        output[b, c, *i] = input[b, c, *(i_k // f for i_k, f in zip(i, factor, strict=True))]
    return output


def source_position(i: int, x: int, f: int, method: str) -> Fraction:
    """Return where output item i lies among x input items, for the up-sampling factor f."""
    if method == "asymmetric":
        return Fraction(i, f)
    if method == "symmetric":
        return (i - Fraction(f - 1, 2)) / f
    if method == "aligned":
        # g(x) = (x*f - 1) / (x - 1); a single item has nothing to interpolate with.
        return i / Fraction(x * f - 1, x - 1) if x > 1 else Fraction(0)
    raise ValueError(f"unknown method '{method}'")


@operation
def multilinear_upsample(input, factor, method="symmetric", border="replicate"):
    batch, channels, *extents = input.shape
    output = np.zeros([batch, channels, *(x * f for x, f in zip(extents, factor, strict=True))])
    for b, c, *i in np.ndindex(*output.shape):
        exact = [
            source_position(i_k, x, f, method) for i_k, x, f in zip(i, extents, factor, strict=True)
        ]
        j = [position.__floor__() for position in exact]
        u = [float(position - j_k) for position, j_k in zip(exact, j, strict=True)]
        for corner in np.ndindex(*[2] * len(extents)):
            weight = np.prod(
                [u_k if side else 1 - u_k for u_k, side in zip(u, corner, strict=True)]
            )
            neighbour = [j_k + side for j_k, side in zip(j, corner, strict=True)]
            output[b, c, *i] += weight * extended(input[b, c], neighbour, border)
    return output
