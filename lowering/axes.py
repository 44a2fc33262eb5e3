"""The one table of axes, which sharding, batches and layouts ask: a row for each primitive.

Along a link's axes items stay apart: an item of a result is computed of the items at its place in
the operands that have the axis, and of all items of the others. A primitive that the table lacks is
opaque: whoever asks gives the safe answer.

Most rows follow from `facts`. A primitive that moves axes in a way of its own has a row below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from lowering.extents import runs_of
from lowering.facts import facts, named
from lowering.jaxprs import CONVOLUTION, PRODUCT, primitive


class AxisPart(NamedTuple):
    """A factor of an axis: of `extent` items, behind factors of `before` in all."""

    axis: int
    before: int
    extent: int


def number(axis: int | AxisPart) -> int:
    """Return the number of an axis, or of that of a part."""
    return axis.axis if isinstance(axis, AxisPart) else axis


Run = tuple[int | AxisPart, ...]  # axes, or parts of them, that follow one another


class AxisLink(NamedTuple):
    """Axes of operands and results, by place, that are one axis.

    Args:
        operands: the axes of the operands that have it.
        results: the axes of the results; none where its items end.
        does: what happens to items along it: they stay "apart", a result has their "sum" (or their
            product or maximum), or "lookup" chooses some of them by another operand.
    """

    operands: Mapping[int, Run]
    results: Mapping[int, Run] = {}
    does: Literal["apart", "sum", "lookup"] = "apart"

    @property
    def is_of_parts(self) -> bool:
        """Tell whether operands have it as a part of an axis, as groups of channels."""
        return any(isinstance(x, AxisPart) for run in self.operands.values() for x in run)

    def single(self) -> tuple[dict[int, int], dict[int, int]] | None:
        """Return the axes of operands and of results if each is one, and no part of one."""
        pair: list[dict[int, int]] = []
        for runs in (self.operands, self.results):
            axes = {i: run[0] for i, run in runs.items() if len(run) == 1}
            pair.append({i: axis for i, axis in axes.items() if not isinstance(axis, AxisPart)})
            if len(pair[-1]) < len(runs):
                return None
        return pair[0], pair[1]


class LinkedAxes(NamedTuple):
    """What an equation does to axes. Something else happens along axes that no link has.

    Args:
        links: the axes that go through it, or end in it.
        alike: axes of the first result along which all its items are the same, of any operands.
        weights: the places of operands by whose items those of others are multiplied, or chosen.
    """

    links: Sequence[AxisLink]
    alike: frozenset[int] = frozenset()
    weights: tuple[int, ...] = ()


UNLINKED = LinkedAxes(())
Row = Callable[[Any], LinkedAxes]
_ROWS: dict[str, Row] = {}


def axes_of(equation: Any) -> LinkedAxes | None:
    """Return the row of an equation: its linked axes, None where the table lacks its primitive."""
    row = _ROWS.get(name := primitive(equation))
    if row is not None:
        return row(equation)
    fact = facts(equation)
    if fact.by_item:
        return _same(equation, repeats=True)
    if fact.removes:
        return _removed(equation, fact.removes, is_sum=fact.reduces and not name.startswith("arg"))
    if fact.along:
        return _same(equation, [equation.params[fact.along]])
    if fact.across:
        return _same(equation, equation.params[fact.across])
    return _same(equation, _touched(equation, fact.per_axis)) if fact.per_axis else None


def is_listed(name: str) -> bool:
    """Tell whether the table has a primitive."""
    fact = named(name)
    return name in _ROWS or bool(fact.removes or fact.keeps_axes)


def _row(*primitives: str) -> Callable[[Row], Row]:
    def register(row: Row) -> Row:
        _ROWS.update(dict.fromkeys(primitives, row))
        return row

    return register


def _shape(variable: Any) -> Sequence[Any]:
    return getattr(variable.aval, "shape", ())


def _one(
    operands: Mapping[int, int], results: Mapping[int, int] | None = None, does: Any = "apart"
) -> AxisLink:
    """Return the link of single axes."""
    ends = {place: (axis,) for place, axis in (results or {}).items()}
    return AxisLink({place: (axis,) for place, axis in operands.items()}, ends, does)


def _shared(
    operands: Iterable[int], axis: int, results: Iterable[int] = (), end: int = 0, **does: Any
) -> AxisLink:
    """Return the link of an axis that several operands have, and several results."""
    return _one({i: axis for i in operands}, {i: end for i in results}, **does)


def _same(equation: Any, touched: Iterable[int] = (), *, repeats: bool = False) -> LinkedAxes:
    """Link axes of the same number in operands and results of the same rank, if extents are equal.

    Items of operands of extent 1 may repeat.
    """
    links: list[AxisLink] = []
    rank = len(_shape(equation.outvars[0]))
    operands = [(i, _shape(v)) for i, v in enumerate(equation.invars) if len(_shape(v)) == rank]
    for axis in {*range(rank)} - {*touched}:
        (extent, *extents) = [_shape(v)[axis] for v in equation.outvars]
        sharing = [i for i, shape in operands if shape[axis] == extent]
        is_linked = len(sharing) == len(operands) or (
            repeats and all(shape[axis] in (1, extent) for _, shape in operands)
        )
        if is_linked and all(n == extent for n in extents):
            links.append(_shared(sharing, axis, range(1 + len(extents)), axis))
    return LinkedAxes(links)


def _removed(equation: Any, name: str, *, is_sum: bool) -> LinkedAxes:
    """Link the axes that stay, each with its number after those before it are gone."""
    removed = equation.params[name]
    left = [i for i in range(len(_shape(equation.invars[0]))) if i not in removed]
    results = range(len(equation.outvars))
    operands = [i for i, v in enumerate(equation.invars) if _shape(v)]
    links = [_shared(operands, i, results, j) for j, i in enumerate(left)]
    links += [_shared(operands, i, does="sum") for i in removed if is_sum]
    return LinkedAxes(links)


def _touched(equation: Any, per_axis: Mapping[str, Any]) -> set[int]:
    """Return the axes for which a parameter's entry changes something."""
    return {
        axis
        for name, neutral in per_axis.items()
        if neutral is not None and equation.params[name] is not None
        for axis, entry in enumerate(equation.params[name])
        if entry != neutral
    }


