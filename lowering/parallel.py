"""Chooses the factor of each parameter's and each state's axes that is divided over devices.

A divided factor is divided in every tensor that contains it: in the columns of a product, in the
tensors that are computed from these columns item by item or head by head, and in the rows of the
product that sums over the factor. The last product needs one sum over devices (Megatron-LM,
https://arxiv.org/abs/1909.08053, section 3).

The cost of dividing a factor is the communication where an operation sums over the factor or needs
it undivided. The gain is the communication that the factor's parameters would cause if each
parameter were divided separately. The factors with the largest difference of gain and cost are
divided. No tensor is divided along two factors.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from jax.sharding import Mesh

from lowering.factors import Factor, FactorWalk, Product, leaves, unite
from lowering.program import Program

# The number of times that an item moves between devices. A sum moves each item there and back.
_COST = {"sum": 2, "lookup": 2, "gather": 1}
_EACH = 1024  # the fixed cost of a collective, as a number of items


@dataclass(frozen=True)
class Division:
    """How a parameter, a state, or an argument that holds the batch is divided over devices.

    The division of a batch argument needs only `axis`.

    Args:
        axis: the axis that contains the divided factor.
        before: the product of the factors that precede the divided factor in the axis. For
            example, it is 3 if the heads of an axis of 3 * heads * items are divided.
        along: the axis along which the stored parameter is sharded, or None if it is
            replicated. If other factors precede the divided factor, `along` differs from
            `axis`, and calls divide a value that is prepared from the parameter.
        follows: whether the factor is divided in all tensors that contain it, and not only in
            this parameter.
        why: the reason, in a few words.
        moves: the collectives that a call needs for this parameter, such as "1 all-reduce".
    """

    axis: int
    before: int = 1
    along: int | None = None
    follows: bool = True
    why: str = ""
    moves: str = ""


class Along(NamedTuple):
    """Which arguments of a program are divided along some axes of a mesh.

    `names` are the names of the axes of the mesh. `divisions` maps argument numbers to
    divisions. Parameters are the first arguments. `Along((), {})` divides nothing.
    """

    names: tuple[str, ...]
    divisions: Mapping[int, Division]


@dataclass(frozen=True)
class Divided:
    """The divisions of a program's parameters and batch over a mesh.

        program, leaves, tree = traced(function, parameters, inputs)
        model = Along(("model",), divisions(program, 2))
        batch = Along(("batch",), {program.parameters: Division(0)})
        target = mesh_target("cpu", Divided(mesh, model, batch))
        results = jax.jit(differentiable(program, target))(*leaves)

    The axes of the mesh must have the type `jax.sharding.AxisType.Auto`, which `jax.make_mesh`
    takes as `axis_types`. With other types the program runs undivided, with a warning. A parameter
    is stored replicated, or sharded along `Division.along`. The caller shards the arguments that
    hold the batch.
    """

    mesh: Mesh
    parameters: Along
    batch: Along


def divisions(
    program: Program, count: int, least: int = 0, carried: Mapping[int, int] | None = None
) -> dict[int, Division]:
    """Choose how arguments of a program are divided into `count` parts, by argument number.

    Each parameter that can be divided has a division in the result, unless it has fewer than
    `least` items.

    A state is an argument whose next value is a result of the program, such as a cache of keys.
    `carried` maps the argument number of each state to the number of this result. A state is
    divided along a factor of the parameters, if this factor is the first of an axis; it then
    stays divided from call to call.
    """
    return _Choice(program, count, least, carried or {}).divisions()


class _Choice:
    def __init__(
        self, program: Program, count: int, least: int, carried: Mapping[int, int]
    ) -> None:
        walk = self.walk = FactorWalk(program).follow_all()
        self.states = {i: program.arguments[i] for i in carried}
        for i, j in carried.items():
            pairs = zip(
                walk.operand_axes(self.states[i]),
                walk.operand_axes(program.results[j]),
                strict=True,
            )
            for axis, next_axis in pairs:
                unite(axis, next_axis)
        next_values = {*carried.values()}
        for j, result in enumerate(program.results):
            axes = list(map(leaves, walk.operand_axes(result)))
            if j in next_values:  # The first factor of an axis may stay divided.
                axes = [axis[1:] for axis in axes]
            walk.record_use("gather", axes, result)
        self.count = count
        parameters = program.arguments[: program.parameters]
        self.large = {i: v for i, v in enumerate(parameters) if math.prod(v.aval.shape) >= least}
        self.products: dict[int, list[Product]] = {i: [] for i in self.large}
        for product in walk.products:
            for i in product.parameters & self.large.keys():
                self.products[i].append(product)
        # Maps each factor, and the number of each argument that contains the factor, to `axis` and
        # `before` of the argument's `Division`.
        self.members: dict[Factor, dict[int, tuple[int, int]]] = {}
        for i, variable in (self.large | self.states).items():
            for axis, factors in enumerate(walk.operand_axes(variable)):
                before = 1
                for factor in leaves(factors):
                    is_divisible = factor.extent % count == 0 and not factor.is_blocked
                    if is_divisible and (before == 1 or i in self.large):
                        self.members.setdefault(factor, {}).setdefault(i, (axis, before))
                    before *= factor.extent
        self.cost: dict[Factor, int] = dict.fromkeys(self.members, 0)
        for use in walk.uses:
            for factor in {*leaves(use.factors)} & self.cost.keys():
                self.cost[factor] += _COST[use.kind] * use.items + _EACH
        self.separate = {i: self._separate(i) for i in self.large}
        self.separate |= dict.fromkeys(self.states, (0, None))

    def divisions(self) -> dict[int, Division]:
        """Return the chosen divisions by argument number."""
        divisions: dict[int, Division] = {}
        conflicts = self._conflicts()
        excluded: set[Factor] = set()

        def net_cost(factor: Factor) -> int:
            gain = sum(self.separate[i][0] for i in self.members[factor] if i not in divisions)
            return self.cost[factor] - gain

        heap = [(net_cost(factor), k, factor) for k, factor in enumerate(self.members)]
        heapq.heapify(heap)
        while heap:
            earlier_cost, k, factor = heapq.heappop(heap)
            if factor in excluded:
                continue
            cost = net_cost(factor)
            if cost >= 0:
                continue
            # The cost has grown if other factors have divided some of these parameters since it was
            # computed.
            if cost > earlier_cost:
                heapq.heappush(heap, (cost, k, factor))
                continue
            excluded |= conflicts[factor]
            undivided = self.members[factor].keys() - divisions.keys()
            divisions |= {i: self._division(i, factor) for i in sorted(undivided)}
        separate = {i: division for i, (_, division) in self.separate.items() if division}
        return {**separate, **divisions}

    def _conflicts(self) -> dict[Factor, set[Factor]]:
        """Map each factor to the other factors that occur in a tensor together with it."""
        conflicts: dict[Factor, set[Factor]] = {factor: set() for factor in self.members}
        for axes in _all_axes(self.walk):
            together = set(chain(*map(leaves, axes))) & conflicts.keys()
            for factor in together:
                conflicts[factor] |= together - {factor}
        return conflicts

    def _division(self, i: int, factor: Factor) -> Division:
        """Return the division of argument `i` that divides `factor` in all tensors."""
        axis, before = self.members[factor][i]
        if i in self.states:
            return Division(axis, along=axis, why="state of divided tensors")
        shape = self.large[i].aval.shape
        along: int | None = axis
        if before > 1:
            divisible = [k for k, n in enumerate(shape) if k != axis and n % self.count == 0]
            along = max(divisible, key=shape.__getitem__, default=None)
        rows = [p for p in self.products[i] if factor in leaves(p.rows)]
        columns = [p for p in self.products[i] if factor in leaves(p.columns)]
        parts = f" of each of {before} parts" if before > 1 else ""
        if rows:
            why = "words" if rows[0].kind == "lookup" else "rows"
            return Division(axis, before, along, True, why + parts, f"{len(rows)} all-reduce")
        why = "columns" if columns else "as the other operand"
        return Division(axis, before, along, True, why + parts)

    def _separate(self, i: int) -> tuple[int, Division | None]:
        """Return the cost of dividing parameter `i` without other tensors, and its division.

        The division is None if neither the columns nor the rows of the parameter can be
        divided.
        """
        products = self.products[i]
        shape = self.large[i].aval.shape
        if not products:
            return 0, None
        axes = list(map(leaves, self.walk.operand_axes(self.large[i])))
        columns = {factor for p in products for factor in leaves(p.columns)}
        rows = {factor for p in products for factor in leaves(p.rows)}
        divisible = [k for k, n in enumerate(shape) if n % self.count == 0]
        by_columns = [k for k in divisible if columns.issuperset(axes[k])]
        by_rows = [k for k in divisible if rows.issuperset(axes[k])]
        count = len(products)
        items = sum(product.items for product in products)
        gather_cost = _COST["gather"] * items + count * _EACH
        reduce_cost = _COST["sum"] * items + count * _EACH
        is_table = products[0].kind == "lookup"
        prefers_rows = is_table and by_rows
        if by_columns and not prefers_rows:
            axis = max(by_columns, key=shape.__getitem__)
            division = Division(axis, 1, axis, False, "columns", f"{count} all-gather")
            return gather_cost, division
        if by_rows:
            axis = max(by_rows, key=shape.__getitem__)
            why = "words" if is_table else "rows"
            return reduce_cost, Division(axis, 1, axis, False, why, f"{count} all-reduce")
        return reduce_cost, None


def _all_axes(walk: FactorWalk) -> Iterator[list[list[Factor]]]:
    yield from walk.axes.values()
    for body in chain(*walk.inner_walks.values()):
        yield from _all_axes(body)
