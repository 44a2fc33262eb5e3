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
from lowering.graph import Graph, Value
from nnef_jax.calls.arguments import array_type
from nnef_jax.errors import InputError, NnefError
from nnef_jax.execution.definition import Definition
from nnef_jax.execution.meshes import AnyMesh, Layout, has_names, mesh_platform
from nnef_jax.execution.probe import NOTHING
from nnef_jax.options import require, shown
from nnef_jax.wording.similar import did_you_mean, listed

Shapes = Mapping[str, Sequence[int]]
_Names = str | Sequence[str] | None  # These are names of mesh axes.
# A spec has an entry for each axis of a parameter: the mesh axes along which this axis is divided.
# The entries have the same form as in a PartitionSpec.
_Spec = list[Any]
# Parameters of fewer items than this are replicated. The time for moving their parts between
# devices would outweigh the memory that dividing them saves.
_LEAST_DIVIDED_ITEMS = 1024
# A vector of fewer items than this is replicated, so that no call has to gather it. 16384 numbers
# of 4 bytes take 1.5 us over one link of a v5e. A collective takes about as long to start.
_LEAST_GATHERED_VECTOR_ITEMS = 16384


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
    batch_names = _names("batch", batch, mesh)
    graph = definition.network.graph
    shapes = {parameter.label: parameter.value.type.shape for parameter in graph.parameters}
    chosen: dict[str, Division] = {}
    along: tuple[str, ...] = ()
    if isinstance(params, Mapping):
        specs = _by_pattern(params, shapes, mesh)
    else:
        # Mesh axes in both `params` and `batch` are for full sharding. Mesh axes in `params` alone
        # are for tensor parallelism, and become `along`.
        names_for_params = _names("params", params, mesh)
        fully_along = tuple(name for name in names_for_params if name in batch_names)
        along = tuple(name for name in names_for_params if name not in batch_names)
        if along:
            count = _divisor(along, mesh)
            chosen = chosen_divisions(
                definition, count, mesh_platform(mesh), least=_LEAST_DIVIDED_ITEMS
            )
        specs = _specs_of(graph, chosen, along)
        parameter_specs = {label: specs[label] for label in shapes}  # without those of states
        _divide_fully(parameter_specs, shapes, fully_along, mesh)
    layout = Layout(
        mesh,
        batch=batch_names,
        axis=batch_axis,
        specs=_partitions(specs),
        along=along,
        divisions=tuple(chosen.items()),
    )
    _require_batch(layout, graph)
    return layout


def _partitions(specs: Mapping[str, _Spec]) -> tuple[tuple[str, PartitionSpec], ...]:
    """Return pairs of a label and a PartitionSpec, without specs that shard no axis."""
    partitions: list[tuple[str, PartitionSpec]] = []
    for label, spec in specs.items():
        is_sharded = any(names is not None for names in spec)
        if is_sharded:
            partitions.append((label, PartitionSpec(*spec)))
    return tuple(partitions)


def _specs_of(
    graph: Graph, divisions: Mapping[str, Division], along: Sequence[str]
) -> dict[str, _Spec]:
    """Return a dict from labels to specs for tensor parallelism.

    The labels of parameters come first, and then the labels of states. A parameter or state in
    `divisions` is divided along the mesh axes `along`. All others are replicated.
    """
    specs: dict[str, _Spec] = {}
    for variable in (*graph.parameters, *graph.states):
        specs[variable.label] = [None] * len(variable.value.type.shape)
    for label, division in divisions.items():
        # `division.along` is the index of the divided axis, or None for a replicated parameter.
        if division.along is not None:
            specs[label][division.along] = _joined(along)
    return specs


def _names(argument: str, value: object, mesh: AnyMesh) -> tuple[str, ...]:
    """Check an argument that names axes of the mesh, and return the names.

    `argument` is the name of the argument, and `value` its value: a name, several names, or None.
    Raises TypeError for another value, and InputError for a name that the mesh lacks, or that
    occurs twice.
    """
    names: Any = value
    if value is None:
        names = ()
    elif isinstance(value, str):
        names = (value,)
    are_names = isinstance(names, list | tuple) and all(isinstance(x, str) for x in names)
    if not are_names:
        expected = "the name of an axis of the mesh, several, or None"
        raise TypeError(f"{argument} must be {expected}, it is {shown(value)}")
    for name in names:
        if name not in mesh.shape:
            hint = did_you_mean(name, mesh.axis_names)
            message = (
                f"{argument} names '{name}', the axes of the mesh are {listed(mesh.axis_names)}"
            )
            raise InputError(message, hint=hint)
    if len({*names}) < len(names):
        raise InputError(f"{argument} names an axis of the mesh twice: {', '.join(names)}")
    return tuple(names)


