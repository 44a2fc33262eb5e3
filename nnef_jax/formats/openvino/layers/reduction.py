"""Reductions along axes, and places of extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, volume
from lowering.graph import Value, is_float, is_integer
from nnef_jax.formats.openvino.layers import everywhere, legacy, opsets
from nnef_jax.formats.openvino.site import Site

_KINDS = {
    "ReduceMax": "max_reduce", "ReduceMin": "min_reduce", "ReduceMean": "mean_reduce",
    "ReduceProd": "product_reduce", "ReduceSum": "sum_reduce", "ReduceL1": "sum_reduce",
    "ReduceL2": "sum_reduce", "ReduceSumSquare": "sum_reduce", "ReduceLogSum": "sum_reduce",
    "ReduceLogSumExp": "sum_reduce", "ReduceLogicalAnd": "all_reduce", "ReduceAnd": "all_reduce",
    "ReduceLogicalOr": "any_reduce", "ReduceOr": "any_reduce",
}  # fmt: skip
_BEFORE = {"ReduceL1": "abs", "ReduceL2": "sqr", "ReduceSumSquare": "sqr"}
_AFTER = {"ReduceL2": "sqrt", "ReduceLogSum": "log"}


def _reduced(type: str) -> Callable[[Site], Value]:
    kind = _KINDS[type]

    def meaning(site: Site) -> Value:
        x = site.tensor(0)
        axes = tuple(sorted({site.axis(a) for a in site.integers(1)}))
        keeps = site.flag("keep_dims", site.net.is_legacy)
        if not axes:
            return site.emit("copy", {"x": x})
        if type == "ReduceLogSumExp":
            return _log_sum_exp(site, x, axes, keeps=keeps)
        dtype, back = x.type.dtype, ""  # what the result is cast back to
        if kind in ("all_reduce", "any_reduce") and dtype != "bool":
            x, back = site.insert("ne", {"x": x, "y": 0.0 if is_float(dtype) else 0}), dtype
        if (type == "ReduceMean" or type in _AFTER) and is_integer(dtype):
            x, back = site.insert("cast", {"input": x}, dtype=site.real), dtype
        if type in _BEFORE:
            x = site.insert(_BEFORE[type], {"x": x})
        given: dict[str, Any] = {"normalize": False} if kind == "sum_reduce" else {}
        steps: list[tuple[str, str, dict[str, Any]]] = [(kind, "input", {"axes": axes, **given})]
        if type in _AFTER:
            steps.append((_AFTER[type], "x", {}))
        if back:
            steps.append(("cast", "input", {"dtype": back}))
        if not keeps:
            steps.append(("squeeze", "input", {"axes": axes}))
        *inner, (last, operand, given) = steps
        for each, name, attributes in inner:
            x = site.insert(each, {name: x}, **attributes)
        return site.emit(last, {operand: x}, **given)

    return meaning


for _type in _KINDS:
    everywhere(_type)(_reduced(_type))


def _log_sum_exp(site: Site, x: Value, axes: tuple[int, ...], *, keeps: bool) -> Value:
    """Return log(sum(exp(x))), the largest item taken out first."""
    largest = site.insert("max_reduce", {"input": x}, axes=axes)
    powers = site.insert("exp", {"x": site.insert("sub", {"x": x, "y": largest})})
    total = site.insert("sum_reduce", {"input": powers}, axes=axes, normalize=False)
    add = site.emit if keeps else site.insert
    result = add("add", {"x": site.insert("log", {"x": total}), "y": largest})
    return result if keeps else site.emit("squeeze", {"input": result}, axes=axes)


@legacy("ArgMax")
def _arg_max(site: Site) -> Value:
    """Return places of the largest items, as real numbers, and their values if asked for."""
    x, count = site.tensor(0), site.int("top_k", 1)
    with_values = site.flag("out_max_val")
    if "axis" in site.layer.attributes:
        axis = site.axis(site.int("axis"))
        values, places = site.insert("topk", {"input": x}, k=count, axis=axis, largest=True)
        if with_values:
            return site.emit("copy", {"x": values})
        return site.emit("cast", {"input": places}, dtype=site.real)
    shape = x.type.shape
    flat = site.reshaped(x, (shape[0], 1, volume(shape[1:])))
    values, places = site.insert("topk", {"input": flat}, k=count, axis=2, largest=True)
    places = site.insert("cast", {"input": places}, dtype=site.real)
    if with_values:
        return site.emit("concat", {"values": [places, values]}, axis=1)
    return site.emit("copy", {"x": places})


@everywhere("TopK")
def _top_k(site: Site) -> list[Value]:
    """Return the largest or smallest items along an axis and their places."""
    x, count = site.tensor(0), site.integers(1)
    if len(count) != 1:
        raise InvalidOperation("'k' must be one number")
    axis = site.axis(site.int("axis"))
    largest = site.choice("mode", "max", "min", default="max") == "max"
    k = count[0] if x.type.shape[axis] is UNKNOWN else min(count[0], x.type.shape[axis])
    values, places = site.emit("topk", {"input": x}, k=k, axis=axis, largest=largest)
    if site.choice("sort", "value", "index", "none", default="value") == "index":
        order = site.insert("topk", {"input": places}, k=k, axis=axis, largest=False)[1]
        values, places = (
            site.insert("gather_elements", {"input": v, "indices": order}, axis=axis)
            for v in (values, places)
        )
    type = site.text("index_element_type", "i32")
    if type == "i64":
        places = site.cast(places, site.graph.builder.integer)
    return [values, places]


@opsets("CumSum")
def _cumsum(site: Site) -> Value:
    flags = {"exclusive": site.flag("exclusive"), "reverse": site.flag("reverse")}
    axis = site.axis(site.integers(1)[0] if site.has(1) else 0)
    return site.emit("cumsum", {"x": site.tensor(0)}, axis=axis, **flags)
