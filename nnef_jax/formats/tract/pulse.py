"""Operations of a network cut into pulses: each call gets the next piece of a stream.

What has to be kept from piece to piece becomes a state of the graph, which starts with zeros: the
network then runs by `model.step` and `model.scan`. Source: registry tract_pulse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, is_known, show, volume
from lowering.graph import TensorType, Value
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.types import INTEGER, SCALAR, STRING
from nnef_jax.formats.tract.arguments import attribute, known_integer

if TYPE_CHECKING:
    from nnef_jax.formats.tract.flatten import Flattener, Frame

_ENDLESS = np.iinfo(np.int32).max  # where a stream ends that has no known length


def state(
    flattener: Flattener,
    type: TensorType,
    name: str,
    node: s.Node,
    frame: Frame,
    initial: NDArray[Any] | None = None,
) -> Value:
    """A variable of the graph that starts with an array, or zeros: `builder.update` changes it."""
    if flattener.outer is not None:
        raise InvalidOperation("the body of a scan cannot keep a state from call to call")
    if not is_known(type.shape):
        raise InvalidOperation(
            f"a state must have a known shape, it is {show(type.shape)}",
            hint="give the shapes of the inputs by load(..., input_shapes=...)",
        )
    span = s.span_in(frame.source, node)
    label = wanted = flattener.unit.labels + name
    states = flattener.root.states
    while label in states:
        states[wanted] += 1
        label = f"{wanted}_{states[wanted]}"
    states[label] = 0
    items = volume(type.shape)
    if items > flattener.limits.tensor_items:
        raise flattener.beyond(f"a state of {items} items", "tensor_items", node, frame)
    flattener.meter.expand(items * np.dtype(type.dtype).itemsize, f"state '{name}'")
    data = np.zeros(type.shape, type.dtype) if initial is None else initial.astype(type.dtype)
    flattener.data.setdefault(label, data)
    return flattener.builder.variable(flattener.builder.unreserved(name), label, type, span)


def _delay(
    flattener: Flattener,
    arguments: Mapping[str, Any],
    node: s.Invocation,
    frame: Frame,
    names: Sequence[str],
) -> Value:
    """The stream later by `delay` items, each piece with `overlap` items of the one before."""
    names = names or [f"{frame.prefix}{node.operation}"]
    input = flattener.tensor(arguments["input"], "", node, frame)
    axis, delay, overlap = (known_integer(arguments[n], n) for n in ("axis", "delay", "overlap"))
    pulse = _extent(input, axis)
    if delay < 0 or overlap < 0:
        raise InvalidOperation(f"'delay' {delay} and 'overlap' {overlap} must not be negative")
    if delay + overlap == 0:
        return input
    axis %= len(input.type.shape)
    shape = (*input.type.shape[:axis], delay + overlap, *input.type.shape[axis + 1 :])
    kept = state(flattener, TensorType(shape, input.type.dtype), f"{names[0]}_kept", node, frame)
    joined = flattener.apply(
        "concat", {"values": [kept, input], "axis": axis}, node, frame, [f"{names[0]}_joined"]
    )

    def part(begin: int, end: int, wanted: str) -> Value:
        bounds = {"axes": [axis], "begin": [begin], "end": [end], "stride": []}
        return flattener.apply("slice", {"input": joined, **bounds}, node, frame, [wanted])

    whole = delay + overlap + pulse
    flattener.builder.update(kept, part(pulse, whole, f"{names[0]}_next"))
    return part(0, overlap + pulse, names[0])


def _mask(
    flattener: Flattener,
    arguments: Mapping[str, Any],
    node: s.Invocation,
    frame: Frame,
    names: Sequence[str],
) -> Value:
    """The stream with a value in the place of all before `begin` and from `end` on."""
    begin, end = (_position(arguments[n]) for n in ("begin", "end"))
    value = attribute(arguments["value"], SCALAR)
    return _between(flattener, arguments, node, frame, names, begin, end, value)


def _pulse_pad(
    flattener: Flattener,
    arguments: Mapping[str, Any],
    node: s.Invocation,
    frame: Frame,
    names: Sequence[str],
) -> Value:
    """The stream with a value in the places ahead of its first item, and behind its last one.

    There are `before` and `after` of these: what is further away is nobody's data.
    """
    border = attribute(arguments["border"], STRING)
    if border != "constant":
        raise InvalidOperation(
            f"'border' of a padded stream must be 'constant' here, it is '{border}'"
        )
    begin, end = (_position(arguments[n]) for n in ("begin_input", "end_input"))
    overlap = known_integer(arguments["overlap"], "overlap")
    value = attribute(arguments["value"], SCALAR)
    return _between(flattener, arguments, node, frame, names, begin, end, value, overlap)


def _cumsum(
    flattener: Flattener,
    arguments: Mapping[str, Any],
    node: s.Invocation,
    frame: Frame,
    names: Sequence[str],
) -> Value:
    """The sums of all items of the stream so far, without the first `skip` of them."""
    names = names or [f"{frame.prefix}{node.operation}"]
    input = flattener.tensor(arguments["input"], "", node, frame)
    axis, skip = (known_integer(arguments[n], n) for n in ("axis", "skip"))
    _extent(input, axis)
    axis %= len(input.type.shape)
    if skip:
        wanted = [f"{names[0]}_counted"]
        begin = _position(skip)
        input = _between(flattener, arguments, node, frame, wanted, begin, _ENDLESS, 0.0)
    shape = (*input.type.shape[:axis], 1, *input.type.shape[axis + 1 :])
    total = state(flattener, TensorType(shape, input.type.dtype), f"{names[0]}_total", node, frame)

    def apply(kind: str, wanted: str, **operands: Any) -> Value:
        return flattener.apply(kind, operands, node, frame, [f"{names[0]}{wanted}"])

    own = apply("sum_reduce", "_own", input=input, axes=[axis], normalize=False)
    flattener.builder.update(total, apply("add", "_next", x=total, y=own))
    ways = {"axis": axis, "exclusive": arguments["exclusive"], "reverse": False}
    return apply("add", "", x=apply("tract_core_cumsum", "_sums", x=input, **ways), y=total)


def _between(
    flattener: Flattener,
    arguments: Mapping[str, Any],
    node: s.Invocation,
    frame: Frame,
    names: Sequence[str],
    begin: int,
    end: int,
    value: float,
    overlap: int = 0,
) -> Value:
    """The stream from `begin` to before `end`, and a value in the place of all else.

    A counter of what has passed is the state; pieces have `overlap` items of the one before.
    """
    names = names or [f"{frame.prefix}{node.operation}"]
    input = flattener.tensor(arguments["input"], "", node, frame)
    axis = known_integer(arguments["axis"], "axis")
    pulse = _extent(input, axis)
    integer = flattener.builder.integer
    position = state(flattener, TensorType((), integer), f"{names[0]}_position", node, frame)
    advanced = flattener.apply(
        "add", {"x": position, "y": pulse - overlap}, node, frame, [f"{names[0]}_next"]
    )
    flattener.builder.update(position, advanced)
    attributes = {"axis": axis, "begin": begin, "end": end, "value": value}
    operands = {"input": input, "position": position}
    return flattener.emit("pulse_mask", operands, attributes, node, frame, names)[0]


def _extent(input: Value, axis: int) -> int:
    rank = len(input.type.shape)
    if not -rank <= axis < rank:
        raise InvalidOperation(f"'axis' must lie in [{-rank},{rank}), it is {axis}")
    extent = input.type.shape[axis]
    if extent is UNKNOWN:
        raise InvalidOperation(
            "the length of a pulse must be known",
            hint="give the shapes of the inputs by load(..., input_shapes=...)",
        )
    return extent


def _position(value: Any) -> int:
    found = attribute(value, INTEGER)
    return _ENDLESS if found is UNKNOWN else max(min(found, _ENDLESS), -_ENDLESS)


FORMS = {
    "tract_pulse_delay": _delay,
    "tract_pulse_mask": _mask,
    "tract_pulse_pulse_pad": _pulse_pad,
    "tract_pulse_cumsum": _cumsum,
}
