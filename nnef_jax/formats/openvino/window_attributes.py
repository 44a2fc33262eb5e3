"""How windows lie on spatial axes, as attributes say it.

Lists are in the order of the spatial axes. Version 2 has one attribute an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN
from nnef_jax.formats.openvino.layer_site import LayerSite

_LETTERS = "xyz"
_OLD = {"strides": "stride", "dilations": "dilation", "pads_begin": "pad"}
_SAME = ("same_upper", "same_lower")
Pairs = list[tuple[int, int]]  # what is before and after each axis


def spatial(
    site: LayerSite, name: str, rank: int, default: Sequence[int] | None = None
) -> list[int]:
    """Return an attribute with an item for each spatial axis; version 2 writes `kernel-y`."""
    keys = [f"{_OLD.get(name, name)}-{letter}" for letter in _LETTERS[:rank]]
    if name == "pads_end":
        keys = ["pad-r", "pad-b"][:rank] if rank <= 2 else []
    if name not in site.layer.attributes and any(key in site.layer.attributes for key in keys):
        wanted = list(default or [1] * rank)[::-1]
        return [site.int(key, n) for key, n in zip(keys, wanted, strict=True)][::-1]
    found = site.ints(name, default)
    if len(found) == 1 and rank > 1:
        found *= rank
    if len(found) != rank:
        raise InvalidOperation(f"'{name}' must have {rank} items, it has {len(found)}")
    return found


def kernel_of(site: LayerSite) -> list[int]:
    """Return the extents of a window on the spatial axes of input 0."""
    return spatial(site, "kernel", len(site.shape()) - 2)


def auto_pad(site: LayerSite) -> str:
    """Return how padding is decided: explicit, valid, same_upper or same_lower."""
    known = ("explicit", "valid", *_SAME)
    found = site.choice("auto_pad", *known, "none", "notset", "", default="explicit")
    return found if found in known else "explicit"


def pads_of(site: LayerSite, rank: int) -> Pairs:
    """Return padding as it is given. Without `pads_end` old files mean `pads_begin`."""
    begin = spatial(site, "pads_begin", rank, [0] * rank)
    end = spatial(site, "pads_end", rank, begin if site.net.is_legacy else [0] * rank)
    return list(zip(begin, end, strict=True))


def padding_of(
    site: LayerSite, shape: Sequence[int], spans: Sequence[int], strides: Sequence[int]
) -> Pairs:
    """Return the padding before and after each spatial axis, by `auto_pad` or as given.

    `spans` are the extents of a window with its gaps.
    """
    mode = auto_pad(site)
    if mode == "valid":
        return [(0, 0)] * len(spans)
    if mode not in _SAME:
        return pads_of(site, len(spans))
    pads: Pairs = []
    for extent, span, stride in zip(shape, spans, strides, strict=True):
        if extent is UNKNOWN and stride != 1:
            site.known_shape(0)
        total = span - 1
        if extent is not UNKNOWN:
            total = max((-(-extent // stride) - 1) * stride + span - extent, 0)
        less, more = total // 2, total - total // 2
        pads.append((less, more) if mode == "same_upper" else (more, less))
    return pads


def spans_of(kernel: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """Return the extents of windows with the gaps between their items."""
    return [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]


def window_of(
    site: LayerSite, shape: Sequence[int], kernel: Sequence[int], *, dilated: bool = True
) -> dict[str, Any]:
    """Return strides, dilations and padding of windows on spatial axes of a shape."""
    rank = len(kernel)
    strides = spatial(site, "strides", rank, [1] * rank)
    dilations = spatial(site, "dilations", rank, [1] * rank) if dilated else [1] * rank
    padding = padding_of(site, shape, spans_of(kernel, dilations), strides)
    return {"stride": strides, "dilation": dilations, "padding": padding}
