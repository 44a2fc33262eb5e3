"""Adds ranges of integers whose number of items is known only in a run."""

from __future__ import annotations

from typing import Any

from lowering.extents import at_least, largest_of
from lowering.graph import Value
from lowering.symbol_values import symbols_in
from nnef_jax.flattening.host_operations import ceil_div
from nnef_jax.flattening.site import Site
from nnef_jax.flattening.tensor_graph import TensorGraph


def symbolic_range(site: Site[TensorGraph], start: Any, end: Any, step: Any, dtype: str) -> Value:
    """Return the integers `start`, `start + step` and so on, up to but excluding `end`.

    At least one of the three numbers is a symbolic extent. The range has max(count, 0) items, where
    count is (end - start) / step, rounded up. The result is the last operation of the site.
    """
    graph = site.graph
    count: Any = ceil_div(end - start, step)
    if at_least(count, 0) and not graph.may_be_negative(count):
        return site.last.range(start=start, end=end, step=step, dtype=dtype)
    limit = largest_of([count, 0])
    depends_on_lists = not symbols_in(count).isdisjoint(graph.symbols.most)
    if depends_on_lists:
        # jax takes the symbol n0 for at least 1, and so would take n0 - 1 for max(n0 - 1, 0). The
        # run therefore counts the items. A negative count becomes 0 there.
        number = graph.extent_tensor(count, site.span)
        places = site.listed(site.positions(graph.bound(limit)), 0, number, limit)
    else:
        places = site.positions(graph.symbols.dimensions.of(limit))
    steps = site.step.mul(places, graph.extent_tensor(step, site.span))
    first = graph.extent_tensor(start, site.span)
    if dtype == graph.builder.integer:
        return site.last.add(steps, first)
    return site.last.cast(site.step.add(steps, first), dtype=dtype)
