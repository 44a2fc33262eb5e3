"""Upper bounds of symbolic extents."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from lowering.extents import Extent, largest_of, smallest_of
from lowering.symbol_values import UpperBounds, bounds_by_symbols

FUNCTIONS = {"floordiv": lambda x, y: x // y, "min": min, "max": max}


def drawn_text(draw: np.random.Generator, depth: int) -> str:
    """Return the text of an extent of the symbols n0 and n1."""
    if depth == 0 or draw.random() < 0.2:
        return str(draw.choice(["n0", "n1", "0", "1", "3"]))
    x, y = drawn_text(draw, depth - 1), drawn_text(draw, depth - 1)
    form = draw.choice(["{} + {}", "({}) - ({})", "({})*({})", "-2*({})", "- ({})",
                        "floordiv({}, 2)", "min({}, {})", "max({}, {})"])  # fmt: skip
    return str(form).format(x, y)


@pytest.mark.parametrize("seed", range(200))
def test_bounds_hold_for_all_values(seed: int) -> None:
    draw = np.random.default_rng(seed)
    extent = drawn_text(draw, 3)
    limit = str(draw.choice(["n0 + 1", "max(n0, 3)", "min(n0, 2)", "2*n0", "4"]))
    bounds = bounds_by_symbols(Extent(extent), ["n0"], {"n1": Extent(limit)})
    for n0 in range(8):
        most = eval(limit, FUNCTIONS, {"n0": n0})
        values = [eval(extent, FUNCTIONS, {"n0": n0, "n1": n1}) for n1 in range(most + 1)]
        assert max(values) <= min(bounds.number, n0 + bounds.excess)


@pytest.mark.parametrize("seed", range(100))
def test_bounds_by_the_larger_one_of_two_symbols(seed: int) -> None:
    extent = drawn_text(np.random.default_rng(seed), 3)
    bounds = bounds_by_symbols(Extent(extent), ["n0", "n1"], {})
    for n0, n1 in itertools.product(range(6), repeat=2):
        value = eval(extent, FUNCTIONS, {"n0": n0, "n1": n1})
        assert value <= min(bounds.number, max(n0, n1) + bounds.excess)


def test_limits_are_followed() -> None:
    limits: dict[str, Any] = {"n1": Extent("max(n0, n0 + 1)"), "n2": Extent("min(n1, 4)")}
    assert bounds_by_symbols(Extent("n1 + 2"), ["n0"], limits) == UpperBounds(float("inf"), 3)
    assert bounds_by_symbols(Extent("n2"), ["n0"], limits) == UpperBounds(4, 1)
    assert bounds_by_symbols(5, ["n0"], limits) == UpperBounds(5, 5)


def test_many_symbols_take_no_longer_than_their_number() -> None:
    """Each limit reads the earlier symbol twice."""
    limits = {f"n{i + 1}": Extent(f"max(n{i}, n{i} + 1)") for i in range(200)}
    assert bounds_by_symbols(Extent("n200"), ["n0"], limits).excess == 200


def test_extremes_of_extents() -> None:
    assert largest_of([3, 5, 4]) == 5
    assert smallest_of([3]) == 3
    for n0, n1 in itertools.product(range(4), repeat=2):
        extents = [Extent("n0"), 2, Extent("n1")]
        values = {"n0": n0, "n1": n1}
        assert eval(str(largest_of(extents)), FUNCTIONS, values) == max(n0, 2, n1)
        assert eval(str(smallest_of(extents)), FUNCTIONS, values) == min(n0, 2, n1)
