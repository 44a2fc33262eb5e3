"""Chooses, for each parameter and each state, the factor of an axis to divide over devices.

The extent of an axis is a product of factors, such as heads * items. A divided factor is divided in
every tensor that contains it: in the columns of a product, in the tensors that are computed from
these columns item by item or head by head, and in the rows of the product that sums over the
factor. The last product needs one sum over devices (Megatron-LM, https://arxiv.org/abs/1909.08053,
section 3).

The cost of dividing a factor is the communication where an operation sums over the factor or needs
it undivided. The gain is the communication that the factor's parameters would cause if each
parameter were divided separately. The factors with the largest difference of gain and cost are
divided. No tensor is divided along two factors.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from jax.sharding import Mesh

from lowering.factors import Factor, FactorWalk, Product, leaves, unite
from lowering.jaxpr_types import Variable
from lowering.program import Program

# This dict maps the kind of a `Use` to the number of times that an item moves between devices. A
# sum moves each item there and back.
_MOVES_OF_ITEM = {"sum": 2, "lookup": 2, "gather": 1}
# A collective costs this number of items in addition to the items that it moves.
_FIXED_COST = 1024


@dataclass(frozen=True)
class Division:
    """How a parameter, a state, or an argument that holds the batch is divided over devices.

    The division of a batch argument needs only `axis`.

    Args:
        axis: the axis that contains the divided factor.
        before: the product of the factors that precede the divided factor in the axis. For
            example, `before` is 3 if the heads of an axis of 3 * heads * items are divided.
        along: the axis along which the stored parameter is sharded, or None if the parameter is
            replicated. If other factors precede the divided factor, `along` differs from
            `axis`, and calls divide a prepared value in place of the parameter.
        follows: whether the factor is divided in all tensors that contain it, and not only in
            this parameter.
        why: the reason for the choice, in a few words.
        moves: the collectives that a call needs for this parameter, such as "1 all-reduce".
    """

    axis: int
    before: int = 1
    along: int | None = None
    follows: bool = True
    why: str = ""
    moves: str = ""


class Along(NamedTuple):
    """Some axes of a mesh, and the arguments of a program that are divided along these axes.

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
    """Map argument numbers of a program to the chosen divisions into `count` parts.

    Each parameter that can be divided has a division in the result, unless it has fewer than
    `least` items.

    A state is an argument whose next value is a result of the program, such as a cache of keys.
    `carried` maps the argument number of each state to the result number of the next value. A
    state is divided along a factor that parameters contain too, provided that the factor is the
    first one of an axis of the state. The state then stays divided from call to call.
    """
    return _Choice(program, count, least, carried or {}).divisions()


