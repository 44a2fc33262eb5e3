"""Divides a program over a mesh of devices, and keeps divided factors divided in all tensors.

A factor is a number by which the extent of an axis is divisible, such as the number of heads. If a
divided factor is not the first factor of its axis, the pass splits the axis before the factor:
an axis of 3 * heads * items becomes two sub-axes, of 3 and of heads * items. Then each sub-axis is
either sharded or not, and no array has to be gathered. The results of products with parameters get
a sharding constraint. From these constraints XLA's partitioner derives the shardings of all other
arrays. In this module a split array is an array with sub-axes in place of axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from lowering.parallel import Divided

_FREE = PartitionSpec.UNCONSTRAINED
Names = Any  # an item of a PartitionSpec: a name, a tuple of names, None or UNCONSTRAINED
# This type has a list for each axis of a variable: the extents of the sub-axes of the axis.
SubExtents = list[list[int]]
Results = Sequence[Array] | None  # None if a rule cannot evaluate an equation on split arrays


def run(program: Program, target: Target) -> Program:
    """Divide the arrays of a program over the target's mesh, as `target.divided` says.

    If `target.divided` is None, the program is returned unchanged.
    """
    plan = target.divided
    if plan is None:
        return program
    parameter_divisions = plan.parameters.divisions
    walk = FactorWalk(program)
    # If a factor other than the first factor of an axis is divided, factorise the axis. For divided
    # heads in an axis of 3 * heads * items, `before` is 3.
    for i, division in parameter_divisions.items():
        if division.before > 1:
            axis = walk.operand_axes(program.arguments[i])[division.axis]
            unite(axis, [Factor(division.before), Factor(_extent(axis) // division.before)])
    walk.follow_all()
    spread = _Spread(walk, _spec_items(program, walk, plan), plan.mesh)

    def evaluate_divided(*arguments: Array) -> list[Array]:
        arrays = list(arguments)
        for i, division in parameter_divisions.items():
            if division.follows:
                variable = program.arguments[i]
                all_axes = range(variable.aval.ndim)
                arrays[i] = spread.sharded(variable, arrays[i], fixed=all_axes)
        return spread.evaluated(arrays)

    return program.retraced(evaluate_divided)


def _spec_items(program: Program, walk: FactorWalk, plan: Divided) -> dict[Factor, Names]:
    """Map the factors that are divided in all tensors to items of a PartitionSpec.

    For a factor of the batch, XLA chooses the sharding.
    """
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
    return spec_items


def _spec_item(names: Sequence[str]) -> Names:
    """Return the item of a PartitionSpec for an axis of an array.

    The axes `names` of the mesh divide the axis of the array. A single name is the item itself.
    Several names become a tuple.
    """
    return names[0] if len(names) == 1 else tuple(names)


def _factor_after(axis: list[Factor], before: int) -> Factor | None:
    """Return the factor of an axis that comes after factors with the product `before`.

    For an axis of the factors 3 * 8 * 64 and `before` = 3, the factor 8 is returned. Return None
    if no leading factors of the axis have the product `before`.
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
    """Evaluates a program on split arrays.

    In a split array each axis is split before each divided factor. For example, with divided heads,
    an axis of 3 * heads * items becomes two axes, of 3 and of heads * items.

    `divided` maps each divided factor to an item of a PartitionSpec.
    """

    def __init__(self, walk: FactorWalk, divided: Mapping[Factor, Names], mesh: Mesh) -> None:
        self.walk = walk
        self.divided = divided
        self.mesh = mesh

    def evaluated(self, arguments: Sequence[Array]) -> list[Array]:
        """Evaluate the program on arguments that may be split, and return unsplit results."""
        program = self.walk.program
        results = program.evaluated(arguments, self._compute)
        return _unsplit(results, program.results)

    def sub_extents(self, operand: Atom) -> SubExtents:
        """Return the extents of the sub-axes of each axis of a variable.

        For an axis of 3 * heads * items that is split before the heads, the extents are
        [3, heads * items].
        """
        return [list(map(_extent, sub_axes)) for sub_axes in self._sub_axes(operand)]

    def shape(self, operand: Atom) -> tuple[int, ...]:
        """Return the shape of the split array of a variable."""
        return tuple(itertools.chain.from_iterable(self.sub_extents(operand)))

    def _sub_axes(self, operand: Atom) -> Iterator[list[list[Factor]]]:
        """Yield the sub-axes of each axis of a variable. A sub-axis is a list of factors."""
        for axis in self.walk.operand_axes(operand):
            sub_axes: list[list[Factor]] = [[]]
            for factor in leaves(axis):
                is_first = not sub_axes[-1]
                if factor in self.divided and not is_first:
                    sub_axes.append([])
                sub_axes[-1].append(factor)
            yield sub_axes

    def sharded(self, variable: Variable, x: Array, fixed: Collection[int]) -> Array:
        """Split x, the value of `variable`, and constrain the sharding of x.

        The array is sharded along divided factors. Along other sub-axes of the axes `fixed` the
        array is not sharded. XLA chooses the sharding along the sub-axes of the remaining axes.
        """
        items: list[Names] = []
        for axis, sub_axes in enumerate(self._sub_axes(variable)):
            for factors in sub_axes:
                # Only the first factor of a sub-axis may be divided. An axis of extent 1 has no
                # factors.
                item = self.divided.get(factors[0]) if factors else None
                if item is None and axis not in fixed:
                    item = _FREE
                elif item is not _FREE and item in items:
                    item = None  # an axis of the mesh may divide only one axis of an array
                items.append(item)
        sharding = NamedSharding(self.mesh, PartitionSpec(*items))
        return lax.with_sharding_constraint(self.split(x, variable), sharding)

    def split(self, x: Array, operand: Atom) -> Array:
        """Split each axis of x before each divided factor. x is the value of `operand`."""
        return _shaped(x, self.shape(operand))

    def _all_split(self, arrays: Sequence[Array], operands: Sequence[Atom]) -> list[Array]:
        """Split the axes of arrays as `split` does. The arrays are the values of `operands`."""
        return [self.split(x, operand) for x, operand in zip(arrays, operands, strict=True)]

    def _compute(self, equation: Equation, operands: list[Array]) -> Sequence[Array]:
        """Evaluate an equation on split operands, and return split results.

        If no rule can evaluate the split operands, their sub-axes are joined to axes first.
        """
        arrays = self._all_split(operands, equation.invars)
        if not equation.outvars:
            return self._computed(equation, arrays)
        first_result = equation.outvars[0]
        summed_axes = self.walk.summed.get(first_result, {})
        for i, axes in summed_axes.items():
            # Without this constraint, a matrix that is sharded only along its rows would shard the
            # tensors before the product too. Each mean over the last axis of such a tensor would be
            # a collective.
            operand = equation.invars[i]
            if not is_literal(operand):
                arrays[i] = self.sharded(operand, arrays[i], fixed=axes)
        results = self._computed(equation, arrays)
        if first_result not in self.walk.columns:
            return results
        # The equation is a product with a parameter. A product has only one result. From the
        # constraint of this result XLA derives other shardings.
        (result,) = results
        column_axes = self.walk.columns[first_result]
        return [self.sharded(first_result, result, fixed=column_axes)]

    def _computed(self, equation: Equation, arrays: Sequence[Array]) -> Sequence[Array]:
        """Evaluate an equation on split operands, and return split results without constraints."""
        if primitive(equation) == SCAN:
            (body,) = self.walk.inner_walks[id(equation)]
            results = self._scanned(equation, body, arrays)
        elif any(map(self._is_split, (*equation.invars, *equation.outvars))):
            results = self._computed_by_rule(equation, arrays)
        else:
            results = jaxpr_evaluation.bind(equation, arrays)
        return self._all_split(results, equation.outvars)

    def _is_split(self, operand: Atom) -> bool:
        """Tell whether an axis of a variable is split."""
        return self.shape(operand) != getattr(operand.aval, "shape", ())

    def _computed_by_rule(self, equation: Equation, arrays: Sequence[Array]) -> Sequence[Array]:
        """Evaluate an equation on split operands, by the rule for its primitive.

        If no rule can evaluate the equation, it is evaluated on unsplit operands.
        """
        rule = _RULES.rule_for(equation)
        results: Results = rule(self, equation, arrays) if rule else None
        if results is not None:
            return results
        return jaxpr_evaluation.bind(equation, _unsplit(arrays, equation.invars))

    def _scanned(
        self, equation: Equation, body: FactorWalk, arrays: Sequence[Array]
    ) -> list[Array]:
        """Evaluate a scan. Its constants and stacks may be split, and its carry is not split."""
        inside = _Spread(body, self.divided, self.mesh)
        constants, start, stacks = jaxprs.scan_parts(equation, arrays)
        _, start_variables, _ = jaxprs.scan_parts(equation, equation.invars)
        _, _, item_variables = jaxprs.scan_parts(equation, body.program.arguments)
        start = _unsplit(start, start_variables)
        # Split the items of each stack. Axis 0 counts the iterations, and is not split.
        length = equation.params["length"]
        pairs = zip(stacks, item_variables, strict=True)
        stacks = [_shaped(x, (length, *inside.shape(item))) for x, item in pairs]
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
    """Reshape split arrays to the shapes of their variables."""
    pairs = zip(arrays, operands, strict=True)
    return [_shaped(x, operand.aval.shape) for x, operand in pairs]


