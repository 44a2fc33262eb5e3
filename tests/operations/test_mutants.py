"""Wrong types and attributes of every kind end in a result, or in an error with its place."""

from __future__ import annotations

import pytest

from tests.mutants import escapes, uses

# Of numbers that are beyond a dtype: they become infinite, or another integer.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")

_COUNT = 6  # mutants of a kind; `python -m tests.mutants` tries more


@pytest.mark.parametrize("part", range(4))
def test_mutants(part: int) -> None:
    found = escapes(sorted(uses())[part::4], _COUNT, seed=0)
    assert not [str(end) for _, end in found if not isinstance(end, str)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_more_mutants(seed: int) -> None:
    found = escapes(sorted(uses()), 60, seed)
    assert not [str(end) for _, end in found if not isinstance(end, str)]
