"""Operations that introduce what is outside the text: inputs, variables, other networks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, shapes_differ, show
from lowering.graph import Call, TensorType, Value
from nnef_jax.errors import NnefError, UnsupportedError
from nnef_jax.formats.syntax.dequantization import dequantize
from nnef_jax.formats.syntax.emission import Frame
from nnef_jax.formats.syntax.tensors import external_type
from nnef_jax.formats.syntax.types import INTEGER, STRING, ArrayOf
from nnef_jax.formats.tract import datum, symbols
from nnef_jax.formats.tract.arguments import attribute
from nnef_jax.formats.tract.call_site import CallSite, intrinsic
from nnef_jax.formats.tract.document import EXTERNALS
from nnef_jax.formats.tract.emission import Results
from nnef_jax.formats.tract.resources import as_dtype

# What the generic argument of an operation of the standard stands for.
GENERIC = {"scalar": "f32", "integer": "i64", "logical": "bool"}
_NETWORK = 60  # steps, for a network within another one


@intrinsic(*EXTERNALS)
def _external(site: CallSite) -> Value:
    """Declare an input; the generic argument of `external` says what it holds."""
    graph, frame, kind = site.graph, site.frame, site.invocation
    if frame.fragment is not None:
        raise site.error(f"'{kind.operation}' is not allowed in a fragment")
    datum_type = site.arguments.get("datum_type") or GENERIC.get(kind.generic or "", "f32")
    dtype = datum.dtype_of(attribute(datum_type, STRING), graph.builder.real)
    extents = [extent or None for extent in attribute(site.arguments["shape"], ArrayOf(INTEGER))]
    declared = external_type(extents, dtype, UNKNOWN)
    name = site.names[0].removeprefix(frame.prefix) if len(site.names) == 1 else ""
    if name not in site.evaluator.inputs:
        raise InvalidOperation(
            f"'{name}' is no input in the header of the graph"
            if name
            else "an input must be assigned to its name"
        )
    given = site.evaluator.inputs[name]
    if given is not None:
        if shapes_differ(given.type.shape, declared.shape):
            message = f"input '{name}' is declared as {declared}, it is given {given.type}"
            raise InvalidShape(message)
        return site.cast(given, dtype)
    if graph.builder.is_taken(name):
        raise InvalidOperation(f"input '{name}' is declared twice, or assigned before")
    shape = declared.shape
    if name in graph.options.input_shapes:
        wanted = graph.options.input_shapes[name]
        shape = tuple(UNKNOWN if extent is None else extent for extent in wanted)
        if any(extent < 0 for extent in shape):
            raise InvalidShape(f"input '{name}' cannot have shape {show(shape)}")
    if len(shape) != len(declared.shape):
        raise InvalidShape(
            f"input '{name}' has rank {len(declared.shape)}, the shape given for it {show(shape)}"
        )
    symbolic = graph.options.symbolic_shapes.get(name, shape)
    value = graph.input(name, TensorType(shape, dtype), symbolic)
    return graph.bound(value, site.node, frame)


@intrinsic("variable")
def _variable(site: CallSite) -> Value:
    """Declare a parameter of its file's type, or graph.quant's where it is quantised."""
    graph, unit, label = site.graph, site.unit, site.string("label")
    if graph.outer is not None:  # in the body of a scan: it is passed from outside
        return graph.capture(_variable(site.into(graph.outer)))
    shape = tuple(attribute(site.arguments["shape"], ArrayOf(INTEGER)))
    unique = unit.labels + label
    if unit.progress is not None and unique not in graph.data:
        unit.progress(len(graph.data))
    try:
        stored, is_decoded = _stored(site, label, shape)
        dtype = datum.compute_dtype(stored.dtype.name, graph.builder.real)
        if unique not in graph.data:
            graph.data[unique] = as_dtype(stored, dtype, f"{label}.dat", graph.meter)
    except NnefError as error:
        error.span, error.calls = error.span or site.span, site.frame.calls
        raise
    value = graph.variable(site.name, unique, stored, dtype, site.node, site.frame)
    if is_decoded:
        graph.decoded.add(value)
    return value


def _stored(site: CallSite, label: str, shape: Shape) -> tuple[NDArray[Any], bool]:
    """Return the data of a variable in its shape, and whether it was decoded from codes."""
    record = site.unit.resources.get(label)
    if record.datum == "string":
        raise UnsupportedError(
            f"variable '{label}' holds strings: there are no tensors of strings in XLA"
        )
    array = record.shaped(shape or record.array.shape, label)
    quantizer = site.unit.quantizers.get(site.name)
    if quantizer is None or record.codes is None:
        return array, False
    real = dequantize(record.codes, quantizer, f"{label}.dat", site.graph.meter)
    return real.astype(np.float32).reshape(array.shape), True


@intrinsic("tract_resource_get")
def _resource(site: CallSite) -> Any:
    return site.unit.resources.json(site.string("label"), site.string("key"))


@intrinsic("tract_core_submodel")
def _submodel(site: CallSite) -> Any:
    graph, label = site.graph, site.string("label")
    given: Any = site.arguments["input"]
    operands = [site.tensor(value) for value in (given if isinstance(given, list) else [given])]
    if graph.outer is not None:
        raise InvalidOperation("the body of a scan cannot have another network in it")
    graph.meter.spend(_NETWORK)
    unit = site.unit.within(label, graph.meter)
    parameters = [parameter.name for parameter in unit.document.graph.parameters]
    if len(parameters) != len(operands):
        raise InvalidOperation(
            f"network '{label}' takes {len(parameters)} inputs, it is given {len(operands)}"
        )
    inputs = dict(zip(parameters, operands, strict=True))
    shapes = {name: graph.shape_of(value) for name, value in inputs.items()}
    extents = symbols.solve(unit.document, shapes, graph.meter)
    prefix = f"{site.names[0] if site.names else label}_"
    calls = (*site.frame.calls, Call(f"{label}/graph.nnef", site.span))
    frame = Frame(None, unit.document.source, {}, prefix, calls)
    outputs = site.evaluator.of(unit, extents, inputs).outputs(frame)
    return outputs[0] if len(outputs) == 1 else Results(outputs)
