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

from lowering import jaxpr_evaluation, jaxprs
from lowering.axes import axes_of, cuts
from lowering.axis_links import UNLINKED, axis_number
from lowering.factors import Factor, FactorWalk, leaves, unite
from lowering.facts import renumbered, spanned
from lowering.jaxpr_types import Atom, Equation, Variable
from lowering.jaxprs import PRODUCT, SCAN, is_literal, primitive
from lowering.program import Program
from lowering.rewriting import Rules
from lowering.targets.target import Target

_FREE = PartitionSpec.UNCONSTRAINED
Names = Any  # an item of a PartitionSpec: a name, a tuple of names, None or UNCONSTRAINED
# This type has a list for each axis of a variable: the extents of the axes into which it is split.
Groups = list[list[int]]
Results = Sequence[Array] | None  # None if a rule cannot evaluate operands with split axes


def run(program: Program, target: Target) -> Program:
    """Divide the arrays of a program over the target's mesh, as `target.divided` says.

    If `target.divided` is None, the program is returned unchanged.
    """
    plan = target.divided
    if plan is None:
        return program
    parameter_divisions = plan.parameters.divisions
    walk = FactorWalk(program)
    # Factorise the axes of parameters that are not divided along their first factor.
    for i, division in parameter_divisions.items():
        if division.before > 1:
            axis = walk.operand_axes(program.arguments[i])[division.axis]
            unite(axis, [Factor(division.before), Factor(_extent(axis) // division.before)])
    walk.follow_all()
    # Collect the divided factors. XLA chooses the sharding along factors of the batch.
    spec_items: dict[Factor, Names] = {}
    parameter_item = _spec_item(plan.parameters.names)
    for divided_arguments, item in ((plan.batch, _FREE), (plan.parameters, parameter_item)):
        device_count = math.prod(plan.mesh.shape[name] for name in divided_arguments.names)
        for i, division in divided_arguments.divisions.items():
            axis = walk.operand_axes(program.arguments[i])[division.axis]
            factor = _factor_after(axis, division.before)
            if factor is None or not division.follows:
                continue
            if factor.extent % device_count == 0:
                spec_items[factor] = item
    spread = _Spread(walk, spec_items, plan.mesh)

    def evaluate_divided(*arguments: Array) -> list[Array]:
        arrays = list(arguments)
        for i, division in parameter_divisions.items():
            if division.follows:
                variable = program.arguments[i]
                all_axes = range(variable.aval.ndim)
                arrays[i] = spread.sharded(variable, arrays[i], all_axes)
        return spread.evaluated(arrays)

    return program.retraced(evaluate_divided)


def _spec_item(names: Sequence[str]) -> Names:
    """Return the item of a PartitionSpec for an array axis that the mesh axes `names` divide.

    A single name is the item itself. Several names become a tuple.
    """
    return names[0] if len(names) == 1 else tuple(names)


def _factor_after(axis: list[Factor], before: int) -> Factor | None:
    """Return the factor of an axis that comes after factors with the product `before`.

    Return None if no first factors of the axis have this product.
    """
    product = 1
    for factor in leaves(axis):
        if product == before:
            return factor
        product *= factor.extent
    return None


def _extent(factors: Iterable[Factor]) -> int:
    """Return the product of the factors' extents."""
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
        """Evaluate the program on arguments that may have split axes, and return its results.

        The results do not have split axes.
        """
        program = self.walk.program
        results = program.evaluated(arguments, self._compute)
        return _unsplit(results, program.results)

    def groups(self, operand: Atom) -> Groups:
        """Return, for each axis of a variable, the extents of the axes into which it is split.

        For an axis of 3 * heads * items, split before the heads, it is [3, heads * items].
        """
        return [list(map(_extent, axis)) for axis in self._split_axes(operand)]

    def shape(self, operand: Atom) -> tuple[int, ...]:
        """Return the shape of a variable whose axes are split before divided factors."""
        return tuple(itertools.chain.from_iterable(self.groups(operand)))

    def _split_axes(self, operand: Atom) -> Iterator[list[list[Factor]]]:
        """Yield, for each axis of a variable, a list of the axes into which it is split.

        Each axis into which it is split is a list of factors.
        """
        for axis in self.walk.operand_axes(operand):
            split_axes: list[list[Factor]] = [[]]
            for factor in leaves(axis):
                if factor in self.divided and split_axes[-1]:
                    split_axes.append([])
                split_axes[-1].append(factor)
            yield split_axes

    def sharded(self, variable: Variable, x: Array, fixed: Collection[int]) -> Array:
        """Split the axes of x, the value of `variable`, and constrain the sharding of x.

        The array is sharded along divided factors. `fixed` lists axes of the variable. Along other
        factors of these axes the array is not sharded. XLA chooses the sharding along the remaining
        axes.
        """
        items: list[Names] = []
        for axis, split_axes in enumerate(self._split_axes(variable)):
            for factors in split_axes:
                item = self.divided.get(factors[0]) if factors else None
                if item is None and axis not in fixed:
                    item = _FREE
                elif item is not _FREE and item in items:
                    item = None  # an axis of the mesh may divide only one axis of an array
                items.append(item)
        sharding = NamedSharding(self.mesh, PartitionSpec(*items))
        return lax.with_sharding_constraint(self.split(x, variable), sharding)

    def split(self, x: Array, operand: Atom) -> Array:
        """Split the axes of x, the value of `operand`, before divided factors."""
        return _shaped(x, self.shape(operand))

    def _all_split(self, arrays: Sequence[Array], operands: Sequence[Atom]) -> list[Array]:
        """Split the axes of arrays, the values of `operands`, before divided factors."""
        return [self.split(x, operand) for x, operand in zip(arrays, operands, strict=True)]

    def _compute(self, equation: Equation, operands: list[Array]) -> Sequence[Array]:
        """Evaluate an equation on operands with split axes, and return its results with split axes.

        If no rule can evaluate these operands, the equation is evaluated on operands without
        split axes.
        """
        arrays = self._all_split(operands, equation.invars)
        first_result = equation.outvars[0] if equation.outvars else None
        summed_axes = {} if first_result is None else self.walk.summed.get(first_result, {})
        for i, axes in summed_axes.items():
            # Without this constraint, a matrix that is sharded only along its rows would shard the
            # tensors before the product too. Each mean over the last axis of such a tensor would be
            # a collective.
            operand = equation.invars[i]
            if not is_literal(operand):
                arrays[i] = self.sharded(operand, arrays[i], axes)
        if primitive(equation) == SCAN:
            (body,) = self.walk.inner_walks[id(equation)]
            results = self._scanned(equation, body, arrays)
        elif any(map(self._is_split, (*equation.invars, *equation.outvars))):
            results = self._computed_by_rule(equation, arrays)
        else:
            results = jaxpr_evaluation.bind(equation, arrays)
        results = self._all_split(results, equation.outvars)
        if first_result is not None and first_result in self.walk.columns:
            # This is the only result, of a product with a parameter. Other shardings follow from
            # its constraint.
            (result,) = results
            return [self.sharded(first_result, result, self.walk.columns[first_result])]
        return results

    def _is_split(self, operand: Atom) -> bool:
        """Tell whether an axis of a variable is split."""
        return self.shape(operand) != getattr(operand.aval, "shape", ())

    def _computed_by_rule(self, equation: Equation, arrays: Sequence[Array]) -> Sequence[Array]:
        """Evaluate an equation on operands with split axes, by the rule for its primitive.

        If no rule can evaluate it, the equation is evaluated on operands without split axes.
        """
        rule = _RULES.rule_for(equation)
        results: Results = rule(self, equation, arrays) if rule else None
        if results is not None:
            return results
        return jaxpr_evaluation.bind(equation, _unsplit(arrays, equation.invars))

    def _scanned(
        self, equation: Equation, body: FactorWalk, arrays: Sequence[Array]
    ) -> list[Array]:
        """Evaluate a scan, whose stacked values may have split axes.

        The values that the scan carries have no split axes.
        """
        inside = _Spread(body, self.divided, self.mesh)
        constants, start, stacks = jaxprs.scan_parts(equation, arrays)
        _, carried_variables, _ = jaxprs.scan_parts(equation, equation.invars)
        _, _, item_variables = jaxprs.scan_parts(equation, body.program.arguments)
        start = _unsplit(start, carried_variables)
        length = equation.params["length"]
        pairs = zip(stacks, item_variables, strict=True)
        stacks = [_shaped(x, (length, *inside.shape(variable))) for x, variable in pairs]
        carried_count = len(start)

        def step(*operands: Array) -> Sequence[Array]:
            results = body.program.evaluated(operands, inside._compute)
            variables = body.program.results
            carried = _unsplit(results[:carried_count], variables[:carried_count])
            stacked = inside._all_split(results[carried_count:], variables[carried_count:])
            return [*carried, *stacked]

        return jaxpr_evaluation.scanned(equation, step, constants, start, stacks)


def _shaped(x: Array, shape: Sequence[int]) -> Array:
    """Reshape x, unless it has the shape already or is a number without a shape."""
    has_shape = getattr(x, "shape", shape) == tuple(shape)
    return x if has_shape else jnp.reshape(x, shape)


def _unsplit(arrays: Sequence[Array], operands: Sequence[Atom]) -> list[Array]:
    """Reshape arrays to the shapes that their variables have without split axes."""
    pairs = zip(arrays, operands, strict=True)
    return [_shaped(x, operand.aval.shape) for x, operand in pairs]


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
    # A tuple of this set has, for one operand, the number of axes that each of its axes becomes.
    axis_counts = {tuple(map(len, operand_groups)) for operand_groups in groups if operand_groups}
    if len(axis_counts) > 1 and primitive(equation) != PRODUCT:
        return None
    for link in (axes_of(equation) or UNLINKED).links:
        # This list has, for each operand of the link, the extents into which its axes are split.
        linked_extents: list[list[list[int]]] = []
        for index, linked_axes in link.operands.items():
            linked_extents.append([groups[index][axis_number(axis)] for axis in linked_axes])
        if any(extents != linked_extents[0] for extents in linked_extents):
            return None
    params = renumbered(equation, list(map(_new_axes, groups)))
    if params is None:
        return None
    return jaxpr_evaluation.bind(equation, arrays, **params)


@_RULES(by_item=True)
def _by_item(spread: _Spread, equation: Equation, arrays: Sequence[Array]) -> Results:
    """Evaluate an equation that computes item by item, on operands with split axes.

    An operand's axis of extent 1 becomes several axes of extent 1, as many as the axes into which
    the axis of the result is split. Return None if an operand and the result split an axis in
    different ways.
    """
    result_groups = spread.groups(equation.outvars[0])
    operands: list[Array] = []
    for operand, x in zip(equation.invars, arrays, strict=True):
        shape = _aligned_shape(spread.groups(operand), result_groups)
        if shape is None:
            return None
        operands.append(_shaped(x, shape))
    return [equation.primitive.bind(*operands, **equation.params)]


def _aligned_shape(groups: Groups, result_groups: Groups) -> list[int] | None:
    """Return the shape of an operand with its axes split as in the result, or None if they differ.

    `groups` and `result_groups` have, for each axis of the operand and of the result, the extents
    of the axes into which it is split. An axis of extent 1 becomes several axes of extent 1, as
    many as the result has in place of this axis.
    """
    if not groups:  # a scalar has no axes
        return []
    shape: list[int] = []
    for extents, result_extents in zip(groups, result_groups, strict=True):
        if math.prod(extents) == 1:
            shape += [1] * len(result_extents)
        elif extents == result_extents:
            shape += extents
        else:
            return None
    return shape


@_RULES("optimization_barrier")
def _barrier(spread: _Spread, equation: Equation, arrays: Sequence[Array]) -> Results:
    return equation.primitive.bind(*arrays)  # a barrier returns its operands


@_RULES("reshape", "squeeze", "expand_dims")
def _reshape(spread: _Spread, equation: Equation, arrays: Sequence[Array]) -> Results:
    return [arrays[0]]  # a reshape does not move factors


@_RULES("broadcast_in_dim")
def _broadcast(spread: _Spread, equation: Equation, arrays: Sequence[Array]) -> Results:
    """Broadcast an array with split axes.

    Return None if the operand and the result split an axis in different ways.
    """
    groups = spread.groups(equation.invars[0])
    result_groups = spread.groups(equation.outvars[0])
    # Axes of extent 1 are left out before the broadcast.
    long_axes = [axis for axis, extents in enumerate(groups) if math.prod(extents) > 1]
    result_axes = [equation.params["broadcast_dimensions"][axis] for axis in long_axes]
    long_shape: list[int] = []
    for axis, result_axis in zip(long_axes, result_axes, strict=True):
        if groups[axis] != result_groups[result_axis]:
            return None
        long_shape += groups[axis]
    x = _shaped(arrays[0], long_shape)
    shape = spread.shape(equation.outvars[0])
    return [lax.broadcast_in_dim(x, shape, spanned(_new_axes(result_groups), result_axes))]


@_RULES("slice", "split")
def _slice(spread: _Spread, equation: Equation, arrays: Sequence[Array]) -> Results:
    """Slice an array by slicing, for each axis, the first of the axes into which it is split.

    Return None if a slice would begin or end within an index of this first axis.
    """
    groups = spread.groups(equation.invars[0])
    results: list[Array] = []
    for result, starts in zip(equation.outvars, cuts(equation), strict=True):
        result_groups = spread.groups(result)
        x = arrays[0]
        first_axis = 0  # the first of the axes into which an axis is split
        for extents, result_extents, start in zip(groups, result_groups, starts, strict=True):
            size = math.prod(result_extents)
            if size < math.prod(extents):
                # There are `inner_size` items for each index of the first axis. If an axis of 12
                # items is split into (3, 4), the slice from 4 to 12 becomes the slice from 1 to 3
                # of the axis of 3.
                inner_size = math.prod(extents[1:])
                if start is None or start % inner_size or size % inner_size:
                    return None
                first = start // inner_size
                x = lax.slice_in_dim(x, first, first + size // inner_size, axis=first_axis)
            first_axis += len(extents)
        results.append(spread.split(x, result))
    return results
