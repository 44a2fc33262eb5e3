"""Holds a model's parameters and states, and puts them on devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, Sharding
from numpy.typing import NDArray

from nnef_jax.calls.arguments import bind_variables
from nnef_jax.errors import InputError
from nnef_jax.execution.definition import Definition
from nnef_jax.execution.meshes import Layout
from nnef_jax.execution.places import Device, Placement, computing_at, default_device, place_of
from nnef_jax.execution.run_options import Prepared
from nnef_jax.execution.threads import Once
from nnef_jax.storage import files

Where = Device | Sharding
_Stored = jax.Array | NDArray[np.generic] | jax.ShapeDtypeStruct
Leaves = tuple[Any, Any]  # The parameters by label, and the initial state by label.

_ABSTRACT = (
    "nnef_jax.load reads them if parameters is 'arrays', and model.with_params(...) sets them; "
    "a mesh must be of attached devices"
)

# These are the indices of the two dicts in `Leaves`.
_PARAMETERS = 0
_STATE = 1


class Arrays:
    """The parameters and the initial state of a model.

    Both are dicts from labels to arrays. Arrays from a file are put on a device when a computation
    on that device first needs them. The arrays on the host are then released. If a second device
    needs them, they are copied from the first device.

    `from_user` tells whether a user passed the arrays. A user's arrays stay on their devices.
    A user's arrays may be tracers. In a pytree, jax may have replaced an array by any object. So
    a user's arrays are checked before their first use.

    Derivatives treat the initial state as a constant, unless a user passed the state
    (`state_from_user`).

    A `jax.ShapeDtypeStruct` may stand for each array. A model with such arrays can be lowered
    and compiled, but a call raises InputError.
    """

    def __init__(
        self,
        definition: Definition,
        leaves: Leaves,
        *,
        from_user: bool = True,
        state_from_user: bool = False,
    ) -> None:
        self.definition = definition
        self.from_user = from_user
        self.state_from_user = state_from_user
        # Arrays from a file are numpy arrays at first. When they are put on a device, jax arrays
        # take their place in the dicts.
        self._leaves = leaves
        self._placed = Once()

    @classmethod
    def of(
        cls,
        definition: Definition,
        data: Mapping[str, _Stored],
        *,
        from_user: bool = False,
        state_from_user: bool = False,
    ) -> Arrays:
        """Select the arrays that a definition needs from `data`, a dict from labels to arrays.

        `from_user` tells whether a user passed the arrays. `state_from_user` tells whether a user
        passed the initial state.
        """
        params = {label: data[label] for label in definition.labels}
        state = {label: data[label] for label in definition.states}
        leaves = params, state
        return cls(definition, leaves, from_user=from_user, state_from_user=state_from_user)

    def __reduce__(self) -> tuple[Any, ...]:
        leaves = _on_host(self._leaves)
        params, state = leaves
        arrays = *params.values(), *state.values()
        # Arrays of numpy are unpickled like arrays from a file. Any other object must be checked.
        are_like_stored = all(isinstance(x, np.ndarray) for x in arrays)
        flags = {"from_user": not are_like_stored, "state_from_user": self.state_from_user}
        return partial(Arrays, **flags), (self.definition, leaves)

    def __deepcopy__(self, memo: dict[int, object]) -> Arrays:
        flags = {"from_user": self.from_user, "state_from_user": self.state_from_user}
        return Arrays(self.definition, _copied(self._leaves, memo), **flags)

    def leaves(self) -> Leaves:
        """Return the parameters and the initial state, as two dicts by label.

        Arrays from a file are put on jax's default device.
        """
        if self.from_user:
            return self._leaves
        return self.parameters(), self.initial_state()

    def types(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the types of the parameters and of the initial state, as two dicts by label.

        On a mesh the types include shardings.
        """
        has_mesh = self.definition.layout is not None

        def type_of(x: Any) -> jax.ShapeDtypeStruct:
            sharding = x.sharding if has_mesh else None
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

        params, state = jax.tree.map(type_of, self._leaves)
        return params, state

    def parameters(self, where: Where | None = None) -> dict[str, jax.Array]:
        """Return the parameters on a device or sharding, as a dict by label.

        By default the parameters are on jax's default device.
        """
        return self._on_device(where, _PARAMETERS)

    def params_for_traced_calls(
        self, where: Where | None = None
    ) -> dict[str, jax.Array] | Prepared:
        """Return the parameters for a function that jax traces, on a device or sharding.

        If tensor parallelism divides parameters, the result contains the divided arrays too, so
        that they are divided once instead of in each call.
        """
        params = self.parameters(where)
        layout = self.definition.layout
        if self.are_traced or layout is None or not layout.divisions:
            return params
        # Within a trace, jax would return tracers, which cannot be cached. In this context it
        # returns arrays.
        with jax.ensure_compile_time_eval():
            divided = self._placed.get("divided", lambda: layout.divided(params))
        return Prepared(params, divided, self.definition)

    def initial_state(self, where: Where | None = None) -> dict[str, jax.Array]:
        """Return the initial values of states on a device or sharding, as a dict by label.

        By default the values are on jax's default device.
        """
        state = self._on_device(where, _STATE)
        if self.are_traced and not self.state_from_user:
            # To derivatives, an initial state that no user passed is a constant.
            return jax.lax.stop_gradient(state)
        return state

    def select(self, labels: Iterable[str]) -> dict[str, Any]:
        """Return the parameters with the given labels, as a dict by label.

        A parameter that no operation reads is a numpy array.
        """
        parameters = {**self.definition.unread, **self.parameters()}
        return {label: parameters[label] for label in labels}

    def stored(self, label: str) -> Any:
        """Return the array that is stored under a label, without a copy.

        An array from a file is a numpy array until it is put on a device.
        """
        return self.by_label[label]

    @property
    def by_label(self) -> dict[str, Any]:
        """Return all arrays by label, including parameters that no operation reads.

        An array from a file is a numpy array until it is put on a device.
        """
        params, state = self._leaves
        return {**self.definition.unread, **params, **state}

    def with_definition(self, definition: Definition) -> Arrays:
        """Return these arrays, on their devices, for another definition of the network."""
        copy = Arrays.__new__(Arrays)
        copy.__dict__ = self.__dict__ | {"definition": definition}
        return copy

    def with_layout(self, layout: Layout) -> Arrays:
        """Return these arrays on the mesh of a layout. Each device is sent only its shards."""
        params, state = self._leaves
        input_shapes = [value.type.shape for value in self.definition.network.graph.inputs]
        leaves = layout.put_params(params), layout.put_state(state, input_shapes)
        definition = self.definition.with_layout(layout)
        return Arrays(definition, leaves, state_from_user=self.state_from_user)

    def place(self, inputs: Sequence[object]) -> Placement | None:
        """Return the device or sharding on which jax computes with these arrays and `inputs`.

        Returns None if jax decides, because arrays are traced or committed to different places.
        """
        if not self.from_user:
            return place_of(inputs)  # arrays from a file are put where the inputs are
        self.require()
        if self.are_traced:
            return None
        layout = self.definition.layout
        if layout:
            return layout.place
        place = self._place
        if place is None:
            return None
        if not place.is_committed:
            return place_of(inputs)  # jax moves uncommitted arrays to the inputs
        # Inputs that are not committed move to the arrays. Other inputs must be there already.
        committed_inputs = [x for x in inputs if isinstance(x, jax.Array) and x.committed]
        are_at_place = all(x.sharding.device_set == {place.where} for x in committed_inputs)
        return place if are_at_place else None

    @cached_property
    def are_traced(self) -> bool:
        """Tell whether at least one of the arrays is a tracer."""
        if not self.from_user or self.are_types:
            return False
        return any(isinstance(x, Tracer) for x in self._checked_arrays.values())

    def require(self) -> None:
        """Raise InputError if `jax.ShapeDtypeStruct`s stand for the arrays."""
        if self.are_types:
            name = self.definition.network.graph.name
            message = f"'{name}' has the shapes of its parameters, and no arrays"
            raise InputError(message, hint=_ABSTRACT)

    @cached_property
    def are_types(self) -> bool:
        """Tell whether `jax.ShapeDtypeStruct`s stand for the arrays."""
        return any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(self._leaves))

    @cached_property
    def _place(self) -> Placement | None:
        """Return the device of a user's arrays, or None if jax must decide.

        jax decides if arrays are traced, or committed to several devices.
        """
        if self.are_traced:
            return None
        arrays = list(self._checked_arrays.values())
        devices: set[Device] = set()  # the devices to which arrays are committed
        for x in arrays:
            if x.committed:
                devices |= x.sharding.device_set
        return place_of(arrays) if len(devices) < 2 else None

    @cached_property
    def _checked_arrays(self) -> dict[str, Any]:
        """Return the arrays that a user passed, as a dict by label.

        Raises InputError if the arrays do not fit the graph's parameters and states.
        """
        definition = self.definition
        params, state = self._leaves
        bound = bind_variables("params", params, definition.parameters, definition.labels)
        bound |= bind_variables("state", state, definition.variables, definition.states)
        return {label: _strongly_typed(x) for label, x in bound.items()}

    def _on_device(self, device: Where | None, index: int) -> dict[str, Any]:
        """Return the parameters (`index` 0) or the initial state (`index` 1) on a device.

        The result has the arrays by label.
        """
        if self.from_user:
            return self._users_on_device(device, index)
        if device is None:
            device = default_device()

        def put_and_release() -> dict[str, jax.Array]:
            arrays = _put(self._leaves[index], device)
            # The arrays on the host are no longer needed. Those on the device take their place.
            self._leaves[index].update(arrays)
            return arrays

        return self._placed.get((device, index), put_and_release)

    def _users_on_device(self, device: Where | None, index: int) -> dict[str, Any]:
        """Return a user's parameters (`index` 0) or initial state (`index` 1) on a device.

        The result has the arrays by label. Arrays that are committed to another device stay on
        that device.
        """
        labels = self.definition.labels if index == _PARAMETERS else self.definition.states
        if not labels:
            return {}
        self.require()
        arrays = {label: self._checked_arrays[label] for label in labels}
        place = self._place
        can_move = place is not None and not place.is_committed
        if device is None or not can_move:
            return arrays
        are_on_device = all(x.devices() == {device} for x in arrays.values())
        if are_on_device:
            return arrays
        return self._placed.get((device, index), lambda: _put(arrays, device))


