"""The table of axes: which axes of a primitive's operands become which axes of its results.

Sharding, batch sizes and layouts are derived from this table, which has a row for each primitive. A
row lists links. A link joins axes of operands and of results along which items stay apart: an item
of a result at index i of such an axis depends, in each operand that has the axis, only on the items
at index i. The item may depend on all items of those operands that lack the axis. If a primitive
has no row, an item of its results may depend on any item of any operand.

Most rows follow from the facts in `lowering.facts`. Each other primitive has a function below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from lowering.axis_links import UNLINKED, AxisLink, AxisPart, LinkedAxes, LinkKind
from lowering.extents import runs_of
from lowering.facts import facts, facts_of_name
from lowering.jaxpr_types import Atom, Equation
from lowering.jaxprs import CONVOLUTION, PRODUCT, primitive

Pair = tuple[Sequence[int], Sequence[int]]  # axes of the left and of the right operand
# The dimension numbers of a dot_general: the pair of summed axes, and the pair of batch axes.
ProductNumbers = tuple[Pair, Pair]

Row = Callable[[Equation], LinkedAxes]
_ROWS: dict[str, Row] = {}


def axes_of(equation: Equation) -> LinkedAxes | None:
    """Return the linked axes of an equation, or None if nothing is known about its primitive."""
    name = primitive(equation)
    row = _ROWS.get(name)
    if row is not None:
        return row(equation)
    fact = facts(equation)
    if fact.by_item:
        return _same(equation, repeats=True)
    if fact.removes:
        is_sum = fact.reduces and not name.startswith("arg")
        return _removed(equation, fact.removes, is_sum=is_sum)
    if fact.along:
        return _same(equation, [equation.params[fact.along]])
    if fact.across:
        return _same(equation, equation.params[fact.across])
    if fact.per_axis:
        return _same(equation, _touched(equation, fact.per_axis))
    return None


def is_listed(name: str) -> bool:
    """Tell whether `axes_of` knows the linked axes of a primitive, which is given by its name."""
    fact = facts_of_name(name)
    return name in _ROWS or bool(fact.removes or fact.keeps_axes)


def _row(*primitives: str) -> Callable[[Row], Row]:
    """Return a decorator that registers a function as the row of primitives, given by name."""

    def register(row: Row) -> Row:
        _ROWS.update(dict.fromkeys(primitives, row))
        return row

    return register


def _shape(operand: Atom) -> tuple[int, ...]:
    return getattr(operand.aval, "shape", ())


def _link(
    operands: Mapping[int, int], results: Mapping[int, int] | None = None, kind: LinkKind = "apart"
) -> AxisLink:
    """Return a link of one axis of each operand with one axis of each result.

    `operands` and `results` map the index of an operand or result to its axis.
    """
    operand_runs = {index: (axis,) for index, axis in operands.items()}
    result_runs = {index: (axis,) for index, axis in (results or {}).items()}
    return AxisLink(operand_runs, result_runs, kind)


def _shared(
    operands: Iterable[int],
    axis: int,
    results: Iterable[int] = (),
    result_axis: int = 0,
    kind: LinkKind = "apart",
) -> AxisLink:
    """Return a link of the axis `axis` of all operands with the axis `result_axis` of all results.

    `operands` and `results` have the indices of operands and results.
    """
    return _link(dict.fromkeys(operands, axis), dict.fromkeys(results, result_axis), kind)


def _same(equation: Equation, touched: Iterable[int] = (), *, repeats: bool = False) -> LinkedAxes:
    """Link axis i of all results with axis i of the operands that have the rank of the results.

    An axis gets a link only if all results and all these operands have the same extent along
    the axis. If `repeats` is true, an operand may have the extent 1 instead, since its item is
    repeated. Such an operand is left out of the link. Axes in `touched` get no link.
    """
    links: list[AxisLink] = []
    rank = len(_shape(equation.outvars[0]))
    results = range(len(equation.outvars))
    operands = [i for i, v in enumerate(equation.invars) if len(_shape(v)) == rank]
    for axis in {*range(rank)} - {*touched}:
        result_extents = {_shape(v)[axis] for v in equation.outvars}
        if len(result_extents) > 1:
            continue
        (extent,) = result_extents
        equal: list[int] = []
        other_extents: set[int] = set()
        for i in operands:
            operand_extent = _shape(equation.invars[i])[axis]
            if operand_extent == extent:
                equal.append(i)
            else:
                other_extents.add(operand_extent)
        are_others_repeated = repeats and all(n == 1 for n in other_extents)
        if not other_extents or are_others_repeated:
            links.append(_shared(equal, axis, results, axis))
    return LinkedAxes(links)


def _removed(equation: Equation, name: str, *, is_sum: bool) -> LinkedAxes:
    """Link the axes that the results of an equation keep.

    `name` is the parameter of the equation that lists the removed axes. If `is_sum` is true,
    these axes are linked too, as sums.
    """
    removed_axes = equation.params[name]
    operands = [i for i, v in enumerate(equation.invars) if _shape(v)]
    results = range(len(equation.outvars))
    links: list[AxisLink] = []
    result_axis = 0
    for axis in range(len(_shape(equation.invars[0]))):
        if axis not in removed_axes:
            links.append(_shared(operands, axis, results, result_axis))
            result_axis += 1
    if is_sum:
        links += [_shared(operands, axis, kind="sum") for axis in removed_axes]
    return LinkedAxes(links)


def _touched(equation: Equation, per_axis: Mapping[str, object]) -> set[int]:
    """Return the axes along which a parameter in `per_axis` changes something.

    `per_axis` is the map of `Facts.per_axis`. A parameter changes nothing along an axis if its
    entry for the axis is the neutral entry in the map. Parameters without a neutral entry are
    ignored.
    """
    touched: set[int] = set()
    for name, neutral in per_axis.items():
        entries = equation.params[name]
        if neutral is not None and entries is not None:
            touched.update(axis for axis, entry in enumerate(entries) if entry != neutral)
    return touched


@_row("optimization_barrier")
def _barrier(equation: Equation) -> LinkedAxes:
    """Link each axis of each operand with this axis of the result at the operand's index."""
    links: list[AxisLink] = []
    for i, operand in enumerate(equation.invars):
        links += [_link({i: axis}, {i: axis}) for axis in range(len(_shape(operand)))]
    return LinkedAxes(links)


