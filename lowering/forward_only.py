"""Arrays whose derivatives are in forward mode alone: in reverse mode an error says why."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax import Array


def forward_only(x: Array, refuse: Callable[[], Exception]) -> Array:
    """Return an array; to differentiate it in reverse mode raises the error that `refuse` returns.

    jax itself refuses loops of an unknown length, but does not know what they are in a document.
    """
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x

    @jax.custom_jvp
    def same(x: Array) -> Array:
        return x

    def derivative(primals: Any, tangents: Any) -> tuple[Array, Array]:
        (x,), (tangent,) = primals, tangents
        with suppress(ImportError, AttributeError):  # a later jax may lack what is needed
            tangent = _tangent().bind(tangent, refuse=refuse)
        return x, tangent

    same.defjvp(derivative)
    return same(x)


@cache
def _tangent() -> Any:
    """Return the primitive of tangents, which is linear and has no transposition."""
    from lowering.jaxprs import identity

    return identity("forward_only", _transpose)


def _transpose(_: Any, x: Any, *, refuse: Callable[[], Exception]) -> NoReturn:
    raise refuse()
