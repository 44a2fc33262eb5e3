"""Divides a program over a mesh, and keeps divided factors divided in all tensors.

If a divided factor is not the first factor of its axis, the pass splits the axis before the factor:
an axis of 3 * heads * items becomes two axes, of 3 and of heads * items. Then each axis is either
sharded or not, and no array has to be gathered. The results of products with parameters get a
sharding constraint. From these constraints XLA's partitioner derives the shardings of all other
arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lowering import jaxprs
from lowering.axes import UNLINKED, axes_of, axis_number, cuts
from lowering.factors import Factor, FactorWalk, leaves, unite
from lowering.facts import renumbered, spanned
from lowering.jaxpr_types import Atom, Equation, Variable
from lowering.jaxprs import PRODUCT, SCAN, is_literal, primitive
from lowering.program import Program, Rules
from lowering.targets.target import Target

_FREE = PartitionSpec.UNCONSTRAINED
Names = Any  # an item of a PartitionSpec: a name, a tuple of names, None or UNCONSTRAINED
# For each axis of a variable, the extents of the axes into which it is split.
Groups = list[list[int]]
Results = Sequence[Array] | None  # a rule's results; None if it cannot evaluate split operands


def run(program: Program, target: Target) -> Program:
    """Divide a program over the target's mesh as `target.divided` says.

    If it is None, the program is returned unchanged.
    """
    plan = target.divided
    if plan is None:
        return program
    parameters = plan.parameters.divisions
    walk = FactorWalk(program)
    for i, division in parameters.items():
        axis = walk.operand_axes(program.arguments[i])[division.axis]
        if division.before > 1:
            unite(axis, [Factor(division.before), Factor(_extent(axis) // division.before)])
    walk.follow_all()
    divided: dict[Factor, Names] = {}
    parameter_item = _spec_item(plan.parameters.names)
    for along, item in ((plan.batch, _FREE), (plan.parameters, parameter_item)):
        count = math.prod(plan.mesh.shape[name] for name in along.names)
        for i, division in along.divisions.items():
            factor = _at(walk.operand_axes(program.arguments[i])[division.axis], division.before)
            if division.follows and factor and factor.extent % count == 0:
                divided[factor] = item
    spread = _Spread(walk, divided, plan.mesh)

    def evaluated(*arguments: Array) -> list[Array]:
        arrays = list(arguments)
        for i, v in enumerate(program.arguments):
            if i in parameters and parameters[i].follows:
                arrays[i] = spread.sharded(v, arrays[i], range(v.aval.ndim))
        return spread.evaluated(arrays)

    return program.retraced(evaluated)


def _spec_item(names: Sequence[str]) -> Names:
    """Return the item of a PartitionSpec for an axis that the mesh axes `names` divide.

    One name stands for itself, and several names become a tuple.
    """
    return names[0] if len(names) == 1 else tuple(names)


def _at(axis: list[Factor], before: int) -> Factor | None:
    """Return the factor of an axis that comes after factors with the product `before`, or None."""
    extent = 1
    for factor in leaves(axis):
        if extent == before:
            return factor
        extent *= factor.extent
    return None


def _extent(factors: Iterable[Factor]) -> int:
    return math.prod(factor.extent for factor in factors)


class _Spread:
    """Evaluates a program on arrays whose axes are split before divided factors.

    `divided` maps each divided factor to its item of a PartitionSpec.
    """

    def __init__(self, walk: FactorWalk, divided: Mapping[Factor, Names], mesh: Mesh) -> None:
        self.walk = walk
        self.divided = divided
        self.mesh = mesh

    def evaluated(self, arguments: Sequence[Array]) -> list[Array]:
        """Return the results of the program, with the shapes that the program gives them.

        The arguments may have split axes.
        """
        program = self.walk.program
        results = program.evaluated(arguments, self._compute)
        return [_shaped(x, v.aval.shape) for x, v in zip(results, program.results, strict=True)]

    def groups(self, operand: Atom) -> Groups:
        """Return, for each axis of a variable, the extents of the axes into which it is split.

        For an axis of 3 * heads * items, split before the heads, it is [3, heads * items].
        """
        return [list(map(_extent, axis)) for axis in self._split_axes(operand)]

    def shape(self, operand: Atom) -> tuple[int, ...]:
        """Return the shape of a variable whose axes are split before divided factors."""
        return tuple(n for axis in self.groups(operand) for n in axis)

    def _split_axes(self, operand: Atom) -> Iterator[list[list[Factor]]]:
        """Yield, for each axis of a variable, the axes into which it is split.

        Each of these axes is a list of its factors.
        """
        for axis in self.walk.operand_axes(operand):
            split_axes: list[list[Factor]] = [[]]
            for factor in leaves(axis):
                if factor in self.divided and split_axes[-1]:
                    split_axes.append([])
                split_axes[-1].append(factor)
            yield split_axes

    def sharded(self, variable: Variable, x: Array, fixed: Collection[int]) -> Array:
        """Return x with a constraint on its sharding, and with the split axes of `variable`.

        The array is sharded along divided factors. It is not sharded along the other factors of
        the axes in `fixed`, which are axes of the variable. XLA chooses the sharding along the
        remaining axes.
        """
        items: list[Names] = []
        for i, split_axes in enumerate(self._split_axes(variable)):
            for factors in split_axes:
                item = self.divided.get(factors[0]) if factors else None
                if item is None and i not in fixed:
                    item = _FREE
                elif item is not _FREE and item in items:  # a mesh axis may divide only one axis
                    item = None
                items.append(item)
        sharding = NamedSharding(self.mesh, PartitionSpec(*items))
        return lax.with_sharding_constraint(_shaped(x, self.shape(variable)), sharding)

    def _compute(self, equation: Equation, operands: list[Array]) -> Sequence[Array]:
        """Evaluate an equation on operands with split axes, and return its results with split axes.

        If no rule can evaluate these operands, the equation is evaluated on operands without
        split axes.
        """
        variables = [*equation.invars, *equation.outvars]
        arrays = [_shaped(x, self.shape(v)) for v, x in zip(equation.invars, operands, strict=True)]
        for result in equation.outvars[:1]:
            # Without this constraint, a matrix that is sharded only along its rows would shard the
            # tensors before the product too. Each mean over their last axis would be a collective.
            for i, axes in self.walk.summed.get(result, {}).items():
                operand = equation.invars[i]
                if not is_literal(operand):
                    arrays[i] = self.sharded(operand, arrays[i], axes)
        if primitive(equation) == SCAN:
            (body,) = self.walk.inner_walks[id(equation)]
            results = self._scanned(equation, body, arrays)
        elif all(self.shape(v) == getattr(v.aval, "shape", ()) for v in variables):
            results = jaxprs.bind(equation, arrays)
        else:
            results = self._computed_by_rule(equation, arrays)
        pairs = zip(equation.outvars, results, strict=True)
        results = [_shaped(x, self.shape(v)) for v, x in pairs]
        if equation.outvars and equation.outvars[0] in self.walk.columns:
            (result,) = equation.outvars
            return [self.sharded(result, results[0], self.walk.columns[result])]
        return results

    def _computed_by_rule(self, equation: Equation, arrays: Sequence[Array]) -> Sequence[Array]:
        """Evaluate an equation by its rule on split axes.

        If there is no rule, or the rule cannot evaluate the equation, its operands get their
        own axes back.
        """
        rule = _RULES.rule_for(equation)
        results: Results = rule(self, equation, arrays) if rule else None
        if results is not None:
            return results
        pairs = zip(equation.invars, arrays, strict=True)
        return jaxprs.bind(equation, [_shaped(x, v.aval.shape) for v, x in pairs])

    def _scanned(
        self, equation: Equation, body: FactorWalk, arrays: Sequence[Array]
    ) -> list[Array]:
        """Evaluate a scan, whose stacked values may have split axes.

        Its carried values have no split axes.
        """
        inside = _Spread(body, self.divided, self.mesh)
        constants, start, stacks = jaxprs.scan_parts(equation, arrays)
        _, carried_variables, _ = jaxprs.scan_parts(equation, equation.invars)
        _, _, item_variables = jaxprs.scan_parts(equation, body.program.arguments)
        length = equation.params["length"]
        pairs = zip(start, carried_variables, strict=True)
        start = [_shaped(x, v.aval.shape) for x, v in pairs]
        pairs = zip(stacks, item_variables, strict=True)
        stacks = [_shaped(x, (length, *inside.shape(v))) for x, v in pairs]

        def step(*operands: Array) -> Sequence[Array]:
            results = body.program.evaluated(operands, inside._compute)
            pairs = list(zip(results, body.program.results, strict=True))
            carried = [_shaped(x, v.aval.shape) for x, v in pairs[: len(start)]]
            stacked = [_shaped(x, inside.shape(v)) for x, v in pairs[len(start) :]]
            return [*carried, *stacked]

        return jaxprs.scanned(equation, step, constants, start, stacks)


def _shaped(x: Array, shape: Sequence[int]) -> Array:
    return x if getattr(x, "shape", shape) == tuple(shape) else jnp.reshape(x, shape)


def _new_axes(groups: Groups) -> list[list[int]]:
    """Return, for each axis, the numbers of the axes into which it is split.

    The groups [[3, 8], [5]] give [[0, 1], [2]].
    """
    numbers = itertools.count()
    return [[next(numbers) for _ in axis] for axis in groups]


_RULES = Rules()


@_RULES(PRODUCT, "transpose")
@_RULES(removes=True, along=True, across=True, per_axis=True)
def _renumbered(spread: _Spread, equation: Equation, arrays: Sequence[Array]) -> Results:
    """Evaluate an equation with its axes renumbered after the split.

    Return None if operands split the axes that the equation links in different ways.
    """
    groups = list(map(spread.groups, equation.invars))
    counts = {tuple(map(len, axes)) for axes in groups if axes}
    if len(counts) > 1 and primitive(equation) != PRODUCT:
        return None
    for link in (axes_of(equation) or UNLINKED).links:
        runs = [[groups[i][axis_number(x)] for x in run] for i, run in link.operands.items()]
        if any(run != runs[0] for run in runs):
            return None
    params = renumbered(equation, list(map(_new_axes, groups)))
    if params is None:
        return None
    return jaxprs.bind(equation, arrays, **params)


@_RULES(by_item=True)
def _by_item(spread: _Spread, equation: Equation, arrays: Sequence[Array]) -> Results:
    """Evaluate an equation that computes item by item, on operands with split axes.

    Where an operand has extent 1 along an axis, it gets as many axes of extent 1 as the axis of
    the result is split into. Return None if an operand and the result split an axis in
    different ways.
    """
    result_groups = spread.groups(equation.outvars[0])
    operands: list[Array] = []
    for v, x in zip(equation.invars, arrays, strict=True):
        shape = _aligned_shape(spread.groups(v), result_groups)
        if shape is None:
            return None
        operands.append(_shaped(x, shape))
    return [equation.primitive.bind(*operands, **equation.params)]


def _aligned_shape(groups: Groups, result_groups: Groups) -> list[int] | None:
    """Return the shape of an operand with its axes split as in the result, or None if they differ.

    `groups` has the extents of the axes into which each axis of the operand is split, and
    `result_groups` those of the result. An axis of extent 1 becomes as many axes of extent 1 as
    the result has.
    """
    shape: list[int] = []
    if not groups:  # a scalar has no axes
        return shape
    for axis, result_axis in zip(groups, result_groups, strict=True):
        if math.prod(axis) == 1:
            shape += [1] * len(result_axis)
        elif axis == result_axis:
            shape += axis
        else:
            return None
    return shape


@_RULES("optimization_barrier")
def _barrier(spread: _Spread, equation: Equation, arrays: Sequence[Array]) -> Results:
    return equation.primitive.bind(*arrays)


@_RULES("reshape", "squeeze", "expand_dims")
def _reshape(spread: _Spread, equation: Equation, arrays: Sequence[Array]) -> Results:
    return [arrays[0]]  # a reshape does not move factors


@_RULES("broadcast_in_dim")
def _broadcast(spread: _Spread, equation: Equation, arrays: Sequence[Array]) -> Results:
    groups = spread.groups(equation.invars[0])
    result_groups = spread.groups(equation.outvars[0])
    long_axes = [i for i, axis in enumerate(groups) if math.prod(axis) > 1]
    result_axes = [equation.params["broadcast_dimensions"][i] for i in long_axes]
    pairs = zip(long_axes, result_axes, strict=True)
    if any(groups[axis] != result_groups[result_axis] for axis, result_axis in pairs):
        return None
    x = _shaped(arrays[0], [n for axis in long_axes for n in groups[axis]])
    shape = spread.shape(equation.outvars[0])
    return [lax.broadcast_in_dim(x, shape, spanned(_new_axes(result_groups), result_axes))]


@_RULES("slice", "split")
def _slice(spread: _Spread, equation: Equation, arrays: Sequence[Array]) -> Results:
    """Slice an array by slicing, for each axis, the first of the axes into which it is split.

    Return None if a slice does not begin or end between two items of that axis.
    """
    groups = spread.groups(equation.invars[0])
    results: list[Array] = []
    for result, starts in zip(equation.outvars, cuts(equation), strict=True):
        result_groups = spread.groups(result)
        x = arrays[0]
        first_axis = 0  # the first of the axes into which an axis is split
        for axis, result_axis, start in zip(groups, result_groups, starts, strict=True):
            extent, size = math.prod(axis), math.prod(result_axis)
            inner = math.prod(axis[1:])
            if size < extent:
                if start is None or start % inner or size % inner:
                    return None
                first = start // inner
                x = lax.slice_in_dim(x, first, first + size // inner, axis=first_axis)
            first_axis += len(axis)
        results.append(_shaped(x, spread.shape(result)))
    return results
