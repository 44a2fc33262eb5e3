"""Items by where they are: slices, gathers, scatters, padding, the largest ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, is_symbolic
from nnef_jax.flattening.hostvalues import LARGEST
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator
from nnef_jax.formats.onnx.operators.arithmetic import floored_mod

_FAR = 2**31 - 1
_REDUCTIONS = ("none", "add", "mul", "min", "max")
Window = tuple[int, int, int]  # begin, end, step


@operator("Slice")
def _slice(site: NodeSite) -> Any:
    """Cut windows along axes; bounds beyond an axis are cut to it."""
    if site.version < 10:
        begins, ends = list(site.ints("starts")), list(site.ints("ends"))
    else:
        begins, ends = site.integers(1), site.integers(2)
    axes = site.axes(3) or tuple(range(len(begins)))
    steps = site.integers(4) if site.has(4) else [1] * len(begins)
    windows = dict(zip(axes, zip(begins, ends, steps, strict=True), strict=True))
    return _sliced(site, site.operand(0), windows, site.emit)


def _sliced(site: NodeSite, x: Any, windows: Mapping[int, Window], add: Callable[..., Any]) -> Any:
    if isinstance(x, Constant) and x.array.size <= LARGEST:
        whole = [slice(*windows[a]) if a in windows else slice(None) for a in range(site.rank(x))]
        if not any(is_symbolic(n) for window in windows.values() for n in window):
            return Constant(x.array[tuple(whole)], x.type, derived=True)
    axes, bounds, lengths = list[int](), list[Window](), dict[int, int]()
    for axis, (begin, end, step) in sorted(windows.items()):
        if step == 0:
            raise InvalidOperation("a step is 0")
        extent = site.shape(x)[axis]
        if extent is UNKNOWN or is_symbolic(begin) or is_symbolic(end):
            if not is_symbolic(end) and end == 0 and step > 0:
                lengths[axis] = 0
                continue
            is_far = not is_symbolic(end) and end >= _FAR
            if step < 0 or not (is_symbolic(begin) or begin >= 0):
                site.known_shape(x)
            bounds.append((begin, 0 if is_far else end, step))
        else:
            items = range(extent)[begin:end:step]
            lengths[axis] = len(items)
            if items == range(extent):
                continue
            last = items.stop if items.stop >= 0 else -_FAR - 1
            bounds.append((items.start, last, step))
        axes.append(axis)
    if 0 in lengths.values():
        shape = [lengths.get(i, n) for i, n in enumerate(site.known_shape(x))]
        return add("constant", {}, shape=shape, value=(), dtype=site.dtype_of(x))
    if not axes:
        return add("copy", {"x": x}) if add == site.emit else x
    begin, end, stride = zip(*bounds, strict=True)
    return add("slice", {"input": x}, axes=axes, begin=begin, end=end, stride=stride)


_BORDERS = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "wrap"}


@operator("Pad")
def _pad(site: NodeSite) -> Any:
    """Put items around; where there are to be fewer than none, cut items off before."""
    rank = site.rank()
    if site.version < 11:
        pads, axes = site.ints("paddings" if site.version < 2 else "pads"), None
        value: Any = site.number("value", 0.0)
    else:
        pads, axes = site.integers(1), site.axes(3)
        value = site.operand(2) if site.has(2) else 0.0
    axes = tuple(range(rank)) if axes is None else axes
    if len(pads) != 2 * len(axes):
        raise InvalidOperation(f"'pads' must have {2 * len(axes)} items, it has {len(pads)}")
    around = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        around[axis] = (pads[i], pads[i + len(axes)])
    mode = site.choice("mode", *_BORDERS, default="constant")
    return padded(site, site.operand(0), around, mode, value)


def padded(
    site: NodeSite, x: Any, around: Sequence[tuple[int, int]], mode: str, value: Any = 0.0
) -> Any:
    """Return a tensor with items put around it, or taken away where that is negative."""
    if any(n < 0 for pair in around for n in pair):
        windows = {
            i: (max(-p, 0), min(q, 0) or _FAR, 1)
            for i, (p, q) in enumerate(around)
            if min(p, q) < 0
        }
        x = _sliced(site, x, windows, site.insert)
        around = [(max(p, 0), max(q, 0)) for p, q in around]
    if mode == "wrap":
        shape = site.known_shape(x)
        for axis, (p, q) in enumerate(around):
            if p or q:
                site.spend(p + q + shape[axis])
                places = np.arange(-p, shape[axis] + q) % max(shape[axis], 1)
                indices = site.constant(places, "int64")
                x = site.insert("gather", {"input": x, "indices": indices}, axis=axis)
        return site.emit("copy", {"x": x})
    given: dict[str, Any] = {"padding": around, "border": _BORDERS[mode]}
    if isinstance(value, Constant) and value.array.size == 1:
        number = value.array.reshape(-1)[0].item()
        if float(np.float32(number)) == number or number != number:
            value = float(number)
    if isinstance(value, float) or mode != "constant":
        return site.emit("pad", {"input": x}, **given, value=value if mode == "constant" else 0.0)
    shape = site.known_shape(x)
    inside = site.insert("constant", {}, shape=shape, value=(True,), dtype="bool")
    inside, x = (site.insert("pad", {"input": part}, **given, value=0.0) for part in (inside, x))
    inside, x, value = site.aligned(inside, x, site.reshaped(value, ()))
    return site.emit("select", {"condition": inside, "true_value": x, "false_value": value})


@operator("CenterCropPad")
def _center_crop_pad(site: NodeSite) -> Any:
    """Cut or pad axes around their middle to given extents."""
    shape, wanted = site.known_shape(), site.integers(1)
    axes = site.axes(2) or tuple(range(site.rank()))
    around = [(0, 0)] * site.rank()
    for axis, extent in zip(axes, wanted, strict=True):
        more = extent - shape[axis]
        before = more // 2 if more >= 0 else -(-more // 2)
        around[axis] = (before, more - before)
    return padded(site, site.operand(0), around, "constant")


# By index


@operator("Gather")
def _gather(site: NodeSite) -> Any:
    axis = site.axis(site.int("axis", 0))
    given = {"input": site.operand(0), "indices": site.operand(1)}
    return site.emit("gather", given, axis=axis)


@operator("GatherElements")
def _gather_elements(site: NodeSite) -> Any:
    given = {"input": site.operand(0), "indices": site.operand(1)}
    return site.emit("gather_elements", given, axis=site.axis(site.int("axis", 0)))


@operator("GatherND")
def _gather_nd(site: NodeSite) -> Any:
    given = {"input": site.operand(0), "indices": site.operand(1)}
    return site.emit("gather_nd", given, batch_dims=site.int("batch_dims", 0))


def _scatter(kind: str) -> Callable[[NodeSite], Any]:
    def meaning(site: NodeSite) -> Any:
        """Put items at indices, joined with what is there if so asked."""
        reduction = site.choice("reduction", *_REDUCTIONS, default="none")
        names = ("input", "indices", "updates")
        given = {name: site.operand(i) for i, name in enumerate(names)}
        along = {"axis": site.axis(site.int("axis", 0))} if kind == "scatter_elements" else {}
        return site.emit(kind, given, **along, reduction=reduction)

    return meaning


operator("Scatter", "ScatterElements")(_scatter("scatter_elements"))
operator("ScatterND")(_scatter("scatter_nd"))


@operator("TensorScatter")
def _tensor_scatter(site: NodeSite) -> Any:
    """Put an update into a cache from a place on, which each item of the batch has of its own."""
    axis = site.axis(site.int("axis", -2))
    shape, length = site.known_shape(), site.known_shape(1)[axis]
    if axis == 0:
        raise InvalidOperation("'axis' must not be 0, that is the batch")
    is_circular = site.choice("mode", "linear", "circular", default="linear") == "circular"
    integer = site.graph.builder.integer
    turns: Any = site.places(shape[axis], 1, 2)
    if site.has(2):
        starts = site.unsqueezed(site.cast(site.tensor(2), integer), (1,))
        turns = site.insert("sub", {"x": turns, "y": starts})
        if is_circular:
            turns = floored_mod(site, turns, shape[axis], site.insert)
    turns = site.insert("broadcast", {"input": turns}, shape=(shape[0], shape[axis]))
    ends = [site.insert(k, {"x": turns, "y": n}) for k, n in (("ge", 0), ("lt", length))]
    is_new = site.insert("and", {"x": ends[0], "y": ends[1]})
    kept = site.insert("select", {"condition": is_new, "true_value": turns, "false_value": 0})
    given = {"input": site.operand(1), "indices": kept}
    moved = site.insert("gather_in_batches", given, axis=axis, batch_dims=1)
    is_new = site.unsqueezed(is_new, [i for i in range(site.rank()) if i not in (0, axis)])
    choices = {"condition": is_new, "true_value": moved, "false_value": site.operand(0)}
    return site.emit("select", choices)


@operator("Trilu")
def _triangle(site: NodeSite) -> Any:
    k: Any = site.operand(1) if site.has(1) else 0
    return site.emit("triangle", {"input": site.operand(0), "k": k}, upper=site.flag("upper", True))


@operator("OneHot")
def _one_hot(site: NodeSite) -> Any:
    """Put the second value at indices along a new axis, the first one elsewhere."""
    indices: Any = site.tensor(0)
    (depth,) = site.integers(1)
    rank = site.rank() + 1
    axis = site.axis(site.int("axis", -1), rank)
    integer = site.graph.builder.integer
    indices = site.unsqueezed(site.cast(indices, integer), (axis,))
    below = site.insert("lt", {"x": indices, "y": 0})
    above = site.insert("add", {"x": indices, "y": depth})
    indices = site.insert(
        "select", {"condition": below, "true_value": above, "false_value": indices}
    )
    is_hot = site.insert("eq", {"x": indices, "y": site.places(depth, axis, rank)})
    off, on = (
        site.reshaped(_sliced(site, site.operand(2), {0: (i, i + 1, 1)}, site.insert), (1,) * rank)
        for i in range(2)
    )
    return site.emit("select", {"condition": is_hot, "true_value": on, "false_value": off})


@operator("TopK")
def _top_k(site: NodeSite) -> tuple[Any, Any]:
    """Return the largest or smallest items along an axis, and their places."""
    axis = site.axis(site.int("axis", -1))
    k = site.integer(1) if site.has(1) else site.int("k")
    largest = site.flag("largest", True)
    values, places = site.emit("topk", {"input": site.operand(0)}, k=k, axis=axis, largest=largest)
    return values, site.cast(places, site.graph.builder.integer)


@operator("ReverseSequence")
def _reverse_sequence(site: NodeSite) -> Any:
    """Reverse the first items of each sequence, as many as its length."""
    given = {"input": site.operand(0), "lengths": site.operand(1)}
    axes = {name: site.axis(site.int(name, i)) for i, name in ((1, "batch_axis"), (0, "time_axis"))}
    return site.emit("reverse_sequence", given, **axes)
