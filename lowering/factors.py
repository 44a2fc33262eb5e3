"""Follows axes through a program: each is a product of factors, which several variables share.

An axis of 3 * h * d columns has the factor h although it is reshaped, transposed and cut before
heads are apart. What two axes have in common is found by lining up their factors from the left,
which divides factors further: a matrix of 96 columns learns from the reshape behind it that they
are 3 * 4 * 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from lowering import jaxprs
from lowering.facts import facts
from lowering.jaxprs import CONVOLUTION, PRODUCT, SCAN, is_literal
from lowering.program import Program, Rules

_CALLS = ("custom_jvp_call", "custom_vjp_call")


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
    found: list[Factor] = []
    rest = [*axis][::-1]
    while rest:
        factor = rest.pop()
        if factor.parts:
            rest += reversed(factor.parts)
        else:
            found.append(factor)
    return found


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

    `uses` and `products` are those of the loops within it too, which are `bodies`.
    """

    def __init__(self, program: Program, outer: FactorWalk | None = None, times: int = 1) -> None:
        self.program = program
        self.axes: dict[Any, Axes] = {}
        self.bodies: dict[int, FactorWalk] = {}  # by the identity of the equation
        self.uses: list[Use] = outer.uses if outer else []
        self.products: list[Product] = outer.products if outer else []
        self.times = times
        self.columns: dict[Any, frozenset[int]] = {}  # axes of the results of products
        # Of variables that depend on parameters alone, on which ones.
        self.origins = dict[Any, frozenset[int]]()
        if outer is None:
            own = program.arguments[: program.parameters]
            self.origins.update((v, frozenset([i])) for i, v in enumerate(own))

    def through(self) -> FactorWalk:
        """Follow all equations, in order."""
        self.origins.update(dict.fromkeys(self.program.constants, frozenset[int]()))
        for equation in self.program.equations:
            if all(map(self.is_known, equation.invars)) and not equation.effects:
                own = frozenset[int]().union(*map(self.origin, equation.invars))
                self.origins.update(dict.fromkeys(equation.outvars, own))
            rule = RULES.of(equation) or opaque
            rule(self, equation)
        return self

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

    def take(self, inner: Any, outer: FactorWalk, operand: Any) -> None:
        """Make a variable the same as an operand of the program around."""
        self.axes[inner] = outer.of(operand)
        if outer.is_known(operand):
            self.origins[inner] = outer.origin(operand)

    def use(self, kind: Any, axes: Iterable[Axis], variable: Any) -> None:
        """Note a use of a variable that is computed in each call, at the cost of its items."""
        if self.is_known(variable):
            return
        factors = [factor for axis in axes for factor in axis]
        self.uses.append(Use(kind, factors, self.items(variable)))

    def items(self, variable: Any) -> int:
        """Return how many items a variable has, in all turns of a loop."""
        return math.prod(variable.aval.shape) * self.times

    def multiply(
        self,
        weight: Any,
        rows: Iterable[int],
        columns: Mapping[int, int],
        result: Any,
        kind: Literal["product", "lookup"] = "product",
    ) -> None:
        """Note a product, given axes of an operand that depends on parameters alone.

        Columns are axes of the result too.
        """
        if self.is_known(weight) and not self.is_known(result):
            axes = self.of(weight)
            own, beside = ([f for i in places for f in axes[i]] for places in (rows, columns))
            found = Product(self.origin(weight), own, beside, self.items(result), kind)
            self.products.append(found)
            self.columns[result] = frozenset(columns.values())


RULES = Rules()


def opaque(walk: FactorWalk, equation: Any) -> None:
    """Say nothing of the results, and keep all operands whole."""
    for operand in equation.invars:
        for axis in walk.of(operand):
            block(axis)


def _pair(walk: FactorWalk, left: Any, right: Any, pairs: Iterable[tuple[int, int]]) -> None:
    """Make axes of two variables the same, and keep others of the first whole."""
    one, other = walk.of(left), walk.of(right)
    paired = {i: j for i, j in pairs if left.aval.shape[i] == right.aval.shape[j]}
    for i, axis in enumerate(one):
        if i in paired:
            unite(axis, other[paired[i]])
        else:
            block(axis)


@RULES(by_item=True)
def _by_item(walk: FactorWalk, equation: Any) -> None:
    for result in equation.outvars:
        for operand in equation.invars:
            rank = len(operand.aval.shape)
            if rank == len(result.aval.shape):
                _pair(walk, operand, result, ((i, i) for i in range(rank)))


