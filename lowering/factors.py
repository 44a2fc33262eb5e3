"""Follows axes through a program as products of factors, which variables share.

For example, an axis of 3 * h * d columns has the factor h (heads) before a reshape gives the heads
an axis of their own. Corresponding axes of two variables are compared factor by factor, from the
left. Where two factors differ, the larger factor is split: a reshape of 96 columns to (3, 4, 8)
splits the columns of the matrix before it into the factors 3 * 4 * 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain
from typing import Literal, NamedTuple

from lowering.axes import UNLINKED, AxisPart, LinkedAxes, axes_of, number
from lowering.bodies import InnerFunction, bodies
from lowering.jaxpr_types import Atom, Equation, Variable
from lowering.jaxprs import is_literal
from lowering.program import Program


class Factor:
    """A factor of an axis's extent, compared by identity.

    `parts` are the factors that replace this factor: several if it was split, one if it was united
    with an equal factor, none otherwise.
    """

    __slots__ = ("extent", "is_blocked", "parts")

    def __init__(self, extent: int, *, is_blocked: bool = False) -> None:
        self.extent = extent
        self.is_blocked = is_blocked  # whether an equation needs the factor undivided
        self.parts: list[Factor] = []


Axis = list[Factor]
Axes = list[Axis]


def leaves(axis: Iterable[Factor]) -> list[Factor]:
    """Return the factors of an axis from the left. Split factors are replaced by their parts."""
    factors: list[Factor] = []
    pending = [*axis][::-1]
    while pending:
        factor = pending.pop()
        if factor.parts:
            pending += reversed(factor.parts)
        else:
            factors.append(factor)
    return factors


def block(axis: Iterable[Factor]) -> None:
    """Mark the factors of an axis as blocked: they must not be divided over devices."""
    for factor in leaves(axis):
        factor.is_blocked = True


def unite(first: Iterable[Factor], second: Iterable[Factor]) -> None:
    """Make the factors of two axes equal, from the left.

    If two factors have different extents, the larger factor is split. If the larger extent is not a
    multiple of the smaller one, both factors and all later factors of the axes are blocked.
    """
    left = leaves(first)
    right = leaves(second)
    while left and right:
        x = left.pop(0)
        y = right.pop(0)
        if x is y:
            continue
        if x.extent == y.extent:
            x.is_blocked = x.is_blocked or y.is_blocked
            y.parts = [x]
        else:
            small, large = (x, y) if x.extent < y.extent else (y, x)
            if large.extent % small.extent:
                block([x, y, *left, *right])
                return
            extents = small.extent, large.extent // small.extent
            large.parts = [Factor(n, is_blocked=large.is_blocked) for n in extents]
            left = [x, *left]
            right = [y, *right]
        # The remaining factors may include the factor that was replaced or split.
        left = leaves(left)
        right = leaves(right)


UseKind = Literal["sum", "lookup", "gather"]


class Use(NamedTuple):
    """The communication that an operation needs if certain factors are divided over devices.

    Args:
        kind: "sum" if the operation sums over the factors, "lookup" if it looks items up along the
            factors, "gather" if it needs the factors undivided.
        factors: the factors, which may belong to several axes.
        items: the number of items that move between devices.
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
    """Return new axes for an operand: an axis is one factor, or no factor if its extent is 1."""
    extents = getattr(operand.aval, "shape", ())
    return [[Factor(extent)] if extent != 1 else [] for extent in extents]


