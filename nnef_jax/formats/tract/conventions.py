"""Operations that tract reads differently from NNEF, and its plain additions, as kinds.

Axes may count from the end, bounds may lie anywhere, a bias may lie along any axis, a `deconv`'s
filter has the layout of a `conv`'s, and borders never win a maximum.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, differ, is_symbolic, padded, show
from lowering.ops import require
from lowering.ops.require import normal_axes, normal_axis
from nnef_jax.formats.tract.meaning import Draft, Meaning

_LOWEST = -(1 << 62)  # an index before any


# Axes


def _axes(draft: Draft) -> None:
    operand = next(iter(draft.operands))
    axes = normal_axes(draft.attributes["axes"], len(draft.shape(operand)))
    draft.attributes["axes"] = axes


def _axis(draft: Draft) -> None:
    operand = next(iter(draft.operands))
    draft.attributes["axis"] = normal_axis(draft.attributes["axis"], len(draft.shape(operand)))


def _new_axes(draft: Draft) -> None:
    """Add the axes one by one from the lowest; one may be named twice."""
    axes = draft.attributes["axes"]
    rank = len(draft.shape("input")) + len(axes)
    places: list[int] = []
    for axis in sorted(normal_axis(axis, rank) for axis in axes):
        places.append(max(axis, places[-1] + 1) if places else axis)
    draft.attributes["axes"] = places


# Arithmetic


def _power(draft: Draft) -> None:
    dtype = jnp.dtype(draft.dtype("x"))
    draft.operands["y"] = dtype.type(draft.attributes.pop("exponent"))


def _approximation(draft: Draft) -> None:
    is_fast = draft.attributes.pop("fast_impl")
    draft.attributes["approximation"] = "tanh_square" if is_fast else "tanh"


def _norm(draft: Draft) -> None:
    _axis(draft)
    if "scale" not in draft.operands:
        input, epsilon = draft.operands.values()
        one = jnp.dtype(draft.dtype("input")).type(1)
        draft.operands = {"input": input, "scale": one, "epsilon": epsilon}


# Shapes


def _slice(draft: Draft) -> None:
    """Clamp the bounds, which may leave no items; a negative stride goes from end to begin."""
    given, shape = draft.attributes, draft.shape("input")
    axes = normal_axes(given["axes"], len(shape))
    for name in ("begin", "end", "stride"):
        if given[name] or name != "stride":
            require.length(name, given[name], len(axes), "axes")
    strides = given["stride"] or [1] * len(axes)
    if 0 in strides:
        raise InvalidOperation(f"'stride' must not be 0, it is {list(strides)}")
    bounds = [
        _bounds(shape, *items)
        for items in zip(axes, given["begin"], given["end"], strides, strict=True)
    ]
    begin, end = ([pair[i] for pair in bounds] for i in (0, 1))
    draft.attributes = {"axes": axes, "begin": begin, "end": end, "stride": given["stride"]}


def _bounds(shape: Shape, axis: int, begin: int, end: int, step: int) -> tuple[int, int]:
    extent = shape[axis]
    if extent is UNKNOWN or any(x is UNKNOWN or is_symbolic(x) for x in (begin, end, step)):
        if is_symbolic(step) or step is UNKNOWN or step > 0:
            return begin, end
        return end - 1, _LOWEST if begin == 0 else begin - 1
    first, last, _ = slice(begin, None if end == 0 else end).indices(extent)
    if step < 0 and first > last:
        raise InvalidShape(
            f"'begin' {begin} lies behind 'end' {end} in the {extent} items of 'input' "
            f"{show(shape)} along axis {axis}",
            hint="with a negative stride too 'begin' is the lower bound: what lies between "
            "the bounds is taken backwards",
        )
    if first >= last:
        return extent, extent
    return (first, last) if step > 0 else (last - 1, first - 1 if first else -extent - 1)


def _downsample(draft: Draft) -> None:
    axis, stride, modulo = (draft.attributes[name] for name in ("axis", "stride", "modulo"))
    if modulo < 0:
        raise InvalidOperation(f"'modulo' must not be negative, it is {modulo}")
    if stride == 0:
        raise InvalidOperation("'stride' must not be 0")
    draft.attributes = {"axes": [axis], "begin": [modulo], "end": [0], "stride": [stride]}
    _slice(draft)


def _pad(draft: Draft) -> None:
    """Cut off items where the padding is negative before others are added, as in ONNX."""
    shape, padding = draft.shape("input"), draft.attributes["padding"]
    require.length("padding", padding, len(shape), "axes of 'input'")
    if draft.attributes["border"] == "replicated":
        draft.attributes["border"] = "replicate"
    cut = [tuple(-p if _is_cut(p) else 0 for p in pair) for pair in padding]
    axes = [axis for axis, pair in enumerate(cut) if any(pair)]
    if not axes:
        return
    if any(shape[axis] < sum(cut[axis]) for axis in axes):
        raise InvalidShape(
            f"'padding' {list(padding)} cuts off more items than 'input' {show(shape)} has"
        )
    bounds = [cut[axis][0] for axis in axes], [-cut[axis][1] for axis in axes]
    for axis in axes:  # where all items are cut, an empty slice at the end
        if shape[axis] == sum(cut[axis]):
            bounds[0][axes.index(axis)] = bounds[1][axes.index(axis)] = shape[axis]
    draft.before("input", "slice", axes=axes, begin=bounds[0], end=bounds[1], stride=[])
    added = [tuple(0 if _is_cut(p) else p for p in pair) for pair in padding]
    draft.attributes["padding"] = added


def _is_cut(items: Any) -> bool:
    return not is_symbolic(items) and items < 0


# Windows


def _max_pool(draft: Draft) -> None:
    require.one_of("border", draft.attributes["border"], ("constant", "ignore"))
    draft.attributes["border"] = "ignore"
    rank = len(draft.shape("input"))
    require.length("size", draft.attributes["size"], rank, "axes of 'input'")
    for name in ("padding", "stride", "dilation"):
        if draft.attributes[name]:
            require.length(name, draft.attributes[name], rank, "axes of 'input'")


def _max_pool_with_index(draft: Draft) -> None:
    """Index the plane of one channel: axes 2 on, or without batch from the first window axis."""
    _max_pool(draft)
    size, stride = draft.attributes["size"], draft.attributes["stride"]
    steps = zip(size, stride or (1,) * len(size), strict=True)
    reached = [axis for axis, step in enumerate(steps) if step != (1, 1)]
    draft.attributes["first_axis"] = min([2, *reached])


def _upsample(draft: Draft) -> None:
    rank, factor = len(draft.shape("input")), draft.attributes["factor"]
    if len(factor) <= rank - 2:
        draft.attributes["factor"] = [1] * (rank - 2 - len(factor)) + list(factor)


def _multilinear(draft: Draft) -> None:
    require.one_of("border", draft.attributes["border"], ("replicate",))
    _upsample(draft)


# Convolution


def convolution(draft: Draft) -> None:
    """Lay the bias along axis 1, number the groups, and keep the padding of spatial axes alone."""
    input, filter = draft.shape("input"), draft.shape("filter")
    given, rank = draft.attributes, len(input)
    if rank < 3 or len(filter) != rank:
        raise InvalidShape(
            f"'input' {show(input)} and 'filter' {show(filter)} must have one rank: batch, "
            "channels and at least one spatial axis",
            hint="`unsqueeze` an input that has no batch axis",
        )
    if given["border"] != "constant":
        raise InvalidOperation(
            f"'border' must be 'constant', it is '{given['border']}'",
            hint="`pad` the input first, with that border, and give padding (0,0) here",
        )
    padding = given["padding"]
    if len(padding) == rank and tuple(map(tuple, padding[:2])) == ((0, 0), (0, 0)):
        given["padding"] = padding[2:]
    for name in ("padding", "stride", "dilation"):
        if given[name]:
            require.length(name, given[name], rank - 2, "spatial axes")
    if given["groups"] < 0:
        raise InvalidOperation(
            f"'groups' must be positive, or 0 for a group for each channel, it is {given['groups']}"
        )
    each = input[1] // filter[1] if filter[1] != 0 else 1
    groups = given["groups"] = given["groups"] or each or 1
    if differ(filter[1] * groups, input[1]):
        raise InvalidShape(
            f"'filter' {show(filter)} takes {filter[1] * groups} channels in {groups} group(s), "
            f"'input' {show(input)} has {input[1]}",
            hint="the filter has the shape [output channels, input channels / groups, ...], "
            "for deconv too",
        )
    if differ(filter[0] % groups, 0):
        raise InvalidShape(
            f"'groups' {groups} does not divide the first extent of 'filter' {show(filter)}"
        )
    _bias(draft, filter[0])


def _bias(draft: Draft, channels: int) -> None:
    shape = draft.shape("bias")
    kept = [extent for extent in shape if differ(extent, 1)]
    if len(kept) > 1 or any(differ(extent, channels) for extent in kept):
        raise InvalidShape(
            f"'bias' {show(shape)} does not fit {channels} output channels",
            hint=f"it must have one item, or {channels} along one axis, as in "
            f"{show((channels,))} and {show((1, channels))}",
        )
    if kept and shape != (1, *kept):
        draft.before("bias", "reshape", shape=[1, -1], axis_start=0, axis_count=-1)


def _deconv(draft: Draft) -> None:
    """Turn the filter (O,I/G,f...) into (I,O/G,f...)."""
    convolution(draft)
    input, filter = draft.shape("input"), draft.shape("filter")
    rank, groups, extents = len(input), draft.attributes["groups"], draft.attributes["output_shape"]
    if len(extents) not in (0, rank - 2, rank):
        raise InvalidOperation(
            f"'output_shape' {list(extents)} must have an item for each of the {rank - 2} "
            f"spatial axes, or for each of all {rank}"
        )
    if extents:
        draft.attributes["output_shape"] = [1, filter[0], *extents[2 - rank :]]
    outputs, inputs = filter[:2]
    if groups > 1:
        grouped = [groups, outputs // groups, inputs]
        draft.before("filter", "reshape", shape=grouped, axis_start=0, axis_count=2)
        draft.before("filter", "transpose", axes=[0, 2, 1])
        merged = [groups * inputs, outputs // groups]
        draft.before("filter", "reshape", shape=merged, axis_start=0, axis_count=3)
    else:
        draft.before("filter", "transpose", axes=[1, 0])


# Products


def _matmul(draft: Draft) -> None:
    _same_rank(draft, "A", "B")


def _linear(draft: Draft) -> None:
    _same_rank(draft, "input", "filter")


def _same_rank(draft: Draft, *names: str) -> None:
    """Give the operand of fewer axes leading ones; a vector is a column."""
    shapes = {name: draft.shape(name) for name in names}
    rank = max(map(len, shapes.values()))
    for name, shape in shapes.items():
        matrix = padded(shape, 2)
        if len(shape) < rank:
            leading, trailing = max(rank - len(matrix), 0), len(matrix) - len(shape)
            axes = [*range(leading), *range(rank - trailing, rank)]
            draft.before(name, "unsqueeze", axes=axes)


def _einsum(draft: Draft) -> None:
    draft.attributes["dtype"] = draft.attributes["dtype"] or draft.attributes["accumulator"]


def _legacy_matmul(draft: Draft) -> None:
    a, b, c = legacy_terms(draft)
    dtype = draft.dtype("a")
    draft.operands = {"inputs": [draft.operands["a"], draft.operands["b"]]}
    draft.attributes = {"expr": f"{a},{b}->{c}", "accumulator": dtype, "dtype": dtype}


def legacy_terms(draft: Draft) -> tuple[str, str, str]:
    """Return the letters of two operands and the result for the `axes` [a_m,a_k,b_k,b_n,c_m,c_n].

    They are m, k and n, and capitals for the batch: the other axes of each, in their order. Without
    axes the matrices are in the last two.
    """
    axes, ranks = draft.attributes.pop("axes"), {len(draft.shape(x)) for x in ("a", "b")}
    if len(ranks) > 1 or min(ranks) < 2:
        raise InvalidShape(
            f"'A' {show(draft.shape('a'))} and 'B' {show(draft.shape('b'))} must have one rank, "
            "of at least two",
            hint="`unsqueeze` the one of lower rank",
        )
    (rank,) = ranks
    if axes:
        require.length("axes", axes, 6, "axes a_m, a_k, b_k, b_n, c_m and c_n")
    a_m, a_k, b_k, b_n, c_m, c_n = axes or (rank - 2, rank - 1) * 3

    def term(axes: Sequence[int], letters: str) -> str:
        named = dict(zip(normal_axes(axes, rank), letters, strict=True))
        batch = iter(string.ascii_uppercase)
        return "".join(named.get(axis) or next(batch) for axis in range(rank))

    return term((a_m, a_k), "mk"), term((b_k, b_n), "kn"), term((c_m, c_n), "mn")


_EVEN = {"ties": "even"}
CONVENTIONS: Mapping[str, Meaning] = {
    "recip": Meaning("rcp"),
    "square": Meaning("sqr"),
    "round": Meaning("round", added={"ties": "away"}),
    "tract_core_round_even": Meaning("round", added=_EVEN),
    "clamp": Meaning("clamp", added={"inclusive": True}),
    "tract_core_pow_const": Meaning("pow", {"input": "x"}, rewrite=_power),
    "tract_core_bitand": Meaning("bitwise_and"),
    "tract_core_bitor": Meaning("bitwise_or"),
    "tract_core_bitxor": Meaning("bitwise_xor"),
    "tract_core_bitnot": Meaning("bitwise_not"),
    "tract_core_xor": Meaning("bitwise_xor"),
    "tract_shl": Meaning("shift_left"),
    "tract_shr": Meaning("shift_right"),
    "tract_core_is_nan": Meaning("is_nan"),
    "tract_core_is_inf": Meaning(
        "is_inf", {"input": "x", "detect_positive": "positive", "detect_negative": "negative"}
    ),
    "tract_core_silu": Meaning("silu"),
    "tract_core_erf": Meaning("erf"),
    "tract_core_hard_swish": Meaning("hard_swish"),
    "tract_core_gelu_approx": Meaning("gelu", {"input": "x"}, rewrite=_approximation),
    "tract_core_clamped_swiglu": Meaning("clamped_swiglu"),
    # It names an approximation of the exponential function; ours is exact.
    "tract_core_softmax": Meaning("softmax", dropped=frozenset({"exp"}), rewrite=_axes),
    "tract_core_log_softmax": Meaning("log_softmax", rewrite=_axes),
    "tract_core_rms_norm": Meaning("rms_norm", {"eps": "epsilon"}, {"dtype": ""}, rewrite=_norm),
    "tract_core_scaled_rms_norm": Meaning(
        "rms_norm",
        {"eps": "epsilon", "out_dt": "dtype"},
        dropped=frozenset({"scale_dt"}),  # it scales with at least 32 bits
        rewrite=_norm,
    ),
    "sum_reduce": Meaning("sum_reduce", rewrite=_axes),
    "max_reduce": Meaning("max_reduce", rewrite=_axes),
    "min_reduce": Meaning("min_reduce", rewrite=_axes),
    "argmax_reduce": Meaning("argmax_reduce", rewrite=_axes),
    "argmin_reduce": Meaning("argmin_reduce", rewrite=_axes),
    "tract_core_argmax_reduce_last": Meaning("argmax_reduce", {}, {"last": True}, rewrite=_axes),
    "tract_core_argmin_reduce_last": Meaning("argmin_reduce", {}, {"last": True}, rewrite=_axes),
    "tract_core_product_reduce": Meaning("product_reduce", rewrite=_axes),
    "tract_core_cumsum": Meaning("cumsum", rewrite=_axis),
    "transpose": Meaning("transpose", rewrite=_axes),
    "squeeze": Meaning("squeeze", rewrite=_axes),
    "unsqueeze": Meaning("unsqueeze", rewrite=_new_axes),
    "slice": Meaning("slice", rewrite=_slice),
    "tract_core_downsample": Meaning("slice", rewrite=_downsample),
    "tract_core_dyn_slice": Meaning(
        "dynamic_slice",
        {"len": "length"},
        dropped=frozenset({"end"}),  # the length says it
        rewrite=_axis,
    ),
    "tract_core_trilu": Meaning("triangle"),
    "tract_core_broadcast": Meaning("broadcast"),
    "tract_core_cast": Meaning("cast", {"to": "dtype"}),
    "pad": Meaning("pad", rewrite=_pad),
    "max_pool": Meaning("max_pool", rewrite=_max_pool),
    "max_pool_with_index": Meaning("max_pool_with_index", rewrite=_max_pool_with_index),
    "nearest_upsample": Meaning("nearest_upsample", rewrite=_upsample),
    "multilinear_upsample": Meaning("multilinear_upsample", rewrite=_multilinear),
    "conv": Meaning("conv", rewrite=convolution),
    "deconv": Meaning("deconv", rewrite=_deconv),
    "matmul": Meaning("matmul", rewrite=_matmul),
    "linear": Meaning("linear", rewrite=_linear),
    "tract_core_einsum": Meaning(
        "einsum", {"acc": "accumulator", "output": "dtype"}, rewrite=_einsum
    ),
    "tract_core_matmul": Meaning("einsum", {"A": "a", "B": "b"}, rewrite=_legacy_matmul),
    "min_max_linear_quantize": Meaning("min_max_linear_quantize", added=_EVEN),
    "zero_point_linear_quantize": Meaning("zero_point_linear_quantize", added=_EVEN),
}
