"""What is left of axes: sums, extremes and their places."""

from __future__ import annotations

import math
from typing import Any

from lowering.graph import is_integer
from nnef_jax.flattening.along_axes import reduced
from nnef_jax.flattening.emission import ends_of
from nnef_jax.flattening.operators import Meaning
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator

# What is done with items before, the reduction, and what with its results.
_STEPS = {
    "Max": ("", "max_reduce", ""), "Min": ("", "min_reduce", ""), "Sum": ("", "sum_reduce", ""),
    "Prod": ("", "product_reduce", ""), "Mean": ("", "mean_reduce", ""),
    "L1": ("abs", "sum_reduce", ""), "L2": ("sqr", "sum_reduce", "sqrt"),
    "SumSquare": ("sqr", "sum_reduce", ""), "LogSum": ("", "sum_reduce", "log"),
    "LogSumExp": ("exp", "sum_reduce", "log"),
}  # fmt: skip


def _axes(site: NodeSite) -> tuple[int, ...]:
    """Return which axes are reduced: none given are all of them, unless they are to be none."""
    axes = site.axes(1)
    if not axes and not site.flag("noop_with_empty_axes"):
        return tuple(range(site.rank()))
    return tuple(sorted(set(axes or ())))


def _reduced(*how: str) -> Meaning:
    _, kind, after = how

    def meaning(site: NodeSite) -> Any:
        x, axes, dtype = site.operand(0), _axes(site), site.dtype_of()
        if kind in ("max_reduce", "min_reduce") and any(site.shape()[a] == 0 for a in axes):
            return _of_none(site, axes, largest=kind == "max_reduce")
        back = dtype if after and is_integer(dtype) else ""
        x = site.cast(x, site.computed("float64")) if back else x
        return reduced(site, x, axes, how, keeps=site.flag("keepdims", True), back=back)

    return meaning


for _name, _steps in _STEPS.items():
    operator(f"Reduce{_name}")(_reduced(*_steps))


def _of_none(site: NodeSite, axes: tuple[int, ...], *, largest: bool) -> Any:
    """Return the extreme of no items: the least or greatest number there is."""
    dtype, keeps = site.dtype_of(), site.flag("keepdims", True)
    low, high = (-math.inf, math.inf) if site.is_real() else ends_of(dtype)
    item = low if largest else high
    shape = [
        1 if i in axes else n for i, n in enumerate(site.known_shape()) if keeps or i not in axes
    ]
    return site.last.constant(shape=shape, value=(item,), dtype=dtype)


@operator("ArgMax", "ArgMin")
def _arg(site: NodeSite, x: Any) -> Any:
    """Return the places of extremes along an axis, of equal ones the first or the last."""
    axes, kind = (site.axis_of("axis", 0),), f"{site.operator.lower()}_reduce"
    steps: list[Any] = [
        (kind, [], {"axes": axes, "last": site.flag("select_last_index")}),
        ("cast", [], {"dtype": site.graph.builder.integer}),
    ]
    if not site.flag("keepdims", True):
        steps.append(("squeeze", [], {"axes": axes}))
    return site.chain(x, *steps)


@operator("Hardmax")
def _hardmax(site: NodeSite, x: Any) -> Any:
    """Return 1 at the first largest item along an axis, else 0; before 13 along all behind it."""
    axis = site.axis_of("axis", -1 if site.version >= 13 else 1)
    axes = (axis,) if site.version >= 13 else tuple(range(axis, site.rank()))
    site.graph.require_items(x, axes)
    shape = site.known_shape()
    places: Any = site.places(site.volume([shape[a] for a in axes]))
    places = site.reshaped(places, [n if i in axes else 1 for i, n in enumerate(shape)])
    first = site.whole(site.step.argmax_reduce(x, axes=axes))
    return site.last.cast(site.step.eq(places, first), dtype=site.dtype_of())
