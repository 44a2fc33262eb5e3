"""Computes the state before the first cycle of a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nnef_jax.errors import InputError
from nnef_jax.execution.definition import Inputs
from nnef_jax.execution.execution import Execution


def first_state(execution: Execution, inputs: Callable[[], Inputs]) -> dict[str, jax.Array]:
    """Return the state before the first cycle, by label.

    The function `inputs` returns the inputs of the first cycle, as arrays or types. It is
    called only if an initial value is computed from inputs. Raises InputError if it returns
    a type for an input whose values are needed.
    """
    stored = dict(execution.arrays.initial_state())
    network = execution.network
    # The state is copied because a step overwrites its memory.
    if execution.definition.options.donate_state:
        stored = {label: jnp.array(x, copy=True) for label, x in stored.items()}
    if not network.computed_state_labels:
        return stored
    input_arrays = inputs()
    graph = network.specialise([x.shape for x in input_arrays])
    initial_values = [state.initial for state in graph.states if state.initial is not None]
    needed = graph.dependencies(initial_values)
    needed_inputs: dict[str, Any] = {}
    for value, x in zip(graph.inputs, input_arrays, strict=True):
        if value in needed:
            needed_inputs[value.name] = x
    for name, x in needed_inputs.items():
        if isinstance(x, jax.ShapeDtypeStruct):
            message = f"the initial state is computed from input '{name}'"
            hint = "give the inputs of the first cycle: model.init_state(x)"
            raise InputError(message, hint=hint)
    params = execution.arrays.parameters()
    computed = execution.executables.computed_initial_states(params, stored, graph, needed_inputs)
    states = {**stored, **computed}
    return {state.label: states[state.label] for state in graph.states}
