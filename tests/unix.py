"""Modules that only Unix has: tests that import them from here are skipped elsewhere."""

from typing import Any

import pytest

resource: Any = pytest.importorskip("resource", reason="needs Unix, which limits a process")
