"""The arrays of a model, and where they lie."""

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

from nnef_jax.call_arguments import bind_variables
from nnef_jax.errors import InputError
from nnef_jax.execution.definition import Definition
from nnef_jax.execution.meshes import Layout
from nnef_jax.execution.places import Device, Place, computing_at, default_device, place_of
from nnef_jax.execution.run_options import Prepared
from nnef_jax.execution.threads import Once
from nnef_jax.storage import files

Where = Device | Sharding
Leaves = tuple[Any, Any]  # parameters and initial state by label


class Arrays:
    """Holds a model's parameters and initial state, by label.

    Stored data are put on a device when something there asks for them. The host's own are let go
    then, and a device that comes later is given those of the first.

    Arrays that `are_given` stay where they are, on whatever devices. They may be traced, and as
    leaves of a tree anything at all: they are checked when they are first computed with.

    The initial state is a constant to derivatives, unless a user gave it: `state_is_given`.
    """

    def __init__(
        self,
        definition: Definition,
        leaves: Leaves,
        *,
        are_given: bool = True,
        state_is_given: bool = False,
    ) -> None:
        self.definition = definition
        self.are_given = are_given
        self.state_is_given = state_is_given
        self._leaves = leaves  # stored ones of numpy, of jax once they are put
        self._placed = Once()

    @classmethod
    def of(
        cls,
        definition: Definition,
        data: Mapping[str, Any],
        *,
        are_given: bool = False,
        state_is_given: bool = False,
    ) -> Arrays:
        """Return a definition's arrays, taken from data by label."""
        parts = definition.labels, definition.states
        params, state = ({label: data[label] for label in labels} for labels in parts)
        leaves = params, state
        return cls(definition, leaves, are_given=are_given, state_is_given=state_is_given)

    def __reduce__(self) -> tuple[Any, ...]:
        params, state = leaves = _on_host(self._leaves)
        arrays = *params.values(), *state.values()
        are_stored = all(isinstance(x, np.ndarray) for x in arrays)
        flags = {"are_given": not are_stored, "state_is_given": self.state_is_given}
        return partial(Arrays, **flags), (self.definition, leaves)

    def __deepcopy__(self, memo: dict[int, Any]) -> Arrays:
        flags = {"are_given": self.are_given, "state_is_given": self.state_is_given}
        return Arrays(self.definition, _copied(self._leaves, memo), **flags)

    def leaves(self) -> Leaves:
        """Return the parameters and the initial state, stored ones on the default device."""
        return self._leaves if self.are_given else (self.parameters(), self.initial_state())

    def parameters(self, where: Where | None = None) -> dict[str, jax.Array]:
        """Return the parameters on the device, which is the default one if none is given."""
        return self._at(where, 0)

    def for_calls(self, where: Where | None = None) -> dict[str, jax.Array] | Prepared:
        """Return the parameters as a function of them takes them: prepared if that spares moves."""
        params, layout = self.parameters(where), self.definition.layout
        if self.are_traced or layout is None or not layout.divisions:
            return params
        with jax.ensure_compile_time_eval():  # they are kept
            divided = self._placed.get("divided", lambda: layout.divided(params))
        return Prepared(params, divided, self.definition)

    def initial_state(self, where: Where | None = None) -> dict[str, jax.Array]:
        """Return the stored values of the variables that the graph updates, on the device."""
        state = self._at(where, 1)
        is_constant = self.are_traced and not self.state_is_given
        return jax.lax.stop_gradient(state) if is_constant else state

    def select(self, labels: Iterable[str]) -> dict[str, Any]:
        """Return some parameters by label, as numpy arrays where nothing reads them."""
        parameters = {**self.definition.unread, **self.parameters()}
        return {label: parameters[label] for label in labels}

    def stored(self, label: str) -> Any:
        """Return the array of a variable where it is: numpy's until it is put on a device."""
        return self.by_label[label]

    @property
    def by_label(self) -> dict[str, Any]:
        """Return all arrays by label, as `stored` has each."""
        params, state = self._leaves
        return {**self.definition.unread, **params, **state}

    def under(self, definition: Definition) -> Arrays:
        """Return the same arrays for a definition of the same network, on the same devices."""
        other = Arrays.__new__(Arrays)
        other.__dict__ = self.__dict__ | {"definition": definition}
        return other

    def over(self, layout: Layout) -> Arrays:
        """Return the same arrays on a mesh: each part goes from the host to its devices alone."""
        params, state = self._leaves
        shapes = [value.type.shape for value in self.definition.network.graph.inputs]
        placed = layout.put_params(params), layout.put_state(state, shapes)
        return Arrays(self.definition.over(layout), placed, state_is_given=self.state_is_given)

    def place(self, inputs: Sequence[Any]) -> Place | None:
        """Return where jax computes with these inputs, None where that is for jax to find."""
        if not self.are_given:
            return place_of(inputs)
        if self.are_traced:
            return None
        if layout := self.definition.layout:
            return layout.place
        place = self._place
        if place is None or not place.is_committed:
            return place and place_of(inputs)
        others = {x.sharding for x in inputs if isinstance(x, jax.Array) and x.committed}
        return place if all(x.device_set == {place.where} for x in others) else None

    @cached_property
    def are_traced(self) -> bool:
        """Tell whether some are arrays of a function that jax traces."""
        return self.are_given and any(isinstance(x, Tracer) for x in self._all.values())

    @cached_property
    def _place(self) -> Place | None:
        """Return where given arrays are, None where they are traced or on several devices."""
        if self.are_traced:
            return None
        arrays = list(self._all.values())
        homes = {device for x in arrays if x.committed for device in x.sharding.device_set}
        return place_of(arrays) if len(homes) < 2 else None

    @cached_property
    def _all(self) -> dict[str, Any]:
        """Return given arrays by label. Raises InputError for what does not fit the graph."""
        definition, (params, state) = self.definition, self._leaves
        bound = bind_variables("params", params, definition.parameters, definition.labels)
        bound |= bind_variables("state", state, definition.variables, definition.states)
        return {label: _array(x) for label, x in bound.items()}

    def _at(self, where: Where | None, part: int) -> dict[str, Any]:
        if not self.are_given:
            where = default_device() if where is None else where

            def put() -> dict[str, jax.Array]:
                arrays = _put(self._leaves[part], where)
                self._leaves[part].update(arrays)
                return arrays

            return self._placed.get((where, part), put)
        labels = (self.definition.labels, self.definition.states)[part]
        arrays, place = {label: self._all[label] for label in labels}, self._place
        if where is None or place is None or place.is_committed:
            return arrays
        if all(x.devices() == {where} for x in arrays.values()):
            return arrays
        return self._placed.get((where, part), lambda: _put(arrays, where))


def _put(stored: Mapping[str, Any], where: Where) -> dict[str, jax.Array]:
    """Put arrays on a device without committing them to it, so that results follow the inputs.

    A CPU takes those at addresses that suit it as they are, mapped files too: 102 MB in 0.02 s
    instead of 0.6 s.
    """
    replicated = where if isinstance(where, NamedSharding) else None
    # They are kept, so that they must be arrays also within a function that is traced.
    with jax.ensure_compile_time_eval(), computing_at(Place(where, False).device):
        arrays = jax.device_put(list(map(np.asarray, stored.values())), replicated)
    for x in stored.values():
        if isinstance(x, np.ndarray):
            files.release(x)
    return dict(zip(stored, arrays, strict=True))


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
