"""Intrinsics for inputs, variables, nested networks, casts, and values that follow from shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from typing import cast as cast_type

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, shapes_differ, show
from lowering.graph import Call, TensorType, Value, is_integer
from nnef_jax.errors import LimitError
from nnef_jax.flattening import host_operations
from nnef_jax.flattening import hostvalues as h
from nnef_jax.flattening.emission import computation_dtype
from nnef_jax.flattening.operators.attributes import integers, text
from nnef_jax.formats.syntax.declared_tensors import external_type
from nnef_jax.formats.syntax.emitter import Frame
from nnef_jax.formats.syntax.quantizer import dequantize
from nnef_jax.formats.syntax.types import STRING
from nnef_jax.formats.tract import symbols
from nnef_jax.formats.tract.application import Results, apply, tensor
from nnef_jax.formats.tract.attributes import attribute
from nnef_jax.formats.tract.call_site import CallSite, TractOperand
from nnef_jax.formats.tract.dtypes import converted, dtype_of
from nnef_jax.formats.tract.operators.registry import argument, intrinsic
from nnef_jax.formats.tract.quantized_tensors import codes_of
from nnef_jax.formats.tract.unit import as_dtype
from nnef_jax.limits import raising

# Maps generic arguments of the standard's operations to tract's datum types.
_GENERIC = {"scalar": "f32", "integer": "i64", "logical": "bool"}
_NETWORK_STEPS = 60  # steps of the meter for a nested network


@intrinsic("external", "tract_core_external", shape=integers("shape"))
def external(site: CallSite, *, shape: Sequence[int]) -> Any:
    """Add an input of the graph, and return its tensor.

    The datum type of the input is the argument `datum_type` or the generic argument. If the network
    is within another network, return the value that the outer network gives to the input.
    """
    graph, frame = site.graph, site.frame
    if frame.fragment is not None:
        raise site.error(f"'{site.kind}' is not allowed in a fragment")
    datum_type = site.arguments.get("datum_type") or _GENERIC.get(site.generic, "f32")
    dtype = dtype_of(attribute(datum_type, STRING), graph.builder.real)
    open_shape = [extent or None for extent in shape]  # an extent of 0 is open
    declared = external_type(open_shape, dtype, UNKNOWN)
    if len(site.names) != 1:
        raise InvalidOperation("an input must be assigned to its name")
    name = site.names[0].removeprefix(frame.prefix)
    if name not in site.evaluator.inputs:
        raise InvalidOperation(f"'{name}' is no input in the header of the graph")
    outer = site.evaluator.inputs[name]
    if outer is not None:  # the value that the outer network gives to the input
        if shapes_differ(outer.type.shape, declared.shape):
            message = f"input '{name}' is declared as {declared}, it is given {outer.type}"
            raise InvalidShape(message)
        return site.cast(outer, dtype)
    if graph.builder.is_taken(name):
        raise InvalidOperation(f"input '{name}' is declared twice, or assigned before")
    return _new_input(site, name, declared)


def _new_input(site: CallSite, name: str, declared: TensorType) -> Any:
    """Add an input of the entire network to the graph, and return its tensor.

    If the user fixed the value of the input, no input is added, and the value is returned.
    """
    graph = site.graph
    dtype = declared.dtype
    if name in graph.options.values:
        return h.host(graph.options.value(name, declared.shape, dtype))
    extents = graph.options.shape(name, declared.shape)
    if any(extent < 0 for extent in extents):
        raise InvalidShape(f"input '{name}' cannot have shape {show(extents)}")
    if len(extents) != len(declared.shape):
        raise InvalidShape(
            f"input '{name}' is declared with {len(declared.shape)} axes, "
            f"the shape {show(extents)} is given"
        )
    symbolic_shape = graph.options.symbolic_shapes.get(name, extents)
    value = graph.input(name, TensorType(extents, dtype), symbolic_shape)
    return graph.bound(value, site.node, site.frame)


@intrinsic("variable", label=text("label"), shape=integers("shape"))
def variable(site: CallSite, *, label: str, shape: Sequence[int]) -> Value:
    """Add a parameter to the graph, and return its tensor.

    The parameter has the dtype of its file. If graph.quant decodes the file's codes, the parameter
    has real numbers.
    """
    graph = site.graph
    unique_label = site.unit.labels + label
    if graph.outer is not None:  # the body of a scan reads the variable of the outer graph
        outer_variable = variable(site.into(graph.outer), label=label, shape=shape)
        return graph.capture(outer_variable)
    if unique_label not in graph.data:
        graph.report()  # `_stored` reads another file now
    stored, is_decoded = _stored(site, label, tuple(shape))
    dtype = computation_dtype(stored.dtype.name, graph.builder.real)
    if unique_label not in graph.data:
        graph.data[unique_label] = as_dtype(stored, dtype, f"{label}.dat", graph.meter)
    type = TensorType(stored.shape, dtype)
    value = graph.builder.variable(site.name, unique_label, type, site.span)
    graph.constants[value] = stored
    if is_decoded:
        graph.decoded.add(value)
    return graph.bound(value, site.node, site.frame)


def _stored(site: CallSite, label: str, shape: Shape) -> tuple[NDArray[Any], bool]:
    """Return the data of a variable, and whether the data were decoded from codes.

    The data have the shape `shape`, or the shape in the file if `shape` is ().
    """
    record = site.unit.get(label)
    array = record.shaped(shape or record.array.shape, label)
    quantizer = site.unit.quantizers.get(site.name)
    if quantizer is None or record.codes is None:
        return array, False
    numbers = dequantize(record.codes, quantizer, f"{label}.dat", site.graph.meter)  # float64
    return numbers.astype(np.float32).reshape(array.shape), True


@intrinsic("tract_resource_get", label=text("label"), key=text("key"))
def resource(site: CallSite, *, label: str, key: str) -> Any:
    """Return the value at the path `key` in the JSON file LABEL.json of the archive."""
    return site.unit.json(label, key)


@intrinsic("tract_core_submodel", label=text("label"))
def submodel(site: CallSite, input: object, *, label: str) -> Any:
    """Evaluate another network of the archive, and return its outputs.

    `label` names the network, and `input` has the values of its inputs.
    """
    graph = site.graph
    values = cast_type("list[object]", input) if isinstance(input, list) else [input]
    operands = [tensor(site, value) for value in values]
    if graph.outer is not None:
        raise InvalidOperation("the body of a scan cannot have another network in it")
    graph.meter.spend(_NETWORK_STEPS)
    unit = site.unit.nested(label)
    parameters = [parameter.name for parameter in unit.document.graph.parameters]
    if len(parameters) != len(operands):
        message = f"network '{label}' takes {len(parameters)} inputs, it is given {len(operands)}"
        raise InvalidOperation(message)
    inputs = dict(zip(parameters, operands, strict=True))
    shapes = {name: graph.shape_of(value) for name, value in inputs.items()}
    extents = symbols.solve(unit.document, shapes, graph.meter)
    call_name = site.names[0] if site.names else label
    prefix = f"{call_name}_"
    calls = (*site.frame.calls, Call(f"{label}/graph.nnef", site.span))
    frame = Frame(fragment=None, source=unit.document.source, values={}, prefix=prefix, calls=calls)
    return Results.of(site.evaluator.submodel(unit, extents, inputs, frame))


# Operations whose results are constant if their arguments are constant


@intrinsic("cast", "tract_core_cast")
def cast(site: CallSite, value: object) -> Any:
    """Cast a value to the datum type in the argument `to`, or else in the generic argument."""
    graph = site.graph
    datum_type = _datum_type(site)
    if not datum_type:
        return apply(site, "copy", *site.names, x=value)
    dtype = dtype_of(datum_type, graph.builder.real)
    is_known = not isinstance(value, Value)
    # The keys are the dtypes that host values get in the graph. The values are the types of host
    # values. A host value remains a host value if it is cast to one of these dtypes.
    host_types = {
        graph.builder.integer: "integer", graph.builder.real: "scalar", "bool": "logical",
    }  # fmt: skip
    if is_known and dtype in host_types:
        with suppress(h.NotFolded):
            return h.cast(h.host(value), host_types[dtype])
    operand = tensor(site, value)
    if operand in graph.entries and is_integer(dtype):  # the codes themselves are cast
        operand = codes_of(site, operand, graph.entries[operand])
    result = site.cast(operand, dtype, *site.names)
    if is_known and h.is_plain(h.host(value).ravel()):
        # Attributes of later operations may read the numbers.
        graph.constants[result] = converted(h.host(value), dtype)
    return result


def _datum_type(site: CallSite) -> str:
    """Return the datum type to which a call casts. If the result is "", the call keeps the type."""
    if site.has_attribute("to"):
        return site.text("to")
    if site.generic in _GENERIC:
        return _GENERIC[site.generic]
    casts = ", ".join(f"cast<{name}>" for name in _GENERIC)
    raise InvalidOperation("'cast' must name the type of its result", hint=f"write {casts}")


@intrinsic("constant", shape=integers("shape"), value=argument("value"))
def constant(site: CallSite, *, shape: Sequence[int], value: object) -> Any:
    """Return a constant of shape `shape`. `value` has all items, or one number for all items."""
    items = h.host(value).ravel()
    if items.size == 1:
        number = items.reshape(())
        return apply(site, "tract_core_broadcast", *site.names, input=number, shape=shape)
    all_axes = {"axis_start": 0, "axis_count": -1}
    return apply(site, "reshape", *site.names, input=items, shape=shape, **all_axes)


@intrinsic("tract_core_shape_of")
def shape_of(site: CallSite, value: object) -> h.Host:
    """Return the shape of a tensor or of a host value, as a host value."""
    is_tensor = isinstance(value, Value)
    shape = site.graph.shape_of(value) if is_tensor else h.host(value).shape
    return h.integer_array(shape)


@intrinsic("tract_core_range")
def range_of(site: CallSite) -> Any:
    """Return the numbers start, start + step, start + 2 step, ... that are before `end`.

    A short range of constant integers is a host value. The network computes all other ranges.
    """
    graph = site.graph
    bounds = [_number(site, name) for name in ("start", "end", "step")]
    is_real = any(not h.is_integer(bound) for bound in bounds)
    dtype = graph.builder.real if is_real else graph.builder.integer
    start, end, step = map(_item_of, bounds)
    if step == 0:
        raise InvalidOperation("'step' must not be 0")
    if h.is_plain((start, end, step)):
        count = host_operations.ceil_div(end - start, step)
        if count <= h.LARGEST and not is_real:
            graph.meter.spend(max(0, count))
            return h.integer_array(range(start, end, step))
        if count > graph.limits.array_items:
            raise LimitError(f"a range of {count} items", hint=raising("array_items"))
        for bound in bounds:
            graph.literal(bound, dtype)  # raises an error if the bound does not fit the dtype
    attributes = {"start": start, "end": end, "step": step, "dtype": dtype}
    (numbers,) = site.add("range", operands={}, attributes=attributes, names=site.names)
    return numbers


def _item_of(number: h.Host) -> Any:
    """Return the only item of an array, or UNKNOWN for NaN.

    A real number that depends on an open extent is NaN.
    """
    item = number.item()
    is_nan = isinstance(item, float) and math.isnan(item)
    return UNKNOWN if is_nan else item


def _number(site: CallSite, name: str) -> h.Host:
    """Return the argument `name` as a host value with one number.

    Raises InvalidOperation if the argument is not one number, or depends on the data of inputs.
    """
    value = site.graph.known(site.arguments[name])
    if isinstance(value, Value):
        raise InvalidOperation(
            f"'{name}' must be known when the network is compiled, "
            f"'{value.name}' depends on the data of the inputs"
        )
    number = h.host(value)
    if number.size != 1:
        raise InvalidOperation(f"'{name}' must be one number, these are {number.size}")
    if not h.is_integer(number):
        # A real number that depends on an open extent is NaN.
        may_be_nan = site.graph.is_open
        if np.isinf(number) or (np.isnan(number) and not may_be_nan):
            raise InvalidOperation(f"'{name}' must be a number, it is {number.item()}")
    return number.reshape(())


@intrinsic("within_bound_index")
def within_bound_index(site: CallSite, index: TractOperand, extent: TractOperand) -> Any:
    """Clamp an index to the range from 0 to `extent`. A negative index counts from `extent`."""
    from_end = apply(site, "add", x=index, y=extent)
    is_negative = apply(site, "lt", x=index, y=0)
    position = apply(site, "select", condition=is_negative, true_value=from_end, false_value=index)
    at_least_0 = apply(site, "max", x=position, y=0)
    return apply(site, "min", x=at_least_0, y=extent)