@RULES("optimization_barrier")
def _barrier(walk: FactorWalk, equation: Any) -> None:
    for operand, result in zip(equation.invars, equation.outvars, strict=True):
        _pair(walk, operand, result, ((i, i) for i in range(len(operand.aval.shape))))


@RULES("reshape", "squeeze", "expand_dims")
def _reshape(walk: FactorWalk, equation: Any) -> None:
    operand, result = equation.invars[0], equation.outvars[0]
    one, other = ([f for axis in walk.of(v) for f in axis] for v in (operand, result))
    unite(one, other)


@RULES("transpose")
def _transpose(walk: FactorWalk, equation: Any) -> None:
    order = equation.params["permutation"]
    _pair(walk, equation.invars[0], equation.outvars[0], ((j, i) for i, j in enumerate(order)))


@RULES("broadcast_in_dim")
def _broadcast(walk: FactorWalk, equation: Any) -> None:
    axes = equation.params["broadcast_dimensions"]
    _pair(walk, equation.invars[0], equation.outvars[0], enumerate(axes))


@RULES(reduces=True)
def _reduce(walk: FactorWalk, equation: Any) -> None:
    """Sum, or the like, over axes."""
    known, (operand, result) = facts(equation), (equation.invars[0], equation.outvars[0])
    if not known.removes:
        (_along if known.per_axis or known.along else opaque)(walk, equation)
        return
    removed = equation.params[known.removes]
    kept = [i for i in range(len(operand.aval.shape)) if i not in removed]
    axes = walk.of(operand)
    if jaxprs.primitive(equation).startswith("arg"):
        for i in removed:
            block(axes[i])
    walk.use("sum", [axes[i] for i in removed], result)
    for i, j in zip(kept, range(len(kept)), strict=True):
        unite(axes[i], walk.of(result)[j])


