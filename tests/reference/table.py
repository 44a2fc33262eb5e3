"""The table that the reference operations enter themselves into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPERATIONS: dict[str, Callable[..., Any]] = {}


def operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Enter a function under its name, less the underscore that tells it from Python's own."""
    OPERATIONS[function.__name__.rstrip("_")] = function
    return function
