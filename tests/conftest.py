"""Strict settings for all tests: exact products, no implicit promotion of dtypes or ranks."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from hypothesis import HealthCheck, settings

from lowering import fallback
from nnef_jax.storage import folder
from tests import quick
from tests.quickly import unoptimised

# The same choices on every machine, also in processes that tests start.
os.environ["NNEF_JAX_MEASURE"] = "0"

# Files of tests are new: after each error a load would wait whether they change.
folder._PAUSE = 0

# OpenVINO forks a process that sends usage data, unless this package is not there.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_traceback_filtering", "off")  # of errors: 6 % of three files

# Where in the sources an operation is called is left out of programs, so that equal ones have equal
# texts (tests/quickly.py).
jax.config.update("jax_traceback_in_locations_limit", 0)

# jax keeps what it traced: by the default of 700 the collector goes through it for a twelfth of the
# suite's time.
gc.set_threshold(10_000, 20, 20)

# The same examples on every machine, however busy it is. New ones are tried by `tests.fuzz`.
settings.register_profile(
    "suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect only quick files for the quick tests: importing others would take as long."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    is_quick = not is_test or collection_path in quick.FILES
    return True if config.option.markexpr == "quick" and not is_quick else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of some files as `quick`, but for slow ones."""
    for item in items:
        if item.path in quick.FILES and item.get_closest_marker("slow") is None:
            item.add_marker("quick")


SHARED_CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"


@pytest.fixture(scope="session")
def shared_cases() -> Path:
    """The shared collection of cases; tests that need it skip where it is absent."""
    if not SHARED_CASES.is_dir():
        pytest.skip(f"needs the shared cases at {SHARED_CASES}")
    return SHARED_CASES


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--optimised", action="store_true", help="compile all as for users")


@pytest.fixture(scope="module", autouse=True)
def jax_configured_to_compile_quickly(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile in a quarter of the time, but for files marked as `optimised`."""
    if request.config.getoption("optimised") or request.node.get_closest_marker("optimised"):
        yield
    else:
        with unoptimised():
            yield


@pytest.fixture
def warns_again() -> Iterator[None]:
    """Reset the record of warnings that are given once."""
    fallback._warn.cache_clear()
    yield
    fallback._warn.cache_clear()
