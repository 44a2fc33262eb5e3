"""Maxima, means and norms of windows and of whole planes; MaxUnpool."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lowering.errors import InvalidOperation
from lowering.extents import Shape
from nnef_jax.flattening.spatial_windows import read_behind
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operations import plane
from nnef_jax.formats.onnx.operators import operator
from nnef_jax.formats.onnx.operators.filters import spatial, windows_of


def _windows(site: NodeSite) -> tuple[dict[str, Any], list[int]]:
    """Return the attributes of windows on all axes, and what is read behind where sizes round up.

    The last window begins on the input or on what is put before it.
    """
    rank = site.rank() - 2
    kernel = spatial(site, "kernel_shape", rank, None)
    window, rounds = windows_of(site, kernel), site.flag("ceil_mode")
    extra = read_behind(site, kernel, window, begins_inside=True) if rounds else [0] * rank
    before = {"stride": [1, 1], "dilation": [1, 1], "padding": [(0, 0), (0, 0)]}
    whole = {name: [*items, *window[name]] for name, items in before.items()}
    return {"size": [1, 1, *kernel], **whole}, [0, 0, *extra]


def _widened(window: dict[str, Any], extra: list[int], border: str = "ignore") -> dict[str, Any]:
    padding = [(p, q + e) for (p, q), e in zip(window["padding"], extra, strict=True)]
    return {**window, "padding": padding, "border": border}


@operator("MaxPool")
def _max_pool(site: NodeSite, x: Any) -> Any:
    """Return maxima, and where read their places in the tensor."""
    window, order = _widened(*_windows(site)), site.int("storage_order", 0)
    if order not in (0, 1):
        raise InvalidOperation(f"'storage_order' must be 0 or 1, it is {order}")
    if not site.wants(1):
        return site.last.max_pool(x, **window)
    found, place = site.last.max_pool_with_index(x, first_axis=0, **window)
    place = site.cast(place, site.computed("int64"))
    return found, _by_columns(site, place, site.known_shape()[2:]) if order else place


def _by_columns(site: NodeSite, place: Any, extents: Shape) -> Any:
    """Return places in planes whose first axis is the fastest, given those of the last."""
    step = site.step
    size = math.prod(extents)
    rest = step.rem(place, size)
    found = step.sub(place, rest)
    for extent in reversed(extents):
        size //= extent
        at = step.rem(rest, extent)
        found = step.add(found, step.mul(at, size))
        rest = step.div(step.sub(rest, at), extent)
    return found


@operator("AveragePool")
def _average_pool(site: NodeSite, x: Any) -> Any:
    """Take means of the input, or of it with its padding; what rounding up adds is never in one."""
    window, extra = _windows(site)
    border, padding = "ignore", window["padding"]
    if site.flag("count_include_pad") and any(map(any, padding)):
        border = "constant"
        if any(extra):
            x = site.step.pad(x, padding=padding, border="constant", value=0.0)
            border, window["padding"] = "ignore", [(0, 0)] * len(padding)
    return site.last.avg_pool(x, **_widened(window, extra, border))


def _norm(site: NodeSite, total: Callable[[Any], Any]) -> Any:
    """Return the root of a sum of powers of absolute values."""
    power, x = site.number("p", 2), site.step.abs(site.operand(0))
    if power < 1:
        raise InvalidOperation(f"'p' must be 1 or more, it is {power:g}")
    if power == 1:
        return total(x)
    if power == 2:
        return site.step.sqrt(total(site.step.sqr(x)))
    return site.step.pow(total(site.step.pow(x, power)), 1 / power)


@operator("LpPool")
def _lp_pool(site: NodeSite) -> Any:
    window = _widened(*_windows(site))
    return _norm(site, lambda x: site.step.box(x, normalize=False, **window))


operator("GlobalLpPool")(lambda site: _norm(site, lambda x: site.total(x, plane(site))))


@operator("MaxUnpool")
def _max_unpool(site: NodeSite, items: Any, places: Any) -> Any:
    """Put items where they were before MaxPool, 0 elsewhere; extents may be wanted larger."""
    rank, shape = site.rank() - 2, site.known_shape()
    kernel, strides = spatial(site, "kernel_shape", rank, None), spatial(site, "strides", rank)
    pads = spatial(site, "pads", 2 * rank, 0)
    axes = zip(shape[2:], strides, kernel, pads[:rank], pads[rank:], strict=True)
    whole = (*shape[:2], *((n - 1) * s + k - p - q for n, s, k, p, q in axes))
    items, places = (site.reshaped(x, (math.prod(shape),)) for x in (items, places))
    none = site.filled(0, site.dtype_of(), (math.prod(whole),))
    found = site.step.scatter_elements(none, places, items, axis=0, reduction="none")
    found = site.reshaped(found, whole)
    if not site.has(2) or tuple(site.integers(2)) == whole:
        return found
    behind = [(0, n - m) for n, m in zip(site.integers(2), whole, strict=True)]
    if min(min(pair) for pair in behind) < 0:
        raise InvalidOperation(f"'output_shape' {site.integers(2)} is less than {list(whole)}")
    return site.last.pad(found, padding=behind, border="constant", value=0.0)
