"""Runs networks over meshes whose axes are Explicit: there types tell how arrays are sharded.

Where an operation cannot tell how its result is sharded, it must be told, and a network knows of no
mesh. So such axes are Auto within it: XLA's partitioner shards what is inside, as in any jit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec, auto_axes


def is_explicit(where: Any) -> bool:
    """Tell whether a place (a device or a sharding), or else the mesh in use, has Explicit axes."""
    mesh = where.mesh if isinstance(where, NamedSharding) else jax.sharding.get_abstract_mesh()
    return AxisType.Explicit in mesh.axis_types


def automatic(compute: Callable[..., Any], time_axes: int) -> Callable[..., Any]:
    """Return a function of params, state, inputs and a probe within which Explicit axes are Auto.

    The batch is the axis of the first input after `time_axes`. Results that have as many items
    there are sharded as it, next states as the states, and others are replicated.
    """

    def run(params: Any, state: Any, inputs: Sequence[Any], probe: Any) -> Any:
        arguments = params, state, inputs, probe
        meshes = [jax.typeof(x).sharding.mesh for x in jax.tree.leaves(arguments)]
        mesh = next((m for m in meshes if m.explicit_axes), None)
        if mesh is None:
            return compute(*arguments)
        free: Any = partial(auto_axes, compute, axes=mesh.explicit_axes)
        whole = NamedSharding(mesh, PartitionSpec())
        batch = next((jax.typeof(x) for x in inputs if x.ndim > time_axes), None)

        def sharding(x: Any) -> NamedSharding:
            if batch is None or x.shape[time_axes : time_axes + 1] != batch.shape[time_axes:][:1]:
                return whole
            axes = [None] * time_axes + [batch.sharding.spec[time_axes]]
            return NamedSharding(mesh, PartitionSpec(*axes))

        shapes = jax.eval_shape(free(out_sharding=whole), *arguments)
        outputs, after, shown = jax.tree.map(sharding, shapes)
        after = {s: NamedSharding(mesh, jax.typeof(state[s]).sharding.spec) for s in after}
        return free(out_sharding=(outputs, after, shown))(*arguments)

    return run
