"""Inputs of a network that take its own outputs, call after call, made its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from lowering.extents import is_known, show
from lowering.graph import Graph, StateVariable
from lowering.location import Source
from nnef_jax.errors import InputError, NnefError, raise_all
from nnef_jax.formats.base import Document, Frontend, Options, Shapes
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.network import Network


class RecurrentFrontend:
    """A document with the outputs that become inputs of the next call: `pairs` of input, output.

    Such an input is a state variable of the graph, labelled by its name, and neither it nor its
    output is left among the graph's own.
    """

    def __init__(self, frontend: Frontend, pairs: Mapping[str, str]) -> None:
        self._frontend = frontend
        self._pairs = pairs
        inputs = [identifier.name for identifier in self.document.graph.parameters]
        outputs = [identifier.name for identifier in self.document.graph.results]
        errors: list[NnefError] = []
        for what, known, names in (
            ("input", inputs, list(pairs)),
            ("output", outputs, list(pairs.values())),
        ):
            for name in names:
                if name not in known:
                    message = f"state names '{name}', the graph's {what}s are {', '.join(known)}"
                    errors.append(InputError(message))
        raise_all(errors)

    @property
    def document(self) -> Document:
        """The syntax tree."""
        return self._frontend.document

    @property
    def dialect(self) -> str:
        """The name of the dialect."""
        return self._frontend.dialect

    def flatten(self, options: Options) -> Graph:
        """The flat graph with the pairs as its state."""
        graph = self._frontend.flatten(options)
        inputs = {value.name: value for value in graph.inputs}
        outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
        kept = {name: value for name, value in outputs.items() if name not in self._pairs.values()}
        states: list[StateVariable] = []
        for input, output in self._pairs.items():
            before, after = inputs[input].type, outputs[output].type
            if before.dtype != after.dtype or len(before.shape) != len(after.shape):
                raise InputError(
                    f"output '{output}' is {after}, it cannot be the next '{input}': {before}"
                )
            states.append(StateVariable(input, inputs[input], outputs[output]))
        return replace(
            graph,
            inputs=tuple(value for name, value in inputs.items() if name not in self._pairs),
            outputs=tuple(kept.values()),
            output_names=tuple(kept),
            states=(*graph.states, *states),
        )

    def declared_shapes(self, options: Options) -> Shapes:
        """The shapes of the inputs as the document has them."""
        return self._frontend.declared_shapes(options)

    def quantizers(self, source: Source, options: Options) -> dict[str, Quantizer]:
        """The entries of a graph.quant."""
        return self._frontend.quantizers(source, options)


def start_from_zeros(network: Network, names: Mapping[str, str]) -> None:
    """Give the states that were inputs the value that they start with."""
    for state in network.graph.states:
        if state.label in names:
            type = state.value.type
            if not is_known(type.shape):
                raise InputError(
                    f"the shape of state '{state.label}' is not known, it is {show(type.shape)}",
                    span=network.span_of(state.label),
                    hint="give it by load(..., input_shapes=...)",
                )
            network.data[state.label] = np.zeros(type.shape, type.dtype)
    network.unstored = frozenset(names)
