"""Lists the products that a CPU computes in other dtypes than the document has, for summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.graph import Graph
from nnef_jax.execution.places import default_platform

if TYPE_CHECKING:
    from nnef_jax.execution.definition import Definition


def in_integers(
    definition: Definition, graph: Graph, platform: str | None = None
) -> frozenset[str]:
    """Return the names of a graph's operations that a platform computes in integers.

    By default `platform` is jax's default platform.
    """
    target = definition.target(platform or default_platform())
    if target.in_integers is None or target.rates is None:
        return frozenset()
    return target.in_integers(graph, target.rates.multiplies_bytes)


def remarks(definition: Definition, graph: Graph) -> list[str]:
    """Return lines of text about products that jax's default device computes in float32.

    If the network has products of bfloat16 that the device computes in float32, there is a line
    about them. If each call also converts weights to float32, there is a second line. Products of
    8-bit integers that the device computes in float32 have a line too.
    """
    target = definition.target(default_platform())
    names_in_integers = target.in_integers
    rates = target.rates
    if names_in_integers is None or rates is None:
        return []
    remark = "products of {} are computed in float32, which this machine's profile says is as fast"
    lines: list[str] = []
    if _is_bfloat16(definition) and not rates.multiplies_bfloat16:
        lines.append(remark.format("bfloat16"))
        if definition.options.precision is None:
            lines.append("weights are stored in bfloat16, and widened in each call")
    if not rates.multiplies_bytes:
        # The second argument tells whether the machine multiplies bytes fast. A machine that does
        # so may compute more operations in integers than this machine.
        names_if_fast = names_in_integers(graph, True)
        names_if_slow = names_in_integers(graph, False)
        if names_if_fast > names_if_slow:
            lines.append(remark.format("8 bits"))
    return lines


def _is_bfloat16(definition: Definition) -> bool:
    """Tell whether most of the network's products are computed in bfloat16."""
    from lowering import is_mostly_bfloat16

    return is_mostly_bfloat16(definition.network.graph, definition.options.precision)
