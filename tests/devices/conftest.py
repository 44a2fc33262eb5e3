"""Programs are compiled in the precision that users have by default."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def _default_precision() -> Iterator[None]:
    with jax.default_matmul_precision("default"):
        yield
