"""Functions for convolutions and their transposes: Conv, ConvTranspose, DeformConv and Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowering import windows
from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from nnef_jax.flattening.operators.attributes import integer, word
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.spatial_windows import Pairs, add_patches, halves, same_padding
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator

_AUTO_PAD = word("auto_pad", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
GROUPS = integer("group", 1)


def _padding(
    site: NodeSite, shape: Sequence[int], spans: Sequence[int], strides: Sequence[int]
) -> Pairs:
    """Return the padding of windows, as a pair (before, after) for each spatial axis.

    The attribute `auto_pad` or `pads` defines the padding. `shape` has the spatial extents of the
    input, and `spans` has the extents of a dilated window.
    """
    rank = len(spans)
    mode = _AUTO_PAD(site)
    if mode == "VALID":
        return [(0, 0)] * rank
    if mode == "NOTSET":
        pads = site.spatial("pads", 2 * rank, default=0)
        if min(pads, default=0) < 0:
            raise InvalidOperation(f"'pads' {list(pads)} has items below 0")
        # `pads` has the numbers before all axes, then the numbers after all axes.
        numbers_before = pads[:rank]
        numbers_after = pads[rank:]
        return list(zip(numbers_before, numbers_after, strict=True))
    return same_padding(site, shape, spans, strides, more_behind=mode == "SAME_UPPER")


def kernel_of(site: NodeSite, i: int = 1) -> tuple[int, ...]:
    """Return the spatial extents of a filter, which is input `i`.

    Raises InvalidShape if `kernel_shape` is not equal to these extents.
    """
    extents = site.shape(i)[2:]
    rank = site.rank()
    has_rank_of_input = site.rank(i) == rank
    if rank < 3 or not has_rank_of_input:
        raise InvalidShape(
            f"its input {show(site.shape())} and filter {show(site.shape(i))} must have the same "
            "rank, at least 3"
        )
    kernel = site.ints("kernel_shape", extents)
    if tuple(kernel) != tuple(extents):
        raise InvalidShape(f"'kernel_shape' is {list(kernel)}, its filter is {show(site.shape(i))}")
    return extents


def windows_of(
    site: NodeSite, kernel: Sequence[int], shape: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return the attributes of windows: the stride, dilation and padding along spatial axes.

    `kernel` has the extents of a window. `shape` has the spatial extents of the image. If `shape`
    is None, the image is input 0.
    """
    rank = len(kernel)
    strides = site.spatial("strides", rank)
    dilations = site.spatial("dilations", rank)
    spans = windows.spans(kernel, dilations)
    image_shape = site.shape()[2:] if shape is None else shape
    padding = _padding(site, image_shape, spans, strides)
    return {"stride": strides, "dilation": dilations, "padding": padding}


def _bias_operand(site: NodeSite, bias: Tensor | None) -> Any:
    """Reshape a bias from (channels,) to (1, channels). If the bias is None, return 0."""
    if bias is None:
        return site.item(0, like=site.operand(0))
    return site.unsqueezed(bias, (0,))


def _with_bias(site: NodeSite, x: Tensor, bias: Tensor | None) -> Any:
    """Add a bias of shape (channels,) to x. If the bias is None, return x."""
    if bias is None:
        return x
    spatial_rank = site.rank() - 2
    axes_after_channels = range(1, spatial_rank + 1)
    return site.last.add(x, site.unsqueezed(bias, axes_after_channels))


@operator("Conv")
def _conv(
    site: NodeSite, x: Tensor, filter: Tensor, bias: Tensor | None = None, *, groups: int = GROUPS
) -> Any:
    """Convolve x by a filter, and add the bias if there is one."""
    window = windows_of(site, kernel_of(site))
    bias = _bias_operand(site, bias)
    return site.last.conv(x, filter, bias, groups=groups, border="constant", **window)


