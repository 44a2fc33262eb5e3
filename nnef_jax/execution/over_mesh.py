"""Computes a network over a mesh: what is divided, what is gathered, how results are sharded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, NamedSharding, PartitionSpec, auto_axes

from lowering import or_else
from nnef_jax.execution.meshes import Layout, platform_of
from nnef_jax.execution.places import explicit_mesh, is_watched
from nnef_jax.execution.run_options import Prepared


def over_mesh(
    compute: Callable[..., Any],
    layout: Layout | None,
    time_axes: int,
    params: Any,
    state: Any,
    inputs: Sequence[Any],
    probe: Any,
) -> Any:
    """Compute a function of params, state, inputs and a probe over a mesh: a layout's, or of types.

    Within it Explicit axes are Auto. Results are sharded as the layout says. Without one, on
    Explicit axes, they are sharded as the first axis of the first input, and next states as the
    states.
    """
    arguments = params, state, inputs, probe
    told = layout or _told_by_types(arguments, time_axes)
    if told is None or jax.sharding.get_abstract_mesh().manual_axes:
        return compute(*arguments)
    extent = told.extent([x.shape for x in inputs], time_axes)

    def whole(params: Any, *others: Any) -> Any:
        used = layout.used(params) if layout else params
        is_prepared = isinstance(used, Prepared)
        raw, prepared = (used.params, used.values) if is_prepared else (used, {})

        def undivided() -> Any:
            return compute(raw, *others)

        if not told.divisions or is_watched():
            return undivided()
        divided = partial(_divided, compute, told, time_axes, raw, prepared, *others)
        return or_else(divided, undivided)

    def places(results: Any, time_axes: int = time_axes) -> Any:
        return jax.tree.map(lambda x: told.beside(extent, x.shape, time_axes), results)

    if AxisType.Explicit not in told.mesh.axis_types:
        outputs, after, shown = results = whole(*arguments)
        return with_sharding_constraint(results, (places(outputs), places(after, 0), places(shown)))
    free: Any = partial(auto_axes, whole, axes=told.mesh.explicit_axes)
    replicated = NamedSharding(told.mesh, PartitionSpec())
    outputs, after, shown = jax.eval_shape(free(out_sharding=replicated), *arguments)
    states = places(after, 0)  # of those that start with what is computed
    specs = {label: jax.typeof(x).sharding.spec for label, x in state.items() if label in after}
    states |= {label: NamedSharding(told.mesh, spec) for label, spec in specs.items()}
    return free(out_sharding=(places(outputs), states, places(shown)))(*arguments)


def _told_by_types(arguments: Any, time_axes: int) -> Layout | None:
    """Return the layout that types tell, None where they tell none."""
    mesh = explicit_mesh(arguments)
    if mesh is None:
        return None
    _, _, inputs, _ = arguments
    names = next((jax.typeof(x).sharding.spec[time_axes] for x in inputs if x.ndim > time_axes), ())
    return Layout(mesh, names if isinstance(names, tuple) else (names,) if names else ())


def _divided(
    compute: Callable[..., Any],
    layout: Layout,
    time_axes: int,
    params: Mapping[str, Any],
    prepared: Mapping[str, Any],
    *others: Any,
) -> Any:
    """Compute with parameters that are divided for products, so that what follows stays so."""
    from lowering import Along, Divided, Division, differentiable, mesh_target, traced

    def computed(arrays: Mapping[str, Any], *others: Any) -> Any:
        joined = {label: x.reshape(params[label].shape) for label, x in arrays.items()}
        return compute(joined, *others)

    operands = {label: prepared.get(label, x) for label, x in params.items()}
    program, arrays, tree = traced(computed, operands, *others)
    if not program.has_items:  # extents that are no numbers
        return compute(params, *others)
    divisions = {i: layout.division(x, x in prepared) for i, x in enumerate(sorted(operands))}
    extent = layout.extent([x.shape for x in others[1]], time_axes)
    batch: dict[int, Division] = {}
    for i, x in enumerate(arrays[len(operands) :], len(operands)):
        if names := layout.beside(extent, x.shape, time_axes).spec:
            batch[i] = Division(len(names) - 1)
    parameters = {i: division for i, division in divisions.items() if division}
    along = Along(layout.along, parameters), Along(layout.batch, batch)
    target = mesh_target(platform_of(layout.mesh), Divided(layout.in_use(), *along))
    return jax.tree.unflatten(tree, differentiable(program, target)(*arrays))
