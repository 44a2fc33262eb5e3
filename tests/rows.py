"""Rows of a table that need a glance each: one test runs all of them, and names those that fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def failures(check: Callable[..., None], rows: Mapping[str, Any]) -> dict[str, str]:
    """Return what the check of each row says that fails, by the row's name."""
    messages: dict[str, str] = {}
    for name, row in rows.items():
        try:
            check(row)
        except Exception as error:
            messages[name] = f"{type(error).__name__}: {error}"
    return messages
