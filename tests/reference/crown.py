"""CROWN on dense layers, as the paper has it (Zhang et al. 2018, arXiv:1811.00866), in 64 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Layer = tuple[Any, Any]  # of y = W x + b: [out, in] and [out]
Lines = tuple[Any, Any, Any, Any]  # slope and constant of the line below, and of that above


def bounds(
    layers: Sequence[Layer],
    curve: Callable[[Any], Any],
    lines: Callable[[Any, Any], Lines],
    low: Any,
    high: Any,
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return the least and largest results of layers with a rising curve between each two.

    Both are of the lines, and of the intervals that follow from the layer before. Inside, what is
    in both counts.
    """
    relaxed: list[Lines] = []
    inside, by_lines, by_intervals = (low, high), (low, high), (low, high)
    for depth, (weight, constant) in enumerate(layers, 1):
        by_lines = _backwards(layers[:depth], relaxed, low, high)
        centre, radius = (inside[0] + inside[1]) / 2, (inside[1] - inside[0]) / 2
        centre, radius = weight @ centre + constant, np.abs(weight) @ radius
        by_intervals = centre - radius, centre + radius
        if depth < len(layers):
            least = np.maximum(by_lines[0], by_intervals[0])
            most = np.minimum(by_lines[1], by_intervals[1])
            relaxed.append(lines(least, most))
            inside = curve(least), curve(most)
    return by_lines, by_intervals


def _backwards(
    layers: Sequence[Layer], relaxed: Sequence[Lines], low: Any, high: Any
) -> tuple[Any, Any]:
    found = []
    for is_upper in (False, True):
        weight, constant = layers[-1]
        for (w, b), (a0, b0, a1, b1) in zip(layers[-2::-1], relaxed[::-1], strict=True):
            if is_upper:
                a0, b0, a1, b1 = a1, b1, a0, b0
            constant = constant + np.where(weight > 0, weight * b0, weight * b1).sum(1)
            weight = np.where(weight > 0, weight * a0, weight * a1)
            constant, weight = constant + weight @ b, weight @ w
        ends = (high, low) if is_upper else (low, high)
        extreme = np.where(weight > 0, weight * ends[0], weight * ends[1]).sum(1)
        found.append(extreme + constant)
    return found[0], found[1]


def leaky_relu(alpha: Any = 0.0) -> Callable[[Any, Any], Lines]:
    """Return the lines of alpha * x below 0, x above: a chord, and the line of the longer side."""

    def lines(low: Any, high: Any) -> Lines:
        chord = (high - alpha * low) / (high - low)
        mixed = (low < 0) & (high > 0)
        stable = np.where(high <= 0, alpha, 1.0)
        below = np.where(mixed, np.where(high >= -low, 1.0, alpha), stable)
        return (
            below,
            0 * low,
            np.where(mixed, chord, stable),
            np.where(mixed, high * (1 - chord), 0),
        )

    return lines


def sigmoidal(
    curve: Callable[[Any], Any], slope: Callable[[Any], Any]
) -> Callable[[Any, Any], Lines]:
    """Return the lines of what is convex below 0 and concave above: chords and tangents."""

    def above(curve: Any, slope: Any, low: float, high: float) -> tuple[float, float]:
        chord = (curve(high) - curve(low)) / (high - low)
        if high <= 0 or (low < 0 and slope(high) >= chord):
            return chord, curve(low) - chord * low
        place = (low + high) / 2
        if low < 0:
            left, place = 0.0, high
            for _ in range(100):
                middle = (left + place) / 2
                fits = curve(middle) + slope(middle) * (low - middle) >= curve(low)
                left, place = (left, middle) if fits else (middle, place)
        return slope(place), curve(place) - slope(place) * place

    def lines(low: Any, high: Any) -> Lines:
        over = [above(curve, slope, *ends) for ends in zip(low, high, strict=True)]
        under = [
            above(lambda x: -curve(-x), lambda x: slope(-x), *ends)
            for ends in zip(-high, -low, strict=True)
        ]
        (a0, b0), (a1, b1) = np.transpose(under), np.transpose(over)
        return a0, -b0, a1, b1

    return lines
