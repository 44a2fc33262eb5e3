"""Matrix products (spec 4.6, 4.8.2), einsum, inverse and determinant.

All operands have one dtype. Half precision is summed in float32 and rounded once. Integers wrap
around.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, differ, is_zero, padded, show, volume
from lowering.graph import TensorType, is_complex, is_float
from lowering.kernels import contraction
from lowering.kernels.broadcast import align, broadcast_shapes, expand
from lowering.kernels.precision import accumulator as sum_dtype_of
from lowering.kernels.precision import left_operand_anywhere, precision_of, widened
from lowering.ops import require, rules
from lowering.tracing import Context


def matrix_shape(shape: Shape, transpose: bool) -> Shape:
    """Return the shape (..., rows, columns) of an operand that holds matrices in its last two axes.

    A vector (n,) is a column (n, 1). If `transpose` is true, rows and columns are exchanged.
    """
    *batch, rows, columns = padded(shape, 2)
    if transpose:
        return (*batch, columns, rows)
    return (*batch, rows, columns)


def product_shape(names: tuple[str, str], left: Shape, right: Shape, layout: str) -> Shape:
    """Return the shape of a product of matrices with the shapes `left` and `right`.

    Both shapes end in rows and columns. Raises InvalidShape if the shapes do not agree. `names`
    are the names of the operands in the error. If the left operand's columns and the right
    operand's rows differ, the error has the hint `layout`.
    """
    left_name, right_name = names
    if len(left) != len(right):
        raise InvalidShape(
            f"'{left_name}' and '{right_name}' must have one rank, their shapes (after "
            f"transposition) are {show(left)} and {show(right)}",
            hint="`unsqueeze` the one of lower rank",
        )
    *left_batch, rows, left_columns = left
    *right_batch, right_rows, columns = right
    if differ(left_columns, right_rows):
        raise InvalidShape(
            f"the columns of '{left_name}' must be as many as the rows of '{right_name}', their "
            f"shapes (after transposition) are {show(left)} and {show(right)}",
            hint=layout,
        )
    batch = broadcast_shapes(tuple(left_batch), tuple(right_batch))
    return (*batch, rows, columns)


def _matmul_type(A: TensorType, B: TensorType, transposeA: bool, transposeB: bool) -> TensorType:
    """Check the arguments of `matmul`, and return the type of its result."""
    require.same_dtype(require.number, A=A, B=B)
    shape = product_shape(
        ("A", "B"),
        matrix_shape(A.shape, transposeA),
        matrix_shape(B.shape, transposeB),
        "'transposeA' or 'transposeB' is for an operand that is stored the other way round",
    )
    return TensorType(shape, A.dtype)


def matmul_work(
    result: TensorType, A: TensorType, B: TensorType, transposeA: bool, transposeB: bool
) -> int:
    """Return the number of multiply-adds of a matrix product.

    The summed extent is taken from the operand in which it is known.
    """
    left_columns = matrix_shape(A.shape, transposeA)[-1]
    right_rows = matrix_shape(B.shape, transposeB)[-2]
    # An extent of 1 broadcasts. A comparison with UNKNOWN is false, so that `max` returns its first
    # argument.
    summed = right_rows if left_columns is UNKNOWN else max(left_columns, right_rows)
    return volume(result.shape) * summed


@rules.rule("matmul", _matmul_type, work=matmul_work)
def matmul(ctx: Context, A: Array, B: Array, transposeA: bool, transposeB: bool) -> Array:
    """Multiply the matrices in the last two axes of A and B. The other axes broadcast.

    A vector is a column. `transposeA` and `transposeB` tell whether the matrices of A and of B
    are transposed first.
    """
    product = _product(ctx, A, B, transposeA=transposeA, transposeB=transposeB)
    return product.astype(jnp.result_type(A, B))


def _product(ctx: Context, A: Array, B: Array, *, transposeA: bool, transposeB: bool) -> Array:
    """Multiply matrices as `matmul` does, and return the sums in a dtype of at least 32 bits."""
    left = jnp.asarray(A)
    right = jnp.asarray(B)
    # Vectors become columns.
    left = expand(left, max(left.ndim, 2))
    right = expand(right, max(right.ndim, 2))
    if transposeA:
        left = jnp.swapaxes(left, -1, -2)
    if transposeB:
        right = jnp.swapaxes(right, -1, -2)
    sum_dtype = sum_dtype_of(jnp.result_type(A, B))
    left = left_operand_anywhere(left, sum_dtype)
    precision = precision_of(sum_dtype, ctx.precision)
    return jnp.matmul(left, right, precision=precision, preferred_element_type=sum_dtype)


def _linear_type(input: TensorType, filter: TensorType, bias: TensorType) -> TensorType:
    """Check the arguments of `linear`, and return the type of its result."""
    require.same_dtype(require.number, input=input, filter=filter, bias=bias)
    shape = product_shape(
        ("input", "filter"),
        matrix_shape(input.shape, transpose=False),
        matrix_shape(filter.shape, transpose=True),
        "'filter' has the shape [output channels, input channels]",
    )
    output = TensorType(shape, input.dtype)
    require.fits("the product of 'input' and 'filter'", output, bias=bias)
    return output


def linear_work(result: TensorType, input: TensorType, filter: TensorType) -> int:
    """Return the number of multiply-adds of the product of the input and the transposed filter."""
    return matmul_work(result, input, filter, transposeA=False, transposeB=True)


@rules.rule("linear", _linear_type, work=linear_work)
def linear(ctx: Context, input: Array, filter: Array, bias: Array) -> Array:
    """Return input filter^T + bias. `filter` has the shape (output channels, input channels)."""
    product = _product(ctx, input, filter, transposeA=False, transposeB=True)
    if not is_zero(bias):
        product, bias = align(product, bias)
        product = product + jnp.asarray(bias).astype(product.dtype)
    return product.astype(jnp.result_type(input, filter))


def _einsum_type(inputs: list[TensorType], expr: str, accumulator: str, dtype: str) -> TensorType:
    """Check the arguments of `einsum`, and return the type of its result."""
    shapes = [input.shape for input in inputs]
    terms, result = contraction.parse(expr, list(map(len, shapes)))
    shape = contraction.contracted_shape(shapes, terms, result)
    operands = {f"inputs[{number}]": input for number, input in enumerate(inputs)}
    require.same_dtype(require.number, **operands)
    if accumulator == "bool" or _generality(accumulator) < _generality(inputs[0].dtype):
        raise InvalidOperation(
            f"the accumulator {accumulator} cannot hold the products of {inputs[0].dtype}",
            hint="`cast` the inputs first",
        )
    return TensorType(shape, dtype)


def _generality(dtype: str) -> int:
    """Return 0 for integers, 1 for real numbers and 2 for complex numbers."""
    if is_complex(dtype):
        return 2
    return 1 if is_float(dtype) else 0


def _einsum_work(inputs: list[TensorType], expr: str) -> int:
    shapes = [input.shape for input in inputs]
    terms, result = contraction.parse(expr, list(map(len, shapes)))
    return contraction.multiply_adds(shapes, terms, result)


@rules.rule("einsum", _einsum_type, work=_einsum_work)
def einsum(ctx: Context, inputs: Sequence[Array], expr: str, accumulator: str, dtype: str) -> Array:
    """Multiply the inputs, and sum over the letters of `expr` that are not in the result's term.

    For example, `expr` is "ij,jk->ik" for a matrix product, which is summed over j. Axes of
    extent 1 broadcast. Sums are computed in the wider one of the dtype `accumulator` and the
    inputs' dtype, in at least 32 bits. The sums are cast to `dtype`.
    """
    terms, result = contraction.parse(expr, [len(input.shape) for input in inputs])
    input_dtype = np.dtype(inputs[0].dtype)

    def width(dtype: np.dtype[np.generic]) -> tuple[int, int]:
        """Return a key that orders dtypes: by integer, real or complex, and then by size."""
        return _generality(str(dtype)), dtype.itemsize

    sum_dtype = sum_dtype_of(max(np.dtype(accumulator), input_dtype, key=width))
    if _generality(str(input_dtype)) != _generality(accumulator):
        # For example, products of integers are to be summed as real numbers.
        inputs = [jnp.asarray(input).astype(sum_dtype) for input in inputs]
    total = contraction.contract(inputs, terms, result, sum_dtype, ctx.precision)
    return total.astype(dtype)


def _square_type(input: TensorType) -> TensorType:
    require.floating(input=input)
    if len(input.shape) < 2 or differ(input.shape[-2], input.shape[-1]):
        raise InvalidShape(f"'input' {show(input.shape)} must hold square matrices")
    return input


def _inverse_work(input: TensorType) -> int:
    return volume(input.shape) * input.shape[-1]


@rules.rule("inverse", _square_type, work=_inverse_work)
def inverse(input: Array) -> Array:
    """Return the inverse of each matrix in the last two axes, computed in float32 or a wider dtype.

    A singular matrix gives infinities or NaN.
    """
    x = jnp.asarray(input)
    return jnp.linalg.inv(widened(x)).astype(x.dtype)


def _determinant_type(input: TensorType) -> TensorType:
    return TensorType(_square_type(input).shape[:-2], input.dtype)


@rules.rule("determinant", _determinant_type, work=_inverse_work)
def determinant(input: Array) -> Array:
    """Return the determinant of each matrix in the last two axes.

    Determinants are computed in float32 or a wider dtype, and cast to the input's dtype.
    """
    x = jnp.asarray(input)
    return jnp.linalg.det(widened(x)).astype(x.dtype)
