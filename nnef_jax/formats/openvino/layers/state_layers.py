"""Functions for the layers Memory, ReadValue and Assign, which use states.

A state lasts from call to call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering import Context, rounding, trace
from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, volume
from lowering.graph import TensorType, Value
from nnef_jax.flattening.operators.attributes import integer
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.symbolic import open_type
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.element_types import computation_dtype, element_type
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers.registry import legacy, opsets
from nnef_jax.formats.openvino.network_ends import label_of


@legacy("Memory")
def _memory(site: LayerSite, *, index: int = integer("index", 0)) -> Any:
    """Read or write a state. The name of the state is the attribute `id`.

    If `index` is 1, the layer reads the state. If `index` is 0, the layer writes the state. The
    initial value of the state is 0. Since 2021.1, OpenVINO's CPU plugin starts with 0
    (MKLDNNMemoryInputNode::createPrimitive). Earlier versions read uninitialised memory until the
    first write (MKLDNNGraph::AllocateWithReuse).
    """
    label = site.layer.attributes.get("id", site.layer.name)
    if index == 1:
        shape = site.layer.outputs[0].shape or ()
        return _variable(site, label, TensorType(shape, site.real))
    value = site.tensor(0)
    variable = _variable(site, label, value.type)
    site.graph.builder.update(variable, value)
    return []


def _variable(
    site: LayerSite, label: str, type: TensorType, initial: NDArray[Any] | None = None
) -> Value:
    """Return the variable with the label `label`, and add it to the graph if it is new.

    The initial value of a new variable is `initial`, or zeros by default.
    """
    graph = site.graph
    _require_outside_bodies(site)
    if label not in graph.data:
        if initial is None:
            initial = _zeros(site, type.shape, type.dtype)
        graph.data[label] = rounding.saturated(initial, type.dtype)
    name = graph.builder.unreserved(label)
    return graph.builder.variable(name, label, type, site.layer.span)


def _require_outside_bodies(site: LayerSite) -> None:
    """Raise InvalidOperation if the layer is in a body of another layer."""
    if site.graph.outer is not None:
        raise InvalidOperation("a body cannot have a state that lasts from call to call")


def _zeros(site: LayerSite, shape: Sequence[int], dtype: str) -> NDArray[Any]:
    """Make an array of zeros. Raises LimitError if the array is too large.

    The array is in no file, so its size counts against the limits here.
    """
    size = volume(shape) * np.dtype(dtype).itemsize
    site.graph.options.meter.expand(size, f"layer '{site.name}'")
    return np.zeros(shape, dtype)


@opsets("ReadValue")
def _read_value(site: LayerSite) -> Value:
    """Read a variable. Its initial value is input 0, or zeros if input 0 is left out.

    If input 0 depends on inputs of the network, the first call computes the initial value.
    Otherwise the initial value is computed when the network is loaded, and stored. Zeros have the
    extent 0 along open axes.
    """
    graph = site.graph
    options = graph.options
    label = label_of(site.layer)
    _require_outside_bodies(site)
    initial_tensor = site.operand(0) if site.has(0) else None
    variable = graph.variables.get(label)
    if variable is None:  # no layer writes the variable, so that it keeps its initial value
        return site.last.copy(site.tensor(0))
    # The tensor that the first call computes as the initial value, or None.
    computed_start = initial_tensor if variable.starts_from_inputs else None
    if computed_start is not None and options.starts:
        # In the graph of the first call, the initial value stands in for the variable.
        value = site.last.copy(site.tensor(computed_start))
        graph.builder.starting(label, variable=value, initial=value, span=site.layer.span)
        return value
    shape = options.state_shapes.get(label, variable.shape)
    open_extent = options.open_extent
    extents = tuple(open_extent if extent is UNKNOWN else extent for extent in shape)
    dtype = _declared_dtype(site) if initial_tensor is None else site.dtype_of(0)
    stored_start = None if variable.starts_from_inputs else initial_tensor
    initial_array = _initial_array(site, stored_start, variable.shape, dtype)
    value = _variable(site, label, open_type(extents, dtype), initial_array)
    if graph.symbolic is not None:
        graph.symbolic.declare(value, extents)
    if computed_start is not None:
        # The zeros that `_variable` stored are dropped. The first call computes the initial value.
        graph.data.pop(label)
        initial = site.tensor(computed_start)
        graph.builder.starting(label, variable=value, initial=initial, span=site.layer.span)
    return value


def _declared_dtype(site: LayerSite) -> str:
    """Return the dtype that a ReadValue layer without inputs declares for its variable."""
    declared = site.layer.attributes.get("variable_type") or site.layer.outputs[0].type
    return computation_dtype(element_type(declared or "f32"), site.real)


def _initial_array(
    site: LayerSite, start: Tensor | None, shape: Sequence[int], dtype: str
) -> NDArray[Any]:
    """Return an array with the initial value of a variable: `start`, or zeros if `start` is None.

    An array of zeros has the shape `shape`, with the extent 0 in place of each unknown extent.
    """
    if start is not None:
        return _array(site, start)
    closed_shape = [0 if extent is UNKNOWN else extent for extent in shape]
    return _zeros(site, closed_shape, dtype)


def _array(site: LayerSite, tensor: Tensor) -> NDArray[Any]:
    """Compute a tensor that depends only on weights, and return its array."""
    if isinstance(tensor, Constant):
        return tensor.array
    graph = site.graph.builder.graph("", [tensor], [tensor.name])
    weights = {weight.label: site.graph.data[weight.label] for weight in graph.parameters}
    no_states: dict[str, Any] = {}
    no_inputs = [None] * len(graph.inputs)  # the tensor does not depend on inputs
    values = trace(graph, Context(), weights, no_states, no_inputs)
    return np.asarray(values[tensor])


@opsets("Assign")
def _assign(site: LayerSite) -> Any:
    """Write input 0 to the variable that a ReadValue with the same `variable_id` reads."""
    label = label_of(site.layer)
    value = site.tensor(0)
    variable = site.graph.builder.variable_of(label)
    if variable is not None:  # a layer reads the variable
        site.graph.builder.update(variable, value, site.graph.variables[label].shape)
    return value
