"""Reductions along axes, and places of extremes."""

from __future__ import annotations

from typing import Any, NamedTuple

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, volume
from lowering.graph import Value, is_integer
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers import Meaning, everywhere, legacy


class _Reduction(NamedTuple):
    """What items are made before they are reduced, how they are, and what the result is made."""

    kind: str
    before: str = ""
    after: str = ""
    of_reals: bool = False  # whole numbers are computed with as real ones


_REDUCTIONS = {
    "ReduceMax": _Reduction("max_reduce"),
    "ReduceMin": _Reduction("min_reduce"),
    "ReduceMean": _Reduction("mean_reduce", of_reals=True),
    "ReduceProd": _Reduction("product_reduce"),
    "ReduceSum": _Reduction("sum_reduce"),
    "ReduceL1": _Reduction("sum_reduce", "abs"),
    "ReduceL2": _Reduction("sum_reduce", "sqr", "sqrt", of_reals=True),
    "ReduceSumSquare": _Reduction("sum_reduce", "sqr"),
    "ReduceLogSum": _Reduction("sum_reduce", after="log", of_reals=True),
    **dict.fromkeys(("ReduceLogicalAnd", "ReduceAnd"), _Reduction("all_reduce")),
    **dict.fromkeys(("ReduceLogicalOr", "ReduceOr"), _Reduction("any_reduce")),
}


def _keeps(site: LayerSite) -> bool:
    return site.flag("keep_dims", site.net.is_legacy)


def _reduced(reduction: _Reduction) -> Meaning:
    def meaning(site: LayerSite) -> Value:
        x, axes, keeps = site.tensor(0), tuple(sorted(set(site.axes(1)))), _keeps(site)
        if not axes:
            return site.last.copy(x)
        dtype, back = x.type.dtype, ""  # what the result is cast back to
        if reduction.kind in ("all_reduce", "any_reduce") and dtype != "bool":
            x, back = site.truths(x), dtype
        if reduction.of_reals and is_integer(dtype):
            x, back = site.step.cast(x, dtype=site.real), dtype
        if reduction.before:
            x = getattr(site.step, reduction.before)(x)
        given: dict[str, Any] = {"normalize": False} if reduction.kind == "sum_reduce" else {}
        steps: list[tuple[str, dict[str, Any]]] = [(reduction.kind, {"axes": axes, **given})]
        if reduction.after:
            steps.append((reduction.after, {}))
        if back:
            steps.append(("cast", {"dtype": back}))
        if not keeps:
            steps.append(("squeeze", {"axes": axes}))
        for i, (kind, attributes) in enumerate(steps, 1):
            x = getattr(site.step_or_last(i == len(steps)), kind)(x, **attributes)
        return x

    return meaning


for _type, _reduction in _REDUCTIONS.items():
    everywhere(_type)(_reduced(_reduction))


@everywhere("ReduceLogSumExp")
def _log_sum_exp(site: LayerSite) -> Value:
    """Return log(sum(exp(x))), the largest item taken out first."""
    x, axes, keeps, step = site.tensor(0), sorted(set(site.axes(1))), _keeps(site), site.step
    if not axes:
        return site.last.copy(x)
    largest = step.max_reduce(x, axes=axes)
    total = step.sum_reduce(step.exp(step.sub(x, largest)), axes=axes, normalize=False)
    result = site.step_or_last(keeps).add(step.log(total), largest)
    return result if keeps else site.last.squeeze(result, axes=axes)


@legacy("ArgMax")
def _arg_max(site: LayerSite) -> Value:
    """Return places of the largest items, as real numbers, and their values if asked for."""
    x, count, step = site.tensor(0), site.int("top_k", 1), site.step
    with_values = site.flag("out_max_val")
    if "axis" in site.layer.attributes:
        values, places = step.topk(x, k=count, axis=site.axis_of("axis"), largest=True)
        return site.last.copy(values) if with_values else site.last.cast(places, dtype=site.real)
    shape = x.type.shape
    flat = site.reshaped(x, (shape[0], 1, volume(shape[1:])))
    values, places = step.topk(flat, k=count, axis=2, largest=True)
    places = step.cast(places, dtype=site.real)
    return site.last.concat([places, values], axis=1) if with_values else site.last.copy(places)


@everywhere("TopK")
def _top_k(site: LayerSite) -> list[Value]:
    """Return the largest or smallest items along an axis and their places."""
    x, count = site.tensor(0), site.integers(1)
    if len(count) != 1:
        raise InvalidOperation("'k' must be one number")
    axis = site.axis_of("axis")
    largest = site.choice("mode", "max", "min", default="max") == "max"
    k = count[0] if x.type.shape[axis] is UNKNOWN else min(count[0], x.type.shape[axis])
    found = site.last.topk(x, k=k, axis=axis, largest=largest)
    if site.choice("sort", "value", "index", "none", default="value") == "index":
        order = site.step.topk(found[1], k=k, axis=axis, largest=False)[1]
        found = [site.step.gather_elements(x, order, axis=axis) for x in found]
    values, places = found
    if site.text("index_element_type", "i32") == "i64":
        places = site.cast(places, site.integer)
    return [values, places]
