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
    """Singular values [batch, k], right vectors [batch, columns, k] and residuals [batch, k]."""

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
    A v = s u and A^T u = s v. The result fulfils the first equation. Its residual is the error of
    the second equation, |A^T u - s v|. If A has fewer rows than columns, the two equations change
    places. The distance from s to an exact singular value of A is at most the residual. If A has at
    most k * steps rows or columns, the values are exact up to rounding.

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
    # The vectors of the basis have min(rows, columns) entries. If there are fewer rows, the map and
    # its transpose change places.
    product, transpose = (adjoint, forward) if is_wide else (forward, adjoint)
    # images = product(basis) = image_vectors * values * coordinates
    basis, images = _krylov(
        product, transpose, key=key, batch=batch, size=min(sizes), width=k, steps=steps
    )
    all_image_vectors, all_values, coordinates = jnp.linalg.svd(images, full_matrices=False)
    image_vectors = all_image_vectors[..., :k]
    values = all_values[..., :k]
    # Each row of `coordinates` expresses a singular vector as a sum of multiples of basis vectors.
    first_coordinates = jnp.swapaxes(coordinates, 1, 2)[..., :k]
    basis_vectors = _product(basis, first_coordinates)
    errors = transpose(image_vectors) - basis_vectors * values[:, None]
    residuals = jnp.linalg.norm(errors, axis=1)
    right_vectors = image_vectors if is_wide else basis_vectors
    return SingularTriplets(values, right_vectors, residuals)


def eigenpairs(product: Map, key: Array, size: int, k: int, steps: int) -> Eigenpairs:
    """Return eigenvalues of a symmetric map A, with their eigenvectors and residuals.

    These are the k eigenvalues of largest magnitude. The residual of an eigenvalue s with the
    vector v is |A v - s v|. The distance from s to an exact eigenvalue of A is at most the residual
    (Parlett 1998, The Symmetric Eigenvalue Problem, 4.5).

    Args:
        product: the map A from [1, size, columns] to [1, size, columns].
        key: a key of `jax.random`, for the start.
        size: the length of vectors.
        k: the number of eigenvalues, at most `size`.
        steps: the number of blocks of k vectors in the Krylov space.
    """
    bases, images_of_bases = _krylov(
        product, transpose=None, key=key, batch=1, size=size, width=k, steps=steps
    )
    basis = bases[0]
    images = images_of_bases[0]
    projected = jnp.matmul(basis.T, images, precision=_HIGHEST)
    # The matrix is symmetric up to rounding errors, which this mean removes.
    symmetric = (projected + projected.T) / 2
    all_values, all_coordinates = jnp.linalg.eigh(symmetric)
    largest = jnp.argsort(-jnp.abs(all_values))[:k]
    values = all_values[largest]
    coordinates = all_coordinates[:, largest]
    vectors = jnp.matmul(basis, coordinates, precision=_HIGHEST)
    mapped_vectors = jnp.matmul(images, coordinates, precision=_HIGHEST)
    errors = mapped_vectors - vectors * values[None]
    return Eigenpairs(values, vectors, jnp.linalg.norm(errors, axis=0))


def _krylov(
    product: Map, transpose: Map | None, key: Array, batch: int, size: int, width: int, steps: int
) -> tuple[Array, Array]:
    """Return an orthonormal basis of a Krylov space, and the images of the basis by a map A.

    The space is spanned by `steps` blocks of `width` columns: X, M X, M^2 X and so on. The block X
    is random. M is A^T A, or A itself if `transpose` is None, which means that A is symmetric. Both
    resulting arrays are [batch, size, columns].
    """
    is_full_space = size <= width * steps
    if is_full_space:
        # The unit vectors are a basis of the space of all vectors.
        basis = jnp.broadcast_to(jnp.eye(size, dtype=jnp.float32), (batch, size, size))
        return basis, product(basis)
    random = jax.random.normal(key, (steps, batch, size, width), jnp.float32)
    random_blocks = random / jnp.linalg.norm(random, axis=2, keepdims=True)
    first_block = random_blocks[0]
    image_size = jax.eval_shape(product, first_block).shape[1]
    basis = jnp.zeros((batch, size, width * steps), jnp.float32)
    images = jnp.zeros((batch, image_size, width * steps), jnp.float32)

    def add_block(step: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        """Add a block to the basis and to the images. Return both, and the next block."""
        basis, images, block = state
        block = _orthonormal(basis, block, random_blocks[step])
        image = product(block)
        start = (0, 0, step * width)
        basis = jax.lax.dynamic_update_slice(basis, block, start)
        images = jax.lax.dynamic_update_slice(images, image, start)
        next_block = image if transpose is None else transpose(image)
        return basis, images, next_block

    initial_state = (basis, images, first_block)
    basis, images, _block = jax.lax.fori_loop(0, steps, add_block, initial_state)
    return basis, images


def _orthonormal(basis: Array, block: Array, spare: Array) -> Array:
    """Return orthonormal columns that extend a basis, so that it also spans a block.

    The returned columns are also orthogonal to the basis. The basis and the returned columns
    together span the columns of the block. All arrays are [batch, size, columns]. Columns of the
    basis may be 0. If a column of `block` depends linearly on the basis or on other columns, a
    random column of `spare` replaces it. The Krylov space can then not grow by this column, and the
    random column extends the space.
    """
    # After one round, cancellation can leave columns that are not orthogonal (Giraud et al. 2005),
    # and spare columns are not orthogonal at all. Rounds 2 and 3 make the columns of the previous
    # round orthogonal.
    for _round in range(3):
        largest_norm = jnp.max(jnp.linalg.norm(block, axis=1), axis=1)[:, None]
        coordinates = _product(jnp.swapaxes(basis, 1, 2), block)
        remainder = block - _product(basis, coordinates)
        orthonormal, triangle = jnp.linalg.qr(remainder)
        # Entry i of the diagonal is the norm of column i after its parts along earlier columns are
        # subtracted.
        independent_norms = jnp.abs(jnp.diagonal(triangle, axis1=1, axis2=2))
        # A column is dependent if this norm is no larger than a rounding error.
        is_dependent = independent_norms <= 4 * jnp.finfo(jnp.float32).eps * largest_norm
        block = jnp.where(is_dependent[:, None], spare, orthonormal)
    return block


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=_HIGHEST)
