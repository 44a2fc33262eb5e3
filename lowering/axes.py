"""The table of axes: which axes of a primitive's operands become which axes of its results.

Sharding, batch sizes and layouts are derived from this table, which has a row for each primitive. A
row lists links. A link joins axes of operands and of results along which items stay apart: an item
of a result at index i of such an axis depends, in each operand that has the axis, only on the items
at index i. The item of the result may depend on all items of operands that lack the axis. For
example, the row of `add` links axis i of both operands with axis i of the result. If a primitive
has no row, an item of its results may depend on any item of any operand.

Most rows follow from the facts in `lowering.facts`. The rows of all other primitives are functions
below.
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
        returns_indices = name.startswith("arg")  # argmax and argmin
        is_sum = fact.reduces and not returns_indices
        return _removed(equation, fact.removes, is_sum=is_sum)
    if fact.along:
        axis = equation.params[fact.along]
        return _same(equation, touched=[axis])
    if fact.across:
        return _same(equation, touched=equation.params[fact.across])
    if fact.per_axis:
        return _same(equation, touched=_touched(equation, fact.per_axis))
    return None


def is_listed(name: str) -> bool:
    """Tell whether `axes_of` knows the linked axes of the primitive called `name`."""
    fact = facts_of_name(name)
    return name in _ROWS or bool(fact.removes or fact.keeps_axes)


def _row(*primitives: str) -> Callable[[Row], Row]:
    """Return a decorator that registers a function as the table row of the named primitives."""

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
    """Return a link of axis `axis` of several operands with axis `result_axis` of several results.

    `operands` and `results` are the indices of these operands and results.
    """
    return _link(dict.fromkeys(operands, axis), dict.fromkeys(results, result_axis), kind)


def _same(equation: Equation, touched: Iterable[int] = (), *, repeats: bool = False) -> LinkedAxes:
    """Link axis i of all results with axis i of the operands that have the rank of the results.

    An axis gets a link only if all results and all these operands have the same extent along
    the axis. If `repeats` is true, an operand may also have the extent 1, since its one item is
    repeated. The link leaves out such an operand. Axes in `touched` get no link.
    """
    links: list[AxisLink] = []
    rank = len(_shape(equation.outvars[0]))
    results = range(len(equation.outvars))
    operands = [i for i, v in enumerate(equation.invars) if len(_shape(v)) == rank]
    untouched = {*range(rank)} - {*touched}
    for axis in untouched:
        result_extents = {_shape(v)[axis] for v in equation.outvars}
        if len(result_extents) > 1:
            continue  # the results differ along this axis
        (extent,) = result_extents
        linked_operands: list[int] = []
        other_extents: set[int] = set()
        for i in operands:
            operand_extent = _shape(equation.invars[i])[axis]
            if operand_extent == extent:
                linked_operands.append(i)
            else:
                other_extents.add(operand_extent)
        are_others_repeated = repeats and other_extents == {1}
        if not other_extents or are_others_repeated:
            links.append(_shared(linked_operands, axis, results, axis))
    return LinkedAxes(links)


def _removed(equation: Equation, name: str, *, is_sum: bool) -> LinkedAxes:
    """Link the axes that the results of an equation keep.

    `name` is the parameter of the equation that lists the removed axes. If `is_sum` is true,
    the removed axes are linked too, as sums.
    """
    removed_axes = equation.params[name]
    # Scalars have no axes, for example the initial value of a reduction.
    operands = [i for i, v in enumerate(equation.invars) if _shape(v)]
    results = range(len(equation.outvars))
    links: list[AxisLink] = []
    rank = len(_shape(equation.invars[0]))
    kept_axes = [axis for axis in range(rank) if axis not in removed_axes]
    for result_axis, axis in enumerate(kept_axes):
        links.append(_shared(operands, axis, results, result_axis))
    if is_sum:
        links += [_shared(operands, axis, kind="sum") for axis in removed_axes]
    return LinkedAxes(links)


def _touched(equation: Equation, per_axis: Mapping[str, object]) -> set[int]:
    """Return the axes along which a parameter of an equation changes something.

    For strides (1, 2), whose neutral entry is 1, this is axis 1. `per_axis` is `Facts.per_axis`:
    it maps the names of parameters with an entry for each axis to their neutral entries. A
    parameter changes nothing along an axis if its entry for the axis is the neutral entry.
    Parameters without a neutral entry are ignored.
    """
    touched: set[int] = set()
    for name, neutral in per_axis.items():
        entries = equation.params[name]
        if neutral is not None and entries is not None:
            touched.update(axis for axis, entry in enumerate(entries) if entry != neutral)
    return touched


@_row("optimization_barrier")
def _barrier(equation: Equation) -> LinkedAxes:
    """Link axis j of operand i with axis j of result i, for all i and j."""
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
    repeated_axes = frozenset(range(len(result_shape))) - linked
    return LinkedAxes(links, constant_axes=repeated_axes)


@_row("reshape", "expand_dims")
def _reshape(equation: Equation) -> LinkedAxes:
    """Link each run of consecutive axes of the operand with the axes that the run becomes.

    A reshape of (6, 4) to (2, 3, 4) links axis 0 with axes 0 and 1, and axis 1 with axis 2. In a
    run of several axes, axes of extent 1 are left out.
    """
    if equation.params.get("dimensions") is not None:
        return UNLINKED  # the axes are reordered before the reshape
    before = _shape(equation.invars[0])
    after = _shape(equation.outvars[0])
    runs = runs_of(before, after)
    if runs is None:
        return UNLINKED
    links: list[AxisLink] = []
    for operand_run, result_run in runs:
        is_one_axis = max(len(operand_run), len(result_run)) == 1
        if not is_one_axis:
            operand_run = tuple(axis for axis in operand_run if before[axis] != 1)
            result_run = tuple(axis for axis in result_run if after[axis] != 1)
        links.append(AxisLink({0: operand_run}, {0: result_run}))
    return LinkedAxes(links)


@_row("stack")
def _stack(equation: Equation) -> LinkedAxes:
    """Link each axis of the operands with an axis of the result. The new axis has no link."""
    operands = range(len(equation.invars))
    new_axis = equation.params["axis"]
    links: list[AxisLink] = []
    for axis in range(len(_shape(equation.invars[0]))):
        # The axes `new_axis` and later move up by one, because the result has a new axis there.
        result_axis = axis if axis < new_axis else axis + 1
        links.append(_shared(operands, axis, [0], result_axis))
    return LinkedAxes(links)


@_row("unstack")
def _unstack(equation: Equation) -> LinkedAxes:
    """Link each axis of the results with an axis of the operand. The removed axis has no link."""
    results = range(len(equation.outvars))
    removed_axis = equation.params["axis"]
    links: list[AxisLink] = []
    for result_axis in range(len(_shape(equation.outvars[0]))):
        # In the operand, a result axis from index `removed_axis` on has a number larger by one.
        axis = result_axis if result_axis < removed_axis else result_axis + 1
        links.append(_shared([0], axis, results, result_axis))
    return LinkedAxes(links)


@_row("slice", "split")
def _slice(equation: Equation) -> LinkedAxes:
    """Link each axis of which all items, or one of several equal blocks of items, are taken.

    For example, items 32 to 63 of 96 are the second of three blocks. The extent 96 is then 3 * 32,
    and the link has the factor 32 as a part of the operand's axis.
    """
    links: list[AxisLink] = []
    extents = _shape(equation.invars[0])
    for index, starts in enumerate(cuts(equation)):
        sizes = _shape(equation.outvars[index])
        for axis, (start, extent, size) in enumerate(zip(starts, extents, sizes, strict=True)):
            has_stride = start is None
            if has_stride or size == 0:
                continue
            is_block = extent % size == 0 and start % size == 0
            if is_block:
                is_complete = size == extent
                part = axis if is_complete else AxisPart(axis, before=extent // size, extent=size)
                links.append(AxisLink({0: (part,)}, {index: (axis,)}))
    return LinkedAxes(links)


def cuts(equation: Equation) -> list[list[int | None]]:
    """Return, for each result of a slice or split, its first index along each axis.

    The index is None for an axis along which the slice has a stride other than 1.
    """
    params = equation.params
    starts: list[int | None]
    if primitive(equation) == "slice":  # a slice has one result
        starts = list(params["start_indices"])
        strides = params["strides"] or (1,) * len(starts)
        for axis, stride in enumerate(strides):
            if stride != 1:
                starts[axis] = None
        return [starts]
    # The results of a split follow one another along one axis.
    rank = len(_shape(equation.invars[0]))
    starts_of_results: list[list[int | None]] = []
    start = 0
    for size in params["sizes"]:
        starts = [0] * rank
        starts[params["axis"]] = start
        starts_of_results.append(starts)
        start += size
    return starts_of_results


@_row("top_k")
def _top_k(equation: Equation) -> LinkedAxes:
    """Link all axes except the axis along which the largest items are selected."""
    rank = len(_shape(equation.invars[0]))
    axis = equation.params.get("axis", -1)  # the last axis by default
    return _same(equation, touched=[axis % rank])


@_row("tile")
def _tile(equation: Equation) -> LinkedAxes:
    """Link axes that are not repeated. Repeating an axis of extent 1 gives equal items."""
    repeated = [axis for axis, count in enumerate(equation.params["reps"]) if count != 1]
    extents = _shape(equation.invars[0])
    constant_axes = frozenset(axis for axis in repeated if extents[axis] == 1)
    unrepeated = _same(equation, touched=repeated)
    return LinkedAxes(unrepeated.links, constant_axes)


@_row("iota")
def _iota(equation: Equation) -> LinkedAxes:
    """Return no links. Items are equal along all axes except the axis with 0, 1, 2, ..."""
    axes = frozenset(range(len(_shape(equation.outvars[0]))))
    counting_axis = equation.params["dimension"]
    return LinkedAxes((), constant_axes=axes - {counting_axis})


@_row("dynamic_slice", "dynamic_update_slice", "name", "sharding_constraint")
def _unchanged(equation: Equation) -> LinkedAxes:
    # A dynamic slice or update starts at index 0 along each axis whose extent stays the same.
    return _same(equation)


def _products(
    equation: Equation,
    numbers: ProductNumbers,
    mixed: Sequence[int] = (),
    groups: Sequence[int] = (),
) -> list[AxisLink]:
    """Return the links of the batch axes, free axes and summed axes of a product.

    A free axis is in one operand and in the result.

    Args:
        equation: a dot_general or ragged_dot_general.
        numbers: the dimension numbers of the equation.
        mixed: free axes of the left operand that get no link, since items do not stay apart
            along these axes.
        groups: axes of the right operand that the result lacks.
    """
    (left_sums, right_sums), (left_batch, right_batch) = numbers
    left, right, *_ = equation.invars
    left_shared = (*left_sums, *left_batch)
    left_free = [axis for axis in range(len(_shape(left))) if axis not in left_shared]
    not_right_free = (*right_sums, *right_batch, *groups)
    right_free = [axis for axis in range(len(_shape(right))) if axis not in not_right_free]
    # The axes of the result are the batch axes, then the left free axes, then the right ones.
    first_left = len(left_batch)
    first_right = first_left + len(left_free)
    links: list[AxisLink] = []
    batch_pairs = zip(left_batch, right_batch, strict=True)
    for result_axis, (left_axis, right_axis) in enumerate(batch_pairs):
        links.append(_link({0: left_axis, 1: right_axis}, {0: result_axis}))
    for result_axis, left_axis in enumerate(left_free, first_left):
        if left_axis not in mixed:
            links.append(_link({0: left_axis}, {0: result_axis}))
    for result_axis, right_axis in enumerate(right_free, first_right):
        links.append(_link({1: right_axis}, {0: result_axis}))
    for left_axis, right_axis in zip(left_sums, right_sums, strict=True):
        links.append(_link({0: left_axis, 1: right_axis}, kind="sum"))
    return links


@_row(PRODUCT)
def _dot(equation: Equation) -> LinkedAxes:
    return LinkedAxes(_products(equation, equation.params["dimension_numbers"]), weights=(0, 1))


@_row("ragged_dot_general")
def _ragged_dot(equation: Equation) -> LinkedAxes:
    """Link axes of a product in which each group of rows is multiplied by its own matrix."""
    ragged_numbers = equation.params["ragged_dot_dimension_numbers"]
    numbers = ragged_numbers.dot_dimension_numbers
    row_axes = ragged_numbers.lhs_ragged_dimensions
    group_axes = ragged_numbers.rhs_group_dimensions
    (left_sums, _), (left_batch, _) = numbers
    are_rows_free = {*row_axes}.isdisjoint((*left_sums, *left_batch))
    group_sizes = equation.invars[2]
    has_sizes_by_item = len(_shape(group_sizes)) > 1  # each item of a batch has its own sizes
    if not are_rows_free or has_sizes_by_item:
        return UNLINKED
    links = _products(equation, numbers, mixed=row_axes, groups=group_axes)
    return LinkedAxes(links, weights=(1,))


@_row(CONVOLUTION)
def _convolution(equation: Equation) -> LinkedAxes:
    """Link batch axes, and link channel axes. With groups, link the groups instead of channels."""
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
        input_groups = AxisPart(channels, before=1, extent=groups)
        filter_groups = AxisPart(filter_outputs, before=1, extent=groups)
        result_groups = AxisPart(result_channels, before=1, extent=groups)
        links.append(AxisLink({0: (input_groups,), 1: (filter_groups,)}, {0: (result_groups,)}))
    else:
        links.append(_link({1: filter_outputs}, {0: result_channels}))
        links.append(_link({0: channels, 1: filter_inputs}, kind="sum"))
    return LinkedAxes(links, weights=(1,))


@_row("gather")
def _gather(equation: Equation) -> LinkedAxes:
    """Link axes that are taken completely, axes of the indices, and the axis of a lookup.

    Operand 0 is a table, and operand 1 has the indices of items of the table.
    """
    numbers = equation.params["dimension_numbers"]
    slice_sizes = equation.params["slice_sizes"]
    table_shape = _shape(equation.invars[0])
    rank = len(_shape(equation.outvars[0]))
    looked_up = numbers.collapsed_slice_dims
    batched = numbers.operand_batching_dims
    sliced = [axis for axis in range(len(table_shape)) if axis not in (*looked_up, *batched)]
    links: list[AxisLink] = []
    for axis, result_axis in zip(sliced, numbers.offset_dims, strict=True):
        is_complete = slice_sizes[axis] == table_shape[axis]
        if is_complete:
            links.append(_link({0: axis}, {0: result_axis}))
    # `index_axes` are the axes of the result that come from the axes of the indices, in order. The
    # last axis of the indices becomes no axis of the result: it holds the coordinates of one item.
    index_axes = [axis for axis in range(rank) if axis not in numbers.offset_dims]
    # Maps each batch axis of the indices to the batch axis of the table.
    table_axes = dict(zip(numbers.start_indices_batching_dims, batched, strict=True))
    for axis, result_axis in enumerate(index_axes):
        operands = {1: axis}
        if axis in table_axes:
            operands[0] = table_axes[axis]
        links.append(_link(operands, {0: result_axis}))
    is_lookup = len(looked_up) == 1 and not batched and numbers.start_index_map == looked_up
    if not is_lookup:
        return LinkedAxes(links)
    lookup_link = _link({0: looked_up[0]}, kind="lookup")
    return LinkedAxes([*links, lookup_link], weights=(0,))


@_row("scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub")
def _scatter(equation: Equation) -> LinkedAxes:
    """Link the axes of the target that each update covers completely, and the batch axes.

    Operand 0 is the target, operand 1 has indices, and operand 2 has the updates.
    """
    numbers = equation.params["dimension_numbers"]
    target_shape, _, update_shape = map(_shape, equation.invars)
    batched = numbers.operand_batching_dims
    not_in_window = (*numbers.inserted_window_dims, *batched)
    window_axes = [axis for axis in range(len(target_shape)) if axis not in not_in_window]
    links: list[AxisLink] = []
    for axis, update_axis in zip(window_axes, numbers.update_window_dims, strict=True):
        is_covered = target_shape[axis] == update_shape[update_axis]
        if is_covered:
            links.append(_link({0: axis, 2: update_axis}, {0: axis}))
    # The updates' axes that are not window axes belong to the axes of the indices, in order.
    update_axes = [i for i in range(len(update_shape)) if i not in numbers.update_window_dims]
    for axis, index_axis in zip(batched, numbers.scatter_indices_batching_dims, strict=True):
        update_axis = update_axes[index_axis]
        links.append(_link({0: axis, 1: index_axis, 2: update_axis}, {0: axis}))
    return LinkedAxes(links)


@_row("reduce")
def _reduce(equation: Equation) -> LinkedAxes:
    return _removed(equation, "dimensions", is_sum=False)


@_row("cholesky", "eigh", "fft", "geqrf", "householder_product", "lu", "svd", "triangular_solve")
def _leading(equation: Equation) -> LinkedAxes:
    """Link the first axes, the batch axes, for a matrix decomposition or a Fourier transform."""
    # The last axes get no links: the axes of a Fourier transform, or the two axes of a matrix.
    transform_lengths = equation.params.get("fft_lengths")
    unlinked_count = 2 if transform_lengths is None else len(transform_lengths)
    operands = range(len(equation.invars))
    results = range(len(equation.outvars))
    rank = max(len(_shape(operand)) for operand in equation.invars)
    batch_axes = range(rank - unlinked_count)
    return LinkedAxes([_shared(operands, axis, results, axis) for axis in batch_axes])