@_row("transpose")
def _transpose(equation: Equation) -> LinkedAxes:
    links: list[AxisLink] = []
    for result_axis, operand_axis in enumerate(equation.params["permutation"]):
        links.append(_link({0: operand_axis}, {0: result_axis}))
    return LinkedAxes(links)


@_row("broadcast_in_dim")
def _broadcast(equation: Equation) -> LinkedAxes:
    """Link the axes that keep their extent. Along the other axes of the result, items are equal."""
    result_shape = _shape(equation.outvars[0])
    result_axes = equation.params["broadcast_dimensions"]
    links: list[AxisLink] = []
    linked: set[int] = set()
    for axis, extent in enumerate(_shape(equation.invars[0])):
        result_axis = result_axes[axis]
        if extent == result_shape[result_axis]:
            links.append(_link({0: axis}, {0: result_axis}))
            linked.add(result_axis)
    return LinkedAxes(links, frozenset(range(len(result_shape))) - linked)


@_row("reshape", "expand_dims")
def _reshape(equation: Equation) -> LinkedAxes:
    if equation.params.get("dimensions") is not None:
        return UNLINKED
    before = _shape(equation.invars[0])
    after = _shape(equation.outvars[0])
    links: list[AxisLink] = []
    for operand_run, result_run in runs_of(before, after) or ():
        if max(len(operand_run), len(result_run)) == 1:
            links.append(AxisLink({0: operand_run}, {0: result_run}))
        else:
            # Leave out axes of extent 1.
            long_operand_run = tuple(axis for axis in operand_run if before[axis] != 1)
            long_result_run = tuple(axis for axis in result_run if after[axis] != 1)
            links.append(AxisLink({0: long_operand_run}, {0: long_result_run}))
    return LinkedAxes(links)


@_row("stack")
def _stack(equation: Equation) -> LinkedAxes:
    """Link each axis of the operands with the axis of the result that comes from it."""
    operands = range(len(equation.invars))
    new_axis = equation.params["axis"]
    links: list[AxisLink] = []
    for axis in range(len(_shape(equation.invars[0]))):
        result_axis = axis if axis < new_axis else axis + 1
        links.append(_shared(operands, axis, [0], result_axis))
    return LinkedAxes(links)


@_row("unstack")
def _unstack(equation: Equation) -> LinkedAxes:
    """Link each axis of the operand, except the removed one, with the axis of all results."""
    results = range(len(equation.outvars))
    removed_axis = equation.params["axis"]
    links: list[AxisLink] = []
    for result_axis in range(len(_shape(equation.outvars[0]))):
        axis = result_axis if result_axis < removed_axis else result_axis + 1
        links.append(_shared([0], axis, results, result_axis))
    return LinkedAxes(links)


