"""What each kind of operation is to OpenVX: a layer, nodes on tensors, a table, a view; or nothing.

A function of a kind takes a `Site` and returns a `Layer`; it raises `Unfit` with the reason where
attributes say what no node computes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from nnef_jax.openvx.mapping.operation_site import OperationSite, VxLayer

Mapped = Callable[[OperationSite], VxLayer]
_MODULES = ("product_nodes", "pools", "arithmetic_nodes")
_KINDS: dict[str, Mapped] = {}


def maps(*kinds: str) -> Callable[[Mapped], Mapped]:
    """Add the function of some kinds."""

    def add(function: Mapped) -> Mapped:
        _KINDS.update(dict.fromkeys(kinds, function))
        return function

    return add


@cache
def kinds() -> dict[str, Mapped]:
    """Return the functions of all kinds that may be nodes."""
    for module in _MODULES:
        import_module(f"{__name__}.{module}")
    return _KINDS
