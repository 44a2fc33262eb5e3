"""Tells which products a CPU computes in other types than the network says, for summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering import target_of
from lowering.graph import Graph
from nnef_jax.execution.places import default_platform

if TYPE_CHECKING:
    from nnef_jax.execution.definition import Definition


def in_integers(
    definition: Definition, graph: Graph, platform: str | None = None
) -> frozenset[str]:
    """Return the names of operations that a platform, by default jax's, computes in integers."""
    platform = platform or default_platform()
    if not definition.has_kernels(platform) or not (names := target_of(platform).in_integers):
        return frozenset()
    return names(graph, definition.host.rates(platform).multiplies_bytes)


def remarks(definition: Definition, graph: Graph) -> list[str]:
    """Tell which products jax's device computes in more bits than the network has."""
    platform = default_platform()
    if not definition.has_kernels(platform) or not (names := target_of(platform).in_integers):
        return []
    rates = definition.host.rates(platform)
    bfloat16 = _is_bfloat16(definition) and not rates.multiplies_bfloat16
    codes = not rates.multiplies_bytes and names(graph, True) > names(graph, False)
    kinds = [name for name, is_so in (("bfloat16", bfloat16), ("8 bits", codes)) if is_so]
    lines = [
        f"products of {kind} are computed in float32: by this machine's profile they gain nothing"
        for kind in kinds
    ]
    if bfloat16 and definition.options.precision is None:
        lines.append("weights are kept in bfloat16, and widened in each call")
    return lines


def _is_bfloat16(definition: Definition) -> bool:
    from lowering import is_mostly_bfloat16

    return is_mostly_bfloat16(definition.network.graph, definition.options.precision)
