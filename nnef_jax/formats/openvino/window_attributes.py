"""Reads the attributes of windows: extents, strides, dilations and padding.

An attribute is a list with an item for each spatial axis, in order. Version 2 has a separate
attribute for each axis instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowering import windows
from lowering.errors import InvalidOperation
from nnef_jax.flattening.spatial_windows import Pairs, same_padding
from nnef_jax.formats.openvino.layer_site import LayerSite

_LETTERS = "xyz"
_OLD = {"strides": "stride", "dilations": "dilation", "pads_begin": "pad"}
SAME = ("same_upper", "same_lower")


def spatial(
    site: LayerSite, name: str, rank: int, default: Sequence[int] | None = None
) -> list[int]:
    """Return an attribute that has an item for each of `rank` spatial axes, such as `kernel`.

    Version 2 has an attribute for each axis instead: `kernel-x` for the last axis, `kernel-y` for
    the axis before it, and `kernel-z`.
    """
    keys = [f"{_OLD.get(name, name)}-{letter}" for letter in _LETTERS[:rank]]
    if name == "pads_end":
        keys = ["pad-r", "pad-b"][:rank] if rank <= 2 else []
    if not site.has_attribute(name) and any(map(site.has_attribute, keys)):
        defaults = reversed(default or [1] * rank)
        items = [site.int(key, n) for key, n in zip(keys, defaults, strict=True)]
        return items[::-1]
    items = site.ints(name, default)
    if len(items) == 1 and rank > 1:
        items *= rank
    if len(items) != rank:
        raise InvalidOperation(f"'{name}' must have {rank} items, it has {len(items)}")
    return items


def kernel_of(site: LayerSite) -> list[int]:
    """Return the extents of a window on the spatial axes of input 0."""
    return spatial(site, "kernel", len(site.shape()) - 2)


def auto_pad(site: LayerSite) -> str:
    """Return the mode of padding: explicit, valid, same_upper or same_lower."""
    modes = ("explicit", "valid", *SAME)
    mode = site.word("auto_pad", *modes, "none", "notset", "")
    return mode if mode in modes else "explicit"


def pads_of(site: LayerSite, rank: int) -> Pairs:
    """Return the padding that the file declares, as pairs (before, after) for `rank` spatial axes.

    If `pads_end` is missing, the padding after is 0, or as large as the padding before in versions
    before 10.
    """
    begin = spatial(site, "pads_begin", rank, [0] * rank)
    default_end = begin if site.net.is_legacy else [0] * rank
    end = spatial(site, "pads_end", rank, default_end)
    return list(zip(begin, end, strict=True))


def padding_of(
    site: LayerSite, shape: Sequence[int], reach: Sequence[int], strides: Sequence[int]
) -> Pairs:
    """Return the padding of windows, as a pair (before, after) for each spatial axis.

    `shape` has the spatial extents of the input, and `reach` the extents of a window with its
    dilation. The attribute `auto_pad` says whether the padding is computed or declared.
    """
    mode = auto_pad(site)
    if mode == "valid":
        return [(0, 0)] * len(reach)
    if mode not in SAME:
        return pads_of(site, len(reach))
    return same_padding(site, shape, reach, strides, more_behind=mode == "same_upper")


def window_of(
    site: LayerSite, shape: Sequence[int], kernel: Sequence[int], *, dilated: bool = True
) -> dict[str, Any]:
    """Return the strides, dilations and padding of windows. `shape` are the spatial extents."""
    rank = len(kernel)
    strides = spatial(site, "strides", rank, [1] * rank)
    dilations = spatial(site, "dilations", rank, [1] * rank) if dilated else [1] * rank
    padding = padding_of(site, shape, windows.spans(kernel, dilations), strides)
    return {"stride": strides, "dilation": dilations, "padding": padding}
