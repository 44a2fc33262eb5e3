"""Operations of a network that takes a stream in pulses: each call takes the next piece.

States of the graph pass items on to later pieces, and start with zeros. `model.step` and
`model.scan` run such a network. The operations are those of the registry tract_pulse.
"""

from __future__ import annotations

import numpy as np

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN
from lowering.graph import TensorType, Value
from lowering.ops import require
from nnef_jax.flattening.operators.attributes import integer, number, text
from nnef_jax.formats.base import GIVE_SHAPES
from nnef_jax.formats.tract.application import apply, tensor
from nnef_jax.formats.tract.call_site import CallSite
from nnef_jax.formats.tract.operators.registry import argument, fixed, intrinsic

_ENDLESS = np.iinfo(np.int32).max  # the end of a stream of unknown length


@intrinsic("tract_pulse_delay", delay=fixed("delay"), overlap=fixed("overlap"))
def delayed(site: CallSite, *, delay: int, overlap: int) -> Value:
    """Delay the stream by `delay` items.

    Each result begins with the last `overlap` items of the previous piece's result.
    """
    input, axis = _stream(site)
    require.not_negative(delay=delay, overlap=overlap)
    if delay + overlap == 0:
        return input
    # The buffer has the last delay + overlap items of all pieces before this one.
    buffer = site.state(_resized(input, axis, delay + overlap), f"{site.name}_kept")
    joined = apply(site, "concat", f"{site.name}_joined", values=[buffer, input], axis=axis)

    def part(begin: int, end: int, name: str) -> Value:
        bounds = {"axes": [axis], "begin": [begin], "end": [end], "stride": []}
        return apply(site, "slice", name, input=joined, **bounds)

    # `joined` has delay + overlap + pulse items. The result is the first overlap + pulse items. The
    # next buffer is the last delay + overlap items.
    pulse = input.type.shape[axis]
    joined_length = delay + overlap + pulse
    next_buffer = part(begin=pulse, end=joined_length, name=f"{site.name}_next")
    site.graph.builder.update(buffer, next_buffer)
    return part(begin=0, end=overlap + pulse, name=site.name)


@intrinsic("tract_pulse_mask", begin=integer("begin"), end=integer("end"), value=number("value"))
def mask(site: CallSite, *, begin: int, end: int, value: float) -> Value:
    """Replace the items of the stream before the index `begin`, and from `end` on, by `value`."""
    return _between(site, begin=begin, end=end, value=value)


@intrinsic(
    "tract_pulse_pulse_pad",
    border=text("border"), begin=integer("begin_input"), end=integer("end_input"),
    overlap=fixed("overlap"), value=number("value"),
)  # fmt: skip
def pulse_pad(
    site: CallSite, *, border: str, begin: int, end: int, overlap: int, value: float
) -> Value:
    """Pad the stream: replace its items before the index `begin`, and from `end` on, by `value`.

    The first `overlap` items of each piece repeat the end of the previous piece.
    """
    if border != "constant":
        message = f"'border' of a padded stream must be 'constant' here, it is '{border}'"
        raise InvalidOperation(message)
    return _between(site, begin=begin, end=end, value=value, overlap=overlap)


@intrinsic("tract_pulse_cumsum", exclusive=argument("exclusive"), skip=fixed("skip"))
def cumsum(site: CallSite, *, exclusive: bool, skip: int) -> Value:
    """Return the running sum of the stream. The first `skip` items of the stream count as 0.

    If `exclusive`, the sum at a position leaves out the item at this position.
    """
    input, axis = _stream(site)
    if skip:
        masked_site = site.named(f"{site.name}_counted")
        input = _between(masked_site, begin=skip, end=_ENDLESS, value=0.0)
    # The state is the sum of all items of the pieces before this one.
    total = site.state(_resized(input, axis, extent=1), f"{site.name}_total")
    reduction = {"axes": [axis], "normalize": False}
    pulse_sum = apply(site, "sum_reduce", f"{site.name}_own", input=input, **reduction)
    next_total = apply(site, "add", f"{site.name}_next", x=total, y=pulse_sum)
    site.graph.builder.update(total, next_total)
    direction = {"axis": axis, "exclusive": exclusive, "reverse": False}
    sums = apply(site, "tract_core_cumsum", f"{site.name}_sums", x=input, **direction)
    return apply(site, "add", site.name, x=sums, y=total)


def _between(site: CallSite, *, begin: int, end: int, value: float, overlap: int = 0) -> Value:
    """Replace the items of the stream before the index `begin`, and from `end` on, by `value`.

    A state counts the items of all previous pieces. The first `overlap` items of each piece repeat
    the end of the previous piece, and are not counted.
    """
    input, axis = _stream(site)
    position = site.state(TensorType((), site.graph.builder.integer), f"{site.name}_position")
    new_items = input.type.shape[axis] - overlap
    next_position = apply(site, "add", f"{site.name}_next", x=position, y=new_items)
    site.graph.builder.update(position, next_position)
    attributes = {"axis": axis, "begin": _position(begin), "end": _position(end), "value": value}
    operands = {"input": input, "position": position}
    (masked,) = site.add("tract.pulse_mask", operands, attributes, [site.name])
    return masked


def _stream(site: CallSite) -> tuple[Value, int]:
    """Return the current piece of the stream, and the axis of the stream."""
    input = tensor(site, site.input(0))
    axis = require.normal_axis(site.integer("axis"), len(input.type.shape))
    if input.type.shape[axis] is UNKNOWN:
        raise InvalidOperation("the length of a pulse must be known", GIVE_SHAPES)
    return input, axis


def _resized(input: Value, axis: int, extent: int) -> TensorType:
    """Return the type of a tensor with another extent along an axis."""
    shape = [*input.type.shape]
    shape[axis] = extent
    return TensorType(tuple(shape), input.type.dtype)


def _position(index: int) -> int:
    """Clip an index in the stream to the range of int32; UNKNOWN becomes the largest int32."""
    return _ENDLESS if index is UNKNOWN else max(min(index, _ENDLESS), -_ENDLESS)
