"""Functions for pooling and convolutions.

Pooling by maxima ignores the padding. A bias may lie along any axis. The filter of `deconv` has the
same layout as that of `conv`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Shape, differ, show
from lowering.ops import require
from nnef_jax.flattening.operators.attributes import integer, integers, text
from nnef_jax.formats.tract.call_site import CallSite, TractOperand
from nnef_jax.formats.tract.operators.registry import operator


def _border(site: CallSite) -> str:
    """Return "ignore". Raises InvalidOperation if `border` is neither "constant" nor "ignore".

    In tract, the two words mean that maxima ignore the padding.
    """
    site.word("border", "constant", "ignore")  # raises the error
    return "ignore"


def _of_each_axis(name: str) -> Callable[[CallSite], Sequence[Any]]:
    """Return a function that reads the argument `name`, which has an item for each axis.

    The axes are those of the input. The list may be empty, unless `name` is "size".
    """

    def read(site: CallSite) -> Sequence[Any]:
        items = site.argument(name)
        if items or name == "size":
            require.length(name, items, site.rank(), "axes of 'input'")
        return items

    return read


WINDOW: Mapping[str, Callable[[CallSite], Any]] = {
    "border": _border,
    **{name: _of_each_axis(name) for name in ("size", "padding", "stride", "dilation")},
}


def channel_plane(site: CallSite) -> int:
    """Return the first of the axes over which the indices of maxima are counted.

    The index of a maximum is a position in the flattened axes from this axis to the last axis. The
    axis is 0 or 1 if windows along this axis have more than one item, or if the stride is not 1.
    Otherwise the axis is 2.
    """
    sizes = site.ints("size")
    strides = site.ints("stride") or [1] * len(sizes)
    for axis, size in enumerate(sizes[:2]):
        has_windows = size != 1 or strides[axis] != 1
        if has_windows:
            return axis
    return 2


def factors(site: CallSite) -> list[int]:
    """Return the factors in the argument `factor`, preceded by a 1 for each missing spatial axis.

    The input has shape (batch, channels, *spatial).
    """
    factor = site.ints("factor")
    missing_axes = site.rank() - 2 - len(factor)
    return [1] * missing_axes + [*factor]


@operator("conv")
def conv(
    site: CallSite,
    input: TractOperand,
    filter: TractOperand,
    bias: TractOperand,
    *,
    groups: int = integer("groups"),
) -> TractOperand:
    """Add a convolution.

    The items of the bias are moved to axis 1, and the padding of the batch and of channels is
    dropped.
    """
    groups, padding = _checked_windows(site, groups)
    return site.last.conv(input, filter, _bias(site), groups=groups, padding=padding)


@operator("deconv")
def deconv(
    site: CallSite,
    input: TractOperand,
    filter: TractOperand,
    bias: TractOperand,
    *,
    groups: int = integer("groups"),
    output_shape: Sequence[int] = integers("output_shape"),
) -> TractOperand:
    """Add a transposed convolution.

    The filter is converted from the shape (outputs, inputs / groups, *spatial) to the shape
    (inputs, outputs / groups, *spatial).
    """
    groups, padding = _checked_windows(site, groups)
    bias = _bias(site)
    rank = site.rank()
    outputs = site.shape(filter)[0]
    if len(output_shape) not in (0, rank - 2, rank):
        raise InvalidOperation(
            f"'output_shape' {list(output_shape)} must have an item for each of {rank - 2} spatial "
            f"axes, or for each of all {rank} axes"
        )
    if output_shape:
        # The spatial extents are the last items. `deconv` does not read the extent of the batch.
        output_shape = [1, outputs, *output_shape[2 - rank :]]
    filter = _inputs_first(site, filter, groups)
    return site.last.deconv(
        input, filter, bias, groups=groups, padding=padding, output_shape=output_shape
    )


def _inputs_first(site: CallSite, filter: TractOperand, groups: int) -> TractOperand:
    """Swap the channels of outputs and of inputs within each group of a filter.

    The filter has shape (outputs, inputs / groups, *spatial), and the result has shape (inputs,
    outputs / groups, *spatial).
    """
    outputs, inputs_of_group = site.shape(filter)[:2]
    step = site.step_on("filter")
    if groups <= 1:
        return step.transpose(filter, axes=[1, 0])
    # These shapes leave out the spatial axes.
    grouped = [groups, outputs // groups, inputs_of_group]
    filter = step.reshape(filter, shape=grouped, axis_start=0, axis_count=2)
    filter = step.transpose(filter, axes=[0, 2, 1])
    merged = [groups * inputs_of_group, outputs // groups]
    return step.reshape(filter, shape=merged, axis_start=0, axis_count=3)


@operator("tract_core_qconv")
def quantized_conv(
    site: CallSite,
    input: TractOperand,
    filter: TractOperand,
    bias: TractOperand,
    filter_zero_point: TractOperand,
    filter_scale: TractOperand,
    input_zero_point: TractOperand,
    input_scale: TractOperand,
    output_zero_point: TractOperand,
    output_scale: TractOperand,
    *,
    group: int = integer("group"),
    groups: int = integer("groups"),
    dtype: str = text("output_dt"),
) -> TractOperand:
    """Add a convolution of quantised tensors.

    tract declares the parameter `group`, but tract's writer writes `groups`. Therefore `group` is
    the number of groups if `groups` is 1.
    """
    if groups == 1:
        groups = group
    groups, padding = _checked_windows(site, groups)
    return site.last.quantized_conv(
        input, filter, _bias(site), input_zero_point, input_scale, filter_zero_point, filter_scale,
        output_zero_point, output_scale, groups=groups, padding=padding,
        dtype=dtype or site.dtype_of(input),
    )  # fmt: skip


def _checked_windows(site: CallSite, groups: int) -> tuple[int, Sequence[tuple[int, int]]]:
    """Check the operands of a convolution. Return the number of groups and the spatial padding.

    The padding is a pair (before, after) for each spatial axis. Raises InvalidShape or
    InvalidOperation if the operands or attributes do not fit each other.
    """
    input = site.shape(0)
    filter = site.shape(1)
    rank = len(input)
    if rank < 3 or len(filter) != rank:
        raise InvalidShape(
            f"'input' {show(input)} and 'filter' {show(filter)} must have one rank: batch, "
            "channels and at least one spatial axis",
            hint="`unsqueeze` an input that has no batch axis",
        )
    channels = input[1]
    outputs, channels_of_group = filter[:2]
    padding = _spatial_padding(site, rank)
    windows = {"padding": padding, "stride": site.ints("stride"), "dilation": site.ints("dilation")}
    for name, items in windows.items():
        if items:
            require.length(name, items, rank - 2, "spatial axes")
    groups = _group_count(groups, channels, channels_of_group)
    if differ(channels_of_group * groups, channels):
        raise InvalidShape(
            f"'filter' {show(filter)} takes {channels_of_group * groups} channels in {groups} "
            f"group(s), 'input' {show(input)} has {channels}",
            hint="the filter has the shape [output channels, input channels / groups, ...], "
            "for deconv too",
        )
    if differ(outputs % groups, 0):
        message = f"'groups' {groups} does not divide the first extent of 'filter' {show(filter)}"
        raise InvalidShape(message)
    return groups, padding


def _group_count(groups: int, channels: int, channels_of_group: int) -> int:
    """Return the number of groups of a convolution. Raises InvalidOperation for a negative number.

    If the argument `groups` is 0, the number follows from the channels of the input and of a group.
    """
    if groups < 0:
        raise InvalidOperation(
            f"'groups' must be positive, or 0 for one group per channel, it is {groups}"
        )
    if groups != 0:
        return groups
    # If a shape is wrong, the number is 1, and the caller's error names the shapes.
    if channels_of_group == 0:
        return 1
    return channels // channels_of_group or 1


def _spatial_padding(site: CallSite, rank: int) -> Sequence[tuple[int, int]]:
    """Return the padding of the spatial axes, as pairs (before, after).

    The document may have a pair for each of all `rank` axes of the input. The pairs of the batch
    and of the channels are then left out. Raises InvalidOperation unless the border is "constant",
    that is, unless the added items are zeros.
    """
    border = site.text("border")
    padding: Sequence[tuple[int, int]] = site.argument("padding")
    if border != "constant":
        raise InvalidOperation(
            f"'border' must be 'constant', it is '{border}'",
            hint="`pad` the input first, with that border, and give padding (0,0) here",
        )
    if len(padding) == rank:
        batch_padding, channel_padding, *spatial_padding = padding
        if tuple(batch_padding) == (0, 0) and tuple(channel_padding) == (0, 0):
            return spatial_padding
    return padding


def _bias(site: CallSite) -> TractOperand:
    """Return the bias (operand 2) with its items along axis 1.

    Raises InvalidShape unless the bias has one item, or one item for each output channel.
    """
    bias = site.operand(2)
    shape = site.shape(2)
    channels = site.shape(1)[0]
    extents: Shape = tuple(extent for extent in shape if differ(extent, 1))  # without extents of 1
    fits_channels = len(extents) == 1 and not differ(extents[0], channels)
    if extents and not fits_channels:
        raise InvalidShape(
            f"'bias' {show(shape)} does not fit {channels} output channels",
            hint=f"it must have one item, or {channels} along one axis, as in "
            f"{show((channels,))} and {show((1, channels))}",
        )
    if not extents or shape == (1, *extents):
        return bias
    return site.step_on("bias").reshape(bias, shape=[1, -1], axis_start=0, axis_count=-1)
