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
    """Return the names of the operations that a platform computes in integers.

    The default is jax's default platform.
    """
    target = definition.target(platform or default_platform())
    if target.in_integers is None or target.rates is None:
        return frozenset()
    return target.in_integers(graph, target.rates.multiplies_bytes)


def remarks(definition: Definition, graph: Graph) -> list[str]:
    """Return a line for bfloat16, and one for 8 bits, if products of this type run in float32.

    The device is jax's default one. A further line tells if weights are widened in each call.
    """
    target = definition.target(default_platform())
    integer_operations = target.in_integers
    rates = target.rates
    if integer_operations is None or rates is None:
        return []
    remark = "products of {} are computed in float32, which this machine's profile says is as fast"
    lines: list[str] = []
    if _is_bfloat16(definition) and not rates.multiplies_bfloat16:
        lines.append(remark.format("bfloat16"))
        if definition.options.precision is None:
            lines.append("weights are stored in bfloat16, and widened in each call")
    if not rates.multiplies_bytes:
        with_bytes = integer_operations(graph, True)
        without_bytes = integer_operations(graph, False)
        if with_bytes > without_bytes:
            lines.append(remark.format("8 bits"))
    return lines


def _is_bfloat16(definition: Definition) -> bool:
    from lowering import is_mostly_bfloat16

    return is_mostly_bfloat16(definition.network.graph, definition.options.precision)
