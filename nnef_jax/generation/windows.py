"""Checks the window of positions to which a token of a language model attends."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from nnef_jax.errors import InputError
from nnef_jax.generation.decoder_network import DecoderStep

_HINT = "leave window out, or give the one of the model's configuration"


def require_window(step: DecoderStep, params: Mapping[str, Array] | None) -> None:
    """Raise InputError if the network cannot run with caches of the step's window.

    The network must not attend to positions outside the window. This is tested by a run for one
    token on random caches, whose oldest position lies just outside the window. The logits must not
    depend on that position.

    `params` are the parameters by label. If `params` is None, the network is not tested.
    """
    window, roles = step.window, step.roles
    if window < 2:
        raise InputError(f"window must be at least 2, it is {window}")
    if not roles.positions or step.has_buffers:
        raise InputError(
            "caches of a window need a network with positions as an input, to which keys are "
            "appended: this one computes positions from the length of its caches",
            hint="export it with position_ids as an input, or leave window out",
        )
    if roles.context:
        raise InputError("caches of a window are for networks without an encoder", hint=_HINT)
    if params is None:
        return
    # A token attends to itself and to `window` - 1 positions of a cache. The caches of this test
    # have `window` positions, so the oldest one must have no effect.
    random = np.random.default_rng(0)
    caches: list[Array] = []
    changed: list[Array] = []  # the same caches with other values at the oldest position
    for cache, type in zip(roles.caches, step.cache_types, strict=True):
        shape = list(type.shape)
        shape[0], shape[cache.axis] = 1, window
        x = jnp.asarray(random.normal(size=shape), type.dtype)
        oldest = (slice(None),) * cache.axis + (0,)
        caches.append(x)
        changed.append(x.at[oldest].add(1))

    @jax.jit
    def logits(params: Mapping[str, Array], caches: list[Array]) -> Array:
        mask = jnp.ones((1, window + 1), bool)
        tokens = jnp.zeros((1, 1), step.tokens_dtype)
        length = jnp.asarray(window)
        last, *_ = step.cycle(params, caches, tokens, [], length, mask)
        return last

    if not np.array_equal(logits(params, caches), logits(params, changed)):
        message = f"a token of the network attends to more than {window} positions"
        raise InputError(message, hint=_HINT)
