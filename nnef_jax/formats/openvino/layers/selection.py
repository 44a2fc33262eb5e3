"""Parts of tensors and items by index: slices, gathers, scatters, padding, ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, is_symbolic
from lowering.graph import Value, is_float
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.element_types import computed, element_type
from nnef_jax.formats.openvino.layers import everywhere, legacy, opsets
from nnef_jax.formats.openvino.site import Site

_FAR = 2**31 - 1


def _sliced(
    site: Site, x: Value, parts: dict[int, tuple[int | None, int | None, int]], final: bool
) -> Value:
    """Cut parts (begin, end, step) along axes; None is the end that the axis has."""
    axes, begins, ends, steps = [], [], [], []
    shape = x.type.shape
    empty = False
    for axis, (begin, end, step) in sorted(parts.items()):
        extent = shape[axis]
        if step == 0:
            raise InvalidOperation("a step is 0")
        if extent is UNKNOWN:
            if step < 0 or (begin or 0) < 0 or (end is not None and not (end < 0 or end >= _FAR)):
                site.known_shape(x)
            first, last = begin or 0, 0 if end is None or end >= _FAR else end
        else:
            known = slice(begin, end, step)
            items = range(*known.indices(extent))
            empty |= not items
            first, last, _ = known.indices(extent)
            if step < 0 and last < 0:
                last = -_FAR - 1
            if (first, last, step) == (0, extent, 1):
                continue
        axes.append(axis)
        begins.append(first)
        ends.append(last)
        steps.append(step)
    add = site.emit if final else site.insert
    if empty:
        wanted = list(shape)
        for axis, (begin, end, step) in parts.items():
            wanted[axis] = len(range(*slice(begin, end, step).indices(shape[axis])))
        return add("constant", {}, shape=tuple(wanted), value=(0,), dtype=x.type.dtype)
    if not axes:
        return add("copy", {"x": x}) if final else x
    return add("slice", {"input": x}, axes=axes, begin=begins, end=ends, stride=steps)


@opsets("Slice")
def _slice(site: Site) -> Value:
    x = site.tensor(0)
    begin, end, step = (site.integers(i) for i in (1, 2, 3))
    axes = [site.axis(a) for a in site.integers(4)] if site.has(4) else list(range(len(begin)))
    parts = {a: (b, e, s) for a, b, e, s in zip(axes, begin, end, step, strict=True)}
    return _sliced(site, x, parts, final=True)  # pyright: ignore[reportArgumentType]


@everywhere("StridedSlice")
def _strided_slice(site: Site) -> Value:
    """Cut as tensorflow does: masks ignore bounds, add axes, take one item, stand for the rest.

    Before version 10 a 1 in `begin_mask` and `end_mask` uses the bound, since then it ignores it.
    """
    x = site.tensor(0)
    begin, end = site.integers(1), site.integers(2)
    count = max(len(begin), len(end))
    step = site.integers(3) if site.has(3) else [1] * count

    def mask(name: str, default: int) -> list[bool]:
        found = site.ints(name, [])
        return [bool(x) for x in (found + [default] * count)[:count]]

    is_legacy = site.net.is_legacy
    free = [m != is_legacy for m in mask("begin_mask", int(is_legacy))]
    open_end = [m != is_legacy for m in mask("end_mask", int(is_legacy))]
    adds, takes, rest = (
        mask(f"{n}_axis_mask" if n != "ellipsis" else "ellipsis_mask", 0)
        for n in ("new", "shrink", "ellipsis")
    )
    rank = len(x.type.shape)
    parts: dict[int, tuple[int | None, int | None, int]] = {}
    axis, new, gone, out = 0, list[int](), list[int](), 0
    for i in range(count):
        if rest[i]:
            behind = sum(1 for j in range(i + 1, count) if not adds[j])
            skipped = rank - behind - axis
            axis, out = axis + skipped, out + skipped
            continue
        if adds[i]:
            new.append(out)
            out += 1
            continue
        if axis >= rank:
            raise InvalidShape(f"it has more bounds than the {rank} axes of its input")
        b = None if free[i] else begin[i]
        e = None if open_end[i] else end[i]
        if takes[i]:
            at = begin[i] if not free[i] else 0
            parts[axis] = (at, at + 1 if at != -1 else None, 1)
            gone.append(axis)
        else:
            parts[axis] = (b, e, step[i] if i < len(step) else 1)
            out += 1
        axis += 1
    x = _sliced(site, x, parts, final=not gone and not new)
    if gone:
        add = site.insert if new else site.emit
        x = add("squeeze", {"input": x}, axes=tuple(gone))
    return site.emit("unsqueeze", {"input": x}, axes=tuple(new)) if new else x


@legacy("Crop")
def _crop(site: Site) -> Value:
    """Cut to the extents of a second input, to `dim`, or by `crop_begin` and `crop_end`."""
    x = site.tensor(0)
    shape = x.type.shape
    element = site.layer.element
    axes = [site.axis(a) for a in site.ints("axis", [])]
    offsets = site.ints("offset", [])
    if not axes:  # of version 2: an element for each axis
        crops = [
            c
            for c in (
                *element.children,
                *(element.child("data", "crop-data", "crop_data") or element).children,
            )
            if c.tag == "crop"
        ]
        axes = [site.axis(int(c.attributes["axis"])) for c in crops if "axis" in c.attributes]
        offsets = [int(c.attributes.get("offset", 0)) for c in crops]
    ends: list[int]
    if "crop_begin" in site.layer.attributes:
        offsets, after = site.ints("crop_begin"), site.ints("crop_end")
        ends = [shape[a] - e for a, e in zip(axes, after, strict=True)]
    elif "dim" in site.layer.attributes:
        ends = [o + d for o, d in zip(offsets, site.ints("dim"), strict=True)]
    elif site.has(1):
        ends = [o + site.shape(1)[a] for a, o in zip(axes, offsets, strict=True)]
    else:
        declared = site.layer.outputs[0].shape or ()
        ends = [o + declared[a] for a, o in zip(axes, offsets, strict=True)]
    parts = {a: (o, e, 1) for a, o, e in zip(axes, offsets, ends, strict=True)}
    return _sliced(site, x, parts, final=True)  # pyright: ignore[reportArgumentType]


_MODES = {
    "constant": "constant",
    "edge": "replicate",
    "reflect": "reflect",
    "symmetric": "reflect-even",
}


def _padded(site: Site, begin: Sequence[int], end: Sequence[int], mode: str, value: float) -> Value:
    x = site.tensor(0)
    if mode not in _MODES:
        raise InvalidOperation(f"there is no pad_mode '{mode}'")
    if min((*begin, *end), default=0) < 0:
        parts = {
            i: (-b if b < 0 else None, e if e < 0 else None, 1)
            for i, (b, e) in enumerate(zip(begin, end, strict=True))
            if min(b, e) < 0
        }
        begin, end = [max(b, 0) for b in begin], [max(e, 0) for e in end]
        is_last = not any((*begin, *end))
        x = _sliced(site, x, parts, final=is_last)
        if is_last:
            return x
    around = tuple(zip(begin, end, strict=True))
    return site.emit("pad", {"input": x}, padding=around, border=_MODES[mode], value=value)


@opsets("Pad")
def _pad(site: Site) -> Value:
    value = site.known(3).reshape(-1)[0].item() if site.has(3) else 0.0
    return _padded(
        site, site.integers(1), site.integers(2), site.text("pad_mode", "constant"), float(value)
    )


@legacy("Pad")
def _legacy_pad(site: Site) -> Value:
    begin, end = site.ints("pads_begin"), site.ints("pads_end")
    return _padded(site, begin, end, site.text("pad_mode", "constant"), site.number("pad_value", 0))


# By index


def _gathered(site: Site, data: Any, indices: Any, axis: int, batch_dims: int = 0) -> Value:
    data, indices = site.tensor(data), site.tensor(indices)
    if is_float(indices.type.dtype):
        indices = site.insert("cast", {"input": indices}, dtype="int32")
    if batch_dims == 0:
        return site.emit("gather", {"input": data, "indices": indices}, axis=axis)
    return site.emit(
        "gather_in_batches", {"input": data, "indices": indices}, axis=axis, batch_dims=batch_dims
    )


@opsets("Gather")
def _gather(site: Site) -> Value:
    rank = len(site.shape())
    axis = site.axis(site.integers(2)[0])
    dims = site.int("batch_dims", 0)
    indices = len(site.shape(1))
    return (
        _gathered(site, 0, 1, axis, dims + indices if dims < 0 else dims)
        if rank
        else site.tensor(0)
    )


@legacy("Gather")
def _legacy_gather(site: Site) -> Value:
    """Gather by whole numbers: the catalogue has indices first, files have them second."""
    axis = site.int("axis", 0)
    declared = site.layer.outputs[0].shape or ()

    def result(data: int, indices: int) -> tuple[int, ...]:
        shape = site.shape(data)
        if not -len(shape) <= axis < len(shape):
            return ()
        at = axis % len(shape)
        return (*shape[:at], *site.shape(indices), *shape[at + 1 :])

    first = result(0, 1) == declared or result(1, 0) != declared
    data, indices = (0, 1) if first else (1, 0)
    return _gathered(site, data, indices, site.axis(axis, len(site.shape(data))))


@opsets("GatherElements")
def _gather_elements(site: Site) -> Value:
    given = {"input": site.tensor(0), "indices": site.tensor(1)}
    return site.emit("gather_elements", given, axis=site.axis(site.int("axis")))


@opsets("GatherND")
def _gather_nd(site: Site) -> Value:
    given = {"input": site.tensor(0), "indices": site.tensor(1)}
    dims = site.int("batch_dims", 0)
    if dims < 2 or site.layer.opset != "opset5":
        return site.emit("gather_nd", given, batch_dims=dims)
    found = site.insert("gather_nd", given, batch_dims=dims)  # set 5 joins the batches
    return site.emit("reshape", {"input": found}, shape=(-1,), axis_start=0, axis_count=dims)


@everywhere("OneHot")
def _one_hot(site: Site) -> Value:
    """Put a value at indices along a new axis, another elsewhere; both may be computed."""
    indices = site.tensor(0)
    depth = site.int("depth") if site.net.is_legacy else site.integers(1)[0]
    if is_float(indices.type.dtype):
        indices = site.insert("cast", {"input": indices}, dtype="int32")
    rank = len(indices.type.shape) + 1
    axis = site.axis(site.int("axis", -1), rank)
    normal = site.choice(
        "negative_indices_mode", "ignore_negative", "normalize", default="ignore_negative"
    )
    if normal != "normalize" and not isinstance(site.operand(0), Constant):  # they name nothing
        below = site.insert("lt", {"x": indices, "y": 0})
        out = site.insert("constant", {}, shape=(), value=(depth,), dtype=indices.type.dtype)
        choices = {"condition": below, "true_value": out, "false_value": indices}
        indices = site.insert("select", choices)
    given: dict[str, Any] = {"axis": axis, "depth": depth}
    if site.net.is_legacy:
        values: list[Any] = [site.number("on_value", 1), site.number("off_value", 0)]
        dtype = site.real
    else:
        values, dtype = [site.operand(2), site.operand(3)], site.dtype_of(2)
        if not any(isinstance(x, Value) for x in values):
            values = [float(site.known(i).reshape(-1)[0]) for i in (2, 3)]
    if isinstance(values[0], float):
        given |= {"on_value": values[0], "off_value": values[1]}
        if dtype == "float32":
            return site.emit("one_hot", {"indices": indices}, **given)
        found = site.insert("one_hot", {"indices": indices}, **given)
        return site.emit("cast", {"input": found}, dtype=dtype)
    hot = site.insert("one_hot", {"indices": indices}, **given, on_value=1.0, off_value=0.0)
    on, off = (site.reshaped(site.tensor(x), (1,) * rank) for x in values)
    choices = {
        "condition": site.insert("ne", {"x": hot, "y": 0.0}), "true_value": on, "false_value": off,
    }  # fmt: skip
    return site.emit("select", choices)


@everywhere("Range")
def _range(site: Site) -> Constant | Value:
    start, stop, step = (site.known(i).reshape(-1).tolist()[0] for i in range(3))
    operand = site.operand(0)
    type = operand.type if isinstance(operand, Constant) else "f32"
    if "output_type" in site.layer.attributes:
        type = element_type(site.text("output_type"))
    if step == 0:
        raise InvalidOperation("the step of a range is 0")
    if any(map(is_symbolic, (start, stop, step))):
        dtype = computed(type, site.real)
        return site.emit("range", {}, start=start, end=stop, step=step, dtype=dtype)
    if abs((stop - start) / step) > site.graph.options.meter.limits.array_items:
        raise InvalidOperation("the range has too many items")
    found = np.arange(start, stop, step)
    return Constant(found.astype(np.int64 if type[0] in "iu" else np.float32), type, derived=True)


@everywhere("ReverseSequence")
def _reverse_sequence(site: Site) -> Value:
    """Reverse the first items of each sequence, as many as its length."""
    x, lengths = site.tensor(0), site.tensor(1)
    batch, time = site.axis(site.int("batch_axis", 0)), site.axis(site.int("seq_axis", 1))
    if is_float(lengths.type.dtype):
        lengths = site.insert("cast", {"input": lengths}, dtype="int32")
    return site.emit(
        "reverse_sequence", {"input": x, "lengths": lengths}, batch_axis=batch, time_axis=time
    )


@everywhere("Bucketize")
def _bucketize(site: Site) -> Value:
    """Return between which boundaries items lie."""
    x, edges = site.tensor(0), site.tensor(1)
    right = site.flag("with_right_bound", True)
    rank = len(x.type.shape)
    x = site.insert("unsqueeze", {"input": x}, axes=(rank,))
    edges = site.insert(
        "unsqueeze", {"input": site.cast(edges, x.type.dtype)}, axes=tuple(range(rank))
    )
    beyond = site.insert("gt" if right else "ge", {"x": x, "y": edges})
    ones = site.insert("cast", {"input": beyond}, dtype="int32")
    count = site.insert("sum_reduce", {"input": ones}, axes=(rank,), normalize=False)
    return site.emit("squeeze", {"input": count}, axes=(rank,))


@opsets("SearchSorted")
def _search_sorted(site: Site) -> Value:
    """Return how many items of a sorted last axis are below each value, or not above it."""
    edges, x = site.tensor(0), site.tensor(1)
    rank = len(x.type.shape)
    if len(edges.type.shape) == 1:
        edges = site.insert("unsqueeze", {"input": edges}, axes=tuple(range(rank - 1)))
    edges = site.insert("unsqueeze", {"input": edges}, axes=(rank - 1,))
    x = site.insert("unsqueeze", {"input": x}, axes=(rank,))
    below = site.insert("le" if site.flag("right_mode") else "lt", {"x": edges, "y": x})
    ones = site.insert("cast", {"input": below}, dtype=site.dtype("output_type", "i64"))
    count = site.insert("sum_reduce", {"input": ones}, axes=(rank,), normalize=False)
    return site.emit("squeeze", {"input": count}, axes=(rank,))
