"""Computes a network over a mesh, with divided or gathered parameters and sharded results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, NamedSharding, PartitionSpec, auto_axes

from lowering import or_else
from nnef_jax.execution.meshes import Layout, mesh_platform
from nnef_jax.execution.places import debugs_or_disables_jit, explicit_mesh
from nnef_jax.execution.probe import Probe
from nnef_jax.execution.run_options import Params, Prepared

if TYPE_CHECKING:
    # `lowering.parallel` is imported only for types, because the import takes a while.
    from lowering import Divided

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

    The layout has the mesh. If `layout` is None, the mesh is in the types of the arguments.
    Within `compute`, Explicit axes of the mesh are Auto. The first `time_axes` axes of the
    inputs count time steps.

    Results are sharded according to the layout. Without a layout, the first axis of each output
    is sharded like the first axis of the first input, and each next state is sharded like the
    state before the call.
    """
    arguments = params, state, inputs, probe
    effective_layout = layout or _layout_of_types(arguments, time_axes)
    is_in_shard_map = bool(jax.sharding.get_abstract_mesh().manual_axes)
    if effective_layout is None or is_in_shard_map:
        return compute(*arguments)  # there is no mesh, or the arguments are shards already
    mesh = effective_layout.mesh
    extent = effective_layout.extent([x.shape for x in inputs], time_axes)

    def compute_with_layout(params: Params, *arguments: Any) -> Any:
        # A layout that comes from types has neither sharded nor divided parameters.
        params = layout.gathered(params) if layout else params
        return _by_mesh_passes(compute, effective_layout, time_axes, params, *arguments)

    has_explicit_axes = AxisType.Explicit in mesh.axis_types
    if not has_explicit_axes:
        results = compute_with_layout(*arguments)
        shardings = _result_shardings(effective_layout, extent, time_axes, results)
        return with_sharding_constraint(results, shardings)
    on_auto_axes: Any = partial(auto_axes, compute_with_layout, axes=mesh.explicit_axes)
    # The first evaluation only finds the types of the results, which determine the shardings.
    replicated = NamedSharding(mesh, PartitionSpec())
    result_types = jax.eval_shape(on_auto_axes(out_sharding=replicated), *arguments)
    shardings = _result_shardings(effective_layout, extent, time_axes, result_types)
    _, state_shardings, _ = shardings
    # A state that the call passes keeps its sharding. States whose initial value is computed are
    # not in `state`. They are sharded along the batch.
    for label, x in state.items():
        if label in state_shardings:
            state_shardings[label] = NamedSharding(mesh, jax.typeof(x).sharding.spec)
    return on_auto_axes(out_sharding=shardings)(*arguments)


def _result_shardings(
    layout: Layout, extent: int | None, time_axes: int, results: Any
) -> tuple[Any, dict[str, NamedSharding], Any]:
    """Return the shardings of the outputs, the next state and the captured tensors.

    `results` has these results, as arrays or types. `extent` is the extent of the batch. The
    first `time_axes` axes of outputs and captured tensors count time steps.
    """

    def sharding(x: Any) -> NamedSharding:
        return layout.sharding_for(extent, x.shape, time_axes)

    outputs, next_state, captures = results
    state_shardings: dict[str, NamedSharding] = {}
    for label, x in next_state.items():
        state_shardings[label] = layout.of_state(label, extent, x.shape)
    return jax.tree.map(sharding, outputs), state_shardings, jax.tree.map(sharding, captures)


def _layout_of_types(arguments: tuple[Any, ...], time_axes: int) -> Layout | None:
    """Return the layout in the types of a call's arguments, or None if no mesh axis is Explicit.

    If the caller made a mesh with Explicit axes, the type of an array has this mesh. The first
    axis after the time axes is the batch axis. The batch is sharded like the batch axis of the
    first input that has one.
    """
    mesh = explicit_mesh(arguments)
    if mesh is None:
        return None
    without_batch = Layout(mesh)
    _params, _state, inputs, _probe = arguments
    inputs_with_batch = [x for x in inputs if x.ndim > time_axes]
    if not inputs_with_batch:
        return without_batch
    batch_names = jax.typeof(inputs_with_batch[0]).sharding.spec[time_axes]
    if not batch_names:
        return without_batch
    if not isinstance(batch_names, tuple):
        batch_names = (batch_names,)
    return Layout(mesh, batch_names)