class _Choice:
    """Chooses the divisions of a program's arguments into `count` parts.

    `least` and `carried` are as in `divisions`.
    """

    def __init__(
        self, program: Program, count: int, least: int, carried: Mapping[int, int]
    ) -> None:
        walk = FactorWalk(program).follow_all()
        self.walk = walk
        self.count = count
        # The keys of `places` and `cost` are factors. The keys of the other dicts are argument
        # numbers.
        self.states = {i: program.arguments[i] for i in carried}
        self._unite_states(carried)
        self._record_results(next_values={*carried.values()})
        # The parameters that are large enough to be divided.
        self.large: dict[int, Variable] = {}
        for i, parameter in enumerate(program.arguments[: program.parameters]):
            if math.prod(parameter.aval.shape) >= least:
                self.large[i] = parameter
        # Maps each large parameter to the products that read a value computed from this parameter.
        self.products: dict[int, list[Product]] = {i: [] for i in self.large}
        for product in walk.products:
            for i in product.parameters & self.large.keys():
                self.products[i].append(product)
        # Maps a factor to a dict. The dict maps each argument that contains the factor to `axis`
        # and `before` of the argument's `Division`.
        self.places = self._places()
        # Maps a factor to the cost of communication if this factor is divided.
        self.cost: dict[Factor, int] = dict.fromkeys(self.places, 0)
        for use in walk.uses:
            for factor in {*leaves(use.factors)} & self.cost.keys():
                self.cost[factor] += _MOVES_OF_ITEM[use.kind] * use.items + _FIXED_COST
        # Maps each large argument to the cost and the division if only this argument is divided.
        # States are not divided alone.
        self.separate = {i: self._separate(i) for i in self.large}
        self.separate |= dict.fromkeys(self.states, (0, None))

    def _unite_states(self, carried: Mapping[int, int]) -> None:
        """Give the axes of each state the factors of the axes of the state's next value."""
        for i, result_number in carried.items():
            state_axes = self.walk.operand_axes(self.states[i])
            next_axes = self.walk.operand_axes(self.walk.program.results[result_number])
            for axis, next_axis in zip(state_axes, next_axes, strict=True):
                unite(axis, next_axis)

    def _record_results(self, next_values: Collection[int]) -> None:
        """Record a gather of each result. Factors of states may stay divided.

        `next_values` has the numbers of the results that are next values of states. In such a
        result, the first factor of an axis may stay divided from call to call.
        """
        for number, result in enumerate(self.walk.program.results):
            gathered_axes = list(map(leaves, self.walk.operand_axes(result)))
            if number in next_values:
                gathered_axes = [factors[1:] for factors in gathered_axes]
            self.walk.record_use("gather", gathered_axes, result)

    def _places(self) -> dict[Factor, dict[int, tuple[int, int]]]:
        """Map each factor that can be divided to the places of the factor.

        The places are a dict with the argument numbers of the tensors that contain the factor. It
        maps each argument number to `axis` and `before` of the argument's `Division`.
        """
        places: dict[Factor, dict[int, tuple[int, int]]] = {}
        for i, variable in (self.large | self.states).items():
            for axis, factors in enumerate(self.walk.operand_axes(variable)):
                before = 1
                for factor in leaves(factors):
                    is_divisible = factor.extent % self.count == 0 and not factor.is_blocked
                    # A state is sharded as it is, so only the first factor of an axis is divided.
                    is_place_allowed = before == 1 or i in self.large
                    if is_divisible and is_place_allowed:
                        places.setdefault(factor, {}).setdefault(i, (axis, before))
                    before *= factor.extent
        return places

    def divisions(self) -> dict[int, Division]:
        """Return the chosen divisions by argument number.

        The factor of the least net cost is chosen first. A chosen factor excludes all factors
        that occur in a tensor together with it.
        """
        divisions: dict[int, Division] = {}
        conflicts = self._conflicts()
        excluded: set[Factor] = set()

        def net_cost(factor: Factor) -> int:
            """Return a factor's cost minus the cost of all separate divisions that it replaces."""
            net_cost = self.cost[factor]
            for i in self.places[factor]:
                if i not in divisions:
                    separate_cost, _ = self.separate[i]
                    net_cost -= separate_cost
            return net_cost

        # The number of a factor decides between equal costs, since factors cannot be compared.
        heap = [(net_cost(factor), number, factor) for number, factor in enumerate(self.places)]
        heapq.heapify(heap)
        while heap:
            earlier_cost, number, factor = heapq.heappop(heap)
            if factor in excluded:
                continue
            cost = net_cost(factor)
            if cost >= 0:
                continue  # separate divisions do not cost more
            if cost > earlier_cost:
                # Since the earlier cost was computed, other factors have divided some of the
                # parameters. Another factor may now be cheaper.
                heapq.heappush(heap, (cost, number, factor))
                continue
            excluded |= conflicts[factor]
            undivided = self.places[factor].keys() - divisions.keys()
            divisions |= {i: self._division(i, factor) for i in sorted(undivided)}
        separate = {i: division for i, (_, division) in self.separate.items() if division}
        return {**separate, **divisions}

    def _conflicts(self) -> dict[Factor, set[Factor]]:
        """Map each factor to the other factors that occur in a tensor together with it."""
        conflicts: dict[Factor, set[Factor]] = {factor: set() for factor in self.places}
        for axes in _all_axes(self.walk):
            factors_of_tensor = set(chain.from_iterable(map(leaves, axes)))
            factors = factors_of_tensor & conflicts.keys()
            for factor in factors:
                conflicts[factor] |= factors - {factor}
        return conflicts

    def _division(self, i: int, factor: Factor) -> Division:
        """Return the division of argument `i` that divides `factor` in all tensors."""
        axis, before = self.places[factor][i]
        if i in self.states:
            return Division(axis, along=axis, why="state of divided tensors")
        along: int | None = axis
        if before > 1:
            # The stored parameter is sharded along its longest divisible axis other than `axis`.
            other_axes = [other for other in self._divisible_axes(i) if other != axis]
            along = self._longest(i, other_axes) if other_axes else None
        row_products = [p for p in self.products[i] if factor in leaves(p.rows)]
        column_products = [p for p in self.products[i] if factor in leaves(p.columns)]
        # The reason is for example "columns of each of 3 parts".
        parts = f" of each of {before} parts" if before > 1 else ""
        if row_products:
            why = "words" if row_products[0].kind == "lookup" else "rows"
            moves = f"{len(row_products)} all-reduce"
            return Division(axis, before, along, why=why + parts, moves=moves)
        why = "columns" if column_products else "as the other operand"
        return Division(axis, before, along, why=why + parts)

    def _divisible_axes(self, i: int) -> list[int]:
        """Return the axes of parameter `i` whose extents are multiples of the number of parts."""
        shape = self.large[i].aval.shape
        return [axis for axis, extent in enumerate(shape) if extent % self.count == 0]

    def _longest(self, i: int, axes: Sequence[int]) -> int:
        """Return the longest of some axes of parameter `i`."""
        shape = self.large[i].aval.shape
        return max(axes, key=lambda axis: shape[axis])

    def _separate(self, i: int) -> tuple[int, Division | None]:
        """Return the cost of dividing only parameter `i`, and the division of the parameter.

        The division is None if neither the columns nor the rows of the parameter can be
        divided.
        """
        products = self.products[i]
        if not products:
            return 0, None  # the parameter has neither rows nor columns
        axes = list(map(leaves, self.walk.operand_axes(self.large[i])))
        columns: set[Factor] = set()
        rows: set[Factor] = set()
        for product in products:
            columns.update(leaves(product.columns))
            rows.update(leaves(product.rows))
        divisible = self._divisible_axes(i)
        column_axes = [axis for axis in divisible if columns.issuperset(axes[axis])]
        row_axes = [axis for axis in divisible if rows.issuperset(axes[axis])]
        # If columns are divided, each product gathers its result. If rows are divided, each
        # product sums its result over the devices.
        count = len(products)
        items = sum(product.items for product in products)
        gather_cost = _MOVES_OF_ITEM["gather"] * items + count * _FIXED_COST
        reduce_cost = _MOVES_OF_ITEM["sum"] * items + count * _FIXED_COST
        is_table = products[0].kind == "lookup"
        prefers_rows = is_table and row_axes
        if column_axes and not prefers_rows:
            axis = self._longest(i, column_axes)
            moves = f"{count} all-gather"
            division = Division(axis, along=axis, follows=False, why="columns", moves=moves)
            return gather_cost, division
        if row_axes:
            axis = self._longest(i, row_axes)
            why = "words" if is_table else "rows"
            moves = f"{count} all-reduce"
            division = Division(axis, along=axis, follows=False, why=why, moves=moves)
            return reduce_cost, division
        return reduce_cost, None


def _all_axes(walk: FactorWalk) -> Iterator[list[list[Factor]]]:
    """Yield the axes of each variable of a program and of its inner functions."""
    yield from walk.axes.values()
    for inner_walks in walk.inner_walks.values():
        for inner_walk in inner_walks:
            yield from _all_axes(inner_walk)
