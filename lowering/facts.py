"""The table of jax's primitives: what each does to the items and axes of its operands.

Passes read this table, and name only the primitives that their own patterns match. If the
table lacks a primitive, passes assume nothing about the primitive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from lowering.jaxpr_types import Equation


class Facts(NamedTuple):
    """What a primitive does to the items and axes of its operands.

    `along`, `across`, `removes` and `resized` are names of the primitive's parameters. A name is
    "" if the primitive has no such parameter.

    Args:
        by_item: whether an item of a result depends only on the operands' items at the same index,
            and on scalars.
        shapes: whether the primitive changes only the axes of its operand and keeps the items, as a
            reshape does.
        moves: whether items of results are unchanged items of operands.
        reduces: whether an item of a result depends on several items of an operand.
        along: the parameter with the number of the one axis along which items depend on each other.
        across: the parameter that lists the axes along which items are reordered.
        removes: the parameter that lists the axes that results lack.
        per_axis: the parameters that have an entry for each axis. Each is mapped to its neutral
            entry, which changes nothing along an axis, or to None if no entry is neutral.
        resized: the parameter that lists the extents of the result.
    """

    by_item: bool = False
    shapes: bool = False
    moves: bool = False
    reduces: bool = False
    along: str = ""
    across: str = ""
    removes: str = ""
    per_axis: Mapping[str, Any] = {}
    resized: str = ""

    @property
    def keeps_axes(self) -> bool:
        """Tell whether axis i of a result is axis i of each operand that has the result's rank."""
        return bool(self.by_item or self.along or self.across or self.per_axis)


_OPAQUE = Facts()
_ITEM = Facts(by_item=True)
_ITEM_AS_IT_IS = Facts(by_item=True, moves=True)
_REDUCTION = Facts(reduces=True, removes="axes")
_RUNNING = Facts(reduces=True, along="axis")
_WINDOW = Facts(
    reduces=True,
    per_axis={
        "window_dimensions": 1,
        "window_strides": 1,
        "padding": (0, 0),
        "base_dilation": 1,
        "window_dilation": None,  # without effect for a window of one item
    },
)


# fmt: off
_TABLE: dict[str, Facts] = {
    **dict.fromkeys((
        "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
        "bessel_i0e", "bessel_i1e", "cbrt", "ceil", "clamp", "clz", "complex", "conj", "cos",
        "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor",
        "ge", "gt", "igamma", "igamma_grad_a", "igammac", "imag", "integer_pow", "is_finite", "le",
        "lgamma", "log", "log1p", "log2", "logistic", "lt", "max", "min", "mul", "ne", "neg",
        "nextafter", "not", "one_minus_square", "or", "polygamma", "polynomial",
        "population_count", "pow", "real", "reduce_precision", "regularized_incomplete_beta",
        "rem", "round", "rsqrt", "shift_left", "shift_right_arithmetic", "shift_right_logical",
        "sign", "sin", "sinh", "sqrt", "square", "sub", "tan", "tanh", "xor", "zeta",
    ), _ITEM),
    "convert_element_type": _ITEM_AS_IT_IS,
    "copy": _ITEM_AS_IT_IS,
    "select_n": _ITEM_AS_IT_IS,
    "stop_gradient": _ITEM_AS_IT_IS,
    "broadcast_in_dim": Facts(shapes=True, moves=True, resized="shape"),
    "reshape": Facts(shapes=True, moves=True, resized="new_sizes"),
    "squeeze": Facts(shapes=True, moves=True, removes="dimensions"),
    "transpose": Facts(shapes=True, moves=True),
    "concatenate": Facts(moves=True, along="dimension"),
    "stack": Facts(moves=True),
    "split": Facts(moves=True, along="axis"),
    "slice": Facts(
        moves=True,
        per_axis={"start_indices": None, "limit_indices": None, "strides": None},
        resized="limit_indices",
    ),
    "pad": Facts(moves=True, per_axis={"padding_config": (0, 0, 0)}),
    "rev": Facts(moves=True, across="dimensions"),
    "sort": Facts(along="dimension"),
    "tile": Facts(moves=True),
    "dynamic_slice": Facts(moves=True),
    "dynamic_update_slice": Facts(moves=True),
    "gather": Facts(moves=True),
    "optimization_barrier": Facts(moves=True),
    **dict.fromkeys((
        "argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod",
        "reduce_sum", "reduce_xor",
    ), _REDUCTION),
    **dict.fromkeys(("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"), _RUNNING),
    **dict.fromkeys(("reduce_window_max", "reduce_window_min", "reduce_window_sum"), _WINDOW),
    "select_and_gather_add": _WINDOW,
    "select_and_scatter_add": Facts(
        reduces=True, per_axis={"window_dimensions": 1, "window_strides": 1, "padding": (0, 0)}
    ),
}
# fmt: on


