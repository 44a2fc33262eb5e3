"""A model's own parameters and initial state, on the devices that compute with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, Sharding

from lowering.devices import Device, Place, computing_at, default_device, place_of
from nnef_jax.arguments import bind_variables
from nnef_jax.errors import InputError
from nnef_jax.execution.definition import Definition
from nnef_jax.execution.meshes import Layout
from nnef_jax.execution.threads import Once
from nnef_jax.storage import files

_Where = Device | Sharding
Leaves = tuple[Any, Any]  # parameters and initial state by label


class OwnArrays:
    """The stored data of a network, put on a device when something there asks for them.

    The host's own are let go then. A device that comes later is given those of the first.
    """

    is_shared = False  # whether what is compiled for them is for other arrays of the network too

    def __init__(self, definition: Definition, stored: Mapping[str, Any]) -> None:
        self.definition = definition
        self._stored: dict[str, Any] = dict(stored)  # of numpy, of jax once they are put
        self._placed = Once()  # by place and labels

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnArrays, (self.definition, _on_host(self._stored))

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnArrays:
        return OwnArrays(self.definition, _copied(self._stored, memo))

    @classmethod
    def of(cls, definition: Definition, data: Mapping[str, Any]) -> OwnArrays:
        """Return what there is of these data for a definition."""
        labels = *definition.labels, *definition.states
        return OwnArrays(definition, {label: data[label] for label in labels})

    def parameters(self, where: _Where | None = None) -> dict[str, jax.Array]:
        """Return the parameters on the device, which is the default one if none is given."""
        return self._at(where, self.definition.labels)

    def initial_state(self, where: _Where | None = None) -> dict[str, jax.Array]:
        """Return the stored values of the variables that the graph updates, on the device."""
        return self._at(where, self.definition.states)

    def first_state(self) -> dict[str, jax.Array]:
        """Return the initial state, in memory of its own if a step takes that for the next one."""
        state = self.initial_state()
        if not self.definition.options.donate_state:
            return dict(state)
        return {label: jnp.array(x, copy=True) for label, x in state.items()}

    def select(self, labels: Iterable[str]) -> dict[str, Any]:
        """Return the arrays of these parameters; those that nothing reads are numpy's."""
        parameters = {**self.definition.unread, **self.parameters()}
        return {label: parameters[label] for label in labels}

    def leaves(self) -> Leaves:
        """Return the parameters and the initial state as they are, on the default device."""
        return self.parameters(), self.initial_state()

    def stored(self, label: str) -> Any:
        """Return the array of a variable where it is: numpy's until it is put on a device."""
        return {**self.definition.unread, **self._stored}[label]

    def over(self, layout: Layout) -> GivenArrays:
        """Return the same arrays on a mesh: each part goes from the host to its devices alone."""
        definition = self.definition
        params = {label: self.stored(label) for label in definition.labels}
        state = {label: self.stored(label) for label in definition.states}
        shapes = [value.type.shape for value in definition.network.graph.inputs]
        placed = layout.put_params(params), layout.put_state(state, shapes)
        return GivenArrays(definition.over(layout), placed)

    def place(self, arrays: Sequence[Any]) -> Place | None:
        """Return where jax computes with these inputs, None where that is for jax to find."""
        return place_of(arrays)

    def _at(self, where: _Where | None, labels: tuple[str, ...]) -> dict[str, jax.Array]:
        where = default_device() if where is None else where

        def put() -> dict[str, jax.Array]:
            found = self._put(where, labels)
            self._stored.update(found)
            return found

        return self._placed.get((where, labels), put)

    def _put(self, where: _Where, labels: tuple[str, ...]) -> dict[str, jax.Array]:
        """Put arrays on a device without committing them to it, so that results follow the inputs.

        A CPU takes those at addresses that suit it as they are, mapped files too: 102 MB in 0.02 s
        instead of 0.6 s.
        """
        stored = [self._stored[label] for label in labels]
        replicated = where if isinstance(where, NamedSharding) else None
        # They are kept, so that they must be arrays also within a function that is traced.
        with jax.ensure_compile_time_eval(), computing_at(where):
            arrays = jax.device_put([np.asarray(array) for array in stored], replicated)
        for array in stored:
            if isinstance(array, np.ndarray):
                files.release(array)
        return dict(zip(labels, arrays, strict=True))


