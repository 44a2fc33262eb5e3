"""Extents that may be unknown."""

from __future__ import annotations

import copy
import pickle

import pytest

from lowering.extents import (
    UNKNOWN,
    along,
    at_least,
    broadcast_extent,
    differ,
    padded,
    shapes_differ,
    show,
    volume,
    with_extent,
    with_ones,
)


def test_unknown_survives_arithmetic() -> None:
    for made in (UNKNOWN + 1, 3 - UNKNOWN, 2 * UNKNOWN, -UNKNOWN, 7 // UNKNOWN, UNKNOWN % 2):
        assert made is UNKNOWN
    assert not (UNKNOWN < 1 or UNKNOWN > 1 or UNKNOWN <= 0 or UNKNOWN >= 0)
    assert UNKNOWN != 0 and UNKNOWN == UNKNOWN and bool(UNKNOWN) and len({UNKNOWN, 0}) == 2
    assert f"{UNKNOWN} {UNKNOWN:>3}" == "?   ?" and show((1, UNKNOWN)) == "[1,?]"


def test_unknown_is_one_object() -> None:
    for again in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        assert again(UNKNOWN) is UNKNOWN


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [(1, 3, 3), (3, 1, 3), (3, 3, 3), (2, 3, None), (UNKNOWN, 3, 3), (3, UNKNOWN, 3),
     (1, UNKNOWN, UNKNOWN), (UNKNOWN, 1, UNKNOWN)],
)  # fmt: skip
def test_common_extents(a: int, b: int, wanted: int | None) -> None:
    assert broadcast_extent(a, b) is wanted


def test_comparison() -> None:
    assert differ(2, 3) and not differ(2, 2) and not differ(2, UNKNOWN)
    assert shapes_differ((2, 3), (2,)) and shapes_differ((2, 3), (2, 4))
    assert not shapes_differ((2, UNKNOWN), (2, 4))
    assert at_least(3, 2) and not at_least(2, 3)


def test_shapes() -> None:
    assert volume((2, 3, 4)) == 24 and volume(()) == 1 and volume((2, UNKNOWN)) is UNKNOWN
    assert padded((2,), 3) == (2, 1, 1) and along(1, 3) == [1, -1, 1]
    assert with_ones(((2, UNKNOWN), "x")) == ((2, 1), "x")
    assert with_extent((2, 6, 5), 1, 3, 2) == (2, 3, 2, 5)