class FactorWalk:
    """Finds the factors of the axes of all variables of a program.

    Each inner function has a walk of its own, in `bodies`. `uses` and `products` also contain those
    of the inner functions.
    """

    def __init__(self, program: Program, outer: FactorWalk | None = None, times: int = 1) -> None:
        self.program = program
        self.axes: dict[Atom, Axes] = {}
        # Maps the id of an equation to the walks of its inner functions.
        self.bodies: dict[int, list[FactorWalk]] = {}
        self.uses: list[Use] = outer.uses if outer else []
        self.products: list[Product] = outer.products if outer else []
        self.times = times
        self.columns: dict[Variable, frozenset[int]] = {}  # axes of the results of products
        # For the result of each product, the summed axes of its other operand, by operand number.
        self.summed: dict[Variable, dict[int, frozenset[int]]] = {}
        # Maps each variable that depends only on parameters to the numbers of these parameters.
        self.origins = dict[Atom, frozenset[int]]()
        if outer is None:
            parameters = program.arguments[: program.parameters]
            self.origins.update((v, frozenset([i])) for i, v in enumerate(parameters))

    def through(self) -> FactorWalk:
        """Follow all equations in order, and return this walk."""
        self.origins.update(dict.fromkeys(self.program.constants, frozenset[int]()))
        for equation in self.program.equations:
            if all(map(self.is_known, equation.invars)) and not equation.effects:
                sources = frozenset[int]().union(*map(self.origin, equation.invars))
                self.origins.update(dict.fromkeys(equation.outvars, sources))
            functions = bodies(equation)
            for body in functions:
                self._enter(equation, body)
            if not functions:
                self._follow(equation)
        return self

    def _follow(self, equation: Equation) -> None:
        """Unite the axes that an equation links, and block axes of operands that have no link."""
        table = axes_of(equation) or UNLINKED
        operands, results = equation.invars, equation.outvars
        # Maps the index of an operand and the number of its axis to the linked factors.
        linked: dict[tuple[int, int], Axis] = {}
        for link in table.links:
            runs: list[Axis] = []
            for place, run in link.operands.items():
                parts = {number(x): self._part(operands[place], x) for x in run}
                linked |= {(place, axis): factors for axis, factors in parts.items()}
                runs.append(list(chain(*parts.values())))
            for place, run in link.results.items():
                parts_of_result = (self._part(results[place], x) for x in run)
                runs.append(list(chain(*parts_of_result)))
            for run in runs[1:]:
                unite(runs[0], run)
            if link.does != "apart":
                self.use(link.does, runs[:1], results[0])
        for place, operand in enumerate(operands):
            for i, axis in enumerate(self.of(operand)):
                linked_factors = {*leaves(linked.get((place, i), ()))}
                block(factor for factor in leaves(axis) if factor not in linked_factors)
        for place in table.weights:
            self._multiply(table, operands[place], place, results[0])

    def _part(self, operand: Atom, part: int | AxisPart) -> Axis:
        """Return the factors of an axis, or of a part of an axis."""
        axis = self.of(operand)[number(part)]
        if not isinstance(part, AxisPart):
            return axis
        total = math.prod(factor.extent for factor in axis)
        before = Factor(part.before)
        inside = Factor(part.extent)
        after = Factor(total // (part.before * part.extent))
        unite([factor for factor in (before, inside, after) if factor.extent > 1], axis)
        return [inside]

    def _multiply(self, table: LinkedAxes, weight: Atom, place: int, result: Variable) -> None:
        """Record a product if its weight depends only on parameters and its result does not."""
        if not self.is_known(weight) or self.is_known(result):
            return
        rows = Axis()
        columns = Axis()
        result_axes: set[int] = set()
        summed: dict[int, frozenset[int]] = {}
        kind: Literal["product", "lookup"] = "product"
        for link in table.links:
            axes = [self.of(weight)[number(x)] for x in link.operands.get(place, ())]
            factors = list(chain(*axes))
            is_of_weight_alone = place in link.operands and len(link.operands) == 1
            if link.does != "apart":
                rows += factors
                if link.does == "lookup":
                    kind = "lookup"
                for other, run in link.operands.items():
                    if other != place:
                        summed[other] = summed.get(other, frozenset()).union(map(number, run))
            elif is_of_weight_alone or (place in link.operands and link.is_of_parts):
                columns += factors
                result_axes.update(map(number, link.results[0]))
        product = Product(self.origin(weight), rows, columns, self.items(result), kind)
        self.products.append(product)
        self.columns[result] = frozenset(result_axes)
        self.summed[result] = summed

    def _enter(self, equation: Equation, body: InnerFunction) -> None:
        """Follow an inner function. A carried value has the factors of its initial value."""
        inside = FactorWalk(Program(body.closed), self, self.times * body.times)
        self.bodies.setdefault(id(equation), []).append(inside)
        carried = {*body.again.values()}
        pairs = zip(inside.program.arguments, body.arguments, strict=True)
        for i, (inner, (place, steps)) in enumerate(pairs):
            operand = equation.invars[place]
            inside.axes[inner] = self._item(operand, steps)
            if self.is_known(operand) and not steps and i not in carried:
                inside.origins[inner] = self.origin(operand)
        inside.through()
        for i, (inner, outer) in enumerate(zip(inside.program.results, body.results, strict=True)):
            if i in body.again:
                inside.use("gather", inside.of(inner), inner)
            elif outer is not None:
                item = self._item(equation.outvars[outer.place], outer.steps)
                for inner_axis, outer_axis in zip(inside.of(inner), item, strict=True):
                    unite(inner_axis, outer_axis)

    def _item(self, variable: Atom, steps: int) -> Axes:
        """Block the first `steps` axes, over which a loop iterates, and return the other axes."""
        axes = self.of(variable)
        for axis in axes[:steps]:
            block(axis)
        return axes[steps:]

    def of(self, operand: Atom) -> Axes:
        """Return the axes of a variable, or of a literal."""
        if is_literal(operand):
            return _axes(operand)
        if operand not in self.axes:
            self.axes[operand] = _axes(operand)
        return self.axes[operand]

    def is_known(self, operand: Atom) -> bool:
        """Tell whether an operand depends only on parameters."""
        return is_literal(operand) or operand in self.origins

    def origin(self, operand: Atom) -> frozenset[int]:
        """Return the numbers of the parameters from which an operand is computed."""
        return frozenset() if is_literal(operand) else self.origins[operand]

    def use(self, kind: UseKind, axes: Iterable[Axis], variable: Atom) -> None:
        """Record the communication for factors of a variable, if it is computed in each call."""
        if self.is_known(variable):
            return
        factors = [factor for axis in axes for factor in axis]
        self.uses.append(Use(kind, factors, self.items(variable)))

    def items(self, variable: Atom) -> int:
        """Return the number of items of a variable, in all iterations of the loops around it."""
        return math.prod(variable.aval.shape) * self.times
