"""What layers mean, by type: a function of a `Site` returns the tensors of the output ports.

Versions 2 to 9 and the operation sets of versions 10 and 11 use many types alike; where they do
not, each has its own function. A file holds a family, which registers its types when imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from nnef_jax.formats.openvino.site import Site

Meaning = Callable[[Site], Any]  # of one tensor, or of a list for several output ports
FAMILIES = (
    "elementwise", "conversions", "products", "convolution", "pooling", "normalization",
    "reduction", "shape", "matrices", "selection", "scattering", "counted", "resizing",
    "quantization", "recurrent", "sequences", "segments", "signal", "images", "loops", "branches",
    "memory", "detection", "suppression", "regions", "detectron", "refused",
)  # fmt: skip
_LEGACY: dict[str, Meaning] = {}
_OPSETS: dict[str, Meaning] = {}
_SPELLED: dict[str, str] = {}  # types as they are written, by lower case


def legacy(*types: str) -> Callable[[Meaning], Meaning]:
    """Register what layers of these types mean in versions 2 to 9."""
    return _register(_LEGACY, types)


def opsets(*types: str) -> Callable[[Meaning], Meaning]:
    """Register what layers of these types mean in operation sets."""
    return _register(_OPSETS, types)


def everywhere(*types: str) -> Callable[[Meaning], Meaning]:
    """Register what layers of these types mean in all versions."""

    def register(meaning: Meaning) -> Meaning:
        return legacy(*types)(opsets(*types)(meaning))

    return register


def _register(table: dict[str, Meaning], types: tuple[str, ...]) -> Callable[[Meaning], Meaning]:
    def register(meaning: Meaning) -> Meaning:
        for type in types:
            assert type.lower() not in table, f"'{type}' has two meanings"
            table[type.lower()] = meaning
            if type != type.lower():
                _SPELLED[type.lower()] = type
        return meaning

    return register


def meanings(*, is_legacy: bool) -> Mapping[str, Meaning]:
    """Return what layers mean, by type in lower case."""
    for family in FAMILIES:
        import_module(f"{__name__}.{family}")
    return _LEGACY if is_legacy else _OPSETS


def spelled(type: str) -> str:
    """Return a type as files write it."""
    return _SPELLED.get(type, type)