@_row("optimization_barrier")
def _barrier(equation: Any) -> LinkedAxes:
    pairs = enumerate(equation.invars)
    return LinkedAxes([_one({i: a}, {i: a}) for i, v in pairs for a in range(len(_shape(v)))])


@_row("transpose")
def _transpose(equation: Any) -> LinkedAxes:
    return LinkedAxes([_one({0: i}, {0: j}) for j, i in enumerate(equation.params["permutation"])])


@_row("broadcast_in_dim")
def _broadcast(equation: Any) -> LinkedAxes:
    """Link axes that keep their extent; along all others items are alike."""
    extents = _shape(equation.outvars[0])
    pairs = zip(equation.params["broadcast_dimensions"], _shape(equation.invars[0]), strict=True)
    places = {i: j for i, (j, n) in enumerate(pairs) if n == extents[j]}
    alike = frozenset(range(len(extents))) - {*places.values()}
    return LinkedAxes([_one({0: i}, {0: j}) for i, j in places.items()], alike)


@_row("reshape", "expand_dims")
def _reshape(equation: Any) -> LinkedAxes:
    if equation.params.get("dimensions") is not None:
        return UNLINKED
    shapes = _shape(equation.invars[0]), _shape(equation.outvars[0])
    links: list[AxisLink] = []
    for runs in runs_of(*shapes) or ():
        if max(map(len, runs)) > 1:  # beside others an axis of one item makes no difference
            runs = [tuple(i for i in x if n[i] != 1) for x, n in zip(runs, shapes, strict=True)]
        old, new = runs
        links.append(AxisLink({0: old}, {0: new}))
    return LinkedAxes(links)


@_row("stack")
def _stack(equation: Any) -> LinkedAxes:
    operands, axis = range(len(equation.invars)), equation.params["axis"]
    places = [j for j in range(len(_shape(equation.outvars[0]))) if j != axis]
    return LinkedAxes([_shared(operands, i, [0], j) for i, j in enumerate(places)])


