"""Beyond the edges of a tensor (spec 4.3): border modes, and the arithmetic of padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Pair = tuple[int, int]


def mirrored(i: int, extent: int, border: str) -> int:
    """Return the position inside [0, extent) that a position outside it mirrors."""
    if border == "replicate":
        return min(max(i, 0), extent - 1)
    if border == "reflect" and extent == 1:
        return 0
    while not 0 <= i < extent:
        if border == "reflect":
            i = -i if i < 0 else (extent - 1) - (i - (extent - 1))
        elif border == "reflect-even":
            i = -i - 1 if i < 0 else (extent - 1) - (i - extent)
        else:
            raise ValueError(f"unknown border mode '{border}'")
    return i


def inside(position: Sequence[int], shape: Sequence[int]) -> bool:
    """Tell whether a position lies within a tensor."""
    return all(0 <= i < extent for i, extent in zip(position, shape, strict=True))


def extended(x: np.ndarray, position: Sequence[int], border: str, value: float = 0.0) -> Any:
    """The item of the tensor extended beyond its edges.

    A position of fewer axes than the tensor has is one on its last axes: the items there are many.
    """
    first = x.ndim - len(position)
    extents = x.shape[first:]
    if inside(position, extents):
        return x[..., *position]
    if border == "constant":
        return np.full(x.shape[:first], value)
    return x[..., *(mirrored(i, e, border) for i, e in zip(position, extents, strict=True))]


@dataclass(frozen=True)
class Axis:
    """A window along one axis, with the extents of the up-scaled and the down-scaled side."""

    f: int
    s: int
    d: int
    p: int
    up: int
    down: int


def automatic_padding(X: int, f: int, s: int, d: int) -> Pair:
    """Return the padding with which the down-scaled extent is ceil(X / s)."""
    x = -(-X // s)
    t = max((x - 1) * s + (f - 1) * d + 1 - X, 0)
    return t // 2, t - t // 2


def basic_axes(
    shape: Sequence[int],
    size: Sequence[int],
    padding: Sequence[Pair],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> list[Axis]:
    """Return the windows of an operation whose input is the up-scaled side."""
    axes = []
    for k, X in enumerate(shape):
        f, s, d = _item(size, k), _item(stride, k), _item(dilation, k)
        p, q = padding[k] if k < len(padding) else automatic_padding(X, f, s, d)
        dilated = (f - 1) * d + 1
        axes.append(Axis(f, s, d, p, X, (p + X + q - dilated) // s + 1))
    return axes


def reverse_axes(
    shape: Sequence[int],
    size: Sequence[int],
    padding: Sequence[Pair],
    stride: Sequence[int],
    dilation: Sequence[int],
    output_shape: Sequence[int],
) -> list[Axis]:
    """Return the windows of an operation whose input is the down-scaled side."""
    axes = []
    for k, x in enumerate(shape):
        f, s, d = _item(size, k), _item(stride, k), _item(dilation, k)
        if k < len(padding):
            p, q = padding[k]
            X = output_shape[k] if output_shape else (x - 1) * s + (f - 1) * d + 1 - (p + q)
        else:
            X = output_shape[k] if output_shape else x * s
            p, _ = automatic_padding(X, f, s, d)
        axes.append(Axis(f, s, d, p, X, x))
    return axes


def _item(values: Sequence[int], k: int) -> int:
    """Return item k of an attribute, or 1 if it is left out."""
    return values[k] if k < len(values) else 1


def sources(i: Sequence[int], axes: Sequence[Axis]) -> list[tuple[tuple[int, ...], list[int]]]:
    """For a basic operation: each position j in the window, and i*s + j*d - p, what it reads."""
    return [
        (j, [i_k * a.s + j_k * a.d - a.p for i_k, j_k, a in zip(i, j, axes, strict=True)])
        for j in np.ndindex(*(a.f for a in axes))
    ]


def reverse_sources(
    i: Sequence[int], axes: Sequence[Axis]
) -> list[tuple[tuple[int, ...], list[int]]]:
    """For a reverse operation: each j where s divides i + p - j*d on all axes; the quotients."""
    found = []
    for j in np.ndindex(*(a.f for a in axes)):
        numerators = [i_k + a.p - j_k * a.d for i_k, j_k, a in zip(i, j, axes, strict=True)]
        if all(n % a.s == 0 for n, a in zip(numerators, axes, strict=True)):
            found.append((j, [n // a.s for n, a in zip(numerators, axes, strict=True)]))
    return found
