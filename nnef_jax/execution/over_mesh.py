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

Compute = Callable[..., Any]  # The function takes parameters, a state, inputs and a probe.


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
    effective_layout = layout or _layout_of_types(arguments, time_axes)
    is_in_shard_map = bool(jax.sharding.get_abstract_mesh().manual_axes)
    if effective_layout is None or is_in_shard_map:
        return compute(*arguments)
    mesh = effective_layout.mesh
    extent = effective_layout.extent([x.shape for x in inputs], time_axes)

    def compute_with_layout(params: Params, *arguments: Any) -> Any:
        # A layout that comes from types has neither sharded nor divided parameters.
        params = layout.gathered(params) if layout else params
        return _gathered_or_divided(compute, effective_layout, time_axes, params, *arguments)

    def shardings_of(tree: object) -> Any:
        """Return the shardings along the batch of a tree of outputs or captured tensors."""

        def sharding(x: Any) -> NamedSharding:
            return effective_layout.sharding_for(extent, x.shape, time_axes)

        return jax.tree.map(sharding, tree)

    def state_shardings_of(states: Mapping[str, Any]) -> dict[str, NamedSharding]:
        shardings: dict[str, NamedSharding] = {}
        for label, x in states.items():
            shardings[label] = effective_layout.of_state(label, extent, x.shape)
        return shardings

    if AxisType.Explicit not in mesh.axis_types:
        results = compute_with_layout(*arguments)
        outputs, next_state, captures = results
        shardings = (
            shardings_of(outputs),
            state_shardings_of(next_state),
            shardings_of(captures),
        )
        return with_sharding_constraint(results, shardings)
    on_auto_axes: Any = partial(auto_axes, compute_with_layout, axes=mesh.explicit_axes)
    # The first evaluation only finds the types of the results, which determine the shardings.
    replicated = NamedSharding(mesh, PartitionSpec())
    result_types = jax.eval_shape(on_auto_axes(out_sharding=replicated), *arguments)
    outputs, next_state, captures = result_types
    state_shardings = state_shardings_of(next_state)
    # A state that the call passes keeps its sharding. `state` lacks the states whose initial value
    # is computed, and these are sharded along the batch.
    for label, x in state.items():
        if label in next_state:
            state_shardings[label] = NamedSharding(mesh, jax.typeof(x).sharding.spec)
    shardings = shardings_of(outputs), state_shardings, shardings_of(captures)
    return on_auto_axes(out_sharding=shardings)(*arguments)


def _layout_of_types(arguments: tuple[Any, ...], time_axes: int) -> Layout | None:
    """Return the layout in the types of a call's arguments, or None if no mesh axis is Explicit.

    An array's type has a mesh with Explicit axes if the caller made such a mesh.
    """
    mesh = explicit_mesh(arguments)
    if mesh is None:
        return None
    _params, _state, inputs, _probe = arguments
    inputs_with_batch = [x for x in inputs if x.ndim > time_axes]
    if not inputs_with_batch:
        return Layout(mesh)
    batch_names = jax.typeof(inputs_with_batch[0]).sharding.spec[time_axes]
    if not batch_names:
        return Layout(mesh)
    if not isinstance(batch_names, tuple):
        batch_names = (batch_names,)
    return Layout(mesh, batch_names)


def _gathered_or_divided(
    compute: Compute, layout: Layout, time_axes: int, params: Params, *arguments: Any
) -> Any:
    """Call `compute` with divided parameters, if the layout divides parameters.

    `params` are gathered along the batch's axes already. `arguments` are the state, the inputs and
    the probe.
    """
    raw_params: Any = params
    divided_params: Mapping[str, Any] = {}
    if isinstance(params, Prepared):
        divided_params = params.values
        raw_params = params.params

    def undivided() -> Any:
        return compute(raw_params, *arguments)

    if not layout.divisions or debugs_or_disables_jit():
        return undivided()
    divided = partial(_divided, compute, layout, time_axes, raw_params, divided_params, *arguments)
    return or_else(divided, undivided)


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
    if not program.has_items:
        # Extents of the program are symbols and not numbers, so they cannot be divided.
        return compute(params, state, inputs, probe)
    # jax sorts the keys of dicts. So the program takes the operands sorted by label, then the
    # states sorted by label, and then the inputs.
    divisions_of_params: dict[int, Division] = {}
    for index, label in enumerate([*sorted(operands), *sorted(state)]):
        division = layout.division(label, is_reshaped=label in prepared)
        if division:
            divisions_of_params[index] = division
    extent = layout.extent([x.shape for x in inputs], time_axes)
    batch_divisions: dict[int, Division] = {}
    first_state = len(operands)
    first_input = first_state + len(state)
    for index in range(first_state, len(arrays)):
        leading_axes = time_axes if index >= first_input else 0
        spec = layout.sharding_for(extent, arrays[index].shape, leading_axes).spec
        if spec:
            # The batch is the last entry of the spec.
            batch_axis = len(spec) - 1
            batch_divisions[index] = Division(batch_axis)
    along_params = Along(layout.along, divisions_of_params)
    along_batch = Along(layout.batch, batch_divisions)
    divided = Divided(layout.in_use(), along_params, along_batch)
    target = mesh_target(platform_of(layout.mesh), divided)
    return jax.tree.unflatten(tree, differentiable(program, target)(*arrays))
