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

# The last letters of attributes of version 2: `kernel-x` is for the last axis, `kernel-y` for the
# axis before it, and `kernel-z` for the axis before that.
_LETTERS = "xyz"
# Maps an attribute to its name in version 2, without the letter of the axis: `strides` is
# `stride-x`, `stride-y` and so on.
_OLD_NAMES = {"strides": "stride", "dilations": "dilation", "pads_begin": "pad"}
SAME = ("same_upper", "same_lower")  # in these modes of padding, shapes decide the padding


def spatial(
    site: LayerSite, name: str, rank: int, default: Sequence[int] | None = None
) -> list[int]:
    """Return an attribute that has an item for each of `rank` spatial axes, such as `kernel`.

    Version 2 has an attribute for each axis instead: `kernel-x` for the last axis, `kernel-y` for
    the axis before it, and `kernel-z` for the axis before that.
    """
    old_names = _names_of_version_2(name, rank)
    has_old_attributes = any(map(site.has_attribute, old_names))
    if has_old_attributes and not site.has_attribute(name):
        defaults = default or [1] * rank
        items_from_last: list[int] = []
        for old_name, default_item in zip(old_names, reversed(defaults), strict=True):
            items_from_last.append(site.int(old_name, default_item))
        return items_from_last[::-1]
    items = site.ints(name, default)
    if len(items) == 1 and rank > 1:  # one number is for all axes
        items *= rank
    if len(items) != rank:
        raise InvalidOperation(f"'{name}' must have {rank} items, it has {len(items)}")
    return items


def kernel_of(site: LayerSite) -> list[int]:
    """Return the extents of a window along the spatial axes of input 0."""
    spatial_rank = len(site.shape()) - 2
    return spatial(site, "kernel", spatial_rank)


def _names_of_version_2(name: str, rank: int) -> list[str]:
    """Return the names of the attributes that stand for the attribute `name` in version 2.

    There is one name for each of `rank` axes, from the last axis on. For example, return "stride-x"
    and "stride-y" for the attribute `strides` of 2 axes. The list is empty if version 2 has no such
    attributes for this rank.
    """
    if name != "pads_end":
        stem = _OLD_NAMES.get(name, name)
        return [f"{stem}-{letter}" for letter in _LETTERS[:rank]]
    return ["pad-r", "pad-b"][:rank] if rank <= 2 else []


def auto_pad(site: LayerSite) -> str:
    """Return the mode of padding: explicit, valid, same_upper or same_lower.

    Files have several other words for "explicit".
    """
    modes = ("explicit", "valid", *SAME)
    mode = site.word("auto_pad", *modes, "none", "notset", "")
    return mode if mode in modes else "explicit"


def pads_of(site: LayerSite, rank: int) -> Pairs:
    """Return the padding that the file declares, as pairs (before, after) for `rank` spatial axes.

    If `pads_end` is missing, the padding after an axis depends on the version. Before version 10,
    the padding after the axis is as large as the padding before it. Since version 10, the padding
    after the axis is 0.
    """
    begin = spatial(site, "pads_begin", rank, [0] * rank)
    default_end = begin if site.net.is_legacy else [0] * rank
    end = spatial(site, "pads_end", rank, default_end)
    return list(zip(begin, end, strict=True))


def padding_of(
    site: LayerSite, shape: Sequence[int], spans: Sequence[int], strides: Sequence[int]
) -> Pairs:
    """Return the padding of windows, as a pair (before, after) for each spatial axis.

    `shape` has the spatial extents of the input, and `spans` has the extents of a dilated window.
    The attribute `auto_pad` decides whether the padding is computed or declared.
    """
    rank = len(spans)
    mode = auto_pad(site)
    if mode == "valid":
        return [(0, 0)] * rank
    if mode == "explicit":
        return pads_of(site, rank)
    return same_padding(site, shape, spans, strides, more_behind=mode == "same_upper")


def window_of(
    site: LayerSite, shape: Sequence[int], kernel: Sequence[int], *, dilated: bool = True
) -> dict[str, Any]:
    """Return the windows of a layer as a dict with the keys "stride", "dilation" and "padding".

    `shape` has the spatial extents of the input, and `kernel` has the extents of a window. If
    `dilated` is false, the attribute `dilations` is not read.
    """
    rank = len(kernel)
    strides = spatial(site, "strides", rank, [1] * rank)
    dilations = spatial(site, "dilations", rank, [1] * rank) if dilated else [1] * rank
    padding = padding_of(site, shape, windows.spans(kernel, dilations), strides)
    return {"stride": strides, "dilation": dilations, "padding": padding}
