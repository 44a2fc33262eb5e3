"""Singular values and eigenvalues of linear maps, computed from products with vectors.

A block Krylov space is built with full reorthogonalisation, and the map is projected onto it (Musco
and Musco 2015, arXiv:1504.05477; Golub and Van Loan 2013, Matrix Computations, 10.3.6, for block
Lanczos). Blocks have k columns, so that the k values are computed with their multiplicities. Blocks
are arrays [batch, size, columns].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

_HIGHEST = jax.lax.Precision.HIGHEST
Map = Callable[[Array], Array]


class SingularTriplets(NamedTuple):
    """Singular values [batch, k], their right vectors [batch, columns, k], residuals [batch, k]."""

    values: Array
    right_vectors: Array
    residuals: Array


class Eigenpairs(NamedTuple):
    """Eigenvalues [k], their vectors [size, k], and residuals [k]."""

    values: Array
    vectors: Array
    residuals: Array


def singular_triplets(
    forward: Map, adjoint: Map, key: Array, batch: int, sizes: tuple[int, int], k: int, steps: int
) -> SingularTriplets:
    """Return the k largest singular values of each item, their right vectors, and residuals.

    For a singular value s with the left vector u and the right vector v, two equations should hold:
    A v = s u and A^T u = s v. The result fulfils the first equation, and its residual is |A^T u - s
    v|, the error of the second equation. If A has fewer rows than columns, the result fulfils the
    second equation, and its residual is |A v - s u|. A singular value of A is within this distance
    of s. If A has at most k * steps rows or columns, the values are exact up to rounding.

    Args:
        forward: the map A from [batch, columns, n] to [batch, rows, n].
        adjoint: the transpose of A.
        key: a key of `jax.random`, for the start.
        batch: the number of items.
        sizes: the numbers of rows and columns of A.
        k: the number of singular values, at most the smaller of `sizes`.
        steps: the number of blocks of k vectors in the Krylov space.
    """
    rows, columns = sizes
    is_wide = rows < columns
    # The basis consists of vectors of the smaller size.
    product, back = (adjoint, forward) if is_wide else (forward, adjoint)
    basis, images = _krylov(product, back, key, batch, min(sizes), k, steps)
    u, s, v = jnp.linalg.svd(images, full_matrices=False)
    u = u[..., :k]
    s = s[..., :k]
    ritz = _product(basis, jnp.swapaxes(v, 1, 2)[..., :k])
    residuals = jnp.linalg.norm(back(u) - ritz * s[:, None], axis=1)
    right_vectors = u if is_wide else ritz
    return SingularTriplets(s, right_vectors, residuals)


def eigenpairs(product: Map, key: Array, size: int, k: int, steps: int) -> Eigenpairs:
    """Return the k eigenvalues of largest magnitude of a symmetric map, vectors and residuals.

    The residual of a value is |A v - value v|, for the map A
    and the vector v. An eigenvalue of A is within the residual of each value (Parlett 1998, The
    Symmetric Eigenvalue Problem, 4.5).
    """
    bases, images_of_bases = _krylov(product, None, key, 1, size, k, steps)
    basis = bases[0]
    images = images_of_bases[0]
    projected = jnp.matmul(basis.T, images, precision=_HIGHEST)
    values, vectors = jnp.linalg.eigh((projected + projected.T) / 2)
    largest = jnp.argsort(-jnp.abs(values))[:k]
    values = values[largest]
    vectors = vectors[:, largest]
    ritz = jnp.matmul(basis, vectors, precision=_HIGHEST)
    difference = jnp.matmul(images, vectors, precision=_HIGHEST) - ritz * values[None]
    return Eigenpairs(values, ritz, jnp.linalg.norm(difference, axis=0))


def _krylov(
    product: Map, back: Map | None, key: Array, batch: int, size: int, width: int, steps: int
) -> tuple[Array, Array]:
    """Return an orthonormal basis of the Krylov space of a map, and the images of the basis.

    The map is x -> back(product(x)), or `product` if `back` is None. The images are `product` of
    the basis. Both arrays are [batch, size, columns].
    """
    if size <= width * steps:  # The Krylov space is the full space.
        basis = jnp.broadcast_to(jnp.eye(size, dtype=jnp.float32), (batch, size, size))
        return basis, product(basis)
    start = jax.random.normal(key, (steps, batch, size, width), jnp.float32)
    start = start / jnp.linalg.norm(start, axis=2, keepdims=True)
    shape = jax.eval_shape(product, start[0]).shape
    bases = jnp.zeros((batch, size, width * steps), jnp.float32)
    images = jnp.zeros((*shape[:2], width * steps), jnp.float32)

    def grow(index: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        bases, images, block = carry
        block = _orthonormal(bases, block, start[index])
        image = product(block)
        place = (0, 0, index * width)
        bases = jax.lax.dynamic_update_slice(bases, block, place)
        images = jax.lax.dynamic_update_slice(images, image, place)
        return bases, images, image if back is None else back(image)

    bases, images, _ = jax.lax.fori_loop(0, steps, grow, (bases, images, start[0]))
    return bases, images


def _orthonormal(basis: Array, block: Array, spare: Array) -> Array:
    """Return orthonormal columns that are orthogonal to a basis and span the block's columns.

    Arrays are [batch, size, columns]. A column of `block` that depends linearly on the basis or on
    other columns is replaced by a column of `spare`, which is random: the Krylov space has become
    invariant, and the random column extends it. Columns of the basis may be 0. The second of the
    three rounds corrects cancellation in the first round (Giraud et al. 2005), or orthogonalises
    spare columns.
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
