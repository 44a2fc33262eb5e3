"""Singular and eigenvalues of linear maps that are known by products with vectors alone.

A block Krylov space is built with full reorthogonalisation, and the map is projected onto it
(Musco and Musco 2015, arXiv:1504.05477; Golub and Van Loan 2013, Matrix Computations, 10.3.6, for
blocks in Lanczos's method). A block as wide as the number of values that are wanted finds them with
their multiplicities. Matrices are batches of columns: [batch, size, columns].
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

_HIGHEST = jax.lax.Precision.HIGHEST
Map = Callable[[Array], Array]


def singular_triplets(
    forward: Map, adjoint: Map, key: Array, batch: int, sizes: tuple[int, int], k: int, steps: int
) -> tuple[Array, Array, Array]:
    """Return the k largest singular values, right vectors, and residuals, of each item of a batch.

    With A v = s u for the vectors found, or A^T u = s v where there are fewer rows than columns,
    the residual is the norm of the other one: |A^T u - s v|, or |A v - s u|. Some singular value of
    A is as near to s as that. Of a map whose smaller size is k * steps or less all are found.

    Args:
        forward: A, from [batch, columns, n] vectors to [batch, rows, n].
        adjoint: its transpose.
        key: of the random start.
        sizes: rows and columns.
        k: how many; at most the smaller size.
        steps: blocks of k vectors in the Krylov space.
    """
    rows, columns = sizes
    is_wide = rows < columns  # the basis is on the smaller side
    near, far = (adjoint, forward) if is_wide else (forward, adjoint)
    basis, images = _krylov(near, far, key, batch, min(sizes), k, steps)
    u, s, v = jnp.linalg.svd(images, full_matrices=False)
    u, s = u[..., :k], s[..., :k]
    ritz = _product(basis, jnp.swapaxes(v, 1, 2)[..., :k])
    residuals = jnp.linalg.norm(far(u) - ritz * s[:, None], axis=1)
    return s, u if is_wide else ritz, residuals


def eigenpairs(
    product: Map, key: Array, size: int, k: int, steps: int
) -> tuple[Array, Array, Array]:
    """Return the k eigenvalues of largest magnitude of a symmetric map, vectors and residuals.

    They are [k], [size, k] and [k]. Some eigenvalue is as near to each of them as its residual,
    |A v - value v| (Parlett 1998, The Symmetric Eigenvalue Problem, 4.5).
    """
    basis, images = _krylov(product, None, key, 1, size, k, steps)
    basis, images = basis[0], images[0]
    projected = jnp.matmul(basis.T, images, precision=_HIGHEST)
    values, vectors = jnp.linalg.eigh((projected + projected.T) / 2)
    order = jnp.argsort(-jnp.abs(values))[:k]
    values, vectors = values[order], vectors[:, order]
    found = jnp.matmul(basis, vectors, precision=_HIGHEST)
    off = jnp.matmul(images, vectors, precision=_HIGHEST) - found * values[None]
    return values, found, jnp.linalg.norm(off, axis=0)


def _krylov(
    product: Map, back: Map | None, key: Array, batch: int, size: int, width: int, steps: int
) -> tuple[Array, Array]:
    """Return an orthonormal basis of the Krylov space of `back(product(x))`, and its products."""
    if size <= width * steps:  # the whole space
        basis = jnp.broadcast_to(jnp.eye(size, dtype=jnp.float32), (batch, size, size))
        return basis, product(basis)
    start = jax.random.normal(key, (steps, batch, size, width), jnp.float32)
    start = start / jnp.linalg.norm(start, axis=2, keepdims=True)
    shape = jax.eval_shape(product, start[0]).shape
    bases = jnp.zeros((batch, size, width * steps), jnp.float32)
    images = jnp.zeros((*shape[:2], width * steps), jnp.float32)

    def grow(index: Array, known: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        bases, images, block = known
        block = _orthonormal(bases, block, start[index])
        image = product(block)
        place = (0, 0, index * width)
        bases = jax.lax.dynamic_update_slice(bases, block, place)
        images = jax.lax.dynamic_update_slice(images, image, place)
        return bases, images, image if back is None else back(image)

    bases, images, _ = jax.lax.fori_loop(0, steps, grow, (bases, images, start[0]))
    return bases, images


def _orthonormal(basis: Array, block: Array, spare: Array) -> Array:
    """Return orthonormal columns that are orthogonal to a basis, and span the block's if they can.

    Where a column depends on others it becomes a spare one: the space has become invariant, and
    what is outside of it is not known yet. Columns of the basis may be 0. Three rounds: the second
    makes up for cancellation in the first (Giraud et al. 2005), or orthogonalises what is spare.
    """
    for _ in range(3):
        scale = jnp.max(jnp.linalg.norm(block, axis=1), axis=1)[:, None]
        block = block - _product(basis, _product(jnp.swapaxes(basis, 1, 2), block))
        q, r = jnp.linalg.qr(block)
        size = jnp.abs(jnp.diagonal(r, axis1=1, axis2=2))
        is_lost = size <= 4 * jnp.finfo(jnp.float32).eps * scale
        block = jnp.where(is_lost[:, None], spare, q)
    return block


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=_HIGHEST)
