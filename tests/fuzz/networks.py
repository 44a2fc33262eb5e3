"""Tries a network: loads it, summarises it, and traces it for abstract inputs."""

from __future__ import annotations

from contextlib import suppress

import jax

import nnef_jax
from nnef_jax.cli.description import describe
from nnef_jax.measure.summary import summarise
from nnef_jax.reading.read import read

OPEN = 2  # items along an axis that a document leaves open


def attempt(source: bytes, limits: nnef_jax.Limits | None = None) -> str:
    """Try a network without compiling it; return "model". Unsupported operations are described."""
    try:
        model = nnef_jax.load(source, limits=limits)
        str(model.summary())
        shapes = [[OPEN if n is None else n for n in x.shape] for x in model.inputs]
        inputs = map(jax.ShapeDtypeStruct, shapes, [x.dtype for x in model.inputs])
        jax.eval_shape(model.apply, model.params, *inputs)
    except nnef_jax.UnsupportedError:
        with suppress(nnef_jax.NnefError):
            describe(summarise(read(source, outline=True)))
        raise
    return "model"
