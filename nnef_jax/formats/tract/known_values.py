"""Operations whose result is known where their arguments are: types, shapes, ranges."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN
from lowering.graph import Value, is_integer
from nnef_jax.formats.syntax.types import INTEGER, ArrayOf
from nnef_jax.formats.tract import datum
from nnef_jax.formats.tract import host as h
from nnef_jax.formats.tract.arguments import attribute
from nnef_jax.formats.tract.call_site import CallSite, intrinsic
from nnef_jax.formats.tract.introduction import GENERIC
from nnef_jax.formats.tract.promotion import converted
from nnef_jax.formats.tract.quantized_tensors import codes_of


@intrinsic("cast", "tract_core_cast")
def _cast(site: CallSite) -> Any:
    """Cast to `to`, the standard's generic argument, or the result's type in graph.quant."""
    graph, value, generic = site.graph, site.arguments["input"], site.invocation.generic
    if "to" in site.arguments:
        name = site.string("to")
    elif generic in GENERIC:
        name = GENERIC[generic]
    else:
        known = ", ".join(f"cast<{name}>" for name in GENERIC)
        raise InvalidOperation("'cast' lacks the type to cast to", hint=f"write {known}")
    if not name:
        return site.apply("copy", *site.names, x=value)
    dtype = datum.dtype_of(name, graph.builder.real)
    is_known = not isinstance(value, Value)
    # Known values of these types stay known.
    kinds = {graph.builder.integer: "integer", graph.builder.real: "scalar", "bool": "logical"}
    try:
        if is_known and dtype in kinds:
            return h.cast(h.host(value), kinds[dtype])
    except h.NotFolded:
        pass
    tensor = site.tensor(value)
    if tensor in graph.entries and is_integer(dtype):  # stored so: no number is rounded
        tensor = codes_of(site, tensor, graph.entries[tensor])
    result = site.cast(tensor, dtype, *site.names)
    if is_known and h.is_plain(h.host(value).ravel()):
        graph.constants[result] = converted(h.host(value), dtype)
    return result


@intrinsic("constant")
def _constant(site: CallSite) -> Any:
    value = h.host(site.arguments["value"]).ravel()
    shape = attribute(site.arguments["shape"], ArrayOf(INTEGER))
    if value.size == 1:
        filling = value.reshape(())
        return site.apply("tract_core_broadcast", *site.names, input=filling, shape=shape)
    axes = {"axis_start": 0, "axis_count": -1}
    return site.apply("reshape", *site.names, input=value, shape=shape, **axes)


@intrinsic("tract_core_shape_of")
def _shape_of(site: CallSite) -> h.Host:
    value = site.arguments["input"]
    return h.boxes(site.graph.shape_of(value) if isinstance(value, Value) else h.host(value).shape)


@intrinsic("tract_core_range")
def _range(site: CallSite) -> Any:
    """Return the numbers from `start` to before `end`; a long range is made in the network."""
    graph = site.graph
    bounds = [_number(site, name) for name in ("start", "end", "step")]
    real = any(not h.is_integer(bound) for bound in bounds)
    dtype = graph.builder.real if real else graph.builder.integer
    start, end, step = (UNKNOWN if x != x else x for x in (b.item() for b in bounds))
    if step == 0:
        raise InvalidOperation("'step' must not be 0")
    if h.is_plain((start, end, step)):
        count = -((start - end) // step)
        if count <= h.LARGEST and not real:
            site.spend(max(0, count))
            return h.boxes(range(start, end, step))
        if count > graph.limits.array_items:
            message = f"a range of {count} items"
            raise graph.beyond(message, "array_items", site.node, site.frame)
        for bound in bounds:
            graph.literal(bound, dtype)
    (made,) = site.emit("range", {}, {"start": start, "end": end, "step": step, "dtype": dtype})
    return made


def _number(site: CallSite, name: str) -> h.Host:
    """Return a number that must be known, as it is given."""
    value = site.graph.known(site.arguments[name])
    if isinstance(value, Value):
        raise InvalidOperation(
            f"'{name}' must be known when the network is compiled, "
            f"'{value.name}' depends on the data of the inputs"
        )
    known = h.host(value)
    if known.size != 1:
        raise InvalidOperation(f"'{name}' must be one number, these are {known.size}")
    # NaN depends on an open extent.
    if not h.is_integer(known) and (
        np.isinf(known) or (np.isnan(known) and not site.graph.is_open)
    ):
        raise InvalidOperation(f"'{name}' must be a number, it is {known.item()}")
    return known.reshape(())


@intrinsic("within_bound_index")
def _within_bound_index(site: CallSite) -> Any:
    """Return an index, below 0 from the end, as one from 0 to an extent."""
    index, extent = site.arguments["index"], site.arguments["input_axis_size"]
    from_end = site.apply("add", x=index, y=extent)
    is_negative = site.apply("lt", x=index, y=0)
    first = site.apply("select", condition=is_negative, true_value=from_end, false_value=index)
    return site.apply("min", x=site.apply("max", x=first, y=0), y=extent)