def _put(stored: Mapping[str, _Stored], where: Where) -> dict[str, jax.Array]:
    """Put arrays on a device without committing the arrays to the device.

    The results of a computation are then on the device of the computation's inputs. A CPU device
    uses aligned arrays without a copy, also arrays in mapped files. 102 MB take 0.02 s without a
    copy, and 0.6 s with a copy. `where` is a device, or a sharding over a mesh.
    """
    sharding = where if isinstance(where, NamedSharding) else None
    device = Placement(where, is_committed=False).device
    stored_arrays = list(map(np.asarray, stored.values()))
    # The results are cached. Within a trace, jax would return tracers, which cannot be cached. In
    # this context it returns arrays.
    with jax.ensure_compile_time_eval(), computing_at(device):
        # Without a sharding `device_put` commits nothing.
        arrays = jax.device_put(stored_arrays, sharding)
    for x in stored.values():
        if isinstance(x, np.ndarray):
            files.release(x)
    return dict(zip(stored, arrays, strict=True))


def _on_host(leaves: Leaves) -> Leaves:
    """Convert parameters and states to numpy arrays.

    Raises InputError for a tracer, or an array whose values are not on this host.
    """

    def on_host(x: object) -> object:
        """Convert a jax array to a numpy array. Other objects are returned unchanged."""
        if isinstance(x, Tracer):
            message = "a model of traced arrays has no values to pickle"
            raise InputError(message, hint="pickle outside of jax.jit and the like")
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            message = "a model whose arrays are partly on other hosts cannot be pickled"
            hint = "with_params(multihost_utils.process_allgather(params, tiled=True)) gathers them"
            raise InputError(message, hint=hint)
        return np.asarray(x) if isinstance(x, jax.Array) else x

    return jax.tree.map(on_host, leaves)


def _copied(leaves: Leaves, memo: dict[int, object]) -> Leaves:
    """Return copies of parameters and states. `memo` is the argument of `__deepcopy__`."""

    def copied(x: object) -> object:
        return jnp.array(x, copy=True) if isinstance(x, jax.Array) else deepcopy(x, memo)

    return jax.tree.map(copied, leaves)


def _strongly_typed(x: _Stored) -> jax.Array:
    """Return x as a jax array whose dtype is not weak. A tracer is returned unchanged.

    If some arrays had weak dtypes, jax would compile another executable for them.
    """
    if isinstance(x, Tracer):
        return x
    with jax.ensure_compile_time_eval():
        array = x if isinstance(x, jax.Array) else jax.device_put(x)
        if array.weak_type:
            array = jnp.asarray(array, array.dtype)
        return array
