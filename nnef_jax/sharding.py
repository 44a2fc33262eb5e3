"""`Model.shard`: which parameters are divided over a mesh of devices, and along which axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.sharding import AxisType, Mesh, PartitionSpec

from lowering import Division, differentiable, divisions, mesh_target, named, or_else, traced
from lowering.extents import UNKNOWN, show
from lowering.graph import Graph, Value
from nnef_jax.errors import InputError, NnefError
from nnef_jax.execution.definition import Definition
from nnef_jax.execution.meshes import Layout, has_names, platform_of
from nnef_jax.execution.probe import NOTHING
from nnef_jax.options import require, shown
from nnef_jax.similar import did_you_mean, listed

Shapes = Mapping[str, Sequence[int]]
# Fewer items than these are whole on each device: to move them costs more than to hold them.
_SMALL = 1024


def layout_of(
    definition: Definition, mesh: Any, batch: Any, params: Any, batch_axis: Any
) -> Layout:
    """Return the layout of `Model.shard`'s arguments. Raises TypeError or InputError as it does."""
    require("mesh", mesh, Mesh, "a jax.sharding.Mesh: jax.make_mesh((2, 4), ('data', 'model'))")
    require("batch_axis", batch_axis, int, "the number of an axis")
    if AxisType.Manual in mesh.axis_types:
        raise InputError("the mesh has Manual axes", hint="shard with Auto or Explicit axes")
    names = _names("batch", batch, mesh)
    graph = definition.network.graph
    shapes = {p.label: p.value.type.shape for p in graph.parameters}
    found: dict[str, Division] = {}
    rest: list[str] = []
    if isinstance(params, Mapping):
        specs = _given(params, shapes, mesh)
    else:
        along = _names("params", params, mesh)
        rest = [name for name in along if name not in names]
        both = [name for name in along if name in names]
        specs: dict[str, list[Any]] = {x: [None] * len(shape) for x, shape in shapes.items()}
        if rest:
            count, platform = _divisor(tuple(rest), mesh), platform_of(mesh)
            found = found_divisions(definition, count, platform, _SMALL)
        for label, division in found.items():
            if division.along is not None:
                specs[label][division.along] = _joined(rest)
        _divide_fully(specs, shapes, both, mesh)
    kept = {label: spec for label, spec in specs.items() if any(x is not None for x in spec)}
    pairs = tuple((label, PartitionSpec(*spec)) for label, spec in kept.items())
    layout = Layout(mesh, names, batch_axis, pairs, tuple(rest), tuple(found.items()))
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


def found_divisions(
    definition: Definition, count: int, platform: str, least: int = 0
) -> dict[str, Division]:
    """Return how parameters are divided for products that follow one another, by label.

    Open extents are closed for that. A network that does not take them so has none.
    """
    network = definition.network
    try:
        graph = network.example()
        given = {p.label: p.value for p in graph.parameters if p.label not in network.unused}
        states = {state.label: state.value for state in graph.states}
        types: Any = jax.tree.map(_type, (given, states, list(graph.inputs)))
        program, _, _ = traced(partial(definition.cycle, probe=NOTHING), *types)
    except NnefError:
        return {}

    def by_place() -> dict[int, Division]:
        return divisions(differentiable(program, mesh_target(platform)), count, least)

    with named(definition.about):
        chosen = or_else(by_place, dict[int, Division])
    return {label: chosen[i] for i, label in enumerate(sorted(given)) if i in chosen}


class ShardedParameter(NamedTuple):
    """Says how a parameter lies on a mesh."""

    parameter: str
    shape: tuple[int, ...]
    sharding: PartitionSpec
    why: str
    moves: str  # the collectives that a call needs for it


class ShardingPlan(tuple[ShardedParameter, ...]):
    """Holds how each parameter of a model lies on its mesh; it prints as a table."""

    def __repr__(self) -> str:
        head = "parameter", "shape", "divided along", "why", "collectives a call"
        rows = [(x, show(shape), _axes(spec), *rest) for x, shape, spec, *rest in self]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [zip(row, widths, strict=True) for row in (head, *rows)]
        return "\n".join("  ".join(f"{x:{n}}" for x, n in line).rstrip() for line in lines)

    __str__ = __repr__


def _axes(spec: PartitionSpec) -> str:
    """Return the axes that are divided, and along which axes of the mesh."""
    named = [(i, x) for i, x in enumerate(spec) if x is not None]
    return ", ".join(f"{i}: {x if isinstance(x, str) else ' '.join(x)}" for i, x in named)


def plan_of(definition: Definition) -> ShardingPlan:
    """Return how the parameters of a model lie on its mesh. Raises InputError without one."""
    layout = definition.layout
    if layout is None:
        raise InputError("the model is on no mesh", hint="model.shard(mesh, params=...).plan")
    known, rows = dict(layout.divisions), list[ShardedParameter]()
    for label in definition.labels:
        shape, spec = definition.parameters[label].value.type.shape, layout.of_parameter(label).spec
        division = known.get(label)
        why, moves = (division.why, division.moves) if division else ("", "")
        if has_names(spec, layout.batch):
            why = f"{why}, gathered when read" if why else "gathered when read"
            moves = f"{moves}, 1 all-gather" if moves else "1 all-gather"
        elif division is None and math.prod(shape) < _SMALL:
            why = f"fewer than {_SMALL} items"
        rows.append(ShardedParameter(label, shape, spec, why, moves))
    return ShardingPlan(rows)


def _type(value: Value) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.type.shape, value.type.dtype)


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