@operator("ConvTranspose")
def _conv_transpose(
    site: NodeSite,
    x: Tensor,
    filter: Tensor,
    bias: Tensor | None = None,
    *,
    mode: str = _AUTO_PAD,
    groups: int = GROUPS,
) -> Any:
    """Compute a transposed convolution.

    Items of the result that no window reaches are equal to the bias.
    """
    kernel = kernel_of(site)
    rank = len(kernel)
    strides = site.spatial("strides", rank)
    dilations = site.spatial("dilations", rank)
    spans = windows.spans(kernel, dilations)
    padding: Pairs = []
    # A pair (before, after) for each axis: the numbers of items that no window reaches, at the
    # start and at the end of the axis. Windows reach the entire batch and all channels.
    unreached: Pairs = [(0, 0), (0, 0)]
    for before, after in _transposed_padding(site, mode, spans, strides):
        padding.append((before, max(after, 0)))
        unreached.append((0, max(-after, 0)))
    attributes = {
        "padding": padding, "stride": strides, "dilation": dilations, "output_shape": (),
        "groups": groups, "border": "constant",
    }  # fmt: skip
    has_unreached = any(after > 0 for _, after in unreached)
    if not has_unreached:
        return site.last.deconv(x, filter, _bias_operand(site, bias), **attributes)
    # Unreached items are zeros at first. The bias is added to all items afterwards.
    reached = site.step.deconv(x, filter, _bias_operand(site, bias=None), **attributes)
    result = site.step.pad(reached, padding=unreached, border="constant", value=0.0)
    return _with_bias(site, result, bias)


def _transposed_padding(
    site: NodeSite, mode: str, spans: Sequence[int], strides: Sequence[int]
) -> Pairs:
    """Return the padding of a transposed convolution: a pair (before, after) for each spatial axis.

    The number `after` may be negative. If it is -2, no window reaches the last 2 items. `mode` is
    the attribute `auto_pad`, and `spans` has the extents of a dilated window.
    """
    rank = len(spans)
    added_items = site.spatial("output_padding", rank, default=0)
    has_output_shape = site.has_attribute("output_shape")
    padding: Pairs = []
    if not has_output_shape and not mode.startswith("SAME"):
        stored_padding = _padding(site, site.shape()[2:], spans, strides)
        for (before, after), added in zip(stored_padding, added_items, strict=True):
            padding.append((before, after - added))
        return padding
    # For each axis, the number of items by which the windows reach beyond the output. All windows
    # together cover (extent - 1) * stride + span items.
    surplus: list[int] = []
    if has_output_shape:
        output_extents = site.ints("output_shape")[-rank:]
        axes = zip(site.known_shape()[2:], strides, spans, output_extents, strict=True)
        for extent, stride, span, output_extent in axes:
            surplus.append((extent - 1) * stride + span - output_extent)
    else:  # The output extent is extent * stride.
        for stride, span in zip(strides, spans, strict=True):
            surplus.append(span - stride)
    # The surplus is cut off at both ends.
    for total, added in zip(surplus, added_items, strict=True):
        before, _ = halves(max(total + added, 0), more_behind=mode == "SAME_UPPER")
        padding.append((before, total - before))
    return padding


@operator("DeformConv")
def _deform_conv(
    site: NodeSite,
    x: Tensor,
    filter: Tensor,
    offsets: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    groups: int = GROUPS,
    offset_groups: int = integer("offset_group", 1),
) -> Any:
    """Convolve x by a filter whose cells are moved by offsets and weighted by a mask."""
    mask_operand = False if mask is None else mask  # the operation takes False for no mask
    window = windows_of(site, kernel_of(site))
    add = site.step_or_last(is_last=bias is None)
    result = add.deformable_conv(
        x, offsets, filter, mask_operand, groups=groups, offset_groups=offset_groups,
        padded_bilinear=True, **window,
    )  # fmt: skip
    return _with_bias(site, result, bias)


@operator("Col2Im")
def _col_to_im(site: NodeSite) -> Any:
    """Sum patches at their positions in an image.

    Input 0 has shape (batch, channels * cells, patches), where a cell is a position within a patch.
    """
    size = site.integers(1)
    kernel = site.integers(2)
    window = windows_of(site, kernel, size)
    no_bias = _bias_operand(site, bias=None)
    return add_patches(site, size, kernel, no_bias, **window)
