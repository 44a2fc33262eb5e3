"""Maxima, means and norms of windows and of whole planes; MaxUnpool."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lowering.errors import InvalidOperation
from lowering.extents import Shape
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator
from nnef_jax.formats.onnx.operators.filters import padding_of, spans_of, spatial


def _windows(site: NodeSite) -> tuple[dict[str, Any], list[int]]:
    """Return the attributes of windows on all axes, and what is read behind where sizes round up.

    The last window begins on the input or on what is put before it.
    """
    rank, shape = site.rank() - 2, site.shape()[2:]
    site.ints("kernel_shape")
    kernel = spatial(site, "kernel_shape", rank)
    strides, dilations = spatial(site, "strides", rank), spatial(site, "dilations", rank)
    spans = spans_of(kernel, dilations)
    padding = padding_of(site, shape, spans, strides)
    extra = [0] * rank
    if site.flag("ceil_mode"):
        shape = site.known_shape()[2:]
        axes = zip(shape, padding, spans, strides, strict=True)
        for i, (n, (p, q), span, s) in enumerate(axes):
            left = n + p + q - span
            positions = -(-left // s) + 1
            positions -= (positions - 1) * s >= n + p
            extra[i] = max((positions - 1) * s - left, 0)
    window = {
        "size": [1, 1, *kernel], "stride": [1, 1, *strides], "dilation": [1, 1, *dilations],
        "padding": [(0, 0), (0, 0), *padding],
    }  # fmt: skip
    return window, [0, 0, *extra]


def _widened(window: dict[str, Any], extra: list[int]) -> dict[str, Any]:
    padding = [(p, q + e) for (p, q), e in zip(window["padding"], extra, strict=True)]
    return {**window, "padding": padding}


@operator("MaxPool")
def _max_pool(site: NodeSite) -> Any:
    """Return maxima, and where read their places in the tensor."""
    window = _widened(*_windows(site)) | {"border": "ignore"}
    order = site.int("storage_order", 0)
    if order not in (0, 1):
        raise InvalidOperation(f"'storage_order' must be 0 or 1, it is {order}")
    if not site.wants(1):
        return site.emit("max_pool", {"input": site.operand(0)}, **window)
    found, place = site.emit(
        "max_pool_with_index", {"input": site.operand(0)}, first_axis=0, **window
    )
    place = site.cast(place, site.computed("int64"))
    return found, _by_columns(site, place, site.known_shape()[2:]) if order else place


def _by_columns(site: NodeSite, place: Any, extents: Shape) -> Any:
    """Return places in planes whose first axis is the fastest, given those of the last."""
    items = math.prod(extents)
    rest = _remainder(site, place, items)
    found = site.term("sub", place, rest)
    step = items
    for extent in reversed(extents):
        step //= extent
        at = _remainder(site, rest, extent)
        found = site.term("add", found, site.term("mul", at, step))
        rest = site.term("div", site.term("sub", rest, at), extent)
    return found


def _remainder(site: NodeSite, x: Any, count: int) -> Any:
    return site.term("sub", x, site.term("mul", site.term("div", x, count), count))


@operator("AveragePool")
def _average_pool(site: NodeSite) -> Any:
    """Take means of the input, or of it with its padding; what rounding up adds is never in one."""
    x = site.operand(0)
    window, extra = _windows(site)
    border = "ignore"
    if site.flag("count_include_pad") and any(map(any, window["padding"])):
        border = "constant"
        if any(extra):
            padding, border = window["padding"], "ignore"
            x = site.insert("pad", {"input": x}, padding=padding, border="constant", value=0.0)
            window["padding"] = [(0, 0)] * len(padding)
    return site.emit("avg_pool", {"input": x}, border=border, **_widened(window, extra))


def _norm(site: NodeSite, total: Callable[[Any], Any]) -> Any:
    """Return the root of a sum of powers of absolute values."""
    power, x = site.number("p", 2), site.term("abs", site.operand(0))
    if power < 1:
        raise InvalidOperation(f"'p' must be 1 or more, it is {power:g}")
    if power == 1:
        return total(x)
    if power == 2:
        return site.term("sqrt", total(site.term("sqr", x)))
    return site.term("pow", total(site.term("pow", x, power)), 1 / power)


@operator("LpPool")
def _lp_pool(site: NodeSite) -> Any:
    window = _widened(*_windows(site)) | {"border": "ignore"}
    return _norm(site, lambda x: site.insert("box", {"input": x}, normalize=False, **window))


def _plane(site: NodeSite) -> tuple[int, ...]:
    return tuple(range(2, site.rank()))


@operator("GlobalLpPool")
def _global_lp_pool(site: NodeSite) -> Any:
    axes = _plane(site)
    return _norm(
        site, lambda x: site.insert("sum_reduce", {"input": x}, axes=axes, normalize=False)
    )


@operator("GlobalAveragePool")
def _global_average_pool(site: NodeSite) -> Any:
    return site.emit("mean_reduce", {"input": site.operand(0)}, axes=_plane(site))


@operator("GlobalMaxPool")
def _global_max_pool(site: NodeSite) -> Any:
    return site.emit("max_reduce", {"input": site.operand(0)}, axes=_plane(site))


@operator("MaxUnpool")
def _max_unpool(site: NodeSite) -> Any:
    """Put items where they were before MaxPool, 0 elsewhere; extents may be wanted larger."""
    site.ints("kernel_shape")
    rank, shape = site.rank() - 2, site.known_shape()
    kernel, strides = spatial(site, "kernel_shape", rank), spatial(site, "strides", rank)
    pads = spatial(site, "pads", 2 * rank, 0)
    extents = [
        (n - 1) * s + k - p - q
        for n, s, k, p, q in zip(shape[2:], strides, kernel, pads[:rank], pads[rank:], strict=True)
    ]
    whole = (*shape[:2], *extents)
    items, places = (site.reshaped(site.operand(i), (math.prod(shape),)) for i in (0, 1))
    none = site.reshaped(site.constant(0, site.dtype_of()), (1,))
    none = site.insert("broadcast", {"input": none}, shape=(math.prod(whole),))
    found = site.insert(
        "scatter_elements", {"input": none, "indices": places, "updates": items},
        axis=0, reduction="none",
    )  # fmt: skip
    found = site.reshaped(found, whole)
    if not site.has(2) or tuple(site.integers(2)) == whole:
        return found
    behind = [(0, n - m) for n, m in zip(site.integers(2), whole, strict=True)]
    if min(min(pair) for pair in behind) < 0:
        raise InvalidOperation(f"'output_shape' {site.integers(2)} is less than {list(whole)}")
    return site.emit("pad", {"input": found}, padding=behind, border="constant", value=0.0)
