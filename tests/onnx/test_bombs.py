"""Messages of a few bytes each end in a model or an error, before they have cost too much."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")

from nnef_jax import Limits
from tests.fuzz.bounds import bounded
from tests.onnx.bombs import GIGABYTES, KINDS, SECONDS, SIZES, measured, outcome

# A hundredth of what is allowed by default, so that a bomb takes a moment.
SMALL = Limits(steps=100_000, expanded_bytes=20_000_000)


@pytest.mark.parametrize("kind", KINDS)
def test_small_limits(kind: str) -> None:
    source = KINDS[kind](SIZES[0])
    with bounded(4):
        outcome(source, SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_default_limits(kind: str, size: int) -> None:
    _, seconds, gigabytes = measured(kind, size)
    assert seconds < SECONDS and gigabytes < GIGABYTES
