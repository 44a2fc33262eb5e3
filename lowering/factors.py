"""Follows axes through a program: each is a product of factors, which several variables share.

An axis of 3 * h * d columns has the factor h although it is reshaped, transposed and cut before
heads are apart. What two axes have in common is found by lining up their factors from the left,
which divides factors further: a matrix of 96 columns learns from the reshape behind it that they
are 3 * 4 * 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain
from typing import Any, Literal, NamedTuple

from lowering.axes import UNLINKED, AxisPart, LinkedAxes, axes_of, number
from lowering.bodies import InnerFunction, bodies
from lowering.jaxprs import is_literal
from lowering.program import Program


class Factor:
    """A factor of an axis, compared by identity; `parts` are what it was found to consist of."""

    __slots__ = ("extent", "is_blocked", "parts")

    def __init__(self, extent: int, *, is_blocked: bool = False) -> None:
        self.extent = extent
        self.is_blocked = is_blocked  # whether something reads across it, so that it stays whole
        self.parts: list[Factor] = []


Axis = list[Factor]
Axes = list[Axis]


def leaves(axis: Iterable[Factor]) -> list[Factor]:
    """Return the factors of an axis as they are known now, from the left."""
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
    """Keep the factors of an axis whole."""
    for factor in leaves(axis):
        factor.is_blocked = True


def unite(one: Iterable[Factor], other: Iterable[Factor]) -> None:
    """Make the factors of two axes the same; those that do not line up stay whole."""
    left, right = leaves(one)[::-1], leaves(other)[::-1]
    while left and right:
        x, y = left.pop(), right.pop()
        if x is y:
            continue
        if x.extent == y.extent:
            y.parts, x.is_blocked = [x], x.is_blocked or y.is_blocked
            # What is left may have had the factor twice.
            left, right = leaves(left[::-1])[::-1], leaves(right[::-1])[::-1]
            continue
        small, large = sorted((x, y), key=lambda factor: factor.extent)
        if large.extent % small.extent:
            block([x, y, *left, *right])
            return
        extents = small.extent, large.extent // small.extent
        large.parts = [Factor(n, is_blocked=large.is_blocked) for n in extents]
        left, right = leaves([*left, x][::-1])[::-1], leaves([*right, y][::-1])[::-1]


class Use(NamedTuple):
    """Counts the items that move between devices where factors are divided.

    Args:
        kind: "sum" over them, "lookup" along them, or "whole", what has to be so.
        factors: those, of any axes.
        items: how many items move between devices.
    """

    kind: Literal["sum", "lookup", "whole"]
    factors: Axis
    items: int


class Product(NamedTuple):
    """A product, convolution or lookup, of which an operand depends on parameters alone."""

    parameters: frozenset[int]  # by place among the arguments
    rows: Axis  # what is summed or looked up
    columns: Axis
    items: int
    kind: Literal["product", "lookup"] = "product"


class FactorWalk:
    """The factors of the axes of all variables of a program.

    `uses` and `products` are those of the functions within it too, which are `bodies`.
    """

    def __init__(self, program: Program, outer: FactorWalk | None = None, times: int = 1) -> None:
        self.program = program
        self.axes: dict[Any, Axes] = {}
        self.bodies: dict[int, list[FactorWalk]] = {}  # by the identity of the equation
        self.uses: list[Use] = outer.uses if outer else []
        self.products: list[Product] = outer.products if outer else []
        self.times = times
        self.columns: dict[Any, frozenset[int]] = {}  # axes of the results of products
        # Of variables that depend on parameters alone, on which ones.
        self.origins = dict[Any, frozenset[int]]()
        if outer is None:
            parameters = program.arguments[: program.parameters]
            self.origins.update((v, frozenset([i])) for i, v in enumerate(parameters))

    def through(self) -> FactorWalk:
        """Follow all equations, in order."""
        self.origins.update(dict.fromkeys(self.program.constants, frozenset[int]()))
        for equation in self.program.equations:
            if all(map(self.is_known, equation.invars)) and not equation.effects:
                sources = frozenset[int]().union(*map(self.origin, equation.invars))
                self.origins.update(dict.fromkeys(equation.outvars, sources))
            held = bodies(equation)
            for body in held:
                self._enter(equation, body)
            if not held:
                self._follow(equation)
        return self

    def _follow(self, equation: Any) -> None:
        """Make axes that an equation links the same, and keep those whole that it does not link."""
        table = axes_of(equation) or UNLINKED
        operands, results = equation.invars, equation.outvars
        passing: dict[tuple[int, int], Axis] = {}  # factors by operand and axis
        for link in table.links:
            runs: list[Axis] = []
            for place, run in link.operands.items():
                parts = {number(x): self._part(operands[place], x) for x in run}
                passing |= {(place, axis): factors for axis, factors in parts.items()}
                runs.append([*chain(*parts.values())])
            for place, run in link.results.items():
                runs.append([*chain(*(self._part(results[place], x) for x in run))])
            for run in runs[1:]:
                unite(runs[0], run)
            if link.does != "apart":
                self.use(link.does, runs[:1], results[0])
        for place, operand in enumerate(operands):
            for i, axis in enumerate(self.of(operand)):
                passed = {*leaves(passing.get((place, i), ()))}
                block(factor for factor in leaves(axis) if factor not in passed)
        for place in table.weights:
            self._multiply(table, operands[place], place, results[0])

    def _part(self, operand: Any, part: int | AxisPart) -> Axis:
        """Return the factors of an axis, or of a part of it."""
        axis = self.of(operand)[number(part)]
        if not isinstance(part, AxisPart):
            return axis
        total = math.prod(factor.extent for factor in axis)
        extents = part.before, part.extent, total // (part.before * part.extent)
        before, inside, after = map(Factor, extents)
        unite([factor for factor in (before, inside, after) if factor.extent > 1], axis)
        return [inside]

    def _multiply(self, table: LinkedAxes, weight: Any, place: int, result: Any) -> None:
        """Note a product with an operand that depends on parameters alone.

        Rows are its axes that end in it, columns those that the result has and no other operand.
        """
        if not self.is_known(weight) or self.is_known(result):
            return
        rows, columns, places = Axis(), Axis(), set[int]()
        kind: Literal["product", "lookup"] = "product"
        for link in table.links:
            axes = [self.of(weight)[number(x)] for x in link.operands.get(place, ())]
            factors = [*chain(*axes)]
            if link.does != "apart":
                rows += factors
                kind = "lookup" if link.does == "lookup" else kind
            elif place in link.operands and (len(link.operands) == 1 or link.is_of_parts):
                columns += factors
                places.update(map(number, link.results[0]))
        product = Product(self.origin(weight), rows, columns, self.items(result), kind)
        self.products.append(product)
        self.columns[result] = frozenset(places)

    def _enter(self, equation: Any, body: InnerFunction) -> None:
        """Go through a function within. What a loop carries is as at its start before each turn."""
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
                inside.use("whole", inside.of(inner), inner)
            elif outer is not None:
                item = self._item(equation.outvars[outer.place], outer.steps)
                for axis, other in zip(inside.of(inner), item, strict=True):
                    unite(axis, other)

    def _item(self, variable: Any, steps: int) -> Axes:
        """Return the axes of an item along so many axes, which stay whole."""
        axes = self.of(variable)
        for axis in axes[:steps]:
            block(axis)
        return axes[steps:]

    def of(self, operand: Any) -> Axes:
        """Return the axes of a variable, or of a literal."""
        extents = getattr(operand.aval, "shape", ())
        if is_literal(operand):
            return [[Factor(n)] if n != 1 else [] for n in extents]
        if operand not in self.axes:
            self.axes[operand] = [[Factor(n)] if n != 1 else [] for n in extents]
        return self.axes[operand]

    def is_known(self, operand: Any) -> bool:
        """Tell whether an operand depends on parameters alone."""
        return is_literal(operand) or operand in self.origins

    def origin(self, operand: Any) -> frozenset[int]:
        """Return the places of the parameters that a known operand depends on."""
        return frozenset() if is_literal(operand) else self.origins[operand]

    def use(self, kind: Any, axes: Iterable[Axis], variable: Any) -> None:
        """Note a use of a variable that is computed in each call, at the cost of its items."""
        if self.is_known(variable):
            return
        factors = [factor for axis in axes for factor in axis]
        self.uses.append(Use(kind, factors, self.items(variable)))

    def items(self, variable: Any) -> int:
        """Return how many items a variable has, in all turns of a loop."""
        return math.prod(variable.aval.shape) * self.times
