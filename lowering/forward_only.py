"""Makes arrays that raise an error when they are differentiated in reverse mode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax import Array


def forward_only(x: Array, refuse: Callable[[], Exception]) -> Array:
    """Return x as an array that raises an error if it is differentiated in reverse mode.

    `refuse` returns the error to raise. jax itself refuses loops of unknown length, but its
    error does not name the operation of the document.
    """
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x  # integers have no derivatives

    @jax.custom_jvp
    def return_array(x: Array) -> Array:
        return x

    def derivative(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (primal,) = primals
        (tangent,) = tangents
        # `_refusing_identity` uses names of jax that a later version may lack. In this case the
        # tangent stays as it is.
        with suppress(ImportError, AttributeError):
            tangent = _refusing_identity().bind(tangent, refuse=refuse)
        return primal, tangent

    return_array.defjvp(derivative)
    return return_array(x)


@cache
def _refusing_identity() -> Any:
    """Return a linear primitive that is the identity function, but cannot be transposed."""
    from lowering.primitives import identity

    return identity("forward_only", _transpose)


def _transpose(_: Array, x: Array, *, refuse: Callable[[], Exception]) -> NoReturn:
    """Raise the error that `refuse` returns, instead of transposing."""
    raise refuse()
