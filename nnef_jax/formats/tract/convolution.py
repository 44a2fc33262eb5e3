"""Windows: a border that never wins a maximum, a bias along any axis, `deconv` as `conv` has it."""

from __future__ import annotations

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import differ, show
from lowering.ops import require
from nnef_jax.formats.tract.meaning import Draft


def max_pool(draft: Draft) -> None:
    """Ignore what lies beyond the border."""
    require.one_of("border", draft.attributes["border"], ("constant", "ignore"))
    draft.attributes["border"] = "ignore"
    rank = len(draft.shape("input"))
    require.length("size", draft.attributes["size"], rank, "axes of 'input'")
    for name in ("padding", "stride", "dilation"):
        if draft.attributes[name]:
            require.length(name, draft.attributes[name], rank, "axes of 'input'")


def max_pool_with_index(draft: Draft) -> None:
    """Index the plane of one channel: axes 2 on, or without batch from the first window axis."""
    max_pool(draft)
    size, stride = draft.attributes["size"], draft.attributes["stride"]
    steps = zip(size, stride or (1,) * len(size), strict=True)
    reached = [axis for axis, step in enumerate(steps) if step != (1, 1)]
    draft.attributes["first_axis"] = min([2, *reached])


def upsample(draft: Draft) -> None:
    """Leave batch and channels as they are."""
    rank, factor = len(draft.shape("input")), draft.attributes["factor"]
    if len(factor) <= rank - 2:
        draft.attributes["factor"] = [1] * (rank - 2 - len(factor)) + list(factor)


def multilinear(draft: Draft) -> None:
    """Take the nearest items beyond the border."""
    require.one_of("border", draft.attributes["border"], ("replicate",))
    upsample(draft)


def conv(draft: Draft) -> None:
    """Lay the bias along axis 1, number the groups, and keep the padding of spatial axes alone."""
    input, filter = draft.shape("input"), draft.shape("filter")
    given, rank = draft.attributes, len(input)
    if rank < 3 or len(filter) != rank:
        raise InvalidShape(
            f"'input' {show(input)} and 'filter' {show(filter)} must have one rank: batch, "
            "channels and at least one spatial axis",
            hint="`unsqueeze` an input that has no batch axis",
        )
    if given["border"] != "constant":
        raise InvalidOperation(
            f"'border' must be 'constant', it is '{given['border']}'",
            hint="`pad` the input first, with that border, and give padding (0,0) here",
        )
    padding = given["padding"]
    if len(padding) == rank and tuple(map(tuple, padding[:2])) == ((0, 0), (0, 0)):
        given["padding"] = padding[2:]
    for name in ("padding", "stride", "dilation"):
        if given[name]:
            require.length(name, given[name], rank - 2, "spatial axes")
    if given["groups"] < 0:
        raise InvalidOperation(
            f"'groups' must be positive, or 0 for a group for each channel, it is {given['groups']}"
        )
    each = input[1] // filter[1] if filter[1] != 0 else 1
    groups = given["groups"] = given["groups"] or each or 1
    if differ(filter[1] * groups, input[1]):
        raise InvalidShape(
            f"'filter' {show(filter)} takes {filter[1] * groups} channels in {groups} group(s), "
            f"'input' {show(input)} has {input[1]}",
            hint="the filter has the shape [output channels, input channels / groups, ...], "
            "for deconv too",
        )
    if differ(filter[0] % groups, 0):
        message = f"'groups' {groups} does not divide the first extent of 'filter' {show(filter)}"
        raise InvalidShape(message)
    _bias(draft, filter[0])


def _bias(draft: Draft, channels: int) -> None:
    shape = draft.shape("bias")
    kept = [extent for extent in shape if differ(extent, 1)]
    if len(kept) > 1 or any(differ(extent, channels) for extent in kept):
        raise InvalidShape(
            f"'bias' {show(shape)} does not fit {channels} output channels",
            hint=f"it must have one item, or {channels} along one axis, as in "
            f"{show((channels,))} and {show((1, channels))}",
        )
    if kept and shape != (1, *kept):
        draft.before("bias", "reshape", shape=[1, -1], axis_start=0, axis_count=-1)


def deconv(draft: Draft) -> None:
    """Turn the filter (O,I/G,f...) into (I,O/G,f...)."""
    conv(draft)
    input, filter = draft.shape("input"), draft.shape("filter")
    rank, groups, extents = len(input), draft.attributes["groups"], draft.attributes["output_shape"]
    if len(extents) not in (0, rank - 2, rank):
        raise InvalidOperation(
            f"'output_shape' {list(extents)} must have an item for each of the {rank - 2} "
            f"spatial axes, or for each of all {rank}"
        )
    if extents:
        draft.attributes["output_shape"] = [1, filter[0], *extents[2 - rank :]]
    outputs, inputs = filter[:2]
    if groups > 1:
        grouped = [groups, outputs // groups, inputs]
        draft.before("filter", "reshape", shape=grouped, axis_start=0, axis_count=2)
        draft.before("filter", "transpose", axes=[0, 2, 1])
        merged = [groups * inputs, outputs // groups]
        draft.before("filter", "reshape", shape=merged, axis_start=0, axis_count=3)
    else:
        draft.before("filter", "transpose", axes=[1, 0])


def quantized_conv(draft: Draft) -> None:
    """Take `group`, which tract declares, or `groups`, which it writes."""
    group = draft.attributes.pop("group")
    if draft.attributes["groups"] == 1:
        draft.attributes["groups"] = group
    conv(draft)
    draft.attributes["dtype"] = draft.attributes["dtype"] or draft.dtype("input")
