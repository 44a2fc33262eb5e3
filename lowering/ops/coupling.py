"""Computes probabilities of classes from probabilities within pairs of classes (coupling)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.graph import TensorType
from lowering.kernels.precision import widened
from lowering.ops import require, rules

# The number of iterations is at most the larger one of this number and the number of classes.
_MOST_ITERATIONS = 100
# The iterations end if the residual is below this number divided by the number of classes. For the
# matrix Q of `_errors` and the probabilities p, the residual is the largest difference between an
# item of the vector Q p and the number p^T Q p.
_TOLERANCE = 0.005


def _type(shares: TensorType, count: int) -> TensorType:
    require.floating(shares=shares)
    require.layout(f"[n,{count * (count - 1) // 2}]", shares=shares)
    return TensorType((shares.shape[0], count), shares.dtype)


@rules.rule("pairwise_coupling", _type)
def pairwise_coupling(shares: Array, count: int) -> Array:
    """Return the probabilities (n, count) of classes from the `shares` (n, pairs) of pairs.

    The share of a pair (i, j), with i < j, is the probability of class i if the class is i or
    j. The pairs are (0, 1), (0, 2), ..., (1, 2), ... Source: Wu, Lin and Weng 2004, algorithm
    2. Iterations end at the tolerance that libsvm, scikit-learn and onnxruntime use.
    Derivatives are computed from the exact solution, not from the iterations.
    """
    x = widened(jnp.asarray(shares))
    i, j = np.triu_indices(count, 1)
    matrices = jnp.zeros((len(x), count, count), x.dtype)
    matrices = matrices.at[:, i, j].set(x)
    matrices = matrices.at[:, j, i].set(1 - x)
    probabilities = jax.vmap(_coupled)(matrices)
    return probabilities.astype(jnp.result_type(shares))


def _errors(shares: Array) -> Array:
    """Return a matrix Q for `shares` (count, count). The error of probabilities p is p^T Q p.

    p is a vector with the probability of each class. Q[i, i] is the sum of shares[j, i]^2 over j,
    and Q[i, j] is -shares[i, j] * shares[j, i] for i != j. The diagonal of `shares` is 0.
    """
    squared_sums = jnp.sum(shares**2, axis=0)
    return jnp.diag(squared_sums) - shares * shares.T


def _exact(shares: Array) -> Array:
    """Return the probabilities p that have the least error p^T Q p.

    The shapes are (count,) for p and (count, count) for `shares`. Q is the matrix
    `_errors(shares)`. At the least error all items of Q p are equal.
    """
    # Since the items of p add up to 1, (Q + 1) p equals Q p + 1, whose items are equal too. If all
    # these items are 1, the solution is p times a number, and its items add up to this number.
    weights = jnp.linalg.solve(_errors(shares) + 1, jnp.ones(len(shares), shares.dtype))
    return weights / jnp.sum(weights)


@jax.custom_jvp
def _coupled(shares: Array) -> Array:
    """Return the probabilities (count,) of classes for the shares (count, count) of pairs.

    An iteration improves one class after another. The derivative is that of `_exact`.
    """
    Q = _errors(shares)
    count = len(shares)

    def improve_class(t: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        """Change the probability of class t in `state`, and scale all probabilities to the sum 1.

        `state` has the probabilities p, the vector Q p and the number p^T Q p.
        """
        p, Qp, pQp = state
        step = (pQp - Qp[t]) / Q[t, t]  # makes item t of Q p equal to the old p^T Q p
        # With `step` added to p[t], p^T Q p grows by 2 * step * (Q p)[t] + step^2 * Q[t, t].
        total = 1 + step  # the sum of the probabilities after the change
        pQp = (pQp + step * (step * Q[t, t] + 2 * Qp[t])) / total**2
        p = p.at[t].add(step) / total
        Qp = (Qp + step * Q[t]) / total
        return p, Qp, pQp

    def continues(state: tuple[Array, Array]) -> Array:
        """Tell whether the residual is too large, and another iteration is allowed."""
        iterations, p = state
        Qp = Q @ p
        # At the least error all items of Q p equal p^T Q p. The residual is the largest difference.
        residual = jnp.max(jnp.abs(Qp - p @ Qp))
        return (iterations < max(_MOST_ITERATIONS, count)) & (residual >= _TOLERANCE / count)

    def improve(state: tuple[Array, Array]) -> tuple[Array, Array]:
        """Improve the probabilities of all classes once, and count the iteration."""
        iterations, p = state
        Qp = Q @ p
        improved, _, _ = lax.fori_loop(0, count, improve_class, (p, Qp, p @ Qp))
        return iterations + 1, improved

    uniform = jnp.full(count, 1 / count, shares.dtype)
    _, probabilities = lax.while_loop(continues, improve, (jnp.int32(0), uniform))
    return probabilities


@_coupled.defjvp
def _coupled_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """Return the probabilities, and the tangents of the exact solution."""
    _, exact_tangents = jax.jvp(_exact, primals, tangents)
    return _coupled(*primals), exact_tangents
