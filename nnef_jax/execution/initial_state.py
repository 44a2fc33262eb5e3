"""Computes the state before the first cycle of a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from lowering.graph import Graph
from nnef_jax.errors import InputError
from nnef_jax.execution.definition import Inputs
from nnef_jax.execution.execution import Execution


def first_state(execution: Execution, inputs: Callable[[], Inputs]) -> dict[str, jax.Array]:
    """Return a dict from labels to the initial values of the states.

    The function `inputs` returns the inputs of the first cycle, as arrays or types. The function
    is called only if an initial value is computed from inputs. Raises InputError if such an
    input is a type, which has no values.
    """
    network = execution.network
    stored: dict[str, Any] = dict(execution.arrays.initial_state())
    for label, x in stored.items():
        if isinstance(x, jax.Array):
            # The user may donate the state to a function, which then overwrites its memory.
            stored[label] = jnp.array(x, copy=True)
    if not network.computed_state_labels:
        return stored
    input_arrays = inputs()
    graph = network.specialise([x.shape for x in input_arrays])
    needed_inputs = _needed_inputs(graph, input_arrays)
    params = execution.arrays.parameters()
    computed = execution.executables.computed_initial_states(params, stored, graph, needed_inputs)
    states = {**stored, **computed}
    return {state.label: states[state.label] for state in graph.states}


def _needed_inputs(graph: Graph, inputs: Inputs) -> dict[str, Any]:
    """Return the inputs from which initial values are computed, as a dict by name.

    Raises InputError if such an input is a type, which has no values.
    """
    initial_values = [state.initial for state in graph.states if state.initial is not None]
    needed = graph.dependencies(initial_values)
    arrays: dict[str, Any] = {}
    for value, x in zip(graph.inputs, inputs, strict=True):
        if value not in needed:
            continue
        if isinstance(x, jax.ShapeDtypeStruct):
            message = f"the initial state is computed from input '{value.name}'"
            hint = "give the inputs of the first cycle: model.init_state(x)"
            raise InputError(message, hint=hint)
        arrays[value.name] = x
    return arrays