class GivenArrays(OwnArrays):
    """Arrays that a model was given: they stay where they are, on whatever devices.

    They may be traced, and as leaves of a tree anything at all: they are checked when they are
    first computed with.
    """

    is_shared = True

    def __init__(self, definition: Definition, leaves: Leaves) -> None:
        super().__init__(definition, {})
        self._leaves = leaves

    def __reduce__(self) -> tuple[Any, ...]:
        params, state = leaves = _on_host(self._leaves)
        if all(isinstance(x, np.ndarray) for x in (*params.values(), *state.values())):
            return OwnArrays, (self.definition, params | state)
        return GivenArrays, (self.definition, leaves)

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnArrays:
        return GivenArrays(self.definition, _copied(self._leaves, memo))

    @classmethod
    def of(cls, definition: Definition, data: Mapping[str, Any]) -> OwnArrays:
        """Return what there is of these arrays for a definition."""
        labels = definition.labels, definition.states
        params, state = ({label: data[label] for label in each} for each in labels)
        return cls(definition, (params, state))

    def leaves(self) -> Leaves:
        """Return what was given."""
        return self._leaves

    def stored(self, label: str) -> Any:
        """Return the array of a variable where it is."""
        params, state = self._leaves
        return {**self.definition.unread, **params, **state}[label]

    def place(self, arrays: Sequence[Any]) -> Place | None:
        """Return where jax computes with these inputs, None where that is for jax to find."""
        if self._is_traced:
            return None
        if layout := self.definition.layout:
            return layout.place
        own = self._own_place
        if own is None or not own.is_committed:
            return own and place_of(arrays)
        others = {x.sharding for x in arrays if isinstance(x, jax.Array) and x.committed}
        return own if all(x.device_set == {own.where} for x in others) else None

    @cached_property
    def _is_traced(self) -> bool:
        return any(isinstance(x, Tracer) for x in self._all.values())

    @cached_property
    def _own_place(self) -> Place | None:
        if self._is_traced:
            return None
        arrays = list(self._all.values())
        place = place_of(arrays)
        devices = {device for x in arrays if x.committed for device in x.sharding.device_set}
        return place if len(devices) < 2 else None

    @cached_property
    def _all(self) -> dict[str, Any]:
        """Return all of them by label. Raises InputError for what does not fit the graph."""
        definition, (params, state) = self.definition, self._leaves
        graph = definition.network.graph
        parameters = {parameter.label: parameter for parameter in graph.parameters}
        states = {state.label: state for state in graph.states}
        bound = bind_variables("params", params, parameters, definition.labels)
        bound |= bind_variables("state", state, states, definition.states)
        return {label: _array(x) for label, x in bound.items()}

    def _at(self, where: _Where | None, labels: tuple[str, ...]) -> dict[str, Any]:
        if where is None or self._own_place is None or self._own_place.is_committed:
            return {label: self._all[label] for label in labels}
        self._stored = self._all
        return self._placed.get((where, labels), lambda: self._put(where, labels))


def _on_host(tree: Any) -> Any:
    """Return a tree of numpy's arrays for jax's. Raises InputError for what has no values here."""

    def stored(x: Any) -> Any:
        if isinstance(x, Tracer):
            message = "a model of traced arrays has no values to pickle"
            raise InputError(message, hint="pickle outside of jax.jit and the like")
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            message = "a model whose arrays are partly on other hosts cannot be pickled"
            hint = "with_params(multihost_utils.process_allgather(params, tiled=True)) is whole"
            raise InputError(message, hint=hint)
        return np.asarray(x) if isinstance(x, jax.Array) else x

    return jax.tree.map(stored, tree)


def _copied(tree: Any, memo: dict[int, Any]) -> Any:
    def copied(x: Any) -> Any:
        return jnp.array(x, copy=True) if isinstance(x, jax.Array) else deepcopy(x, memo)

    return jax.tree.map(copied, tree)


def _array(x: Any) -> Any:
    """Return an array of jax, whose dtype is no weak one: else what is compiled would differ."""
    if isinstance(x, Tracer):
        return x
    with jax.ensure_compile_time_eval():
        x = x if isinstance(x, jax.Array) else jax.device_put(x)
        return jnp.asarray(x, x.dtype) if x.weak_type else x