def facts(equation: Equation) -> Facts:
    """Return the properties of an equation's primitive, from the table."""
    return facts_of_name(equation.primitive.name)


def facts_of_name(primitive: str) -> Facts:
    """Return the properties of the primitive with a name, from the table.

    If the table lacks the primitive, all fields are false or empty.
    """
    return _TABLE.get(primitive, _OPAQUE)


# This type has an item for each axis of an operand: the new axes that the axis becomes.
NewAxes = Sequence[Sequence[int]]


def renumbered(equation: Equation, new_axes: Sequence[NewAxes]) -> dict[str, Any] | None:
    """Return an equation's changed parameters, for operands whose axes have been renumbered.

    For each operand, `new_axes` lists the new axes of each old axis. An axis may become several
    axes. None is returned if the table lacks the primitive, or if the parameters cannot express the
    new axes.
    """
    name = equation.primitive.name
    params = equation.params
    fact = facts(equation)
    if name == "dot_general":
        sums, batch = params["dimension_numbers"]
        numbers = tuple(map(spanned, new_axes, sums)), tuple(map(spanned, new_axes, batch))
        return {"dimension_numbers": numbers}
    # All operands have the same new axes, except scalars, which have no axes.
    shared_axes: NewAxes = next((axes for axes in new_axes if axes), ())
    if name == "transpose":
        return {"permutation": spanned(shared_axes, params["permutation"])}
    if fact.by_item:
        return {}  # these primitives have no parameter that names an axis
    axes_parameter = fact.removes or fact.across
    if axes_parameter:
        axes = tuple(sorted(spanned(shared_axes, params[axes_parameter])))
        takes_one_axis = name.startswith("arg")  # argmax and argmin
        if takes_one_axis and len(axes) > 1:
            return None
        return {axes_parameter: axes}
    if fact.along:
        axes = shared_axes[params[fact.along]]
        return {fact.along: axes[0]} if len(axes) == 1 else None
    changed: dict[str, Any] = {}
    for parameter, neutral in fact.per_axis.items():
        if params[parameter] is None:
            continue  # the parameter has its default for all axes
        entries = _renumbered_entries(params[parameter], neutral, shared_axes)
        if entries is None:
            return None
        changed[parameter] = entries
    return changed or None


def _renumbered_entries(
    entries: Sequence[Any], neutral: Any, new_axes: NewAxes
) -> tuple[Any, ...] | None:
    """Return a parameter's entry for each new axis, from its entries for the old axes.

    An old axis with the entry `neutral` may become any number of axes. None is returned if an
    old axis with another entry does not become exactly one axis.
    """
    entry_of_axis: dict[int, Any] = {}
    for axes, entry in zip(new_axes, entries, strict=True):
        is_neutral = neutral is not None and entry == neutral
        if len(axes) != 1 and not is_neutral:
            return None
        entry_of_axis.update(dict.fromkeys(axes, entry))
    return tuple(entry_of_axis[axis] for axis in sorted(entry_of_axis))


def spanned(new_axes: NewAxes, old_axes: Iterable[int]) -> tuple[int, ...]:
    """Return the new axes that the axes `old_axes` become, in order.

    For the new axes [[0, 1], [2]] and the old axes (1, 0) the result is (2, 0, 1).
    """
    return tuple(new_axis for axis in old_axes for new_axis in new_axes[axis])
