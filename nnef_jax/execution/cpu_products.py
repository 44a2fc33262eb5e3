"""Lists the products that a CPU computes in other types than the network's, for summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.graph import Graph
from nnef_jax.execution.places import default_platform

if TYPE_CHECKING:
    from nnef_jax.execution.definition import Definition


def in_integers(
    definition: Definition, graph: Graph, platform: str | None = None
) -> frozenset[str]:
    """Return the names of operations that a platform computes in integers; by default jax's."""
    target = definition.target(platform or default_platform())
    if target.in_integers is None or target.rates is None:
        return frozenset()
    return target.in_integers(graph, target.rates.multiplies_bytes)


def remarks(definition: Definition, graph: Graph) -> list[str]:
    """Return a line for each type whose products jax's default device computes in float32."""
    target = definition.target(default_platform())
    if (names := target.in_integers) is None or (rates := target.rates) is None:
        return []
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
