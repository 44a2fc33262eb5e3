"""Maxima, means and norms of windows and of whole planes; MaxUnpool."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lowering.errors import InvalidOperation
from lowering.extents import Shape
from nnef_jax.flattening.spatial_windows import pooled
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.filters import spatial, windows_of
from nnef_jax.formats.onnx.operators.registry import operator
from nnef_jax.formats.onnx.operators.rows import plane


def _pooled(site: NodeSite, x: Any, add: Callable[..., Any], **options: Any) -> Any:
    """Pool windows, of which the last begins on the input or on what is put before it."""
    kernel = spatial(site, "kernel_shape", site.rank() - 2, None)
    rounding = "ceil_torch" if site.flag("ceil_mode") else "floor"
    return pooled(site, x, add, kernel, windows_of(site, kernel), rounding, **options)


@operator("MaxPool")
def _max_pool(site: NodeSite, x: Any) -> Any:
    """Return maxima, and where read their places in the tensor."""
    order = site.int("storage_order", 0)
    if order not in (0, 1):
        raise InvalidOperation(f"'storage_order' must be 0 or 1, it is {order}")
    if not site.is_read(1):
        return _pooled(site, x, site.last.max_pool)
    found, place = _pooled(site, x, site.last.max_pool_with_index, first_axis=0)
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
    return _pooled(site, x, site.last.avg_pool, includes=site.flag("count_include_pad"))


def _norm(site: NodeSite, total: Callable[[Any], Any]) -> Any:
    """Return the root of a sum of powers of absolute values."""
    power, x = site.number("p", 2), site.step.abs(site.operand(0))
    if power < 1:
        raise InvalidOperation(f"'p' must be 1 or more, it is {power:g}")
    if power == 1:
        return total(x)
    powers = site.step.sqr(x) if power == 2 else site.step.pow(x, power)
    return site.root(total(powers), degree=power)


@operator("LpPool")
def _lp_pool(site: NodeSite) -> Any:
    return _norm(site, lambda x: _pooled(site, x, site.step.box, normalize=False))


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
