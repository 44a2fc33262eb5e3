"""Puts a model's arrays on a mesh of devices, and determines how results are sharded.

XLA's partitioner shards the tensors inside a network, as in any jitted function. Explicit axes of a
mesh are different: they are part of the types of arrays, and some functions of jax need the
sharding of their result as an argument. The operations of a network do not pass this argument.
Explicit axes are therefore made Auto within a network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.core import Tracer
from jax.lax import with_sharding_constraint
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from lowering import target_of
from lowering.extents import UNKNOWN, shapes_differ, show
from lowering.graph import Value
from nnef_jax.calls.arguments import bind_inputs
from nnef_jax.errors import InputError
from nnef_jax.execution.places import Placement, default_platform, is_explicit, platform_of
from nnef_jax.execution.run_options import Params, Prepared
from nnef_jax.reading.network import Network

if TYPE_CHECKING:
    # `lowering` is imported only for types, because the import takes a while.
    from lowering import Division

_FREE = PartitionSpec.UNCONSTRAINED
# An entry of a PartitionSpec: the names of the mesh axes along which an array's axis is divided.
_Names = str | tuple[str, ...] | None
AnyMesh = Mesh | AbstractMesh


@dataclass(frozen=True)
class Layout:
    """The mesh of a model, and how the batch and the parameters are sharded over the mesh.

    Args:
        mesh: the devices. If they are not attached, types stand for arrays.
        batch: names of the mesh axes along which a batch is sharded.
        axis: the batch axis of inputs, states and outputs. The first input that has this axis
            determines the extent of the batch. Any other array has a batch if its extent along this
            axis is equal.
        specs: maps labels of parameters and states to shardings. The sharding of a state is for
            axes other than the batch axis. Parameters without a sharding are replicated.
        along: names of the mesh axes for tensor parallelism.
        divisions: maps labels of parameters and states to the way in which the axes `along` divide
            them.
    """

    mesh: AnyMesh
    batch: tuple[str, ...] = ()
    axis: int = 0
    specs: tuple[tuple[str, PartitionSpec], ...] = ()
    along: tuple[str, ...] = ()
    divisions: tuple[tuple[str, Division], ...] = ()

    @cached_property
    def parts(self) -> int:
        """Return the number of shards into which a batch is divided."""
        return math.prod(self.mesh.shape[name] for name in self.batch)

    @property
    def place(self) -> Placement | None:
        """Return the sharding of prepared values, or None if nothing is prepared.

        Prepared values are replicated. Nothing is prepared if parameters are sharded, or if the
        mesh has Explicit axes.
        """
        replicated = NamedSharding(self.mesh, PartitionSpec())
        prepares_nothing = self.specs or is_explicit(replicated)
        return None if prepares_nothing else Placement(replicated, is_committed=True)

    def extent(self, shapes: Sequence[Sequence[int]], time_axes: int = 0) -> int | None:
        """Return the extent of the batch, from the shapes of a call's inputs.

        None is returned if no input has the batch axis. The first `time_axes` axes of the shapes
        count time steps.
        """
        batch_axis = self.axis + time_axes
        for shape in shapes:
            if len(shape) > batch_axis:
                return shape[batch_axis]
        return None

    def sharding_for(
        self, extent: int | None, shape: Sequence[int], time_axes: int = 0
    ) -> NamedSharding:
        """Return the sharding of an input or output of the shape `shape`.

        `extent` is the extent of the call's batch. If the array has `extent` items along the batch
        axis, it is sharded along this axis. The first `time_axes` axes of the array count time
        steps.
        """
        batch_axis = self.axis + time_axes
        has_batch = len(shape) > batch_axis and shape[batch_axis] == extent
        spec = PartitionSpec()
        if self.batch and has_batch:
            # If the batch is axis 1, the spec is PartitionSpec(None, self.batch).
            spec = PartitionSpec(*[None] * batch_axis, self.batch)
        return NamedSharding(self.mesh, spec)

    def of_state(self, label: str, extent: int | None, shape: Sequence[int]) -> NamedSharding:
        """Return the sharding of the state `label`, an array of the shape `shape`.

        `extent` is the extent of the call's batch.
        """
        batch_sharding = self.sharding_for(extent, shape)
        state_spec = self._specs.get(label)
        if state_spec is None:
            return batch_sharding
        # A spec may have fewer entries than the array has axes, so the spec of the batch is filled
        # with None.
        missing_axes = len(shape) - len(batch_sharding.spec)
        names_by_axis = [*batch_sharding.spec, *[None] * missing_axes]
        # If both specs divide an axis, the entry of the state's spec is taken.
        for axis, names in enumerate(state_spec):
            if names is not None:
                names_by_axis[axis] = names
        return NamedSharding(self.mesh, PartitionSpec(*names_by_axis))

    def of_parameter(self, label: str) -> NamedSharding:
        """Return the sharding of the parameter with a label."""
        return NamedSharding(self.mesh, self._specs.get(label, PartitionSpec()))

    def put(self, name: str, x: Any, sharding: NamedSharding, *, stays: bool = False) -> Any:
        """Put an array on the mesh with a sharding. A tracer is returned unchanged.

        The array may be on the host, for example in a mapped file. Then only the shards for the
        host's own devices are read. If the devices of the mesh are not attached, the result is
        the array's type. Raises InputError for an array on devices of several hosts, unless
        these are the mesh's devices.

        Args:
            name: the name of the array in the error.
            x: the array.
            sharding: the sharding of the result.
            stays: whether an array that is on the mesh already keeps its sharding.
        """
        if isinstance(x, Tracer):
            return x
        if not self.is_attached:
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        if isinstance(x, jax.Array):
            if x.sharding == sharding:
                return x
            if self._holds(x):
                return x if stays else jax.device_put(x, sharding)
            if not x.is_fully_addressable:
                message = f"{name} is on devices of several hosts"
                hint = "jax.device_put(x, NamedSharding(model's mesh, ...)) moves it"
                raise InputError(f"{message}, and they are not the model's devices", hint=hint)
            if not self._has_hosts:
                return jax.device_put(x, sharding)  # all devices are on this host
        # jax asks for one shard after the other, and only for shards of this host's devices.
        array = np.asarray(x)
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

    def put_params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Put each parameter on the mesh with its sharding; return a dict from labels to arrays."""
        arrays: dict[str, Any] = {}
        for label, x in params.items():
            arrays[label] = self.put(f"params: '{label}'", x, self.of_parameter(label))
        return arrays

    def divided(self, params: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Return divided parameters by label: reshaped by `with_axes`, and sharded.

        These are the parameters that have a sharding in `divided_shardings`.
        """
        shardings: dict[str, NamedSharding] = {}
        for label, sharding in self.divided_shardings().items():
            if label in params:
                shardings[label] = sharding
        if not shardings:
            return {}
        params_to_reshape = {label: params[label] for label in shardings}
        return jax.jit(self.with_axes, out_shardings=shardings)(params_to_reshape)

    def divided_shardings(self) -> dict[str, NamedSharding]:
        """Return a dict from labels to shardings, for the parameters that `with_axes` reshapes.

        An axis is divided along one factor of its extent. If the extent is 3 * 4, and the 4 is
        divided, a reshape makes the 4 an axis. If no factor precedes the divided factor, the axis
        itself is divided, and the stored parameter needs no reshape. A parameter that is also
        sharded along the batch's axes is left out, since each call gathers and reshapes the
        parameter.
        """
        shardings: dict[str, NamedSharding] = {}
        for label, division in self.divisions:
            spec = self._specs.get(label, PartitionSpec())
            has_factor_before = division.before > 1
            is_gathered = has_names(spec, self.batch)
            if has_factor_before and not is_gathered:
                # `with_axes` makes two axes of the divided axis, and the second one is divided.
                divided_axis = division.axis + 1
                divided_spec = PartitionSpec(*[None] * divided_axis, self.along)
                shardings[label] = NamedSharding(self.mesh, divided_spec)
        return shardings

    def divided_types(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the types that `divided` would return. `params` are arrays or types."""
        shardings = self.divided_shardings()
        params_to_reshape = {label: params[label] for label in shardings}
        types: dict[str, Any] = jax.eval_shape(self.with_axes, params_to_reshape)
        for label, sharding in shardings.items():
            types[label] = types[label].update(sharding=sharding)
        return types

    def with_axes(self, params: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Reshape parameters, so that the divided axis becomes two axes.

        An axis is a product of factors, one of which is divided. The extent of the first new axis
        is the product of the factors that precede the divided factor. The second new axis is
        divided. If the product is 3, an axis of extent 12 becomes axes of extents 3 and 4.
        """
        arrays: dict[str, jax.Array] = {}
        for label, x in params.items():
            division = self._divisions[label]
            axis = division.axis
            shape = list(x.shape)
            shape[axis : axis + 1] = division.before, shape[axis] // division.before
            arrays[label] = x.reshape(shape)
        return arrays

    def division(self, label: str, is_reshaped: bool) -> Division | None:
        """Return how the parameter with a label is divided, or None if it is not divided.

        `is_reshaped` tells whether `with_axes` has reshaped the parameter.
        """
        division = self._divisions.get(label)
        if division is None or not is_reshaped:
            return division
        return replace(division, axis=division.axis + 1, before=1)

    def put_state(
        self, state: Mapping[str, Any], shapes: Sequence[Sequence[int]]
    ) -> dict[str, Any]:
        """Put a state on the mesh, for a call whose inputs have these shapes.

        The batch of the state is sharded like the batch of the inputs.
        """
        extent = self.extent(shapes)
        arrays: dict[str, Any] = {}
        for label, x in state.items():
            sharding = self.of_state(label, extent, x.shape)
            arrays[label] = self.put(f"state: '{label}'", x, sharding, stays=True)
        return arrays

    def bind(
        self,
        network: Network,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        time_axes: int = 0,
    ) -> list[Any]:
        """Return the inputs of a call in the order of the graph, sharded over the mesh.

        `args` and `kwargs` are the arguments of the call. The first `time_axes` axes of each
        input count time steps. Arrays on the mesh keep their sharding. For a tracer only the
        batch axis is constrained. If the mesh spans several hosts, each host passes a part of the
        batch: an array that is not on the mesh is the part for this host's devices.

        Raises InputError if the inputs do not fit the network, or if the batch cannot be divided
        into equal parts.
        """
        declared = network.graph.inputs
        if self._has_hosts:
            # Each host passes a part of the batch. The extent of the part is not the declared
            # extent.
            inputs_of_host = tuple(map(self._with_open_batch, declared))
            network = replace(network, graph=replace(network.graph, inputs=inputs_of_host))
        arrays = bind_inputs(network, args, kwargs, leading=time_axes)
        extent = self.extent([x.shape for x in arrays], time_axes)
        arrays_on_mesh: list[Any] = []
        for value, x in zip(declared, arrays, strict=True):
            arrays_on_mesh.append(self._put_input(value.name, x, extent, time_axes))
        for value, x in zip(declared, arrays_on_mesh, strict=True):
            if shapes_differ(x.shape[time_axes:], value.type.shape):
                message = f"input '{value.name}' has shape {show(x.shape)} over all hosts"
                hint = "each host gives the part of the batch that its own devices take"
                declared_shape = show(value.type.shape)
                raise InputError(f"{message}, the graph declares {declared_shape}", hint=hint)
        return arrays_on_mesh

    def _with_open_batch(self, value: Value) -> Value:
        """Return an input of the graph, with an unknown extent along its batch axis."""
        shape = list(value.type.shape)
        has_batch_axis = len(shape) > self.axis
        if not has_batch_axis:
            return value
        shape[self.axis] = UNKNOWN
        return replace(value, type=replace(value.type, shape=tuple(shape)))

    def typed(
        self, values: Sequence[Value], inputs: Sequence[Any], time_axes: int
    ) -> list[jax.ShapeDtypeStruct]:
        """Return the types that inputs have on the mesh, with shardings along the batch.

        `values` are the inputs of the graph. Raises InputError if the batch cannot be divided
        into equal parts.
        """
        extent = self.extent([x.shape for x in inputs], time_axes)
        types: list[jax.ShapeDtypeStruct] = []
        for value, x in zip(values, inputs, strict=True):
            sharding = self.sharding_for(extent, x.shape, time_axes)
            if sharding.spec:
                self._require_divides(value.name, extent, self.parts)
            types.append(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding))
        return types

    def _put_input(self, name: str, x: Any, extent: int | None, time_axes: int) -> Any:
        """Put an input of a call on the mesh, or constrain the batch axis of a tracer.

        `extent` is the extent of the batch. Raises InputError if the batch cannot be divided
        into equal parts.
        """
        sharding = self.sharding_for(extent, x.shape, time_axes)
        if isinstance(x, jax.Array) and self._holds(x):
            return x
        if isinstance(x, Tracer):
            return self._constrained(name, x, extent, sharding)
        if not self._has_hosts:
            if sharding.spec:
                self._require_divides(name, extent, self.parts)
            return self.put(f"input '{name}'", x, sharding)
        if sharding.spec:
            self._require_divides(name, extent, self._shards_on_host(sharding, time_axes))
        return jax.make_array_from_process_local_data(sharding, np.asarray(x))

    def _shards_on_host(self, sharding: NamedSharding, time_axes: int) -> int:
        """Return the number of shards of the batch that are on devices of this host."""
        # An array of this shape has one item for each shard of the batch. `indices` maps each
        # device of this host to the index of the item that the device holds. Several devices may
        # hold the same item.
        shape = (1,) * (self.axis + time_axes) + (self.parts,)
        indices = sharding.addressable_devices_indices_map(shape)
        return len(set(map(str, indices.values())))

    def _constrained(self, name: str, x: Any, extent: int | None, sharding: NamedSharding) -> Any:
        """Constrain the batch axis of a tracer to a sharding. Other axes stay free.

        Raises InputError if the batch, which has `extent` items, cannot be divided into equal
        parts.
        """
        is_in_shard_map = bool(jax.sharding.get_abstract_mesh().manual_axes)
        if is_in_shard_map or not sharding.spec:
            return x  # the tracer is one shard, or has no batch
        self._require_divides(name, extent, self.parts)
        if self._is_explicit:
            return x  # the sharding that the caller chose is a part of the tracer's type
        names_by_axis: list[Any] = [_FREE] * x.ndim
        for axis, names in enumerate(sharding.spec):
            if names is not None:
                names_by_axis[axis] = names
        spec = PartitionSpec(*names_by_axis)
        return with_sharding_constraint(x, NamedSharding(self.mesh, spec))

    @cached_property
    def is_attached(self) -> bool:
        """Tell whether jax can compute on the devices of the mesh."""
        if isinstance(self.mesh, AbstractMesh):
            return False
        device = self.mesh.devices.flat[0]
        try:
            return device in jax.devices(device.platform)
        except RuntimeError:
            # jax has no such platform.
            return False

    @property
    def _has_hosts(self) -> bool:
        """Tell whether the mesh has devices of several hosts."""
        return self.is_attached and bool(self.mesh.is_multi_process)

    def _require_divides(self, name: str, extent: int | None, parts: int) -> None:
        """Raise InputError if a batch of `extent` items cannot be divided into equal parts.

        `name` is the name of the input that has the batch.
        """
        if extent and extent % parts:
            names = " and ".join(map(repr, self.batch))
            message = f"the batch of {extent} in input '{name}' does not divide into {parts} equal"
            hint = f"give a multiple of {parts} items: pad the last batch, and cut its results"
            raise InputError(f"{message} parts along {names}", hint=hint)

    def _holds(self, x: jax.Array) -> bool:
        """Tell whether an array is on this mesh already. A tracer never is."""
        if isinstance(x, Tracer):
            return False
        return isinstance(x.sharding, NamedSharding) and x.sharding.mesh == self.mesh

    @cached_property
    def compiler_options(self) -> dict[str, str]:
        """Return XLA's options for programs on the mesh.

        If parameters are sharded along the batch's axes, the options make CPUs gather each
        parameter just before its use.
        """
        is_gathered = any(has_names(spec, self.batch) for _, spec in self.specs)
        if not is_gathered:
            return {}
        options_for_least_memory = target_of(mesh_platform(self.mesh)).least_memory
        return options_for_least_memory() if options_for_least_memory else {}

    def in_use(self) -> Any:
        """Return the mesh of the current trace, or the layout's mesh outside of a trace."""
        mesh = jax.sharding.get_abstract_mesh()
        return self.mesh if mesh.empty else mesh

    @property
    def _is_explicit(self) -> bool:
        """Tell whether this mesh or jax's current mesh has an axis that is not Auto."""
        current_mesh = jax.sharding.get_abstract_mesh()
        axis_types = {*self.mesh.axis_types, *current_mesh.axis_types}
        return axis_types != {AxisType.Auto}

    @cached_property
    def _divisions(self) -> dict[str, Division]:
        return dict(self.divisions)

    @cached_property
    def _specs(self) -> dict[str, PartitionSpec]:
        return dict(self.specs)

    def gathered(self, params: Params) -> Params:
        """Gather parameters that are sharded along the batch's axes, before they are used.

        Without the constraints of this function, XLA's partitioner might divide the computation
        along these axes too. Derivatives by a parameter are sharded like the parameter.
        """
        if isinstance(params, Prepared):
            return replace(params, params=self.gathered(params.params))
        arrays: dict[str, Any] = {}
        for label, x in params.items():
            spec = self.of_parameter(label).spec
            gathered_spec = PartitionSpec(*[_without(names, self.batch) for names in spec])
            # A constraint also holds for the derivative by the parameter. So the first constraint
            # shards the derivative like the parameter.
            x = with_sharding_constraint(x, NamedSharding(self.in_use(), spec))
            if gathered_spec != spec:
                # The second constraint gathers the parameter for the computation.
                x = with_sharding_constraint(x, NamedSharding(self.in_use(), gathered_spec))
            arrays[label] = x
        return arrays


def has_names(spec: PartitionSpec, names: Sequence[str]) -> bool:
    """Tell whether a PartitionSpec shards an array along one of the mesh axes `names`."""
    return any(_without(axis_names, names) != axis_names for axis_names in spec)


def _without(names: _Names, removed: Sequence[str]) -> _Names:
    """Return an entry of a PartitionSpec without the mesh axes `removed`.

    If "x" is removed, the entry ("x", "y") becomes "y", and the entry "x" becomes None.
    """
    all_names: tuple[Any, ...] = names if isinstance(names, tuple) else (names,)
    remaining = tuple(name for name in all_names if name not in removed)
    if not remaining:
        return None
    return remaining[0] if len(remaining) == 1 else remaining


def mesh_platform(mesh: AnyMesh) -> str:
    """Return jax's name of the platform of a mesh's devices.

    For an abstract mesh without devices it is jax's default platform.
    """
    if not isinstance(mesh, AbstractMesh):
        return platform_of(mesh.devices.flat[0])
    device = mesh.abstract_device
    return default_platform() if device is None else platform_of(device)