@_row("unstack")
def _unstack(equation: Any) -> LinkedAxes:
    results, axis = range(len(equation.outvars)), equation.params["axis"]
    places = [i for i in range(len(_shape(equation.invars[0]))) if i != axis]
    return LinkedAxes([_shared([0], i, results, j) for j, i in enumerate(places)])


@_row("slice", "split")
def _slice(equation: Any) -> LinkedAxes:
    """Link axes of which all is taken, and a part of others to the factors that it has."""
    links: list[AxisLink] = []
    for place, starts in enumerate(cuts(equation)):
        extents, sizes = _shape(equation.invars[0]), _shape(equation.outvars[place])
        for i, (start, extent, size) in enumerate(zip(starts, extents, sizes, strict=True)):
            if start is None or size == 0 or extent % size or start % size:
                continue
            part = i if size == extent else AxisPart(i, extent // size, size)
            links.append(AxisLink({0: (part,)}, {place: (i,)}))
    return LinkedAxes(links)


def cuts(equation: Any) -> list[list[int | None]]:
    """Return where each result of a slice or split starts along each axis, None with strides."""
    params, rank = equation.params, len(_shape(equation.invars[0]))
    if primitive(equation) == "slice":
        strides = params["strides"] or (1,) * rank
        pairs = zip(params["start_indices"], strides, strict=True)
        return [[start if stride == 1 else None for start, stride in pairs]]
    starts = [sum(params["sizes"][:i]) for i in range(len(params["sizes"]))]
    return [[start if i == params["axis"] else 0 for i in range(rank)] for start in starts]


@_row("top_k")
def _top_k(equation: Any) -> LinkedAxes:
    axis = equation.params.get("axis", -1)
    return _same(equation, [axis % len(_shape(equation.invars[0]))])


@_row("tile")
def _tile(equation: Any) -> LinkedAxes:
    repeats = equation.params["reps"]
    pairs = enumerate(zip(repeats, _shape(equation.invars[0]), strict=True))
    alike = frozenset(i for i, (count, n) in pairs if n == 1 and count != 1)
    return LinkedAxes(_same(equation, [i for i, n in enumerate(repeats) if n != 1]).links, alike)


@_row("iota")
def _iota(equation: Any) -> LinkedAxes:
    axes = frozenset(range(len(_shape(equation.outvars[0]))))
    return LinkedAxes((), axes - {equation.params["dimension"]})


@_row("dynamic_slice", "dynamic_update_slice", "name", "sharding_constraint")
def _unchanged(equation: Any) -> LinkedAxes:
    return _same(equation)  # a slice that keeps an extent starts at 0


def _products(
    equation: Any, numbers: Any, mixed: Sequence[int] = (), groups: Sequence[int] = ()
) -> list[AxisLink]:
    """Return the links of a product: its batch, free axes of both operands, and sums.

    Free axes of the left operand that are `mixed` have a place in the result but no link. The
    result does not have the axes of the right operand that are `groups`.
    """
    sums, batches = numbers
    links = [_one({0: i, 1: j}, {0: k}) for k, (i, j) in enumerate(zip(*batches, strict=True))]
    place = len(links)
    for k, v in enumerate(equation.invars[:2]):
        for i in range(len(_shape(v))):
            if i in (*sums[k], *batches[k]) or (k == 1 and i in groups):
                continue
            if k == 1 or i not in mixed:
                links.append(_one({k: i}, {0: place}))
            place += 1
    return [*links, *(_one({0: i, 1: j}, does="sum") for i, j in zip(*sums, strict=True))]


@_row(PRODUCT)
def _dot(equation: Any) -> LinkedAxes:
    return LinkedAxes(_products(equation, equation.params["dimension_numbers"]), weights=(0, 1))


@_row("ragged_dot_general")
def _ragged_dot(equation: Any) -> LinkedAxes:
    """Link axes of a product whose rows are in groups: the number of a row tells its matrix."""
    ragged = equation.params["ragged_dot_dimension_numbers"]
    numbers, rows = ragged.dot_dimension_numbers, ragged.lhs_ragged_dimensions
    (sums, _), (batch, _) = numbers
    if not {*rows}.isdisjoint((*sums, *batch)) or len(_shape(equation.invars[2])) > 1:
        return UNLINKED  # sizes of groups may be an item's own
    links = _products(equation, numbers, rows, ragged.rhs_group_dimensions)
    return LinkedAxes(links, weights=(1,))


@_row(CONVOLUTION)
def _convolution(equation: Any) -> LinkedAxes:
    """Link items and channels; of groups the group alone, within which channels meet."""
    params, numbers = equation.params, equation.params["dimension_numbers"]
    items, channels, *_ = numbers.lhs_spec
    outputs, inputs, *_ = numbers.rhs_spec
    batch, produced, *_ = numbers.out_spec
    if params["batch_group_count"] != 1:
        return UNLINKED
    links, groups = [_one({0: items}, {0: batch})], params["feature_group_count"]
    if groups > 1:
        parts = (AxisPart(x, 1, groups) for x in (channels, outputs, produced))
        x, filters, y = ((part,) for part in parts)
        return LinkedAxes([*links, AxisLink({0: x, 1: filters}, {0: y})], weights=(1,))
    links += [_one({1: outputs}, {0: produced}), _one({0: channels, 1: inputs}, does="sum")]
    return LinkedAxes(links, weights=(1,))


@_row("gather")
def _gather(equation: Any) -> LinkedAxes:
    """Link axes that are taken whole, and those of indices; a lookup is along one axis."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    table, result = _shape(equation.invars[0]), _shape(equation.outvars[0])
    collapsed, batched = numbers.collapsed_slice_dims, numbers.operand_batching_dims
    window = [i for i in range(len(table)) if i not in (*collapsed, *batched)]
    pairs = zip(window, numbers.offset_dims, strict=True)
    links = [_one({0: i}, {0: j}) for i, j in pairs if sizes[i] == table[i]]
    rows = [j for j in range(len(result)) if j not in numbers.offset_dims]
    beside = dict(zip(numbers.start_indices_batching_dims, batched, strict=True))
    for i, j in enumerate(rows):  # the last axis of indices has numbers of one item
        links.append(_one({1: i} | ({0: beside[i]} if i in beside else {}), {0: j}))
    if len(collapsed) != 1 or batched or numbers.start_index_map != collapsed:
        return LinkedAxes(links)
    return LinkedAxes([*links, _one({0: collapsed[0]}, does="lookup")], weights=(0,))


@_row("scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub")
def _scatter(equation: Any) -> LinkedAxes:
    """Link axes that updates have whole, and those of a batch."""
    numbers = equation.params["dimension_numbers"]
    target, _, updates = map(_shape, equation.invars)
    batched = numbers.operand_batching_dims
    gone = (*numbers.inserted_window_dims, *batched)
    window = [i for i in range(len(target)) if i not in gone]
    pairs = zip(window, numbers.update_window_dims, strict=True)
    links = [_one({0: i, 2: j}, {0: i}) for i, j in pairs if target[i] == updates[j]]
    rows = [j for j in range(len(updates)) if j not in numbers.update_window_dims]
    for i, j in zip(batched, numbers.scatter_indices_batching_dims, strict=True):
        links.append(_one({0: i, 1: j, 2: rows[j]}, {0: i}))
    return LinkedAxes(links)


@_row("reduce")
def _reduce(equation: Any) -> LinkedAxes:
    return _removed(equation, "dimensions", is_sum=False)


@_row("cholesky", "eigh", "fft", "geqrf", "householder_product", "lu", "svd", "triangular_solve")
def _leading(equation: Any) -> LinkedAxes:
    """Link leading axes: those before the axes of a matrix, or of a Fourier transform."""
    count = len(equation.params.get("fft_lengths", (0, 0)))
    operands, results = range(len(equation.invars)), range(len(equation.outvars))
    axes = range(max(map(len, map(_shape, equation.invars))) - count)
    return LinkedAxes([_shared(operands, i, results, i) for i in axes])
