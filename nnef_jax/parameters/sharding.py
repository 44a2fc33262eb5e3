"""Implements `Model.shard`: chooses the axes along which parameters are sharded over a mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from lowering import Division, differentiable, divisions, mesh_target, named, or_else, traced
from lowering.extents import UNKNOWN, show
from lowering.graph import Graph
from nnef_jax.calls.arguments import array_type
from nnef_jax.errors import InputError, NnefError
from nnef_jax.execution.definition import Definition
from nnef_jax.execution.meshes import AnyMesh, Layout, has_names, platform_of
from nnef_jax.execution.probe import NOTHING
from nnef_jax.options import require, shown
from nnef_jax.wording.similar import did_you_mean, listed

Shapes = Mapping[str, Sequence[int]]
_Names = str | Sequence[str] | None  # names of mesh axes
_Spec = list[Any]  # for each axis of a parameter its mesh axes, as in a PartitionSpec
# Number of items. Smaller parameters are replicated, since moving them costs more than the memory.
_SMALL = 1024
# Number of items. Shorter vectors are not gathered for each call, but replicated. 64 KiB take 1.5
# us over one link of a v5e, which is about the time that a collective takes to start.
_SHORT = 16384


def layout_of(
    definition: Definition,
    mesh: AnyMesh,
    batch: _Names,
    params: _Names | Mapping[str, PartitionSpec],
    batch_axis: int,
) -> Layout:
    """Return the layout for the arguments of `Model.shard`.

    Raises TypeError or InputError in the same cases as `Model.shard`.
    """
    expected = "a jax.sharding.Mesh: jax.make_mesh((2, 4), ('data', 'model'))"
    require("mesh", mesh, Mesh | AbstractMesh, expected)
    require("batch_axis", batch_axis, int, "the number of an axis")
    if AxisType.Manual in mesh.axis_types:
        raise InputError("the mesh has Manual axes", hint="shard with Auto or Explicit axes")
    names = _names("batch", batch, mesh)
    graph = definition.network.graph
    shapes = {p.label: p.value.type.shape for p in graph.parameters}
    chosen: dict[str, Division] = {}
    along: tuple[str, ...] = ()
    if isinstance(params, Mapping):
        specs = _by_pattern(params, shapes, mesh)
    else:
        axes = _names("params", params, mesh)
        along = tuple(name for name in axes if name not in names)  # tensor parallelism
        fully = tuple(name for name in axes if name in names)  # fully sharded parameters
        specs: dict[str, _Spec] = {x: [None] * len(shape) for x, shape in shapes.items()}
        states: dict[str, _Spec] = {s.label: [None] * len(s.value.type.shape) for s in graph.states}
        if along:
            count = _divisor(along, mesh)
            chosen = chosen_divisions(definition, count, platform_of(mesh), _SMALL)
        for label, division in chosen.items():
            if division.along is not None:
                spec = states[label] if label in states else specs[label]
                spec[division.along] = _joined(along)
        _divide_fully(specs, shapes, fully, mesh)
        specs |= states
    partitions: list[tuple[str, PartitionSpec]] = []
    for label, spec in specs.items():
        if any(name is not None for name in spec):
            partitions.append((label, PartitionSpec(*spec)))
    pairs = tuple(partitions)
    layout = Layout(mesh, names, batch_axis, pairs, along, tuple(chosen.items()))
    _require_batch(layout, graph)
    return layout


def _names(what: str, value: object, mesh: AnyMesh) -> tuple[str, ...]:
    """Check an argument that names axes of the mesh, and return the names.

    `what` is the name of the argument. Raises TypeError if it is not names, and InputError for a
    name that the mesh lacks, or that occurs twice.
    """
    names: Any = value
    if value is None:
        names = ()
    elif isinstance(value, str):
        names = (value,)
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


def _divisor(names: _Names, mesh: AnyMesh) -> int:
    if names is None:
        return 1
    if isinstance(names, str):
        return mesh.shape[names]
    return math.prod(mesh.shape[name] for name in names)


def _joined(names: Sequence[str]) -> str | tuple[str, ...]:
    return names[0] if len(names) == 1 else tuple(names)


def _divide_fully(
    specs: dict[str, _Spec], shapes: Shapes, names: Sequence[str], mesh: AnyMesh
) -> None:
    """Change `specs` such that each large parameter is sharded along one more axis.

    The axis is the longest axis that is not sharded and whose extent is divisible. `names` are the
    mesh axes along which it is sharded.
    """
    if not names:
        return
    count = _divisor(tuple(names), mesh)
    for label, spec in specs.items():
        shape = shapes[label]
        free = [axis for axis, n in enumerate(shape) if spec[axis] is None and n % count == 0]
        if free and math.prod(shape) >= _least_gathered(shape):
            longest = max(free, key=shape.__getitem__)
            spec[longest] = _joined(names)


def _least_gathered(shape: Sequence[int]) -> int:
    """Return the number of items from which on a parameter of this shape is fully sharded."""
    is_vector = sum(extent > 1 for extent in shape) < 2
    return _SHORT if is_vector else _SMALL


def _by_pattern(params: Mapping[Any, object], shapes: Shapes, mesh: AnyMesh) -> dict[str, _Spec]:
    """Return the specs that the argument `params` of `Model.shard` has for labels and patterns.

    If several keys match a label, the label itself takes precedence over a pattern, and an earlier
    pattern over a later one.
    """
    specs: dict[str, _Spec] = {}
    for pattern in sorted(params, key=lambda pattern: pattern not in shapes):
        spec = params[pattern]
        if not isinstance(pattern, str):
            raise TypeError(f"params must be a dict by label or pattern, {shown(pattern)} is in it")
        if not isinstance(spec, PartitionSpec):
            message = f"params of '{pattern}' must be a jax.sharding.PartitionSpec"
            raise TypeError(f"{message}, it is {shown(spec)}")
        labels = [pattern]
        if pattern not in shapes:
            labels = [label for label in shapes if fnmatchcase(label, pattern)]
        if not labels:
            hint = did_you_mean(pattern, shapes) or "model.params has the labels"
            raise InputError(f"params: no parameter is called '{pattern}'", hint=hint)
        for label in labels:
            if label not in specs:
                specs[label] = _checked(label, spec, shapes[label], mesh)
    return specs


def _checked(label: str, spec: PartitionSpec, shape: Sequence[int], mesh: AnyMesh) -> _Spec:
    """Return a spec as a list with an entry for each axis of the parameter.

    Raises InputError if the spec does not fit the parameter's shape.
    """
    what = f"params of '{label}'"
    if len(spec) > len(shape):
        raise InputError(f"{what} divides {len(spec)} axes, its shape is {show(shape)}")
    names: list[str] = []
    for part in spec:
        if isinstance(part, tuple):
            names += filter(None, part)
        elif part:
            names.append(part)
    _names(what, names, mesh)
    for axis, part in enumerate(spec):
        count = _divisor(part, mesh)
        if shape[axis] % count:
            raise InputError(
                f"{what}: axis {axis} of {show(shape)} does not divide into {count} equal parts "
                f"along {part!r}",
                hint="None does not shard an axis",
            )
    return list(spec)


def chosen_divisions(
    definition: Definition, count: int, platform: str, least: int = 0
) -> dict[str, Division]:
    """Return how tensor parallelism divides parameters and states into `count` parts, by label.

    Parameters of at least `least` items are divided. So are the states that are computed from
    divided parameters: a cache of keys is divided by its heads. Open extents have the values of
    `Network.example`, and a network without an example has no divisions.
    """
    network = definition.network
    try:
        graph = network.example()
        parameters = {p.label: p.value for p in graph.parameters if p.label not in network.unused}
        states = {state.label: state.value for state in graph.states}
        types: Any = jax.tree.map(array_type, (parameters, states, list(graph.inputs)))
        program, _, _ = traced(partial(definition.cycle, probe=NOTHING), *types)
    except NnefError:
        return {}
    # Arguments and results in the order in which jax flattens dicts.
    labels = [*sorted(parameters), *sorted(states)]
    updates = {state.label: state.update for state in graph.states}
    carried: dict[int, int] = {}
    for k, label in enumerate(sorted(states)):
        if updates[label].type.shape == states[label].type.shape:
            carried[len(parameters) + k] = len(graph.outputs) + k

    def by_index() -> dict[int, Division]:
        return divisions(differentiable(program, mesh_target(platform)), count, least, carried)

    with named(definition.about):
        chosen = or_else(by_index, dict[int, Division])
    return {label: chosen[i] for i, label in enumerate(labels) if i in chosen}


class ShardedParameter(NamedTuple):
    """The sharding of one parameter or state on a mesh, and the reason for it."""

    parameter: str
    shape: tuple[int, ...]
    sharding: PartitionSpec
    why: str
    moves: str  # the collectives that the sharding causes in a call


class ShardingPlan(tuple[ShardedParameter, ...]):
    """The shardings of a model's parameters and states on its mesh. The plan prints as a table."""

    def __repr__(self) -> str:
        head = "parameter", "shape", "divided along", "why", "collectives a call"
        rows = [(x.parameter, show(x.shape), _axes(x.sharding), x.why, x.moves) for x in self]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [zip(row, widths, strict=True) for row in (head, *rows)]
        return "\n".join("  ".join(f"{x:{n}}" for x, n in line).rstrip() for line in lines)

    __str__ = __repr__


