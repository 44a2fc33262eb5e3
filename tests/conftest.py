"""Strict settings for all tests: exact products, no implicit promotion of dtypes or ranks."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)

SHARED_CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"


@pytest.fixture(scope="session")
def shared_cases() -> Path:
    """The shared collection of cases; tests that need it skip where it is absent."""
    if not SHARED_CASES.is_dir():
        pytest.skip(f"needs the shared cases at {SHARED_CASES}")
    return SHARED_CASES
