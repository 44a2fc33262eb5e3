"""`Model.shard`: which parameters are divided over a mesh of devices, and along which axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from jax.sharding import AxisType, Mesh, PartitionSpec

from lowering.extents import UNKNOWN, is_known, show
from lowering.graph import Graph
from lowering.parallel import divided_axes
from nnef_jax.errors import InputError, NnefError
from nnef_jax.execution.meshes import Layout
from nnef_jax.network import Network
from nnef_jax.options import require, shown
from nnef_jax.similar import did_you_mean, listed

Shapes = Mapping[str, Sequence[int]]
# Fewer items than these are whole on each device: to move them costs more than to hold them.
_SMALL = 1024
_EXAMPLE = 8  # of an open extent, to tell which axes of a reshaped tensor are which


def layout_of(network: Network, mesh: Any, batch: Any, params: Any, batch_axis: Any) -> Layout:
    """Return the layout of `Model.shard`'s arguments. Raises TypeError or InputError as it does."""
    require("mesh", mesh, Mesh, "a jax.sharding.Mesh: jax.make_mesh((2, 4), ('data', 'model'))")
    require("batch_axis", batch_axis, int, "the number of an axis")
    if AxisType.Manual in mesh.axis_types:
        raise InputError("the mesh has Manual axes", hint="shard with Auto or Explicit axes")
    names = _names("batch", batch, mesh)
    graph = network.graph
    shapes = {p.label: p.value.type.shape for p in graph.parameters}
    if isinstance(params, Mapping):
        specs = _given(params, shapes, mesh)
    else:
        along = _names("params", params, mesh)
        rest = [name for name in along if name not in names]
        both = [name for name in along if name in names]
        specs = {label: [None] * len(shape) for label, shape in shapes.items()}
        _divide_products(specs, example_of(network), rest, mesh)
        _divide_fully(specs, shapes, both, mesh)
    kept = {label: spec for label, spec in specs.items() if any(x is not None for x in spec)}
    pairs = tuple((label, PartitionSpec(*spec)) for label, spec in kept.items())
    layout = Layout(mesh, names, batch_axis, pairs)
    _require_batch(layout, graph)
    return layout


def _names(what: str, value: Any, mesh: Mesh) -> tuple[str, ...]:
    """Return names of axes of the mesh."""
    names: Any = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(names, list | tuple) or not all(isinstance(x, str) for x in names):
        expected = "the name of an axis of the mesh, several, or None"
        raise TypeError(f"{what} must be {expected}, it is {shown(value)}")
    for name in names:
        if name not in mesh.shape:
            hint = did_you_mean(name, mesh.axis_names)
            message = f"{what} names '{name}', the axes of the mesh are {listed(mesh.axis_names)}"
            raise InputError(message, hint=hint)
    if len({*names}) < len(names):
        raise InputError(f"{what} names an axis of the mesh twice: {', '.join(names)}")
    return tuple(names)


def _divisor(names: Any, mesh: Mesh) -> int:
    names = names if isinstance(names, tuple | list) else () if names is None else (names,)
    return math.prod(mesh.shape[name] for name in names)


def _joined(names: Sequence[str]) -> Any:
    return names[0] if len(names) == 1 else tuple(names)


def _divide_products(
    specs: dict[str, list[Any]], graph: Graph, names: Sequence[str], mesh: Mesh
) -> None:
    """Divide operands of products, so that what follows one another moves little data."""
    if names:
        found = divided_axes(graph, _divisor(tuple(names), mesh), _SMALL)
        for label, axis in found.items():
            specs[label][axis] = _joined(names)


def _divide_fully(
    specs: dict[str, list[Any]], shapes: Shapes, names: Sequence[str], mesh: Mesh
) -> None:
    """Divide each large parameter along the longest axis that can be and is not yet."""
    count = _divisor(tuple(names), mesh)
    for label, spec in specs.items() if names else ():
        shape = shapes[label]
        free = [i for i, n in enumerate(shape) if spec[i] is None and n % count == 0]
        if free and math.prod(shape) >= _SMALL:
            spec[max(free, key=lambda axis: shape[axis])] = _joined(names)


def _given(params: Mapping[Any, Any], shapes: Shapes, mesh: Mesh) -> dict[str, list[Any]]:
    """Return the specs of a user; a label counts more than a pattern, an earlier one more."""
    found: dict[str, list[Any]] = {}
    for wanted in sorted(params, key=lambda wanted: wanted not in shapes):
        spec = params[wanted]
        if not isinstance(wanted, str):
            raise TypeError(f"params must be a dict by label or pattern, {shown(wanted)} is in it")
        if not isinstance(spec, PartitionSpec):
            message = f"params of '{wanted}' must be a jax.sharding.PartitionSpec"
            raise TypeError(f"{message}, it is {shown(spec)}")
        labels = [wanted] if wanted in shapes else [x for x in shapes if fnmatchcase(x, wanted)]
        if not labels:
            hint = did_you_mean(wanted, shapes) or "model.params has the labels"
            raise InputError(f"params: no parameter is called '{wanted}'", hint=hint)
        for label in labels:
            if label not in found:
                found[label] = _checked(label, spec, shapes[label], mesh)
    return found


def _checked(label: str, spec: PartitionSpec, shape: Sequence[int], mesh: Mesh) -> list[Any]:
    """Return a spec by axis. Raises InputError where the parameter cannot be divided so."""
    what = f"params of '{label}'"
    if len(spec) > len(shape):
        raise InputError(f"{what} divides {len(spec)} axes, its shape is {show(shape)}")
    names = [x for part in spec for x in (part if isinstance(part, tuple) else (part,)) if x]
    _names(what, names, mesh)
    for axis, part in enumerate(spec):
        if shape[axis] % _divisor(part, mesh):
            raise InputError(
                f"{what}: axis {axis} of {show(shape)} does not divide into "
                f"{_divisor(part, mesh)} equal parts along {part!r}",
                hint="None leaves an axis whole",
            )
    return [*spec]


def example_of(network: Network) -> Graph:
    """Return the graph with open extents of inputs closed, where it takes them."""
    shapes = [value.type.shape for value in network.graph.inputs]
    if all(map(is_known, shapes)):
        return network.graph
    closed = [tuple(_EXAMPLE if n is UNKNOWN else n for n in shape) for shape in shapes]
    try:
        return network.specialise(closed)
    except NnefError:
        return network.graph


def _require_batch(layout: Layout, graph: Graph) -> None:
    """Raise InputError for a batch that the graph declares and the mesh does not divide."""
    if not layout.batch:
        return
    shapes = [value.type.shape for value in graph.inputs]
    if layout.axis < 0 or all(len(shape) <= layout.axis for shape in shapes):
        raise InputError(
            f"no input has an axis {layout.axis}, which would be the batch",
            hint="batch=None gives each device all of the inputs",
        )
    value = next(x for x in graph.inputs if len(x.type.shape) > layout.axis)
    extent = value.type.shape[layout.axis]
    if extent is not UNKNOWN and extent % layout.parts:
        raise InputError(
            f"input '{value.name}' has a batch of {extent}, which does not divide into "
            f"{layout.parts} equal parts along {_joined(layout.batch)!r}",
            hint=f"load(..., input_shapes={{'{value.name}': ...}}) declares another extent, None "
            "for an open one; batch=None gives each device all of the inputs",
        )
