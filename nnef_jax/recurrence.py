"""Inputs of a network that take its own outputs, call after call, made its state.

`pairs` are such inputs with the outputs. An input is a state variable of the graph, labelled by its
name, and neither it nor its output is left among the graph's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.extents import is_known, show
from lowering.graph import Graph, StateVariable
from nnef_jax.errors import InputError, NnefError, raise_all
from nnef_jax.formats.base import Frontend


def require_pairs(frontend: Frontend, pairs: Mapping[str, str]) -> None:
    """Raise InputError for names that the document does not have."""
    errors: list[NnefError] = []
    for what, known, names in (
        ("input", frontend.inputs, list(pairs)),
        ("output", frontend.outputs, list(pairs.values())),
    ):
        for name in names:
            if name not in known:
                message = f"state names '{name}', the graph's {what}s are {', '.join(known)}"
                errors.append(InputError(message))
    raise_all(errors)


def with_pairs(graph: Graph, pairs: Mapping[str, str]) -> Graph:
    """The graph with the pairs as its state; InputError where they do not go together."""
    if not pairs:
        return graph
    inputs = {value.name: value for value in graph.inputs}
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    kept = {name: value for name, value in outputs.items() if name not in pairs.values()}
    states: list[StateVariable] = []
    for input, output in pairs.items():
        before, after = inputs[input].type, outputs[output].type
        if before.dtype != after.dtype or len(before.shape) != len(after.shape):
            raise InputError(
                f"output '{output}' is {after}, it cannot be the next '{input}': {before}"
            )
        states.append(StateVariable(input, inputs[input], outputs[output]))
    return replace(
        graph,
        inputs=tuple(value for name, value in inputs.items() if name not in pairs),
        outputs=tuple(kept.values()),
        output_names=tuple(kept),
        states=(*graph.states, *states),
    )


def zeros(graph: Graph, pairs: Mapping[str, str], frontend: Frontend) -> dict[str, NDArray[Any]]:
    """What the states that were inputs start with."""
    found: dict[str, NDArray[Any]] = {}
    for state in graph.states:
        if state.label in pairs:
            type = state.value.type
            if not is_known(type.shape):
                raise InputError(
                    f"the shape of state '{state.label}' is not known, it is {show(type.shape)}",
                    span=frontend.spans().get(state.label),
                    hint="give it by load(..., input_shapes=...)",
                )
            found[state.label] = np.zeros(type.shape, type.dtype)
    return found
