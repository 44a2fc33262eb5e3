"""Gives a function the derivatives of another one, and refuses derivatives in reverse mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero


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


def with_derivatives_of(
    function: Callable[..., Any], same_function: Callable[..., Any]
) -> Callable[..., Any]:
    """Return `function` with the derivatives of `same_function`, in forward and reverse mode.

    Both functions take the same pytrees of arrays, and compute the same pytree of arrays. They must
    not read traced values from an enclosing function. jax must be able to differentiate
    `same_function`.
    """
    result = jax.custom_jvp(function)

    def derivative(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        leaves, tree = jax.tree.flatten(tuple(primals))
        directions = jax.tree.leaves(tuple(tangents), is_leaf=_is_zero)
        # jax computes no derivatives by the other arrays, such as integers and frozen weights.
        varying = [i for i, x in enumerate(directions) if not _is_zero(x)]

        def of_varying(*arrays: Array) -> Any:
            all_leaves = list(leaves)
            for i, x in zip(varying, arrays, strict=True):
                all_leaves[i] = x
            return same_function(*jax.tree.unflatten(tree, all_leaves))

        point = [leaves[i] for i in varying]
        return jax.jvp(of_varying, point, [directions[i] for i in varying])

    result.defjvp(derivative, symbolic_zeros=True)
    return result


def _is_zero(tangent: object) -> bool:
    """Tell whether a tangent is known to be 0, because the array does not vary."""
    return isinstance(tangent, SymbolicZero)


@cache
def _refusing_identity() -> Any:
    """Return a linear primitive that is the identity function, but cannot be transposed."""
    from lowering.primitives import identity

    return identity("forward_only", _transpose)


def _transpose(_: Array, x: Array, *, refuse: Callable[[], Exception]) -> NoReturn:
    """Raise the error that `refuse` returns, instead of transposing."""
    raise refuse()