def _numbers_of_sub_axes(sub_extents: SubExtents) -> list[list[int]]:
    """Return the numbers of the sub-axes of each axis.

    For the extents [[3, 8], [5]] the result is [[0, 1], [2]].
    """
    numbers = itertools.count()
    return [[next(numbers) for _ in extents] for extents in sub_extents]


_RULES = Rules()


@_RULES(PRODUCT, "transpose")
@_RULES(removes=True, along=True, across=True, per_axis=True)
def _renumbered(spread: _Spread, equation: Equation, arrays: Sequence[Array]) -> Results:
    """Evaluate an equation with the numbers of sub-axes in place of the numbers of axes.

    Return None if two operands have different sub-axes along axes that the equation pairs, such as
    the summed axes of a product.
    """
    sub_extents = list(map(spread.sub_extents, equation.invars))
    # A tuple in this set has, for each axis of an operand, the count of its sub-axes.
    counts = {tuple(map(len, of_operand)) for of_operand in sub_extents if of_operand}
    if len(counts) > 1 and primitive(equation) != PRODUCT:
        return None
    for link in (axes_of(equation) or UNLINKED).links:
        # For each operand of the link: the extents of the sub-axes of its linked axes.
        linked_extents: list[list[list[int]]] = []
        for index, linked_axes in link.operands.items():
            linked_extents.append([sub_extents[index][axis_number(axis)] for axis in linked_axes])
        if any(extents != linked_extents[0] for extents in linked_extents):
            return None
    params = renumbered(equation, list(map(_numbers_of_sub_axes, sub_extents)))
    if params is None:
        return None
    return jaxpr_evaluation.bind(equation, arrays, **params)


