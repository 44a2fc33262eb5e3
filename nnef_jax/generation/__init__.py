"""Generates text by language models of any format.

Which function turns a model into a decoder? `decoder`
Which inputs and outputs have which role? `roles`
How does a model with growing caches run on caches of fixed size? `decoder_network`
How are prompts read and tokens generated? `decoder.Decoder`
Which program generates tokens? `token_loop`
Does a network have the window that a user names? `windows`
How is the next token chosen? `token_sampling`
How does a beam search work? `beams`
How do texts become tokens, and tokens pieces of text? `tokenizing`
How do messages become a prompt, by a template from a stranger? `chat_template`
Which files beside a network are read? `companion_files`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from nnef_jax.errors import InputError
from nnef_jax.execution.execution import Execution
from nnef_jax.execution.runnable import execution_of
from nnef_jax.generation.decoder import Decoder, Generated
from nnef_jax.generation.decoder_network import DecoderFrontend, DecoderStep
from nnef_jax.generation.roles import Cache, Roles, recognised, require_roles
from nnef_jax.generation.token_sampling import Sampling
from nnef_jax.generation.windows import require_window
from nnef_jax.model import Model
from nnef_jax.options import require
from nnef_jax.reading.network import Network

__all__ = ["Cache", "Decoder", "Generated", "Roles", "Sampling", "decoder"]


def decoder(
    model: Model,
    places: int = 1024,
    *,
    roles: Roles | None = None,
    window: int | None = None,
    **names: str | Sequence[str],
) -> Decoder:
    """Return a decoder of a language model, which generates text with caches of fixed size.

    The model must take token numbers, and the keys and values of earlier tokens as inputs of open
    length. It must return the keys and values of all tokens, the new ones included. torch_to_nnef
    writes such models, and so do the exporters to ONNX and OpenVINO. If the network computes
    positions and masks from the length of its caches, that length is the number of positions in
    use, without the empty ones.

    Args:
        model: the model, loaded without shapes for its lengths.
        places: the number of positions of a cache. A prompt and its continuation together have at
            most this many tokens.
        window: the number of positions to which a token attends, its own included. Configurations
            call it `sliding_window`. The caches then hold only the last `window` - 1 tokens. The
            network must have an input of positions, and its own masks must hide the tokens outside
            the window.
        roles: the roles of inputs and outputs. By default they are recognised; `print(decoder)`
            shows them.
        names: names for single roles: `tokens`, `logits`, `mask`, `positions`, `length`,
            `total_length`, `context`.

    Raises InputError if a role is not recognised, or if the network attends to tokens outside the
    window. Raises TypeError if there are both `roles` and `names`. The first call of a step raises
    UnsupportedError if an operation cannot take a cache with empty positions.

    >>> decoder = nnef_jax.decoder(nnef_jax.load("net.nnef.tgz"), places=512)
    >>> decoder.generate([1, 15043], steps=20).tokens
    """
    require("model", model, Model, "a nnef_jax.Model")
    require("places", places, int, "a number of positions")
    if places < 2:
        raise InputError(f"places must be at least 2, they are {places}")
    if roles is not None and names:
        raise TypeError(f"give either roles or names of single roles, not both: {[*names]}")
    execution = execution_of(model)
    graph = execution.network.graph
    if roles is None:
        roles = recognised(graph, names)
    require("roles", roles, Roles, "a nnef_jax.generation.Roles")
    require_roles(roles, graph)
    if window is not None:
        require("window", window, int, "a number of positions")
    step = DecoderStep(execution.definition, roles, places, window or 0)
    if window is not None:
        arrays = execution.arrays
        require_window(step, None if arrays.are_types else arrays.parameters())
    network = _network_of(step, execution)
    return Decoder(Model(execution.with_network(network)), roles, places, window or 0)


def _network_of(step: DecoderStep, execution: Execution) -> Network:
    """Return the network of a step, with the parameters of `execution` and empty caches."""
    frontend = DecoderFrontend(step)
    options = replace(execution.network.options, input_shapes={}, values={}, extents={})
    graph = frontend.flatten(options)
    data: dict[str, Any] = {p.label: execution.arrays.stored(p.label) for p in graph.parameters}
    has_types_only = any(isinstance(x, jax.ShapeDtypeStruct) for x in data.values())
    make = jax.ShapeDtypeStruct if has_types_only else np.zeros
    for state in graph.states:
        shape = (1, *state.value.type.shape[1:])  # the initial state has one row
        data[state.label] = make(shape, state.value.type.dtype)
    return Network(
        frontend, options, graph, unpaired=graph, data=data, pairs={}, declared=None,
        is_guessed=False,
    )  # fmt: skip
