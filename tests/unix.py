"""What Unix alone has: tests that import it are skipped elsewhere, by name."""

from typing import Any

import pytest

resource: Any = pytest.importorskip("resource", reason="needs Unix, which limits a process")