@_RULES(by_item=True)
def _by_item(spread: _Spread, equation: Equation, arrays: Sequence[Array]) -> Results:
    """Evaluate an equation that computes item by item, on split operands.

    Return None if an operand and the result split an axis in different ways.
    """
    result_extents = spread.sub_extents(equation.outvars[0])
    operands: list[Array] = []
    for operand, x in zip(equation.invars, arrays, strict=True):
        shape = _aligned_shape(spread.sub_extents(operand), result_extents)
        if shape is None:
            return None
        operands.append(_shaped(x, shape))
    return [equation.primitive.bind(*operands, **equation.params)]


def _aligned_shape(operand_extents: SubExtents, result_extents: SubExtents) -> list[int] | None:
    """Return the shape of an operand with the sub-axes of the result.

    An axis of extent 1 becomes as many sub-axes of extent 1 as the result has for this axis.
    Return None if another axis of the operand is not split as in the result. For example, the
    extents [[1], [5]] of an operand and [[3, 8], [5]] of the result give the shape [1, 1, 5].
    """
    if not operand_extents:  # a scalar has no axes
        return []
    shape: list[int] = []
    for extents, extents_in_result in zip(operand_extents, result_extents, strict=True):
        if math.prod(extents) == 1:
            shape += [1] * len(extents_in_result)
        elif extents == extents_in_result:
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
    """Broadcast a split array.

    Return None if the operand and the result split an axis in different ways.
    """
    operand_extents = spread.sub_extents(equation.invars[0])
    result_extents = spread.sub_extents(equation.outvars[0])
    # Axes of extent 1 are left out before the broadcast.
    long_axes = [axis for axis, extents in enumerate(operand_extents) if math.prod(extents) > 1]
    result_axes = [equation.params["broadcast_dimensions"][axis] for axis in long_axes]
    long_shape: list[int] = []
    for axis, result_axis in zip(long_axes, result_axes, strict=True):
        if operand_extents[axis] != result_extents[result_axis]:
            return None
        long_shape += operand_extents[axis]
    x = _shaped(arrays[0], long_shape)
    shape = spread.shape(equation.outvars[0])
    result_sub_axes = spanned(_numbers_of_sub_axes(result_extents), result_axes)
    return [lax.broadcast_in_dim(x, shape, result_sub_axes)]


@_RULES("slice", "split")
def _slice(spread: _Spread, equation: Equation, arrays: Sequence[Array]) -> Results:
    """Slice a split array along the first sub-axis of each sliced axis.

    If an axis of 12 items is split into (3, 4), the slice from 4 to 12 becomes the slice from 1 to
    3 of the sub-axis of 3. Return None if a slice would begin or end within an index of the first
    sub-axis, as a slice from 2 to 12 would.
    """
    operand_extents = spread.sub_extents(equation.invars[0])
    results: list[Array] = []
    for result, starts in zip(equation.outvars, cuts(equation), strict=True):
        sizes = [math.prod(extents) for extents in spread.sub_extents(result)]
        x = arrays[0]
        sub_axis = 0  # the number of the axis's first sub-axis
        for extents, size, start in zip(operand_extents, sizes, starts, strict=True):
            if size < math.prod(extents):
                # Each index of the first sub-axis has `inner_size` items.
                inner_size = math.prod(extents[1:])
                if start is None or start % inner_size or size % inner_size:
                    return None
                first = start // inner_size
                stop = (start + size) // inner_size
                x = lax.slice_in_dim(x, first, stop, axis=sub_axis)
            sub_axis += len(extents)
        results.append(spread.split(x, result))
    return results
