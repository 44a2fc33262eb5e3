"""What operators mean: a function of a `Site` returns the tensor of the first output, or a tuple.

A list is a sequence of tensors. A file holds a family, which registers its operators when it is
imported. What the standard defines as a function, and no family has, is run by its definition.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from nnef_jax.formats.onnx.document import Function, Reader
from nnef_jax.formats.onnx.protobuf import Raw
from nnef_jax.formats.onnx.site import Site
from nnef_jax.limits import Limits, Meter

Meaning = Callable[[Site], Any]
FAMILIES = (
    "sources", "arithmetic", "filters", "pool_windows", "normalizations", "samplers", "spectra", "optimizers", "control", "cells",
)  # fmt: skip
_MEANINGS: dict[tuple[str, str], list[tuple[int, Meaning]]] = {}


def operator(*names: str, domain: str = "", since: int = 1) -> Callable[[Meaning], Meaning]:
    """Register what operators of a domain mean from a version on."""

    def register(meaning: Meaning) -> Meaning:
        for name in names:
            versions = _MEANINGS.setdefault((domain, name), [])
            assert since not in (version for version, _ in versions), f"'{name}' has two meanings"
            versions.append((since, meaning))
            versions.sort(key=lambda item: item[0])
        return meaning

    return register


@cache
def _load() -> None:
    for family in FAMILIES:
        import_module(f"{__name__}.{family}")


def meaning_of(domain: str, name: str, version: int) -> Meaning | None:
    """Return what an operator means in a version of its domain, None if it is not known."""
    _load()
    versions = _MEANINGS.get((domain, name), ())
    return next((meaning for since, meaning in reversed(versions) if since <= version), None)


@cache
def defined(domain: str, name: str, version: int) -> Function | None:
    """Return the function by which the standard defines an operator, None if it does not."""
    from onnx import FunctionProto, defs

    try:
        schema = defs.get_schema(name, version, domain)
    except defs.SchemaError:
        return None
    proto: Any = schema.function_body
    if not isinstance(proto, FunctionProto) or not proto.node:
        return None
    reader = Reader(f"the definition of {name}", Raw(), Meter(Limits.unbounded()), _refused)
    reader.list_nodes(proto.node)
    return reader.function(proto, {})


def _refused(name: str) -> memoryview:
    raise OSError(f"there is no file '{name}'")
