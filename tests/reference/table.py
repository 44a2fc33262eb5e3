"""The table in which reference operations register themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPERATIONS: dict[str, Callable[..., Any]] = {}


def operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function by its name, without an underscore that avoids a name of Python."""
    OPERATIONS[function.__name__.rstrip("_")] = function
    return function
