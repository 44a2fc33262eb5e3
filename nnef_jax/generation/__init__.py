"""Generates text by language models of any format.

What makes a decoder of a model? `decoder`
Which inputs and outputs have which role? `roles`
How does a model with growing caches run on caches of fixed size? `decoder_network`
How are prompts read and tokens generated? `decoder.Decoder`
Which program generates tokens? `token_loop`
Has a network the window that a user names? `windows`
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
from nnef_jax.execution.runnable import execution_of
from nnef_jax.generation.decoder import Decoder, Generated
from nnef_jax.generation.decoder_network import DecoderFrontend, DecoderStep
from nnef_jax.generation.roles import Cache, Roles, recognised
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

    The model must take token numbers, and the keys and values of earlier tokens as inputs whose
    length is open. It must return the keys and values with those of the new tokens added, as
    the exporters torch_to_nnef, and to ONNX and OpenVINO, write it. Positions and masks that
    the network computes from the length of its caches are computed from the number of positions
    in use.

    Args:
        model: the model, loaded without shapes for its lengths.
        places: the positions of a cache: the most tokens of a prompt and its continuation.
        window: the number of positions to which a token of the network attends, itself included,
            as `sliding_window` in configurations. The caches then have only `window` - 1
            positions, those of the last tokens. The network must have the positions as an input,
            and its own masks must hide earlier positions.
        roles: the roles of inputs and outputs. By default they are recognised; `print(decoder)`
            shows them.
        names: names for single roles: `tokens`, `logits`, `mask`, `positions`, `length`,
            `total_length`, `context`.

    Raises InputError if a role is not recognised, or if a network does not have the window, and
    TypeError if there are both `roles` and `names`. When a step is traced, UnsupportedError is
    raised if an operation cannot take a padded cache.

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
    network = execution.network
    roles = recognised(network.graph, names) if roles is None else roles
    if window is not None:
        require("window", window, int, "a number of positions")
    step = DecoderStep(execution.definition, roles, places, window or 0)
    if window is not None:
        arrays = execution.arrays
        require_window(step, None if arrays.are_types else arrays.parameters())
    frontend = DecoderFrontend(step)
    options = replace(network.options, input_shapes={}, values={}, extents={})
    graph = frontend.flatten(options)
    data: dict[str, Any] = {p.label: execution.arrays.stored(p.label) for p in graph.parameters}
    are_types = any(isinstance(x, jax.ShapeDtypeStruct) for x in data.values())
    for state in graph.states:
        shape = (1, *state.value.type.shape[1:])
        make = jax.ShapeDtypeStruct if are_types else np.zeros
        data[state.label] = make(shape, state.value.type.dtype)
    network = Network(frontend, options, graph, graph, data, {}, None, False)
    return Decoder(Model(execution.with_network(network)), roles, places, window or 0)