@_row("slice", "split")
def _slice(equation: Equation) -> LinkedAxes:
    """Link axes that a slice takes whole, or of which it takes one of several equal blocks.

    For example, items 32 to 63 of 96 are the second of three blocks. The extent 96 is then 3 * 32,
    and the link has the factor 32 as a part of the operand's axis.
    """
    links: list[AxisLink] = []
    extents = _shape(equation.invars[0])
    for index, starts in enumerate(cuts(equation)):
        sizes = _shape(equation.outvars[index])
        for axis, (start, extent, size) in enumerate(zip(starts, extents, sizes, strict=True)):
            if start is None or size == 0:
                continue
            if extent % size or start % size:
                continue
            part = axis if size == extent else AxisPart(axis, extent // size, size)
            links.append(AxisLink({0: (part,)}, {index: (axis,)}))
    return LinkedAxes(links)


def cuts(equation: Equation) -> list[list[int | None]]:
    """Return, for each result of a slice or split, its first index along each axis.

    The index is None for an axis along which the slice has a stride.
    """
    params = equation.params
    rank = len(_shape(equation.invars[0]))
    if primitive(equation) == "slice":
        slice_starts: list[int | None] = list(params["start_indices"])
        for axis, stride in enumerate(params["strides"] or ()):
            if stride != 1:
                slice_starts[axis] = None
        return [slice_starts]
    starts_of_results: list[list[int | None]] = []
    start = 0
    for size in params["sizes"]:
        starts: list[int | None] = [0] * rank
        starts[params["axis"]] = start
        starts_of_results.append(starts)
        start += size
    return starts_of_results


@_row("top_k")
def _top_k(equation: Equation) -> LinkedAxes:
    """Link all axes except the axis along which the largest items are selected."""
    rank = len(_shape(equation.invars[0]))
    selected_axis = equation.params.get("axis", -1) % rank
    return _same(equation, [selected_axis])


@_row("tile")
def _tile(equation: Equation) -> LinkedAxes:
    """Link axes that are not repeated. Along a repeated axis of extent 1, items are equal."""
    repeated = [axis for axis, count in enumerate(equation.params["reps"]) if count != 1]
    extents = _shape(equation.invars[0])
    constant_axes = frozenset(axis for axis in repeated if extents[axis] == 1)
    return LinkedAxes(_same(equation, repeated).links, constant_axes)


@_row("iota")
def _iota(equation: Equation) -> LinkedAxes:
    """Return no links. Items are equal along all axes except the one along which they count."""
    axes = frozenset(range(len(_shape(equation.outvars[0]))))
    return LinkedAxes((), axes - {equation.params["dimension"]})


@_row("dynamic_slice", "dynamic_update_slice", "name", "sharding_constraint")
def _unchanged(equation: Equation) -> LinkedAxes:
    return _same(equation)  # a dynamic slice that keeps an extent starts at 0


def _products(
    equation: Equation,
    numbers: ProductNumbers,
    mixed: Sequence[int] = (),
    groups: Sequence[int] = (),
) -> list[AxisLink]:
    """Return the links of a product: of batch axes, of free axes, and of summed axes.

    A free axis is an axis that only one of the operands has.

    Args:
        equation: a dot_general or ragged_dot_general.
        numbers: the dimension numbers of the equation.
        mixed: free axes of the left operand that get no link, since items do not stay apart
            along them.
        groups: axes of the right operand that the result lacks.
    """
    (left_sums, right_sums), (left_batch, right_batch) = numbers
    links: list[AxisLink] = []
    for left_axis, right_axis in zip(left_batch, right_batch, strict=True):
        links.append(_link({0: left_axis, 1: right_axis}, {0: len(links)}))
    result_axis = len(links)  # the axes of the result: batch, free on the left, free on the right
    left, right, *_ = equation.invars
    for axis in range(len(_shape(left))):
        if axis not in (*left_sums, *left_batch):
            if axis not in mixed:
                links.append(_link({0: axis}, {0: result_axis}))
            result_axis += 1
    for axis in range(len(_shape(right))):
        if axis not in (*right_sums, *right_batch, *groups):
            links.append(_link({1: axis}, {0: result_axis}))
            result_axis += 1
    for left_axis, right_axis in zip(left_sums, right_sums, strict=True):
        links.append(_link({0: left_axis, 1: right_axis}, kind="sum"))
    return links


@_row(PRODUCT)
def _dot(equation: Equation) -> LinkedAxes:
    return LinkedAxes(_products(equation, equation.params["dimension_numbers"]), weights=(0, 1))


@_row("ragged_dot_general")
def _ragged_dot(equation: Equation) -> LinkedAxes:
    """Link axes of a product whose rows are divided into groups, with a matrix for each group."""
    params = equation.params["ragged_dot_dimension_numbers"]
    numbers = params.dot_dimension_numbers
    row_axes = params.lhs_ragged_dimensions
    (left_sums, _), (left_batch, _) = numbers
    are_rows_free = {*row_axes}.isdisjoint((*left_sums, *left_batch))
    group_sizes = equation.invars[2]
    if not are_rows_free or len(_shape(group_sizes)) > 1:
        return UNLINKED  # each item of a batch may have its own group sizes
    links = _products(equation, numbers, row_axes, params.rhs_group_dimensions)
    return LinkedAxes(links, weights=(1,))


@_row(CONVOLUTION)
def _convolution(equation: Equation) -> LinkedAxes:
    """Link the batch and the channels. With groups, link the groups instead of the channels."""
    params = equation.params
    if params["batch_group_count"] != 1:
        return UNLINKED
    numbers = params["dimension_numbers"]
    batch, channels, *_ = numbers.lhs_spec
    filter_outputs, filter_inputs, *_ = numbers.rhs_spec
    result_batch, result_channels, *_ = numbers.out_spec
    links = [_link({0: batch}, {0: result_batch})]
    groups = params["feature_group_count"]
    if groups > 1:
        # The groups are the first factor of each of these axes.
        input_groups = AxisPart(channels, 1, groups)
        filter_groups = AxisPart(filter_outputs, 1, groups)
        result_groups = AxisPart(result_channels, 1, groups)
        links.append(AxisLink({0: (input_groups,), 1: (filter_groups,)}, {0: (result_groups,)}))
    else:
        links.append(_link({1: filter_outputs}, {0: result_channels}))
        links.append(_link({0: channels, 1: filter_inputs}, kind="sum"))
    return LinkedAxes(links, weights=(1,))


@_row("gather")
def _gather(equation: Equation) -> LinkedAxes:
    """Link axes that a gather takes whole, axes of its indices, and the axis of a lookup."""
    numbers = equation.params["dimension_numbers"]
    slice_sizes = equation.params["slice_sizes"]
    table_shape = _shape(equation.invars[0])
    rank = len(_shape(equation.outvars[0]))
    looked_up = numbers.collapsed_slice_dims
    batched = numbers.operand_batching_dims
    sliced = [axis for axis in range(len(table_shape)) if axis not in (*looked_up, *batched)]
    links: list[AxisLink] = []
    for axis, result_axis in zip(sliced, numbers.offset_dims, strict=True):
        if slice_sizes[axis] == table_shape[axis]:
            links.append(_link({0: axis}, {0: result_axis}))
    # The axes of the result that come from the indices. The last axis of the indices has no axis
    # here: it holds the coordinates of one item.
    index_axes = [axis for axis in range(rank) if axis not in numbers.offset_dims]
    table_axis = dict(zip(numbers.start_indices_batching_dims, batched, strict=True))
    for axis, result_axis in enumerate(index_axes):
        operands = {1: axis}
        if axis in table_axis:
            operands[0] = table_axis[axis]
        links.append(_link(operands, {0: result_axis}))
    is_lookup = len(looked_up) == 1 and not batched and numbers.start_index_map == looked_up
    if not is_lookup:
        return LinkedAxes(links)
    return LinkedAxes([*links, _link({0: looked_up[0]}, kind="lookup")], weights=(0,))


@_row("scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub")
def _scatter(equation: Equation) -> LinkedAxes:
    """Link the axes of the target that each update covers completely, and the batch axes."""
    numbers = equation.params["dimension_numbers"]
    target, _, updates = map(_shape, equation.invars)
    batched = numbers.operand_batching_dims
    inserted = (*numbers.inserted_window_dims, *batched)
    window = [axis for axis in range(len(target)) if axis not in inserted]
    links: list[AxisLink] = []
    for axis, update_axis in zip(window, numbers.update_window_dims, strict=True):
        if target[axis] == updates[update_axis]:
            links.append(_link({0: axis, 2: update_axis}, {0: axis}))
    # The axes of the updates that come from the axes of the indices, in order.
    index_axes = [i for i in range(len(updates)) if i not in numbers.update_window_dims]
    batch_pairs = zip(batched, numbers.scatter_indices_batching_dims, strict=True)
    for axis, index_axis in batch_pairs:
        links.append(_link({0: axis, 1: index_axis, 2: index_axes[index_axis]}, {0: axis}))
    return LinkedAxes(links)


@_row("reduce")
def _reduce(equation: Equation) -> LinkedAxes:
    return _removed(equation, "dimensions", is_sum=False)


@_row("cholesky", "eigh", "fft", "geqrf", "householder_product", "lu", "svd", "triangular_solve")
def _leading(equation: Equation) -> LinkedAxes:
    """Link the batch axes, which are the first axes, of a matrix decomposition or a transform."""
    # A transform has an axis for each of its lengths, and a matrix has two axes.
    unlinked_count = len(equation.params.get("fft_lengths", (0, 0)))
    operands = range(len(equation.invars))
    results = range(len(equation.outvars))
    rank = max(len(_shape(operand)) for operand in equation.invars)
    return LinkedAxes([_shared(operands, i, results, i) for i in range(rank - unlinked_count)])