def _axes(spec: PartitionSpec) -> str:
    """Return the sharded axes of a spec as text, such as '0: data, 1: model'.

    In the text, the names of mesh axes follow each axis of the array.
    """
    texts: list[str] = []
    for axis, names in enumerate(spec):
        if isinstance(names, str):
            texts.append(f"{axis}: {names}")
        elif names is not None:
            texts.append(f"{axis}: {' '.join(names)}")
    return ", ".join(texts)


def plan_of(definition: Definition) -> ShardingPlan | None:
    """Return the shardings of a model's parameters and states, or None without a mesh."""
    layout = definition.layout
    if layout is None:
        return None
    by_label = dict(layout.divisions)
    rows: list[ShardedParameter] = []
    for label in definition.labels:
        shape = definition.parameters[label].value.type.shape
        spec = layout.of_parameter(label).spec
        division = by_label.get(label)
        why = division.why if division else _why_replicated(layout, shape)
        moves = division.moves if division else ""
        if has_names(spec, layout.batch):
            why = f"{why}, gathered when read" if division else "gathered when read"
            moves = f"{moves}, 1 all-gather" if moves else "1 all-gather"
        rows.append(ShardedParameter(label, shape, spec, why, moves))
    for label in definition.states:
        shape = definition.variables[label].value.type.shape
        division = by_label.get(label)
        spec = layout.of_parameter(label).spec
        rows.append(ShardedParameter(label, shape, spec, division.why if division else "", ""))
    return ShardingPlan(rows)


def _why_replicated(layout: Layout, shape: Sequence[int]) -> str:
    """Return the reason why no axis of a parameter is divided, or "" if the user chose so."""
    are_gathered = any(has_names(spec, layout.batch) for _, spec in layout.specs)
    least = _least_gathered(shape) if are_gathered else _SMALL
    if math.prod(shape) < least:
        return f"fewer than {least} items"
    if not layout.along:
        return ""
    count = _divisor(layout.along, layout.mesh)
    if all(extent % count for extent in shape):
        return f"no axis divides by {count}"
    return "moves fewer items undivided"


def _require_batch(layout: Layout, graph: Graph) -> None:
    """Raise InputError if the graph declares a batch that the mesh does not divide equally."""
    if not layout.batch:
        return
    shapes = [value.type.shape for value in graph.inputs]
    if layout.axis < 0 or all(len(shape) <= layout.axis for shape in shapes):
        raise InputError(
            f"no input has an axis {layout.axis} for the batch",
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
