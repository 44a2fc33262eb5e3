"""Operations of the dialect that are not computed: inputs, variables, types, shapes, resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, is_symbolic, shapes_differ, show
from lowering.graph import Call, TensorType, Value
from lowering.ops.typing import is_integer
from nnef_jax.errors import NnefError, UnsupportedError
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.dequantization import dequantize
from nnef_jax.formats.syntax.tensors import external_type
from nnef_jax.formats.syntax.types import INTEGER, STRING, ArrayOf
from nnef_jax.formats.tract import datum, pulse, scan
from nnef_jax.formats.tract import host as h
from nnef_jax.formats.tract.arguments import attribute
from nnef_jax.formats.tract.codes import codes_of
from nnef_jax.formats.tract.promotion import converted
from nnef_jax.formats.tract.resources import as_dtype

if TYPE_CHECKING:
    from nnef_jax.formats.tract.flatten import Flattener, Frame

_GENERIC = {"scalar": "f32", "integer": "i64", "logical": "bool"}


def _shape(value: Any) -> list[int]:
    return attribute(value, ArrayOf(INTEGER))


def _external(
    flattener: Flattener,
    arguments: Mapping[str, Any],
    node: s.Invocation,
    frame: Frame,
    names: Sequence[str],
) -> Value:
    """An input. `external` says by its generic argument what it holds."""
    if frame.fragment is not None:
        raise flattener.error(f"'{node.operation}' is not allowed in a fragment", node, frame)
    type = arguments.get("datum_type") or _GENERIC.get(node.generic or "", "f32")
    dtype = datum.dtype_of(attribute(type, STRING), flattener.builder.real)
    extents = [extent or None for extent in _shape(arguments["shape"])]
    declared = external_type(extents, dtype, UNKNOWN).shape
    name = names[0].removeprefix(frame.prefix) if len(names) == 1 else ""
    if name not in flattener.inputs:
        raise InvalidOperation(
            f"'{name}' is no input in the header of the graph"
            if name
            else "an input must be assigned to its name"
        )
    if flattener.given is not None:
        return _given(flattener, name, TensorType(declared, dtype), node, frame)
    if flattener.builder.is_taken(name):
        raise InvalidOperation(f"input '{name}' is declared twice, or assigned before")
    shape = declared
    if name in flattener.options.input_shapes:
        given = flattener.options.input_shapes[name]
        shape = tuple(UNKNOWN if extent is None else extent for extent in given)
        if any(extent < 0 for extent in shape):
            raise InvalidShape(f"input '{name}' cannot have shape {show(shape)}")
    if len(shape) != len(declared):
        raise InvalidShape(
            f"input '{name}' has rank {len(declared)}, the shape given for it {show(shape)}"
        )
    value = flattener.builder.input(name, TensorType(shape, dtype))
    flattener.shapes[value] = flattener.options.symbolic_shapes.get(name, shape)
    return flattener.bound(value, node, frame)


def _given(
    flattener: Flattener, name: str, declared: TensorType, node: s.Invocation, frame: Frame
) -> Value:
    """What a network within another one is given for an input."""
    assert flattener.given is not None
    value = flattener.given[name]
    if shapes_differ(value.type.shape, declared.shape):
        raise InvalidShape(f"input '{name}' is declared as {declared}, it is given {value.type}")
    return flattener.cast(value, declared.dtype, node, frame)


def _variable(
    flattener: Flattener,
    arguments: Mapping[str, Any],
    node: s.Invocation,
    frame: Frame,
    names: Sequence[str],
) -> Value:
    """A parameter. Its file says what it holds, the text only where that is quantised."""
    label = attribute(arguments["label"], STRING)
    if flattener.outer is not None:  # in the body of a scan: it is passed from outside
        outer = _variable(flattener.outer, arguments, node, frame, names)
        return flattener.capture(outer)
    name = names[0] if names else frame.prefix + "variable"
    shape = tuple(_shape(arguments["shape"]))
    unique = flattener.unit.labels + label
    if flattener.unit.progress is not None and unique not in flattener.data:
        flattener.unit.progress(len(flattener.data))
    try:
        stored = _stored(flattener, label, shape, name)
        dtype = datum.compute_dtype(stored.dtype.name, flattener.builder.real)
        if unique not in flattener.data:
            flattener.data[unique] = as_dtype(stored, dtype, f"{label}.dat", flattener.meter)
    except NnefError as error:
        error.span, error.calls = error.span or s.span_in(frame.source, node), frame.calls
        raise
    type = TensorType(stored.shape, dtype)
    value = flattener.builder.variable(name, unique, type, s.span_in(frame.source, node))
    flattener.constants[value] = stored
    return flattener.bound(value, node, frame)


def _stored(flattener: Flattener, label: str, shape: Shape, name: str) -> NDArray[Any]:
    """The data of a variable in its shape; codes of a quantised one as real numbers."""
    record = flattener.unit.resources.get(label)
    if record.datum == "string":
        raise UnsupportedError(
            f"variable '{label}' holds strings: there are no tensors of strings in XLA"
        )
    array = record.shaped(shape or record.array.shape, label)
    quantizer = flattener.unit.quantizers.get(name)
    if quantizer is None or record.codes is None:
        return array
    flattener.decoded.add(name)
    real = dequantize(record.codes, quantizer, f"{label}.dat", flattener.meter)
    return real.astype(np.float32).reshape(array.shape)


def _cast(
    flattener: Flattener,
    arguments: Mapping[str, Any],
    node: s.Invocation,
    frame: Frame,
    names: Sequence[str],
) -> Any:
    """A value as another type; without one, as the type that graph.quant gives the result.

    The standard's `cast` says it by its generic argument.
    """
    value = arguments["input"]
    if "to" in arguments:
        name = attribute(arguments["to"], STRING)
    elif node.generic in _GENERIC:
        name = _GENERIC[node.generic]
    else:
        known = ", ".join(f"cast<{name}>" for name in _GENERIC)
        raise InvalidOperation("'cast' lacks the type to cast to", hint=f"write {known}")
    if not name:
        return flattener.apply("copy", {"x": value}, node, frame, names)
    dtype = datum.dtype_of(name, flattener.builder.real)
    try:
        if not isinstance(value, Value) and dtype in _host_dtypes(flattener):
            return h.cast(h.host(value), _host_dtypes(flattener)[dtype])
    except h.NotFolded:
        pass
    tensor = flattener.tensor(value, "", node, frame)
    if tensor in flattener.entries and is_integer(dtype):  # stored so: no number is rounded
        tensor = codes_of(flattener, tensor, flattener.entries[tensor], node, frame)
    result = flattener.cast(tensor, dtype, node, frame, names)
    if not isinstance(value, Value) and h.is_plain(h.host(value).ravel()):
        flattener.constants[result] = converted(h.host(value), dtype)
    return result


def _host_dtypes(flattener: Flattener) -> dict[str, str]:
    """What known values are cast to without becoming tensors, of the types that these have."""
    builder = flattener.builder
    return {builder.integer: "integer", builder.real: "scalar", "bool": "logical"}


def _constant(
    flattener: Flattener,
    arguments: Mapping[str, Any],
    node: s.Invocation,
    frame: Frame,
    names: Sequence[str],
) -> Any:
    """A literal in a shape, which one value fills."""
    value, shape = h.host(arguments["value"]).ravel(), _shape(arguments["shape"])
    if value.size == 1:
        given = {"input": value.reshape(()), "shape": shape}
        return flattener.apply("tract_core_broadcast", given, node, frame, names)
    given = {"input": value, "shape": shape, "axis_start": 0, "axis_count": -1}
    return flattener.apply("reshape", given, node, frame, names)


def _shape_of(
    flattener: Flattener,
    arguments: Mapping[str, Any],
    node: s.Invocation,
    frame: Frame,
    names: Sequence[str],
) -> h.Host:
    value = arguments["input"]
    if not isinstance(value, Value):
        return h.boxes(h.host(value).shape)
    return h.boxes(flattener.shape_of(value))


def _range(
    flattener: Flattener,
    arguments: Mapping[str, Any],
    node: s.Invocation,
    frame: Frame,
    names: Sequence[str],
) -> Any:
    """The numbers from `start` to before `end`; a long range is made in the network."""
    bounds = [_number(flattener, arguments[name], name) for name in ("start", "end", "step")]
    real = any(not h.is_integer(bound) for bound in bounds)
    dtype = flattener.builder.real if real else flattener.builder.integer
    start, end, step = (UNKNOWN if x != x else x for x in (b.item() for b in bounds))
    if step == 0:
        raise InvalidOperation("'step' must not be 0")
    if not any(x is UNKNOWN or is_symbolic(x) for x in (start, end, step)):
        count = -((start - end) // step)
        if count <= h.LARGEST and not real:
            flattener.spend(max(0, count), node, frame)
            return h.boxes(range(start, end, step))
        if count > flattener.limits.array_items:
            raise flattener.beyond(f"a range of {count} items", "array_items", node, frame)
        for bound in bounds:
            flattener.literal(bound, dtype)
    attributes = {"start": start, "end": end, "step": step, "dtype": dtype}
    (made,) = flattener.emit("range", {}, attributes, node, frame, names)
    return made


def _number(flattener: Flattener, value: Any, name: str) -> h.Host:
    """A number that must be known, as it is given."""
    value = flattener.known(value)
    if isinstance(value, Value):
        raise InvalidOperation(
            f"'{name}' must be known when the network is compiled, "
            f"'{value.name}' depends on the data of the inputs"
        )
    known = h.host(value)
    if known.size != 1:
        raise InvalidOperation(f"'{name}' must be one number, these are {known.size}")
    # NaN is what depends on an extent that is open.
    if not h.is_integer(known) and (np.isinf(known) or (np.isnan(known) and not flattener.is_open)):
        raise InvalidOperation(f"'{name}' must be a number, it is {known.item()}")
    return known.reshape(())


def _resource(
    flattener: Flattener,
    arguments: Mapping[str, Any],
    node: s.Invocation,
    frame: Frame,
    names: Sequence[str],
) -> Any:
    """A value of a JSON file beside the document."""
    label, key = (attribute(arguments[name], STRING) for name in ("label", "key"))
    return flattener.unit.resources.json(label, key)


def _submodel(
    flattener: Flattener,
    arguments: Mapping[str, Any],
    node: s.Invocation,
    frame: Frame,
    names: Sequence[str],
) -> Any:
    """The outputs of a network that lies in the archive under a label."""
    label = attribute(arguments["label"], STRING)
    given: Any = arguments["input"]
    operands = [
        flattener.tensor(value, "", node, frame)
        for value in (given if isinstance(given, list) else [given])
    ]
    prefix = f"{names[0] if names else label}_"
    calls = (*frame.calls, Call(f"{label}/graph.nnef", s.span_in(frame.source, node)))
    outputs = flattener.inner(label, operands, prefix, calls)
    return outputs[0] if len(outputs) == 1 else flattener.several(outputs)


def _within_bound_index(
    flattener: Flattener,
    arguments: Mapping[str, Any],
    node: s.Invocation,
    frame: Frame,
    names: Sequence[str],
) -> Any:
    """An index, below 0 from the end, as one from 0 to an extent."""

    def apply(kind: str, **operands: Any) -> Any:
        return flattener.apply(kind, operands, node, frame, ())

    index, extent = arguments["index"], arguments["input_axis_size"]
    from_end = apply("add", x=index, y=extent)
    is_negative = apply("lt", x=index, y=0)
    first = apply("select", condition=is_negative, true_value=from_end, false_value=index)
    return apply("min", x=apply("max", x=first, y=0), y=extent)


Form = Callable[
    ["Flattener", Mapping[str, Any], s.Invocation, "Frame", Sequence[str]],
    Any,
]
FORMS: dict[str, Form] = {
    "external": _external,
    "tract_core_external": _external,
    "variable": _variable,
    "constant": _constant,
    "cast": _cast,
    "tract_core_cast": _cast,
    "tract_core_shape_of": _shape_of,
    "tract_core_range": _range,
    "tract_resource_get": _resource,
    "tract_core_submodel": _submodel,
    "within_bound_index": _within_bound_index,
    scan.KIND: scan.scan,
    **pulse.FORMS,
}
