"""Follows axes through a program. An axis is a product of factors, and variables share factors.

For example, an axis of 3 * h * d columns has the factor h (heads) before a reshape gives the heads
an axis of their own. Corresponding axes of two variables are compared factor by factor, from the
left. Where two factors differ, the larger factor is split. For example, the product with a matrix
has 96 columns, and a reshape makes three axes (3, 4, 8) of them. Then the columns of the matrix
have the factors 3 * 4 * 8 too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain
from typing import Literal, NamedTuple

from lowering.axes import axes_of
from lowering.axis_links import UNLINKED, AxisPart, LinkedAxes, axis_number
from lowering.bodies import InnerFunction, inner_functions
from lowering.jaxpr_types import Atom, Equation, Variable
from lowering.jaxprs import is_literal
from lowering.program import Program


class Factor:
    """A factor of an axis's extent. Two objects are two factors, even if their extents are equal.

    `extent` is the value of the factor, such as 4. `parts` has the factors that replace this
    factor: several factors if it was split, and one factor if it was united with a factor of equal
    extent. Otherwise `parts` is empty. `is_blocked` tells whether an equation needs all items of
    the factor on one device.
    """

    __slots__ = ("extent", "is_blocked", "parts")

    def __init__(self, extent: int, *, is_blocked: bool = False) -> None:
        self.extent = extent
        self.is_blocked = is_blocked
        self.parts: list[Factor] = []


Axis = list[Factor]
Axes = list[Axis]


def leaves(axis: Iterable[Factor]) -> list[Factor]:
    """Return the factors of an axis in order. The parts of a replaced factor take its place."""
    factors: list[Factor] = []
    stack = list(reversed(list(axis)))  # the next factor is at the end
    while stack:
        factor = stack.pop()
        if factor.parts:
            stack += reversed(factor.parts)
        else:
            factors.append(factor)
    return factors


def block(axis: Iterable[Factor]) -> None:
    """Mark the factors of an axis as blocked, so that they are not divided over devices."""
    for factor in leaves(axis):
        factor.is_blocked = True


def unite(first: Iterable[Factor], second: Iterable[Factor]) -> None:
    """Make two axes consist of the same factors, beginning with their first factors.

    Of two factors with different extents, the larger one is split. For the axes (32,) and (4, 8),
    32 is split into 4 * 8. If the larger extent is not a multiple of the smaller one, both factors
    and all later factors of the axes are marked as blocked: they are not divided over devices.
    """
    # These lists have the factors that are not compared yet.
    left = leaves(first)
    right = leaves(second)
    while left and right:
        left_factor = left[0]
        right_factor = right[0]
        if left_factor.extent == right_factor.extent:
            if left_factor is not right_factor:
                # The left factor replaces the right one.
                left_factor.is_blocked = left_factor.is_blocked or right_factor.is_blocked
                right_factor.parts = [left_factor]
            left = left[1:]
            right = right[1:]
        else:
            small, large = sorted((left_factor, right_factor), key=lambda factor: factor.extent)
            if large.extent % small.extent:
                block([*left, *right])
                return
            # The larger factor is split, and its first part is compared next.
            extents = small.extent, large.extent // small.extent
            large.parts = [Factor(extent, is_blocked=large.is_blocked) for extent in extents]
        # A list may still have the factor that was replaced or split.
        left = leaves(left)
        right = leaves(right)


UseKind = Literal["sum", "lookup", "gather"]


class Use(NamedTuple):
    """The communication that an operation needs if some factors are divided over devices.

    Args:
        kind: "sum" if the operation sums over the factors, "lookup" if it looks items up along the
            factors, "gather" if it needs the factors undivided.
        factors: the factors, which may belong to several axes.
        items: the number of items that are sent between devices.
    """

    kind: UseKind
    factors: Axis
    items: int


class Product(NamedTuple):
    """A product, convolution or lookup with an operand that depends only on parameters.

    Args:
        parameters: the argument numbers of the parameters on which the operand depends.
        rows: the operand's factors that are summed or looked up.
        columns: the operand's factors that the result has, but no other operand has.
        items: the number of items of the result.
        kind: "lookup" for a lookup, "product" for a product or convolution.
    """

    parameters: frozenset[int]
    rows: Axis
    columns: Axis
    items: int
    kind: Literal["product", "lookup"] = "product"


def _axes(operand: Atom) -> Axes:
    """Return the factors of each axis of an operand: one new factor, or none for the extent 1."""
    extents = getattr(operand.aval, "shape", ())
    return [[Factor(extent)] if extent != 1 else [] for extent in extents]


class FactorWalk:
    """Finds the factors of the axes of all variables of a program.

    Each inner function, such as the body of a loop, has a walk of its own in `inner_walks`. The
    lists `uses` and `products` have the entries of the program and of all inner functions.
    """

    def __init__(self, program: Program, outer: FactorWalk | None = None, times: int = 1) -> None:
        self.program = program
        self.axes: dict[Atom, Axes] = {}
        # Maps the id of an equation to the walks of its inner functions.
        self.inner_walks: dict[int, list[FactorWalk]] = {}
        self.uses: list[Use] = outer.uses if outer else []
        self.products: list[Product] = outer.products if outer else []
        # The number of evaluations of the program in a call: an inner function may be in loops.
        self.times = times
        # Maps the result of each product to its axes that come from the columns of the weight.
        self.columns: dict[Variable, frozenset[int]] = {}
        # Maps the result of each product to a dict. The dict maps the index of each operand other
        # than the weight to the operand's summed axes.
        self.summed: dict[Variable, dict[int, frozenset[int]]] = {}
        # Maps each variable that depends only on parameters to the argument numbers of these
        # parameters.
        self.origins = dict[Atom, frozenset[int]]()
        # An inner function gets the origins of its arguments from `_enter`.
        if outer is None:
            parameters = program.arguments[: program.parameters]
            self.origins.update((v, frozenset([i])) for i, v in enumerate(parameters))

    def follow_all(self) -> FactorWalk:
        """Find the factors of all axes, equation by equation, and return this walk."""
        self.origins.update(dict.fromkeys(self.program.constants, frozenset[int]()))
        for equation in self.program.equations:
            reads_only_parameters = all(map(self.depends_only_on_parameters, equation.invars))
            if reads_only_parameters and not equation.effects:
                parameters = frozenset[int]().union(*map(self.origin, equation.invars))
                self.origins.update(dict.fromkeys(equation.outvars, parameters))
            functions = inner_functions(equation)
            for function in functions:
                self._enter(equation, function)
            if not functions:
                self._follow(equation)
        return self

    def _follow(self, equation: Equation) -> None:
        """Unite the axes that an equation links. Block the operand axes that have no link."""
        table = axes_of(equation) or UNLINKED
        operands, results = equation.invars, equation.outvars
        # Maps the index of an operand and the number of an axis to the linked factors of the axis.
        linked: dict[tuple[int, int], Axis] = {}
        for link in table.links:
            runs: list[Axis] = []  # the factors of each operand and result along the link
            for index, run in link.operands.items():
                operand_factors: Axis = []
                for part in run:
                    factors = self._part(operands[index], part)
                    linked[index, axis_number(part)] = factors
                    operand_factors += factors
                runs.append(operand_factors)
            for index, run in link.results.items():
                result_factors: Axis = []
                for part in run:
                    result_factors += self._part(results[index], part)
                runs.append(result_factors)
            for other_run in runs[1:]:
                unite(runs[0], other_run)
            if link.kind != "apart":
                self.record_use(link.kind, runs[:1], results[0])
        for index, operand in enumerate(operands):
            for number, axis in enumerate(self.operand_axes(operand)):
                linked_factors = {*leaves(linked.get((index, number), ()))}
                block(factor for factor in leaves(axis) if factor not in linked_factors)
        for index in table.weights:
            self._record_product(table, operands[index], index, results[0])

    def _part(self, operand: Atom, part: int | AxisPart) -> Axis:
        """Return the factors of an operand's axis, or of a part of the axis."""
        axis = self.operand_axes(operand)[axis_number(part)]
        if not isinstance(part, AxisPart):
            return axis
        # Split the axis into three factors: before the part, the part itself, and after it.
        extent = math.prod(factor.extent for factor in axis)
        before = Factor(part.before)
        inside = Factor(part.extent)
        after = Factor(extent // (part.before * part.extent))
        unite([factor for factor in (before, inside, after) if factor.extent > 1], axis)
        return [inside]

    def _record_product(
        self, table: LinkedAxes, weight: Atom, index: int, result: Variable
    ) -> None:
        """Record a product of a weight, if the weight depends on parameters only.

        Nothing is recorded if the result also depends on parameters only. `table` has the linked
        axes of the equation, and `index` is the index of the weight among the operands.
        """
        if not self.depends_only_on_parameters(weight) or self.depends_only_on_parameters(result):
            return
        rows = Axis()
        columns = Axis()
        column_axes: set[int] = set()  # the axes of the result that come from the columns
        summed: dict[int, frozenset[int]] = {}
        kind: Literal["product", "lookup"] = "product"
        for link in table.links:
            weight_factors = Axis()
            for part in link.operands.get(index, ()):
                weight_factors += self.operand_axes(weight)[axis_number(part)]
            has_weight = index in link.operands
            has_weight_alone = has_weight and len(link.operands) == 1
            has_groups_of_weight = has_weight and link.is_of_parts
            if link.kind != "apart":
                rows += weight_factors
                if link.kind == "lookup":
                    kind = "lookup"
                for other, other_run in link.operands.items():
                    if other != index:
                        other_axes = summed.get(other, frozenset())
                        summed[other] = other_axes.union(map(axis_number, other_run))
            elif has_weight_alone or has_groups_of_weight:
                columns += weight_factors
                column_axes.update(map(axis_number, link.results[0]))
        product = Product(self.origin(weight), rows, columns, self.items(result), kind)
        self.products.append(product)
        self.columns[result] = frozenset(column_axes)
        self.summed[result] = summed

    def _enter(self, equation: Equation, function: InnerFunction) -> None:
        """Follow an inner function of an equation.

        An argument of the function has the factors of the equation's operand. For a carried
        value of a loop this operand is the initial value.
        """
        inside = FactorWalk(Program(function.closed), self, self.times * function.times)
        self.inner_walks.setdefault(id(equation), []).append(inside)
        carried_arguments = {*function.carried_to.values()}
        for i, argument in enumerate(inside.program.arguments):
            operand_number, steps = function.arguments[i]
            operand = equation.invars[operand_number]
            inside.axes[argument] = self._inner_axes(operand, steps)
            # In each iteration, the value of a constant argument is the operand itself.
            is_constant = not steps and i not in carried_arguments
            if is_constant and self.depends_only_on_parameters(operand):
                inside.origins[argument] = self.origin(operand)
        inside.follow_all()
        for i, result in enumerate(inside.program.results):
            outer = function.results[i]
            if i in function.carried_to:
                # The next iteration's argument may have other factors than the carried result.
                # Therefore the result is gathered.
                inside.record_use("gather", inside.operand_axes(result), result)
            elif outer is not None:
                outer_axes = self._inner_axes(equation.outvars[outer.number], outer.steps)
                axis_pairs = zip(inside.operand_axes(result), outer_axes, strict=True)
                for inner_axis, outer_axis in axis_pairs:
                    unite(inner_axis, outer_axis)

    def _inner_axes(self, variable: Atom, steps: int) -> Axes:
        """Return the axes that a variable has in one iteration of a loop.

        The loop iterates over the first `steps` axes of the variable. The result leaves out
        these axes, and their factors are blocked.
        """
        axes = self.operand_axes(variable)
        for axis in axes[:steps]:
            block(axis)
        return axes[steps:]

    def operand_axes(self, operand: Atom) -> Axes:
        """Return the axes of a variable or a literal, as lists of factors."""
        if is_literal(operand):
            return _axes(operand)
        if operand not in self.axes:
            self.axes[operand] = _axes(operand)
        return self.axes[operand]

    def depends_only_on_parameters(self, operand: Atom) -> bool:
        """Tell whether an operand depends on no other arguments than parameters."""
        return is_literal(operand) or operand in self.origins

    def origin(self, operand: Atom) -> frozenset[int]:
        """Return the argument numbers of the parameters from which an operand is computed."""
        return frozenset() if is_literal(operand) else self.origins[operand]

    def record_use(self, kind: UseKind, axes: Iterable[Axis], variable: Atom) -> None:
        """Record a use: devices exchange a variable's items if factors of `axes` are divided.

        `kind` is the kind of communication, such as "sum", see `Use`. If the variable depends only
        on parameters, nothing is recorded, since the variable is not computed in each call.
        """
        if self.depends_only_on_parameters(variable):
            return
        factors = list(chain.from_iterable(axes))
        self.uses.append(Use(kind, factors, self.items(variable)))

    def items(self, variable: Atom) -> int:
        """Return the number of items of a variable, times the iterations of the loops around it."""
        return math.prod(variable.aval.shape) * self.times
