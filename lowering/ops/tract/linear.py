"""Products of matrices and of more (registries tract_nnef and tract_core).

Operands hold numbers of one type, integers too. Sums of float16 and bfloat16 are taken in float32
and rounded once; integers keep their type, and what does not fit in it wraps around.

`matmul` and `linear` broadcast all leading axes; the operand of fewer axes, which some writers
leave so where it is a variable, is given leading 1s. The bias of `linear` is matched from the left:
for three axes it has the shape [1,1,C].
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Shape, show
from lowering.graph import TensorType
from lowering.kernels import contraction
from lowering.kernels.accumulation import accumulator
from lowering.ops import linear as standard
from lowering.ops import rules
from lowering.ops.tract.typing import is_complex, normal_axes, require_number
from lowering.ops.typing import is_float, require_fits, require_length, require_same_dtype
from lowering.trace import Context


def _aligned(left: Shape, right: Shape) -> tuple[Shape, Shape]:
    rank = max(len(left), len(right))
    return (1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right


def _matmul_type(A: TensorType, B: TensorType, transposeA: bool, transposeB: bool) -> TensorType:
    require_number(A=A, B=B)
    require_same_dtype(A=A, B=B)
    shape = standard.product_shape(
        ("A", "B"),
        *_aligned(
            standard.matrix_shape(A.shape, transposeA), standard.matrix_shape(B.shape, transposeB)
        ),
        "'transposeA' or 'transposeB' is for an operand that is stored the other way round",
    )
    return TensorType(shape, A.dtype)


rules.rule("tract.matmul", _matmul_type, work=standard.matmul_work)(standard.matmul)


def _linear_type(input: TensorType, filter: TensorType, bias: TensorType) -> TensorType:
    require_number(input=input, filter=filter, bias=bias)
    require_same_dtype(input=input, filter=filter, bias=bias)
    shape = standard.product_shape(
        ("input", "filter"),
        *_aligned(
            standard.matrix_shape(input.shape, False), standard.matrix_shape(filter.shape, True)
        ),
        "'filter' has the shape [output channels, input channels]",
    )
    output = TensorType(shape, input.dtype)
    require_fits("the product of 'input' and 'filter'", output, bias=bias)
    return output


rules.rule("tract.linear", _linear_type, work=standard.linear_work)(standard.linear)


def _einsum_type(inputs: list[TensorType], expr: str, acc: str, output: str) -> TensorType:
    terms, result = contraction.parse(expr, [len(x.shape) for x in inputs])
    shape = contraction.contracted_shape([x.shape for x in inputs], terms, result)
    operands = {f"inputs[{k}]": x for k, x in enumerate(inputs)}
    require_number(**operands)
    require_same_dtype(**operands)
    if acc == "bool" or _kind(acc) < _kind(inputs[0].dtype):
        raise InvalidOperation(
            f"'acc' {acc} cannot hold the products of {inputs[0].dtype}",
            hint="`tract_core_cast` the inputs first",
        )
    return TensorType(shape, output or acc)


def einsum_work(inputs: list[TensorType], expr: str) -> int:
    """The products of the inputs in pairs, in the order in which they are computed."""
    terms, result = contraction.parse(expr, [len(x.shape) for x in inputs])
    return contraction.multiply_adds([x.shape for x in inputs], terms[: len(inputs)], result)


@rules.rule("tract_core_einsum", _einsum_type, work=einsum_work)
def einsum(ctx: Context, inputs: Sequence[Any], expr: str, acc: str, output: str) -> Array:
    """The products of all inputs, summed over the letters that the result does not have.

    They are taken in the type `acc`, and no smaller one than the inputs' or float32; the result is
    of the type `output`, or `acc` where that is empty.
    """
    terms, result = contraction.parse(expr, [len(x.shape) for x in inputs])
    dtypes = (np.dtype(acc), np.dtype(inputs[0].dtype))
    wide = accumulator(max(dtypes, key=lambda dtype: (_kind(str(dtype)), dtype.itemsize)))
    if _kind(str(dtypes[1])) != _kind(acc):
        inputs = [jnp.asarray(x).astype(wide) for x in inputs]
    total = contraction.contract(inputs, terms, result, wide, ctx.precision, ctx.optimized)
    return total.astype(output or acc)


def _kind(dtype: str) -> int:
    return 2 if is_complex(dtype) else int(is_float(dtype))


def legacy_terms(axes: Sequence[int], rank: int) -> tuple[str, str, str]:
    """The letters of A, B and C for the axes [a_m,a_k,b_k,b_n,c_m,c_n].

    They are m, k and n, and capitals for the batch: the other axes of each, in their order. Without
    axes the matrices are in the last two.
    """
    a_m, a_k, b_k, b_n, c_m, c_n = axes or (rank - 2, rank - 1) * 3
    return (
        _term((a_m, a_k), "mk", rank),
        _term((b_k, b_n), "kn", rank),
        _term((c_m, c_n), "mn", rank),
    )


def _term(axes: Sequence[int], letters: str, rank: int) -> str:
    named = dict(zip(normal_axes(axes, rank), letters, strict=True))
    batch = iter(string.ascii_uppercase)
    return "".join(named.get(axis) or next(batch) for axis in range(rank))


def require_legacy(A: TensorType, B: TensorType, axes: Sequence[int]) -> None:
    """Refuse operands of a legacy product that have not one rank, and axes that are not six."""
    if len(A.shape) != len(B.shape) or len(A.shape) < 2:
        raise InvalidShape(
            f"'A' {show(A.shape)} and 'B' {show(B.shape)} must have one rank, of at least two",
            hint="`unsqueeze` the one of lower rank",
        )
    if axes:
        require_length("axes", axes, 6, "axes a_m, a_k, b_k, b_n, c_m and c_n")


def _legacy_type(A: TensorType, B: TensorType, axes: tuple[int, ...]) -> TensorType:
    require_number(A=A, B=B)
    require_same_dtype(A=A, B=B)
    require_legacy(A, B, axes)
    a, b, c = legacy_terms(axes, len(A.shape))
    return TensorType(contraction.contracted_shape((A.shape, B.shape), (a, b), c), A.dtype)


def legacy_work(A: TensorType, B: TensorType, axes: tuple[int, ...]) -> int:
    """A product for each m, k and n, and each item of the batch."""
    a, b, c = legacy_terms(axes, len(A.shape))
    return contraction.multiply_adds((A.shape, B.shape), (a, b), c)


@rules.rule("tract_core_matmul", _legacy_type, work=legacy_work)
def legacy_matmul(ctx: Context, A: Any, B: Any, axes: tuple[int, ...]) -> Array:
    """The products of matrices on the axes [a_m,a_k,b_k,b_n,c_m,c_n]; all others broadcast."""
    a, b, c = legacy_terms(axes, A.ndim)
    wide = accumulator(A.dtype)
    total = contraction.contract((A, B), (a, b), c, wide, ctx.precision, ctx.optimized)
    return total.astype(A.dtype)
