"""Matrix products on CPUs: of rows of items with matrices of parameters, and of 16 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

# Eigen, which XLA calls on CPUs, shares out the rows of the result: of few rows and many columns it
# makes better use if it computes the transposed product. GFLOP/s of rows x depth x columns, as
# written and transposed: 49x320x1280 90 and 130, 128x384x1536 100 and 150, 128x1536x384 117 and
# 114; 196x576x96 144 and 89, 197x384x384 117 and 95.
_FEW = 160

# A product of one row runs on one thread, one of a batch on several: an LSTM of 256, 128 steps,
# takes 2.5 ms by products with 256x1024 items and 2.0 ms by pairs of half the columns.
_PARTS = 2
_LARGE = 128 << 10  # items of a matrix that is worth it


def left_operand(x: Array, sums: Any) -> Array:
    """The left operand of a product with sums of a dtype, kept as it is: they run along its last
    axis.

    XLA decides early whether its library YNNPACK takes a product of bfloat16 with float32 sums, and
    widens the operands where it does not. A transposition of the left operand that XLA makes part
    of the product later on, it does where the other operand has several free axes, as under
    `jax.vmap`, is one that no library takes: such a call ends in JaxRuntimeError. Behind a barrier
    the operand keeps its layout. To widen it here would be safe too, but with AMX 128 rows of 384
    times 384x1536 take 0.26 ms, and 1.4 in float32.
    """
    narrow = x.dtype == jnp.bfloat16 and sums == jnp.float32
    return lax.optimization_barrier(x) if narrow else x


def left_operand_anywhere(x: Array, sums: Any) -> Array:
    """The same in what may be compiled for any platform: a barrier on CPUs alone."""
    if x.dtype != jnp.bfloat16:
        return x
    return lax.platform_dependent(x, cpu=lambda x: left_operand(x, sums), default=lambda x: x)


def is_turned(rows: int, columns: int) -> bool:
    """Whether the transposed product is the faster one."""
    return 1 < rows <= _FEW and columns >= 2 * rows


def product(x: Array, matrix: Array, axis: int, params: dict[str, Any], turned: bool) -> Array:
    """The sum over an axis of the input and the first of the matrix (K,N).

    The result has the other axes of the input and then the columns; or first the columns, turned.
    """
    sums = params["preferred_element_type"]
    if turned:
        left = left_operand(matrix.T, sums)
        return lax.dot_general(left, x, (((1,), (axis,)), ((), ())), **params)
    if sums is not None and sums != x.dtype:
        x, axis = left_operand(jnp.moveaxis(x, axis, -1), sums), x.ndim - 1
    depth, columns = matrix.shape
    if x.size == depth and matrix.size >= _LARGE and columns % _PARTS == 0:
        parts = jnp.swapaxes(matrix.reshape(depth, _PARTS, columns // _PARTS), 0, 1)
        row = jnp.broadcast_to(x.reshape(1, 1, depth), (_PARTS, 1, depth))
        result = lax.dot_general(row, parts, (((2,), (1,)), ((0,), (0,))), **params)
        return result.reshape(*x.shape[:axis], *x.shape[axis + 1 :], columns)
    return lax.dot_general(x, matrix, (((axis,), (0,)), ((), ())), **params)


def small_product(x: Array, y: Array, sums: Sequence[Sequence[int]]) -> Array:
    """The sum of products over axes of both, for a few thousand of them.

    Within a loop of small steps it is compiled as a part of that, where `lax.dot_general` calls a
    library: 40 layers of 16x16 items take 63 us for 8 rows in place of 163.
    """
    left = [axis for axis in range(x.ndim) if axis not in sums[0]]
    right = [axis for axis in range(y.ndim) if axis not in sums[1]]
    x = lax.expand_dims(x.transpose(*left, *sums[0]), range(x.ndim, x.ndim + len(right)))
    y = lax.expand_dims(y.transpose(*sums[1], *right), range(len(left)))
    return jnp.sum(x * y, axis=tuple(range(len(left), len(left) + len(sums[0]))))
