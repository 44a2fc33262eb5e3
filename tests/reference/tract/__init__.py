"""A slow, obviously right interpreter of the operations of tract's registries, in 64 bits."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

FAMILIES = (
    "elementwise",
    "activation",
    "shape",
    "reduce",
    "window",
    "linear",
    "quantized",
    "indexing",
    "resize",
    "detection",
    "onnx",
    "attention",
    "recurrent",
    "signal",
)

OPERATIONS: dict[str, Callable[..., Any]] = {}
for _family in FAMILIES:
    OPERATIONS |= import_module(f"tests.reference.tract.{_family}").OPERATIONS
