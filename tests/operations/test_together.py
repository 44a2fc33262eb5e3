"""Rows that are compiled together: where their program fails, that is told of the right ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import pytest

from tests.operation_checks import Together


def doubled(row: int) -> tuple[Callable[..., Any], Sequence[Any]]:
    return lambda x: 2 * x, [jnp.asarray(row)]


def test_each_row_has_its_results() -> None:
    together = Together(range(50), doubled)
    assert [int(together(row)) for row in range(50)] == [2 * row for row in range(50)]


def test_a_row_that_fails_fails_alone() -> None:
    def prepare(row: int) -> tuple[Callable[..., Any], Sequence[Any]]:
        if row == 1:
            raise ValueError("row 1 cannot be read")
        return doubled(row)

    together = Together(range(3), prepare)
    assert int(together(0)) == 0
    with pytest.raises(ValueError, match="row 1 cannot be read") as caught:
        together(1)
    assert str(caught.value.__cause__) == "row 1 cannot be read"  # of the program of all
    assert int(together(2)) == 4


def test_a_program_that_fails_where_no_row_does_is_told_of_all() -> None:
    prepared = list[int]()

    def prepare(row: int) -> tuple[Callable[..., Any], Sequence[Any]]:
        prepared.append(row)
        if prepared == [0, 1]:
            raise ValueError("two rows are too many")
        return doubled(row)

    together = Together(range(2), prepare)
    for row in range(2):
        with pytest.raises(ValueError, match="two rows are too many") as caught:
            together(row)
        assert caught.value.__notes__ == ["each of the 2 rows of the program is computed alone"]
