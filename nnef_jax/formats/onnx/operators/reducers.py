"""What is left of axes: sums, extremes and their places, running sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from lowering.graph import is_integer
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator

_KINDS = {
    "ReduceMax": "max_reduce", "ReduceMin": "min_reduce", "ReduceProd": "product_reduce",
    "ReduceMean": "mean_reduce", "ReduceSum": "sum_reduce", "ReduceL1": "sum_reduce",
    "ReduceL2": "sum_reduce", "ReduceSumSquare": "sum_reduce", "ReduceLogSum": "sum_reduce",
    "ReduceLogSumExp": "sum_reduce",
}  # fmt: skip
_BEFORE = {"ReduceL1": "abs", "ReduceL2": "sqr", "ReduceSumSquare": "sqr"}
_AFTER = {"ReduceL2": "sqrt", "ReduceLogSum": "log", "ReduceLogSumExp": "log"}


def _axes(site: NodeSite) -> tuple[int, ...]:
    """Return which axes are reduced: none given are all of them, unless they are to be none."""
    axes = site.axes(1)
    if not axes and not site.flag("noop_with_empty_axes"):
        return tuple(range(site.rank()))
    return tuple(sorted(set(axes or ())))


def _reduced(name: str) -> Callable[[NodeSite], Any]:
    kind = _KINDS[name]

    def meaning(site: NodeSite) -> Any:
        x, axes = site.operand(0), _axes(site)
        steps: list[tuple[str, str, dict[str, Any]]] = []
        dtype = site.dtype_of()
        if is_integer(dtype) and name in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"):
            x = site.cast(x, site.computed("float64"))
            steps = [("cast", "input", {"dtype": dtype})]
        if not site.flag("keepdims", True):
            steps.insert(0, ("squeeze", "input", {"axes": axes}))
        if name == "ReduceLogSumExp":
            return _log_sum_exp(site, x, axes, steps)
        if name in _AFTER:
            steps.insert(0, (_AFTER[name], "x", {}))
        given: dict[str, Any] = {"axes": axes}
        if kind == "sum_reduce" or (kind == "mean_reduce" and is_integer(dtype)):
            given["normalize"] = kind == "mean_reduce"
            steps.insert(0, ("sum_reduce", "input", given))
        elif kind in ("max_reduce", "min_reduce") and any(site.shape()[a] == 0 for a in axes):
            return _of_none(site, axes, largest=kind == "max_reduce")
        else:
            steps.insert(0, (kind, "input", given))
        if name in _BEFORE:
            steps.insert(0, (_BEFORE[name], "x", {}))
        return _added(site, x, steps)

    return meaning


for _name in _KINDS:
    operator(_name)(_reduced(_name))


def _added(site: NodeSite, x: Any, steps: list[tuple[str, str, dict[str, Any]]]) -> Any:
    """Add operations one after the other; the last one is the node itself."""
    for i, (kind, operand, attributes) in enumerate(steps):
        add = site.emit if i == len(steps) - 1 else site.insert
        x = add(kind, {operand: x}, **attributes)
    return x


def _log_sum_exp(site: NodeSite, x: Any, axes: tuple[int, ...], steps: list[Any]) -> Any:
    """Return log(sum(exp(x))), the largest item taken out first where it is finite."""
    if any(site.shape(x)[a] == 0 for a in axes):
        total = site.insert("sum_reduce", {"input": x}, axes=axes, normalize=False)
        return _added(site, total, [("log", "x", {}), *steps])
    largest = site.insert("max_reduce", {"input": x}, axes=axes)
    ends = jnp.finfo(site.dtype_of(x))
    bounds = {"a": site.item(float(ends.min), x), "b": site.item(float(ends.max), x)}
    largest = site.insert("clamp", {"x": largest, **bounds})
    powers = site.insert("exp", {"x": site.insert("sub", {"x": x, "y": largest})})
    total = site.insert("sum_reduce", {"input": powers}, axes=axes, normalize=False)
    add = site.insert if steps else site.emit
    found = add("add", {"x": site.insert("log", {"x": total}), "y": largest})
    return _added(site, found, steps)


def _of_none(site: NodeSite, axes: tuple[int, ...], *, largest: bool) -> Any:
    """Return the extreme of no items: the least or greatest number there is."""
    dtype, keeps = site.dtype_of(), site.flag("keepdims", True)
    if dtype == "bool":
        item: Any = not largest
    elif is_integer(dtype):
        ends = jnp.iinfo(dtype)
        item = int(ends.min if largest else ends.max)
    else:
        item = float("-inf" if largest else "inf")
    shape = [
        1 if i in axes else n for i, n in enumerate(site.known_shape()) if keeps or i not in axes
    ]
    return site.emit("constant", {}, shape=shape, value=(item,), dtype=dtype)


def _arg(kind: str) -> Callable[[NodeSite], Any]:
    def meaning(site: NodeSite) -> Any:
        """Return the places of extremes along an axis, of equal ones the first or the last."""
        axes = (site.axis(site.int("axis", 0)),)
        last = site.flag("select_last_index")
        steps = [
            (kind, "input", {"axes": axes, "last": last}),
            ("cast", "input", {"dtype": site.graph.builder.integer}),
        ]
        if not site.flag("keepdims", True):
            steps.append(("squeeze", "input", {"axes": axes}))
        return _added(site, site.operand(0), steps)

    return meaning


operator("ArgMax")(_arg("argmax_reduce"))
operator("ArgMin")(_arg("argmin_reduce"))


def _cumulative(kind: str) -> Callable[[NodeSite], Any]:
    def meaning(site: NodeSite) -> Any:
        flags = {name: site.flag(name) for name in ("exclusive", "reverse")}
        return site.emit(kind, {"x": site.operand(0)}, axis=site.axis(site.integer(1)), **flags)

    return meaning


operator("CumSum")(_cumulative("cumsum"))
operator("CumProd")(_cumulative("cumprod"))


@operator("Hardmax")
def _hardmax(site: NodeSite) -> Any:
    """Return 1 at the first largest item along an axis, else 0; before 13 along all behind it."""
    x = site.operand(0)
    axis = site.axis(site.int("axis", -1 if site.version >= 13 else 1))
    axes = (axis,) if site.version >= 13 else tuple(range(axis, site.rank()))
    shape = site.known_shape()
    places: Any = site.places(site.volume([shape[a] for a in axes]))
    places = site.reshaped(places, [n if i in axes else 1 for i, n in enumerate(shape)])
    first = site.insert("argmax_reduce", {"input": x}, axes=axes)
    first = site.cast(first, site.graph.builder.integer)
    is_first = site.insert("eq", {"x": places, "y": first})
    return site.emit("cast", {"input": is_first}, dtype=site.dtype_of())
