"""Checks small rows of a table in one test, which names those that fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def failures(check: Callable[..., None], rows: Mapping[str, Any]) -> dict[str, str]:
    """Run the check of each row; return the errors of rows that fail by name."""
    messages: dict[str, str] = {}
    for name, row in rows.items():
        try:
            check(row)
        except Exception as error:
            messages[name] = f"{type(error).__name__}: {error}"
    return messages
