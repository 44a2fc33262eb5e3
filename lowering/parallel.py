"""Chooses which factor of which axis of each parameter is divided over devices.

A factor that is divided is so wherever it goes: in the columns of a product, in all that is
computed of them item by item or by heads, and in the rows of the product that sums over it, which
needs one sum over devices (Megatron-LM, https://arxiv.org/abs/1909.08053, section 3). It costs what
is moved where something sums over it or needs it whole, and spares what its parameters would each
cost by themselves. Those that spare the most are taken, of factors that no tensor has two of.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from lowering.factors import Factor, FactorWalk, Product, leaves
from lowering.program import Program

_COST = {"sum": 2, "lookup": 2, "whole": 1}  # a sum moves items twice: to be added, and back
_EACH = 1024  # what any collective costs beside its items, in items


@dataclass(frozen=True)
class Division:
    """Says how a parameter is divided, or an argument of the batch: then `axis` is all.

    Args:
        axis: the axis.
        before: the extent of its factors before the one that is divided: of 3 * heads * items 3.
        along: the axis along which it is stored; where the divided factor is not the first of its
            axis it is another, or None, and calls take it prepared.
        follows: whether the factor is divided wherever it goes, or for this parameter alone.
        why: in a few words.
        moves: the collectives that a call needs for it.
    """

    axis: int
    before: int = 1
    along: int | None = None
    follows: bool = True
    why: str = ""
    moves: str = ""


class Along(NamedTuple):
    """Divisions of arguments along axes of a mesh.

    `names` are the axes of the mesh. `divisions` are by the number of an argument, parameters
    first. `Along((), {})` divides nothing.
    """

    names: tuple[str, ...]
    divisions: Mapping[int, Division]


@dataclass(frozen=True)
class Divided:
    """Says how a program's arguments are divided over a mesh: its parameters, and the batch.

        program, leaves, tree = traced(function, parameters, inputs)
        model = Along(("model",), divisions(program, 2))
        batch = Along(("batch",), {program.parameters: Division(0)})
        target = mesh_target("cpu", Divided(mesh, model, batch))
        results = jax.jit(differentiable(program, target))(*leaves)

    Axes of the mesh have the type `jax.sharding.AxisType.Auto`, which `jax.make_mesh` is told as
    `axis_types`. With others the program runs undivided, with a warning. A parameter is stored
    whole, or sharded by `Division.along`. Arguments of the batch stay as their caller shards them.
    """

    mesh: Any
    parameters: Along
    batch: Along


def divisions(program: Program, count: int, least: int = 0) -> dict[int, Division]:
    """Return how parameters, by place, are divided into `count` parts, of those that can be.

    Those of fewer items than `least` are not.
    """
    return _Choice(program, count, least).made()


class _Choice:
    def __init__(self, program: Program, count: int, least: int) -> None:
        walk = self.walk = FactorWalk(program).through()
        for result in program.results:
            walk.use("whole", walk.of(result), result)
        self.count = count
        self.large = {
            i: v
            for i, v in enumerate(program.arguments[: program.parameters])
            if math.prod(v.aval.shape) >= least
        }
        self.products: dict[int, list[Product]] = {i: [] for i in self.large}
        for product in walk.products:
            for i in product.parameters & {*self.large}:
                self.products[i].append(product)
        self.members: dict[Factor, dict[int, tuple[int, int]]] = {}  # axis, and extent before
        for i, variable in self.large.items():
            for axis, factors in enumerate(walk.of(variable)):
                before = 1
                for factor in leaves(factors):
                    if factor.extent % count == 0 and not factor.is_blocked:
                        self.members.setdefault(factor, {}).setdefault(i, (axis, before))
                    before *= factor.extent
        self.cost: dict[Factor, int] = dict.fromkeys(self.members, 0)
        for use in walk.uses:
            for factor in {*leaves(use.factors)} & self.cost.keys():
                self.cost[factor] += _COST[use.kind] * use.items + _EACH
        self.alone = {i: self._alone(i) for i in self.large}

    def made(self) -> dict[int, Division]:
        """Return the chosen division of each parameter, by its number."""
        divisions: dict[int, Division] = {}
        beside = self._beside()
        excluded: set[Factor] = set()

        def order(factor: Factor) -> int:
            spared = sum(self.alone[i][0] for i in self.members[factor] if i not in divisions)
            return self.cost[factor] - spared

        heap = [(order(factor), i, factor) for i, factor in enumerate(self.members)]
        heapq.heapify(heap)
        while heap:
            earlier, i, factor = heapq.heappop(heap)
            if factor in excluded or (now := order(factor)) >= 0:
                continue
            if now > earlier:  # some of its parameters are divided by now
                heapq.heappush(heap, (now, i, factor))
                continue
            excluded |= beside[factor]
            divisions |= {
                i: self._member(i, factor) for i in self.members[factor] if i not in divisions
            }
        return {**{i: x for i, (_, x) in self.alone.items() if x}, **divisions}

    def _beside(self) -> dict[Factor, set[Factor]]:
        """Return by factor which others some tensor has too."""
        beside: dict[Factor, set[Factor]] = {factor: set() for factor in self.members}
        for axes in _all_axes(self.walk):
            together = {f for axis in axes for f in leaves(axis)} & beside.keys()
            for factor in together if len(together) > 1 else ():
                beside[factor] |= together - {factor}
        return beside

    def _member(self, i: int, factor: Factor) -> Division:
        axis, before = self.members[factor][i]
        shape = self.large[i].aval.shape
        along: int | None = axis
        if before > 1:
            others = [k for k, n in enumerate(shape) if k != axis and n % self.count == 0]
            along = max(others, key=shape.__getitem__, default=None)
        rows = [p for p in self.products[i] if factor in leaves(p.rows)]
        columns = [p for p in self.products[i] if factor in leaves(p.columns)]
        parts = f" of each of {before} parts" if before > 1 else ""
        if rows:
            what = "words" if rows[0].kind == "lookup" else "rows"
            return Division(axis, before, along, True, what + parts, f"{len(rows)} all-reduce")
        what = "columns" if columns else "as what it meets"
        return Division(axis, before, along, True, what + parts)

    def _alone(self, i: int) -> tuple[int, Division | None]:
        """Return the cost of dividing a parameter by itself, and the division."""
        products, shape = self.products[i], self.large[i].aval.shape
        if not products:
            return 0, None
        axes = list(map(leaves, self.walk.of(self.large[i])))
        columns = {f for p in products for f in leaves(p.columns)}
        rows = {f for p in products for f in leaves(p.rows)}
        fits = [k for k, n in enumerate(shape) if n % self.count == 0]
        by_columns = [k for k in fits if {*axes[k]} <= columns]
        by_rows = [k for k in fits if {*axes[k]} <= rows]
        items, each = sum(p.items for p in products), len(products) * _EACH
        is_table = products[0].kind == "lookup"
        if by_columns and not (is_table and by_rows):
            axis, moves = max(by_columns, key=shape.__getitem__), f"{len(products)} all-gather"
            return items + each, Division(axis, 1, axis, False, "columns", moves)
        if by_rows:
            axis, why = max(by_rows, key=shape.__getitem__), "words" if is_table else "rows"
            return 2 * items + each, Division(
                axis, 1, axis, False, why, f"{len(products)} all-reduce"
            )
        return 2 * items + each, None


def _all_axes(walk: FactorWalk) -> Iterator[list[list[Factor]]]:
    yield from walk.axes.values()
    for body in chain(*walk.bodies.values()):
        yield from _all_axes(body)