def _divisor(names: _Names, mesh: AnyMesh) -> int:
    """Return the number of parts into which mesh axes divide an axis of an array."""
    if names is None:
        return 1
    if isinstance(names, str):
        return mesh.shape[names]
    return math.prod(mesh.shape[name] for name in names)


def _joined(names: Sequence[str]) -> str | tuple[str, ...]:
    """Return names of mesh axes as an entry of a PartitionSpec: one name, or a tuple of names."""
    return names[0] if len(names) == 1 else tuple(names)


def _divide_fully(
    specs: dict[str, _Spec], shapes: Shapes, names: Sequence[str], mesh: AnyMesh
) -> None:
    """Change `specs`, so that each large parameter is sharded along one more of its axes.

    The axis is the longest axis that is not sharded yet, and whose extent can be divided into equal
    parts. `names` are the mesh axes along which the axis is sharded.
    """
    if not names:
        return
    count = _divisor(tuple(names), mesh)
    for label, spec in specs.items():
        shape = shapes[label]
        if math.prod(shape) < _least_gathered(shape):
            continue
        possible_axes: list[int] = []
        for axis, extent in enumerate(shape):
            if spec[axis] is None and extent % count == 0:
                possible_axes.append(axis)
        if possible_axes:
            longest_axis = max(possible_axes, key=shape.__getitem__)
            spec[longest_axis] = _joined(names)


def _least_gathered(shape: Sequence[int]) -> int:
    """Return the least number of items that a parameter must have to be fully sharded.

    The number is larger for the shape of a vector, which has one long axis at most.
    """
    long_axes = [extent for extent in shape if extent > 1]
    is_vector = len(long_axes) < 2
    return _LEAST_GATHERED_VECTOR_ITEMS if is_vector else _LEAST_DIVIDED_ITEMS


def _by_pattern(params: Mapping[Any, object], shapes: Shapes, mesh: AnyMesh) -> dict[str, _Spec]:
    """Return a dict from labels of parameters to specs.

    `params` is the argument of `Model.shard`, a dict from labels and patterns to specs. If several
    keys match a label, the key that equals the label takes precedence over patterns, and an earlier
    pattern over a later one.
    """

    def is_no_label(key: object) -> bool:
        """Tell whether a key of `params` is a pattern."""
        return key not in shapes

    specs: dict[str, _Spec] = {}
    # The keys that are labels come first, because False sorts before True.
    for pattern in sorted(params, key=is_no_label):
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
    argument = f"params of '{label}'"
    if len(spec) > len(shape):
        raise InputError(f"{argument} divides {len(spec)} axes, its shape is {show(shape)}")
    all_names: list[str] = []
    for names in spec:
        if isinstance(names, tuple):
            all_names += [name for name in names if name]
        elif names:
            all_names.append(names)
    _names(argument, all_names, mesh)  # raises the errors for unknown and repeated names
    for axis, names in enumerate(spec):
        count = _divisor(names, mesh)
        if shape[axis] % count:
            raise InputError(
                f"{argument}: axis {axis} of {show(shape)} does not divide into {count} equal "
                f"parts along {names!r}",
                hint="None does not shard an axis",
            )
    return list(spec)


