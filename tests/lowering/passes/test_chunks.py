"""Large batches are loops over a few items at a time."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from lowering.contexts import disabled
from lowering.cpu import chunks
from lowering.jaxprs import primitive
from lowering.program import Program
from tests.lowering.passes.programs import changed, names, program, random

X, MATRIX = random(8, 64, 32), random(32, 16, seed=1)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of two items of X, and one for a stage of its own."""
    monkeypatch.setattr(chunks, "_MOST_BYTES", 40_000)
    monkeypatch.setattr(chunks, "_MOST_BYTES_OF_LIGHT_STAGE", 10_000)
    monkeypatch.setattr(chunks, "_ADDITIONAL_EQUATIONS", 0)


def loops(program: Program) -> list[int]:
    return [e.params["length"] for e in program.equations if primitive(e) == "scan"]


def test_all_but_what_is_the_same_for_all_items_is_in_the_loop() -> None:
    def function(matrix: Any, x: Any) -> Any:
        return jnp.sin(x) @ matrix, matrix * 2

    after = changed(chunks.run, program(function, MATRIX, X, parameters=1), MATRIX, X)
    assert loops(after) == [4]
    assert names(after) == ["reshape", "scan", "reshape"]


@pytest.mark.parametrize("axis", (0, 1, 2))
def test_a_batch_along_any_axis_is_parted_and_joined(axis: int) -> None:
    def function(matrix: Any, x: Any) -> Any:
        return jnp.moveaxis(jnp.sin(x) @ matrix, 0, axis)

    after = changed(chunks.run, program(function, MATRIX, X, parameters=1), MATRIX, X)
    assert loops(after) == [4]


def test_later_stages_take_more_items() -> None:
    def function(matrix: Any, x: Any) -> Any:
        y = jnp.sin(x).mean(1)
        return jnp.tanh(y @ matrix)

    before = program(function, MATRIX, X, parameters=1)
    after = changed(chunks.run, before, MATRIX, X)
    assert loops(after) == [4] and names(after)[-2:] == ["dot_general", "tanh"]
    with disabled("stages"):
        assert names(changed(chunks.run, before, MATRIX, X))[-2:] == ["scan", "reshape"]


def test_stages_that_never_take_all_items_are_loops_in_a_loop() -> None:
    def function(matrix: Any, x: Any) -> Any:
        return (jnp.sin(x)[:, ::8] @ matrix) + 1

    x = random(64, 64, 32)
    after = changed(chunks.run, program(function, MATRIX, x, parameters=1), MATRIX, x)
    (outer,) = [e for e in after.equations if primitive(e) == "scan"]
    inner = loops(after.body(outer))
    assert inner and outer.params["length"] * inner[0] <= 64


@pytest.mark.parametrize("role", ("forward", "backward"))
def test_derivatives_and_what_may_be_sharded_stay(role: Any) -> None:
    closed = program(lambda x: jnp.sin(x), X).closed
    for before in (Program(closed, role=role), Program(closed, is_alone=False)):
        assert chunks.run(before, None) is before  # pyright: ignore


def test_items_that_meet_stay_together() -> None:
    before = program(lambda x: x - x.mean(0, keepdims=True), X)
    assert chunks.run(before, None) is before  # pyright: ignore
