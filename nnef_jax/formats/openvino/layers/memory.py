"""What a network keeps from call to call: Memory, ReadValue and Assign."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN
from lowering.graph import TensorType, Value
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.element_types import computed, element_type
from nnef_jax.formats.openvino.layers import legacy, opsets
from nnef_jax.formats.openvino.site import Site


def _variable(
    site: Site, label: str, shape: Sequence[int], dtype: str, initial: Any = None
) -> Value:
    graph = site.graph
    if any(n is UNKNOWN or n < 0 for n in shape):
        raise InvalidOperation(f"the shape of variable '{label}' is open")
    type = TensorType(tuple(shape), dtype)
    graph.data[label] = (
        np.zeros(type.shape, dtype) if initial is None else np.broadcast_to(initial, type.shape)
    )
    name = graph.builder.unreserved(label)
    return graph.builder.variable(name, label, type, site.layer.span)


@legacy("Memory")
def _memory(site: Site) -> Any:
    """Read (index 1) or write (index 0) what has the same `id`."""
    label = site.layer.attributes.get("id", site.layer.name)
    if site.int("index", 0) == 1:
        shape = site.layer.outputs[0].shape or ()
        return _variable(site, label, shape, site.real)
    value = site.tensor(0)
    site.graph.builder.update(_variable(site, label, value.type.shape, value.type.dtype), value)
    return []


@opsets("ReadValue")
def _read_value(site: Site) -> Value:
    label = site.layer.attributes.get("variable_id", site.layer.name)
    initial: Any = None
    if site.has(0):
        start = site.operand(0)
        if not isinstance(start, Constant):
            raise InvalidOperation(
                f"variable '{label}' starts with a tensor that is computed, which is not supported"
            )
        initial, shape = start.array, start.array.shape
        dtype = computed(start.type, site.real)
    else:
        shape = tuple(site.ints("variable_shape"))
        dtype = computed(element_type(site.text("variable_type")), site.real)
    return _variable(site, label, shape, dtype, initial)


@opsets("Assign")
def _assign(site: Site) -> Any:
    label = site.layer.attributes.get("variable_id", site.layer.name)
    value = site.tensor(0)
    site.graph.builder.update(
        _variable(site, label, value.type.shape, value.type.dtype, site.graph.data.get(label)),
        value,
    )
    return value
