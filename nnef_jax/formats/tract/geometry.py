"""Axes, bounds, padding and windows as the dialect has them, made those of kinds.

Axes count from the end, bounds lie anywhere, padding cuts off. A border never wins a maximum, a
bias lies along any axis, and `deconv` has its filter as `conv` does.
"""

from __future__ import annotations

from typing import Any

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, differ, is_symbolic, show
from lowering.ops import require
from lowering.ops.require import normal_axes, normal_axis
from nnef_jax.formats.tract.meaning import Draft

_LOWEST = -(1 << 62)  # an index before any


def many(draft: Draft) -> None:
    """Count the axes of the first operand from its first."""
    operand = next(iter(draft.operands))
    axes = normal_axes(draft.attributes["axes"], len(draft.shape(operand)))
    draft.attributes["axes"] = axes


def one(draft: Draft) -> None:
    """Count the axis of the first operand from its first."""
    operand = next(iter(draft.operands))
    draft.attributes["axis"] = normal_axis(draft.attributes["axis"], len(draft.shape(operand)))


def new(draft: Draft) -> None:
    """Add the axes one by one from the lowest; one may be named twice."""
    axes = draft.attributes["axes"]
    rank = len(draft.shape("input")) + len(axes)
    places: list[int] = []
    for axis in sorted(normal_axis(axis, rank) for axis in axes):
        places.append(max(axis, places[-1] + 1) if places else axis)
    draft.attributes["axes"] = places


def sliced(draft: Draft) -> None:
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


def downsample(draft: Draft) -> None:
    """Slice with a stride along one axis."""
    axis, stride, modulo = (draft.attributes[name] for name in ("axis", "stride", "modulo"))
    require.not_negative(modulo=modulo)
    if stride == 0:
        raise InvalidOperation("'stride' must not be 0")
    draft.attributes = {"axes": [axis], "begin": [modulo], "end": [0], "stride": [stride]}
    sliced(draft)


def pad(draft: Draft) -> None:
    """Cut off items where the padding is negative before others are added, as in ONNX."""
    shape, padding = draft.shape("input"), draft.attributes["padding"]
    require.length("padding", padding, len(shape), "axes of 'input'")
    if draft.attributes["border"] == "replicated":
        draft.attributes["border"] = "replicate"
    cut = [tuple(-p if _is_cut(p) else 0 for p in pair) for pair in padding]
    slices = {
        # Where all items are cut, an empty slice at the end.
        axis: (extent, extent) if extent == sum(pair) else (pair[0], -pair[1])
        for axis, (extent, pair) in enumerate(zip(shape, cut, strict=True))
        if any(pair)
    }
    if not slices:
        return
    if any(shape[axis] < sum(cut[axis]) for axis in slices):
        message = f"'padding' {list(padding)} cuts off more items than 'input' {show(shape)} has"
        raise InvalidShape(message)
    begin, end = map(list, zip(*slices.values(), strict=True))
    draft.before("input", "slice", axes=list(slices), begin=begin, end=end, stride=[])
    kept = [tuple(0 if _is_cut(p) else p for p in pair) for pair in padding]
    draft.attributes["padding"] = kept


def _is_cut(items: Any) -> bool:
    return not is_symbolic(items) and items < 0


# Windows


def pool(draft: Draft) -> None:
    """Require an item for each axis."""
    rank = len(draft.shape("input"))
    require.length("size", draft.attributes["size"], rank, "axes of 'input'")
    for name in ("padding", "stride", "dilation"):
        if draft.attributes[name]:
            require.length(name, draft.attributes[name], rank, "axes of 'input'")


def max_pool_with_index(draft: Draft) -> None:
    """Index the plane of one channel: axes 2 on, or without batch from the first window axis."""
    pool(draft)
    size, stride = draft.attributes["size"], draft.attributes["stride"]
    steps = zip(size, stride or (1,) * len(size), strict=True)
    reached = [axis for axis, step in enumerate(steps) if step != (1, 1)]
    draft.attributes["first_axis"] = min([2, *reached])


def upsample(draft: Draft) -> None:
    """Leave batch and channels as they are."""
    rank, factor = len(draft.shape("input")), draft.attributes["factor"]
    if len(factor) <= rank - 2:
        draft.attributes["factor"] = [1] * (rank - 2 - len(factor)) + list(factor)


def conv(draft: Draft) -> None:
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
        message = f"'groups' {groups} does not divide the first extent of 'filter' {show(filter)}"
        raise InvalidShape(message)
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


def deconv(draft: Draft) -> None:
    """Turn the filter (O,I/G,f...) into (I,O/G,f...)."""
    conv(draft)
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


def quantized_conv(draft: Draft) -> None:
    """Take `group`, which tract declares, or `groups`, which it writes."""
    group = draft.attributes.pop("group")
    if draft.attributes["groups"] == 1:
        draft.attributes["groups"] = group
    conv(draft)
    draft.attributes["dtype"] = draft.attributes["dtype"] or draft.dtype("input")