def chosen_divisions(
    definition: Definition, count: int, platform: str, least: int = 0
) -> dict[str, Division]:
    """Return a dict from labels to divisions of parameters and states, for tensor parallelism.

    A division tells how an array is divided into `count` parts.

    Parameters of fewer than `least` items are not divided. States that are computed from divided
    parameters are divided too: for instance, a cache of keys is divided along its heads. Open
    extents have the values of `Network.example`, and a network without an example has no divisions.
    """
    network = definition.network
    try:
        graph = network.example()
        parameters: dict[str, Value] = {}
        for parameter in graph.parameters:
            if parameter.label not in network.unused:
                parameters[parameter.label] = parameter.value
        states = {state.label: state.value for state in graph.states}
        types: Any = jax.tree.map(array_type, (parameters, states, list(graph.inputs)))
        program, _, _ = traced(partial(definition.cycle, probe=NOTHING), *types)
    except NnefError:
        return {}
    # jax sorts the keys of dicts. The arguments of the program are therefore the parameters sorted
    # by label, followed by the states sorted by label.
    labels = [*sorted(parameters), *sorted(states)]
    updates = {state.label: state.update for state in graph.states}
    # The results of the program are the outputs, and then the next states in the same order. This
    # dict maps the index of a state among the arguments to the index of the next state among the
    # results.
    carried: dict[int, int] = {}
    for index, label in enumerate(sorted(states)):
        if updates[label].type.shape == states[label].type.shape:
            carried[len(parameters) + index] = len(graph.outputs) + index

    def divisions_by_index() -> dict[int, Division]:
        """Return a dict from indices of the program's arguments to divisions of the arguments."""
        target_program = differentiable(program, mesh_target(platform))
        return divisions(target_program, count, least, carried)

    with named(definition.about):
        # If a pass fails, there is a warning, and nothing is divided.
        chosen = or_else(divisions_by_index, dict[int, Division])
    return {label: chosen[index] for index, label in enumerate(labels) if index in chosen}


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
        rows = [("parameter", "shape", "divided along", "why", "collectives a call")]
        for row in self:
            shape = show(row.shape)
            rows.append((row.parameter, shape, _axes(row.sharding), row.why, row.moves))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines: list[str] = []
        for cells in rows:
            padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
            lines.append("  ".join(padded).rstrip())
        return "\n".join(lines)

    __str__ = __repr__


def _axes(spec: PartitionSpec) -> str:
    """Return the sharded axes of a spec as text, such as '0: data, 1: model'.

    After each axis of the array, the text has the names of the mesh axes along which it is divided.
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
    divisions_by_label = dict(layout.divisions)
    rows: list[ShardedParameter] = []
    for label in definition.labels:
        shape = definition.parameters[label].value.type.shape
        spec = layout.of_parameter(label).spec
        reasons: list[str] = []
        moves: list[str] = []
        division = divisions_by_label.get(label)
        if division:
            reasons.append(division.why)
            if division.moves:
                moves.append(division.moves)
        if has_names(spec, layout.batch):
            reasons.append("gathered when read")
            moves.append("1 all-gather")
        if not reasons and not any(spec):  # a user's spec may divide a small parameter
            reasons.append(_why_replicated(layout, shape))
        why = ", ".join(reasons)
        rows.append(ShardedParameter(label, shape, spec, why=why, moves=", ".join(moves)))
    for label in definition.states:
        shape = definition.variables[label].value.type.shape
        division = divisions_by_label.get(label)
        spec = layout.of_parameter(label).spec
        why = division.why if division else ""
        rows.append(ShardedParameter(label, shape, spec, why=why, moves=""))
    return ShardingPlan(rows)


def _why_replicated(layout: Layout, shape: Sequence[int]) -> str:
    """Return the reason why no axis of a parameter is divided.

    The reason is "" for a large parameter if there are no mesh axes `layout.along`.
    """
    are_gathered = any(has_names(spec, layout.batch) for _, spec in layout.specs)
    least_items = _least_gathered(shape) if are_gathered else _LEAST_DIVIDED_ITEMS
    if math.prod(shape) < least_items:
        return f"fewer than {least_items} items"
    if not layout.along:
        return ""
    count = _divisor(layout.along, layout.mesh)
    has_divisible_axis = any(extent % count == 0 for extent in shape)
    if not has_divisible_axis:
        return f"no axis divides by {count}"
    return "moves fewer items undivided"


def _require_batch(layout: Layout, graph: Graph) -> None:
    """Raise InputError if the graph declares a batch that the mesh does not divide equally."""
    if not layout.batch:
        return
    inputs_with_batch = [value for value in graph.inputs if len(value.type.shape) > layout.axis]
    if layout.axis < 0 or not inputs_with_batch:
        raise InputError(
            f"no input has an axis {layout.axis} for the batch",
            hint="batch=None gives each device all of the inputs",
        )
    first_input = inputs_with_batch[0]
    extent = first_input.type.shape[layout.axis]
    if extent is not UNKNOWN and extent % layout.parts:
        name = first_input.name
        raise InputError(
            f"input '{name}' has a batch of {extent}, which does not divide into "
            f"{layout.parts} equal parts along {_joined(layout.batch)!r}",
            hint=f"load(..., input_shapes={{'{name}': ...}}) declares another extent, None "
            "for an open one; batch=None gives each device all of the inputs",
        )
