"""Axes that count from the end, bounds that lie anywhere, padding that cuts off."""

from __future__ import annotations

from typing import Any

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, is_symbolic, show
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
    if modulo < 0:
        raise InvalidOperation(f"'modulo' must not be negative, it is {modulo}")
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
    axes = [axis for axis, pair in enumerate(cut) if any(pair)]
    if not axes:
        return
    if any(shape[axis] < sum(cut[axis]) for axis in axes):
        message = f"'padding' {list(padding)} cuts off more items than 'input' {show(shape)} has"
        raise InvalidShape(message)
    bounds = [cut[axis][0] for axis in axes], [-cut[axis][1] for axis in axes]
    for axis in axes:  # where all items are cut, an empty slice at the end
        if shape[axis] == sum(cut[axis]):
            bounds[0][axes.index(axis)] = bounds[1][axes.index(axis)] = shape[axis]
    draft.before("input", "slice", axes=axes, begin=bounds[0], end=bounds[1], stride=[])
    added = [tuple(0 if _is_cut(p) else p for p in pair) for pair in padding]
    draft.attributes["padding"] = added


def _is_cut(items: Any) -> bool:
    return not is_symbolic(items) and items < 0