def _by_mesh_passes(
    compute: Compute, layout: Layout, time_axes: int, params: Params, *arguments: Any
) -> Any:
    """Call `compute`. If the layout shards parameters, rewrite it by the passes for meshes.

    `params` are not sharded along the mesh axes of the batch. `arguments` are the state, the
    inputs and the probe.
    """
    raw_params: Any = params
    divided_params: Mapping[str, Any] = {}
    if isinstance(params, Prepared):
        divided_params = params.values
        raw_params = params.params

    def as_written() -> Any:
        return compute(raw_params, *arguments)

    if not layout.specs or debugs_or_disables_jit():
        return as_written()
    rewritten = partial(
        _rewritten, compute, layout, time_axes, raw_params, divided_params, *arguments
    )
    return or_else(rewritten, as_written)


def _rewritten(
    compute: Compute,
    layout: Layout,
    time_axes: int,
    params: Mapping[str, jax.Array],
    prepared: Mapping[str, jax.Array],
    state: Mapping[str, jax.Array],
    inputs: Sequence[jax.Array],
    probe: Probe,
) -> Any:
    """Call `compute`, rewritten by the passes for a mesh.

    `prepared` maps labels to the parameters that `Layout.divided` has reshaped.
    """
    from lowering import differentiable, mesh_target, traced

    def compute_reshaped(arrays: Mapping[str, jax.Array], *arguments: Any) -> Any:
        """Call `compute` with all parameters in their original shapes."""
        original = {label: x.reshape(params[label].shape) for label, x in arrays.items()}
        return compute(original, *arguments)

    operands = {label: prepared.get(label, x) for label, x in params.items()}
    program, arrays, tree = traced(compute_reshaped, operands, state, inputs, probe)
    if not program.has_items:
        # Extents of the program are symbols and not numbers, so they cannot be divided.
        return compute(params, state, inputs, probe)
    # If nothing is divided along factors, XLA's partitioner follows the shardings alone.
    divided = None
    if layout.divisions:
        divided = _divided(layout, time_axes, params, prepared, state, inputs, probe)
    target = mesh_target(mesh_platform(layout.mesh), divided)
    return jax.tree.unflatten(tree, differentiable(program, target)(*arrays))


def _divided(
    layout: Layout,
    time_axes: int,
    params: Mapping[str, jax.Array],
    prepared: Mapping[str, jax.Array],
    state: Mapping[str, jax.Array],
    inputs: Sequence[jax.Array],
    probe: Probe,
) -> Divided:
    """Return how the arguments of a network's program are divided, for the pass `spread`.

    For tensor parallelism, the layout divides parameters along factors of their axes. The extent of
    an axis is a product of factors, such as 12 = 3 * 4. The pass keeps the factors divided in all
    tensors of the network.
    """
    from lowering import Along, Divided, Division

    # jax sorts the keys of dicts. So the program takes the operands sorted by label, then the
    # states sorted by label, and then the inputs. A key of this dict is an argument's index.
    factor_divisions: dict[int, Division] = {}
    for index, label in enumerate([*sorted(params), *sorted(state)]):
        division = layout.division(label, is_reshaped=label in prepared)
        if division:
            factor_divisions[index] = division
    extent = layout.extent([x.shape for x in inputs], time_axes)
    first_input = len(params) + len(state)
    batch_divisions: dict[int, Division] = {}
    for index, x in enumerate(jax.tree.leaves((state, inputs, probe)), start=len(params)):
        leading_axes = time_axes if index >= first_input else 0
        spec = layout.sharding_for(extent, x.shape, leading_axes).spec
        if spec:
            batch_axis = len(spec) - 1  # the last entry of the spec is that of the batch
            batch_divisions[index] = Division(batch_axis)
    along_params = Along(layout.along, factor_divisions)
    along_batch = Along(layout.batch, batch_divisions)
    return Divided(layout.in_use(), along_params, along_batch)
