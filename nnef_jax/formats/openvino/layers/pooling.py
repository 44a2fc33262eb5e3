"""Maxima and means of windows, also of windows that divide an axis evenly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN
from lowering.graph import Value
from nnef_jax.formats.openvino.layers import legacy, opsets
from nnef_jax.formats.openvino.layers.convolution import padding_of, spatial
from nnef_jax.formats.openvino.site import Site


def _windows(
    site: Site, x: Value, kernel: Sequence[int], *, ceil: bool, dilated: bool = False
) -> dict[str, Any]:
    """Return the attributes of windows on all axes; more items at the end where sizes round up."""
    rank, shape = len(kernel), x.type.shape[2:]
    strides = spatial(site, "strides", rank, [1] * rank)
    dilations = spatial(site, "dilations", rank, [1] * rank) if dilated else [1] * rank
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    padding = padding_of(site, shape, spans, strides)
    extra: list[int] = []
    for n, (p, q), span, s in zip(shape, padding, spans, strides, strict=True):
        more = 0
        if ceil and s > 1:
            if n is UNKNOWN:
                site.known_shape(0)
            left = n + p + q - span
            positions = -(-left // s) + 1
            if site.text("rounding_type", "") == "ceil_torch" and (positions - 1) * s >= n + p:
                positions -= 1
            more = max((positions - 1) * s - left, 0)
        extra.append(more)
    whole = [1, 1]
    return {
        "size": [*whole, *kernel],
        "stride": [*whole, *strides],
        "dilation": [*whole, *dilations],
        "padding": [(0, 0), (0, 0), *padding],
        "extra": [0, 0, *extra],
    }


def _widened(window: dict[str, Any]) -> dict[str, Any]:
    extra = window.pop("extra")
    window["padding"] = [
        (p, q + more) for (p, q), more in zip(window["padding"], extra, strict=True)
    ]
    return window


def _is_ceil(site: Site) -> bool:
    name = "rounding_type" if "rounding_type" in site.layer.attributes else "rounding-type"
    return site.choice(name, "floor", "ceil", "ceil_torch", default="floor") != "floor"


def _max(site: Site, kernel: Sequence[int]) -> Value:
    x = site.tensor(0)
    window = _widened(_windows(site, x, kernel, ceil=_is_ceil(site)))
    return site.emit("max_pool", {"input": x}, border="ignore", **window)


def _mean(site: Site, kernel: Sequence[int], *, excludes: bool) -> Value:
    """Take means of the input alone, or of it with its padding.

    What rounding up adds is part of no mean before version 10, and since then where nothing is
    padded, as the runtimes of both have it.
    """
    x = site.tensor(0)
    window = _windows(site, x, kernel, ceil=_is_ceil(site), dilated=not site.net.is_legacy)
    padding, pads = window["padding"], any(map(any, window["padding"]))
    if site.net.is_legacy and not excludes and any(window["extra"]) and pads:
        x = site.insert("pad", {"input": x}, padding=padding, border="constant", value=0.0)
        window["padding"], pads = [(0, 0)] * len(padding), False
    border = "constant" if pads and not excludes else "ignore"
    return site.emit("avg_pool", {"input": x}, border=border, **_widened(window))


@legacy("Pooling")
def _pooling(site: Site) -> Value:
    rank = len(site.shape()) - 2
    kernel = spatial(site, "kernel", rank)
    method = site.text("pool-method", site.text("pool_method", "max"))
    if method == "max":
        return _max(site, kernel)
    if method != "avg":
        raise InvalidOperation(f"there is no pool-method '{method}'")
    return _mean(site, kernel, excludes=site.flag("exclude-pad", site.flag("exclude_pad")))


@opsets("AvgPool")
def _avg_pool(site: Site) -> Value:
    kernel = spatial(site, "kernel", len(site.shape()) - 2)
    excludes = site.flag("exclude-pad", site.flag("exclude_pad"))
    return _mean(site, kernel, excludes=excludes)


@opsets("MaxPool")
def _max_pool(site: Site) -> Any:
    """Return maxima, and from operation set 8 on their places from `axis` on, where read."""
    x = site.tensor(0)
    kernel = spatial(site, "kernel", len(site.shape()) - 2)
    window = _widened(_windows(site, x, kernel, ceil=_is_ceil(site), dilated=True))
    if not site.is_read(1):
        return [site.emit("max_pool", {"input": x}, border="ignore", **window), None]
    given = {"first_axis": site.axis(site.int("axis", 0)), "border": "ignore", **window}
    return list(site.emit("max_pool_with_index", {"input": x}, **given))


@opsets("AdaptiveAvgPool")
def _adaptive_avg(site: Site) -> Value:
    x = site.tensor(0)
    return site.emit("adaptive_avg_pool", {"input": x}, output_size=_sizes(site, x))


@opsets("AdaptiveMaxPool")
def _adaptive_max(site: Site) -> list[Value]:
    x = site.tensor(0)
    return list(site.emit("adaptive_max_pool", {"input": x}, output_size=_sizes(site, x)))


def _sizes(site: Site, x: Value) -> list[int]:
    wanted = site.integers(1)
    return [n if n > 0 else x.type.shape[2 + i] for i, n in enumerate(wanted)]
