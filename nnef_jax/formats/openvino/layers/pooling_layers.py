"""Maxima and means of windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN
from lowering.graph import Value
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers import legacy, opsets
from nnef_jax.formats.openvino.operations import operation
from nnef_jax.formats.openvino.window_attributes import kernel_of, spans_of, window_of


def _windows(site: LayerSite, *, dilated: bool) -> tuple[dict[str, Any], list[int]]:
    """Return windows on all axes, and how many items they take more at the end of each axis."""
    kernel, shape = kernel_of(site), site.shape()[2:]
    rounding = site.attribute("rounding_type", "rounding-type")
    rounds = site.choice(rounding, "floor", "ceil", "ceil_torch", default="floor")
    window = window_of(site, shape, kernel, dilated=dilated)
    more = [0] * len(kernel) if rounds == "floor" else _more(site, kernel, window, rounds)
    whole = {"stride": [1, 1], "dilation": [1, 1], "padding": [(0, 0), (0, 0)]}
    return {"size": [1, 1, *kernel], **{k: v + window[k] for k, v in whole.items()}}, [0, 0, *more]


def _more(site: LayerSite, kernel: Sequence[int], window: dict[str, Any], rounds: str) -> list[int]:
    """Return how many items there are more at the end where the number of windows rounds up."""
    found: list[int] = []
    spans = spans_of(kernel, window["dilation"])
    axes = zip(site.shape()[2:], window["padding"], spans, window["stride"], strict=True)
    for n, (p, q), span, s in axes:
        if s > 1 and n is UNKNOWN:
            site.known_shape(0)
        left = n + p + q - span
        positions = -(-left // s) + 1
        if rounds == "ceil_torch" and (positions - 1) * s >= n + p:
            positions -= 1
        found.append(max((positions - 1) * s - left, 0) if s > 1 else 0)
    return found


def _widened(padding: Sequence[tuple[int, int]], more: Sequence[int]) -> list[tuple[int, int]]:
    return [(p, q + n) for (p, q), n in zip(padding, more, strict=True)]


def _max(site: LayerSite, kind: str, *, dilated: bool, **attributes: Any) -> Any:
    x = site.tensor(0)
    window, more = _windows(site, dilated=dilated)
    window["padding"] = _widened(window["padding"], more)
    return getattr(site.last, kind)(x, border="ignore", **window, **attributes)


def _mean(site: LayerSite) -> Value:
    """Take means of the input alone, or of it with its padding.

    What rounding up adds is part of no mean before version 10, and since then where nothing is
    padded, as the runtimes of both have it.
    """
    x, is_legacy = site.tensor(0), site.net.is_legacy
    window, more = _windows(site, dilated=not is_legacy)
    padding, pads = window["padding"], any(map(any, window["padding"]))
    excludes = site.flag(site.attribute("exclude-pad", "exclude_pad"))
    if is_legacy and not excludes and any(more) and pads:
        x = site.padded(x, dict(enumerate(padding)))
        padding, pads = [(0, 0)] * len(padding), False
    window["padding"] = _widened(padding, more)
    border = "constant" if pads and not excludes else "ignore"
    return site.last.avg_pool(x, border=border, **window)


opsets("AvgPool")(_mean)


@legacy("Pooling")
def _pooling(site: LayerSite) -> Value:
    method = site.text(site.attribute("pool-method", "pool_method"), "max")
    if method == "max":
        return _max(site, "max_pool", dilated=False)
    if method != "avg":
        raise InvalidOperation(f"there is no pool-method '{method}'")
    return _mean(site)


@opsets("MaxPool")
def _max_pool(site: LayerSite) -> Any:
    """Return maxima, and from operation set 8 on their places from `axis` on, where read."""
    if not site.is_read(1):
        return [_max(site, "max_pool", dilated=True), None]
    first = site.axis_of("axis", 0)
    return _max(site, "max_pool_with_index", dilated=True, first_axis=first)


def _output_size(site: LayerSite) -> list[int]:
    shape = site.shape()
    return [n if n > 0 else shape[2 + i] for i, n in enumerate(site.integers(1))]


for _how in ("avg", "max"):
    _adaptive = operation(f"adaptive_{_how}_pool", output_size=_output_size)
    opsets(f"Adaptive{_how.capitalize()}Pool")(_adaptive)
