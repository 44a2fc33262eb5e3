"""What layers mean that no row of `operations` says: functions, a file a family.

A function takes the site and as many of the first inputs as it has names for, as tensors of the
graph, and returns the tensors of the output ports. Versions 2 to 9 and the operation sets of
versions 10 and 11 use many types alike; where they do not, each has its own meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

Meaning = Callable[..., Any]  # of one tensor, or of several output ports
FAMILIES = (
    "elementwise", "product", "window", "reduction", "shape", "slicing", "indexing", "image",
    "signal", "recurrent", "sequence", "loop", "state", "detection", "region",
)  # fmt: skip
_LEGACY: dict[str, Meaning] = {}
_OPSETS: dict[str, Meaning] = {}
_SPELLED: dict[str, str] = {}  # types as they are written, by lower case


def _registered(tables: Sequence[dict[str, Meaning]], *types: str) -> Callable[[Meaning], Meaning]:
    def register(function: Meaning) -> Meaning:
        inputs = function.__code__.co_argcount - 1
        meaning = (lambda site: function(site, *site.first(inputs))) if inputs else function
        for type in types:
            for table in tables:
                assert type.lower() not in table, f"'{type}' has two meanings"
                table[type.lower()] = meaning
            if type != type.lower():
                _SPELLED[type.lower()] = type
        return function

    return register


# Register what layers of some types mean: in versions 2 to 9, in operation sets, in all.
legacy = partial(_registered, (_LEGACY,))
opsets = partial(_registered, (_OPSETS,))
everywhere = partial(_registered, (_LEGACY, _OPSETS))


def meanings(*, is_legacy: bool) -> Mapping[str, Meaning]:
    """Return the meanings of layers, by type in lower case."""
    import_module("nnef_jax.formats.openvino.operations")
    for family in FAMILIES:
        import_module(f"{__name__}.{family}_layers")
    return _LEGACY if is_legacy else _OPSETS


def spelled(type: str) -> str:
    """Return a type as files write it."""
    return _SPELLED.get(type, type)