@RULES("concatenate", "pad", "rev", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
@RULES("dynamic_slice", "dynamic_update_slice", "select_and_scatter_add", "tile")
def _along(walk: FactorWalk, equation: Any) -> None:
    """Pass on the axes along which nothing happens."""
    known, params = facts(equation), equation.params
    touched = {params[known.along]} if known.along else {*params.get("dimensions", ())}
    for name, neutral in known.per_axis.items():
        if neutral is not None:
            touched |= {i for i, x in enumerate(params[name]) if x != neutral}
    for result in equation.outvars:
        for operand in equation.invars:
            shape = operand.aval.shape
            if shape and len(shape) == len(result.aval.shape):
                _pair(
                    walk, operand, result, ((i, i) for i in range(len(shape)) if i not in touched)
                )
        for i in touched:
            block(walk.of(result)[i])


@RULES("stack")
def _stack(walk: FactorWalk, equation: Any) -> None:
    (result,), new = equation.outvars, equation.params["axis"]
    others = [i for i in range(len(result.aval.shape)) if i != new]
    for operand in equation.invars:
        _pair(walk, operand, result, enumerate(others))
    block(walk.of(result)[new])


@RULES("slice", "split")
def _slice(walk: FactorWalk, equation: Any) -> None:
    """Cut an axis into equal parts: its last factors are those of a part."""
    operand = equation.invars[0]
    for result, starts in zip(equation.outvars, cuts(equation), strict=True):
        for i, start in enumerate(starts):
            axis, part = walk.of(operand)[i], walk.of(result)[i]
            extent, size = operand.aval.shape[i], result.aval.shape[i]
            if start is None or size == 0 or extent % size or start % size:
                block(axis)
            else:
                count = [Factor(extent // size, is_blocked=True)] if size < extent else []
                unite([*count, *part] if size > 1 else count, axis)


def cuts(equation: Any) -> list[list[int | None]]:
    """Return where each result of a slice or split starts along each axis, None with strides."""
    params, rank = equation.params, len(equation.invars[0].aval.shape)
    if jaxprs.primitive(equation) == "slice":
        strides = params["strides"] or (1,) * rank
        pairs = zip(params["start_indices"], strides, strict=True)
        return [[start if stride == 1 else None for start, stride in pairs]]
    starts = [sum(params["sizes"][:i]) for i in range(len(params["sizes"]))]
    return [[start if i == params["axis"] else 0 for i in range(rank)] for start in starts]


@RULES(PRODUCT)
def _dot(walk: FactorWalk, equation: Any) -> None:
    (left, right), (result,) = equation.invars, equation.outvars
    (summed, batch) = equation.params["dimension_numbers"]
    axes, out = (walk.of(left), walk.of(right)), walk.of(result)
    for i, j in zip(*summed, strict=True):
        unite(axes[0][i], axes[1][j])
    for k, (i, j) in enumerate(zip(*batch, strict=True)):
        unite(axes[0][i], out[k])
        unite(axes[1][j], out[k])
    free = [[i for i in range(len(axes[k])) if i not in (*summed[k], *batch[k])] for k in (0, 1)]
    walk.use("sum", [axes[0][i] for i in summed[0]], result)
    places = iter(range(len(batch[0]), len(out)))
    for k, operand in enumerate(equation.invars):
        columns = dict(zip(free[k], places, strict=False))
        for i, j in columns.items():
            unite(axes[k][i], out[j])
        walk.multiply(operand, summed[k], columns, result)


@RULES(CONVOLUTION)
def _convolve(walk: FactorWalk, equation: Any) -> None:
    """Follow items and channels, or groups of them, within which all is whole."""
    (left, right), (result,), params = equation.invars, equation.outvars, equation.params
    batch, channel, *space = params["dimension_numbers"].lhs_spec
    outputs, inputs, *window = params["dimension_numbers"].rhs_spec
    items, produced, *positions = params["dimension_numbers"].out_spec
    x, w, y = walk.of(left), walk.of(right), walk.of(result)
    for axes, found in ((x, space), (w, window), (y, positions)):
        for i in found:
            block(axes[i])
    if params["batch_group_count"] != 1:
        opaque(walk, equation)
        return
    groups = params["feature_group_count"]
    shared = [Factor(groups)] if groups > 1 else []
    each = right.aval.shape[outputs] // groups
    unite(x[batch], y[items])
    if shared:
        block(w[inputs])
    unite([*shared, *w[inputs]], x[channel])
    unite([*shared, *([Factor(each, is_blocked=bool(shared))] if each > 1 else [])], w[outputs])
    unite(w[outputs], y[produced])
    walk.use("sum", [w[inputs]], result)
    walk.multiply(right, [inputs], {outputs: produced}, result)


@RULES("gather")
def _gather(walk: FactorWalk, equation: Any) -> None:
    """Look up along one axis, or else say nothing of it."""
    (table, indices), (result,), params = equation.invars, equation.outvars, equation.params
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    axes, out = walk.of(table), walk.of(result)
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    kept = [i for i in range(len(axes)) if i not in gone]
    for i, j in zip(kept, numbers.offset_dims, strict=True):
        if sizes[i] == table.aval.shape[i]:
            unite(axes[i], out[j])
        else:
            block(axes[i])
    rest = [j for j in range(len(out)) if j not in numbers.offset_dims]
    _pair(walk, indices, result, enumerate(rest))
    if len(gone) == 1 and numbers.start_index_map == numbers.collapsed_slice_dims:
        walk.use("lookup", [axes[gone[0]]], result)
        columns = dict(zip(kept, numbers.offset_dims, strict=True))
        walk.multiply(table, gone, columns, result, "lookup")
    else:
        for i in gone:
            block(axes[i])


@RULES(*_CALLS)
def _call(walk: FactorWalk, equation: Any) -> None:
    """Go through a function that has derivatives of its own."""
    closed = jaxprs.inner(equation)[0]
    inside = FactorWalk(Program(jaxprs.inlined(closed)), walk, walk.times)
    for inner, operand in zip(inside.program.arguments, equation.invars, strict=True):
        inside.take(inner, walk, operand)
    inside.through()
    for result, inner in zip(equation.outvars, inside.program.results, strict=True):
        for axis, other in zip(walk.of(result), inside.of(inner), strict=True):
            unite(other, axis)


@RULES(SCAN)
def _scan(walk: FactorWalk, equation: Any) -> None:
    """Go through the body of a loop. What it carries is as at its start before each turn."""
    times = walk.times * equation.params["length"]
    inside = walk.bodies[id(equation)] = FactorWalk(walk.program.body(equation), walk, times)
    constants, start, stacks = jaxprs.scan_parts(equation, equation.invars)
    given, before, items = jaxprs.scan_parts(equation, inside.program.arguments)
    for inner, outer in zip(given, constants, strict=True):
        inside.take(inner, walk, outer)
    for inner, outer in zip(before, start, strict=True):
        inside.axes[inner] = walk.of(outer)
    for inner, outer in zip(items, stacks, strict=True):
        first, *inside.axes[inner] = walk.of(outer)
        block(first)
    inside.through()
    for i, (inner, outer) in enumerate(zip(inside.program.results, equation.outvars, strict=True)):
        if i < len(start):
            inside.use("whole", inside.of(inner), inner)
            continue
        first, *others = walk.of(outer)
        block(first)
        for axis, other in zip(inside.of(inner), others, strict=True):
            unite(axis, other)
