"""Lists, for summaries, the products that a CPU computes in other dtypes than the network's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.graph import Graph
from nnef_jax.execution.places import default_platform

if TYPE_CHECKING:
    from nnef_jax.execution.definition import Definition


def in_integers(
    definition: Definition, graph: Graph, platform: str | None = None
) -> frozenset[str]:
    """Return the names of a graph's operations that are computed in integers on a platform.

    `platform` is by default jax's default platform.
    """
    target = definition.target(platform or default_platform())
    if target.in_integers is None or target.rates is None:
        return frozenset()
    return target.in_integers(graph, target.rates.multiplies_bytes)


def remarks(definition: Definition, graph: Graph) -> list[str]:
    """Return lines of text about products that jax's default device computes in float32.

    There is a line for products of bfloat16, and a line for products of 8-bit integers, if the
    network has such products and the device computes them in float32. A further line says
    whether weights are converted to float32 in each call.
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
        # The second argument tells whether the machine multiplies bytes fast. If it did, more
        # operations might be computed in integers.
        names_if_fast = names_in_integers(graph, True)
        names_if_slow = names_in_integers(graph, False)
        if names_if_fast > names_if_slow:
            lines.append(remark.format("8 bits"))
    return lines


def _is_bfloat16(definition: Definition) -> bool:
    """Tell whether most of the network's products are computed in bfloat16."""
    from lowering import is_mostly_bfloat16

    return is_mostly_bfloat16(definition.network.graph, definition.options.precision)
