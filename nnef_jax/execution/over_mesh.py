"""Computes a network over a mesh, with divided or gathered parameters and sharded results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, NamedSharding, PartitionSpec, auto_axes

from lowering import or_else
from nnef_jax.execution.meshes import Layout, platform_of
from nnef_jax.execution.places import debugs_or_disables_jit, explicit_mesh
from nnef_jax.execution.probe import Probe
from nnef_jax.execution.run_options import Params, Prepared

Compute = Callable[..., Any]  # a function of params, state, inputs and a probe


def over_mesh(
    compute: Compute,
    layout: Layout | None,
    time_axes: int,
    params: Params,
    state: Mapping[str, jax.Array],
    inputs: Sequence[jax.Array],
    probe: Probe,
) -> Any:
    """Call `compute(params, state, inputs, probe)` so that it computes over a mesh.

    The layout has the mesh. If it is None, the mesh is in the arguments' types. Explicit axes
    of the mesh are Auto within the function. The first `time_axes` axes of the inputs count
    time steps.

    Results are sharded according to the layout. Without a layout, the first axis of each output
    is sharded like the first axis of the first input, and each next state is sharded like the
    state before the call.
    """
    arguments = params, state, inputs, probe
    effective = layout or _layout_of_types(arguments, time_axes)
    if effective is None or jax.sharding.get_abstract_mesh().manual_axes:
        return compute(*arguments)
    mesh = effective.mesh
    extent = effective.extent([x.shape for x in inputs], time_axes)

    def run(params: Params, *arguments: Any) -> Any:
        raw = layout.gathered(params) if layout else params
        prepared: Mapping[str, Any] = {}
        if isinstance(raw, Prepared):
            prepared = raw.values
            raw = raw.params

        def undivided() -> Any:
            return compute(raw, *arguments)

        if not effective.divisions or debugs_or_disables_jit():
            return undivided()
        divided = partial(_divided, compute, effective, time_axes, raw, prepared, *arguments)
        return or_else(divided, undivided)

    def shardings(results: object) -> Any:
        def sharding(x: Any) -> NamedSharding:
            return effective.sharding_for(extent, x.shape, time_axes)

        return jax.tree.map(sharding, results)

    def state_shardings(states: Mapping[str, Any]) -> dict[str, NamedSharding]:
        return {label: effective.of_state(label, extent, x.shape) for label, x in states.items()}

    if AxisType.Explicit not in mesh.axis_types:
        outputs, after, captures = results = run(*arguments)
        places = shardings(outputs), state_shardings(after), shardings(captures)
        return with_sharding_constraint(results, places)
    on_auto_axes: Any = partial(auto_axes, run, axes=mesh.explicit_axes)
    replicated = NamedSharding(mesh, PartitionSpec())
    outputs, after, captures = jax.eval_shape(on_auto_axes(out_sharding=replicated), *arguments)
    # `state` lacks the states whose initial value is computed.
    states = state_shardings(after)
    for label, x in state.items():
        if label in after:
            states[label] = NamedSharding(mesh, jax.typeof(x).sharding.spec)
    places = shardings(outputs), states, shardings(captures)
    return on_auto_axes(out_sharding=places)(*arguments)


def _layout_of_types(arguments: tuple[Any, ...], time_axes: int) -> Layout | None:
    """Return the layout that the types of a call's arguments have, or None without Explicit axes.

    An array's type has a mesh with Explicit axes if the caller made such a mesh.
    """
    mesh = explicit_mesh(arguments)
    if mesh is None:
        return None
    _, _, inputs, _ = arguments
    with_batch = [x for x in inputs if x.ndim > time_axes]
    names = jax.typeof(with_batch[0]).sharding.spec[time_axes] if with_batch else None
    if not names:
        return Layout(mesh)
    batch = names if isinstance(names, tuple) else (names,)
    return Layout(mesh, batch)


def _divided(
    compute: Compute,
    layout: Layout,
    time_axes: int,
    params: Mapping[str, jax.Array],
    prepared: Mapping[str, jax.Array],
    state: Mapping[str, jax.Array],
    inputs: Sequence[jax.Array],
    probe: Probe,
) -> Any:
    """Call `compute` with parameters that are divided along factors, for tensor parallelism.

    The pass `spread` keeps the divided factors divided in all tensors of the network.
    `prepared` has the parameters that are divided already, by label.
    """
    from lowering import Along, Divided, Division, differentiable, mesh_target, traced

    def compute_reshaped(arrays: Mapping[str, jax.Array], *arguments: Any) -> Any:
        original = {label: x.reshape(params[label].shape) for label, x in arrays.items()}
        return compute(original, *arguments)

    operands = {label: prepared.get(label, x) for label, x in params.items()}
    program, arrays, tree = traced(compute_reshaped, operands, state, inputs, probe)
    if not program.has_items:  # The extents of the program are not numbers.
        return compute(params, state, inputs, probe)
    divisions: dict[int, Division] = {}
    for i, label in enumerate([*sorted(operands), *sorted(state)]):
        division = layout.division(label, label in prepared)
        if division:
            divisions[i] = division
    extent = layout.extent([x.shape for x in inputs], time_axes)
    batch: dict[int, Division] = {}
    first_input = len(operands) + len(state)
    for i, x in enumerate(arrays[len(operands) :], len(operands)):
        axes = time_axes if i >= first_input else 0
        spec = layout.sharding_for(extent, x.shape, axes).spec
        if spec:
            batch_axis = len(spec) - 1
            batch[i] = Division(batch_axis)
    along_params = Along(layout.along, divisions)
    along_batch = Along(layout.batch, batch)
    divided = Divided(layout.in_use(), along_params, along_batch)
    target = mesh_target(platform_of(layout.mesh), divided)
    return jax.tree.unflatten(tree, differentiable(program, target)(*arrays))
