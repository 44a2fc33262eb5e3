"""Functions for products: matrices of any rank, Einstein sums, and their quantised forms."""

from __future__ import annotations

import string
from collections.abc import Sequence

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import padded, show
from lowering.ops import require
from lowering.ops.require import normal_axes
from nnef_jax.flattening.operators.attributes import integers, text
from nnef_jax.formats.tract.call_site import CallSite, TractOperand
from nnef_jax.formats.tract.operators.registry import operator


@operator("matmul")
def matmul(site: CallSite, a: TractOperand, b: TractOperand) -> TractOperand:
    """Multiply matrices. If one operand has a lower rank, axes are added to this operand."""
    return site.last.matmul(*_of_one_rank(site, {"A": a, "B": b}))


@operator("linear")
def linear(site: CallSite, input: TractOperand, filter: TractOperand) -> TractOperand:
    """Multiply the input by the rows of the filter, as NNEF's `linear` without a bias."""
    return site.last.linear(*_of_one_rank(site, {"input": input, "filter": filter}))


def _of_one_rank(site: CallSite, factors: dict[str, TractOperand]) -> list[TractOperand]:
    """Add axes of extent 1 to the operand of lower rank. Return the two operands.

    `factors` maps names to the two operands. A vector becomes a column first. Then axes are added
    at the front.
    """
    shapes = {name: site.shape(x) for name, x in factors.items()}
    rank = max(map(len, shapes.values()))
    for name, shape in shapes.items():
        if len(shape) < rank:
            # A vector of 5 items becomes the column (5, 1), and beside an operand of rank 4, it
            # becomes (1, 1, 5, 1). The axes 0, 1 and 3 are then new.
            matrix = padded(shape, 2)
            leading = max(rank - len(matrix), 0)
            trailing = len(matrix) - len(shape)
            axes = [*range(leading), *range(rank - trailing, rank)]
            factors[name] = site.step_on(name).unsqueeze(factors[name], axes=axes)
    return [*factors.values()]


@operator("tract_core_einsum")
def einsum(
    site: CallSite,
    inputs: Sequence[TractOperand],
    *,
    accumulator: str = text("acc"),
    dtype: str = text("output"),
) -> TractOperand:
    """Compute an Einstein sum in the dtype `accumulator`.

    The result has the dtype `dtype`, or `accumulator` if `dtype` is "".
    """
    return site.last.einsum(inputs, accumulator=accumulator, dtype=dtype or accumulator)


@operator("tract_core_matmul")
def legacy_matmul(
    site: CallSite, a: TractOperand, b: TractOperand, *, axes: Sequence[int] = integers("axes")
) -> TractOperand:
    """Multiply matrices by an Einstein sum.

    `axes` has the axes of the rows and columns of A, of B and of the product.
    """
    term_a, term_b, term_c = _terms(site, axes)
    expr = f"{term_a},{term_b}->{term_c}"
    dtype = site.dtype_of(a)
    return site.last.einsum([a, b], expr=expr, accumulator=dtype, dtype=dtype)


@operator("tract_core_einsum_q")
def quantized_einsum(
    site: CallSite,
    inputs: Sequence[TractOperand],
    bias: TractOperand,
    a_zero_point: TractOperand,
    a_scale: TractOperand,
    b_zero_point: TractOperand,
    b_scale: TractOperand,
    output_zero_point: TractOperand,
    output_scale: TractOperand,
    *,
    accumulator: str = text("acc"),
    dtype: str = text("output"),
) -> TractOperand:
    """Compute an Einstein sum of two quantised inputs, which are the items of `inputs`."""
    if len(inputs) != 2:
        raise InvalidOperation(f"there must be two inputs, there are {len(inputs)}")
    return site.last.quantized_einsum(
        *inputs, bias, a_zero_point, a_scale, b_zero_point, b_scale, output_zero_point,
        output_scale, dtype=dtype or accumulator,
    )  # fmt: skip


@operator("tract_core_qmatmul")
def quantized_matmul(
    site: CallSite,
    a: TractOperand,
    b: TractOperand,
    bias: TractOperand,
    a_zero_point: TractOperand,
    a_scale: TractOperand,
    b_zero_point: TractOperand,
    b_scale: TractOperand,
    output_zero_point: TractOperand,
    output_scale: TractOperand,
    *,
    axes: Sequence[int] = integers("axes"),
    dtype: str = text("output_type"),
) -> TractOperand:
    """Multiply quantised matrices A and B.

    The bias, the zero point of A and the scale of A each have one number, or one number for each
    row. The zero point of B and the scale of B each have one number, or one number for each column.
    `axes` has the axes of the rows and columns of A, of B and of the product.
    """
    term_a, term_b, term_c = _terms(site, axes)
    return site.last.quantized_einsum(
        a, b, bias, a_zero_point, a_scale, b_zero_point, b_scale, output_zero_point, output_scale,
        # Each operand above has a term, in the same order. The zero point and the scale of the
        # output have empty terms.
        expr=f"{term_a},{term_b},m,m,m,n,n,,->{term_c}", dtype=dtype,
    )  # fmt: skip


def _terms(site: CallSite, axes: Sequence[int]) -> tuple[str, str, str]:
    """Return the terms of A, B and their product C in an Einstein sum, such as ("mk", "kn", "mn").

    `axes` are [a_m, a_k, b_k, b_n, c_m, c_n], where a_m is the axis of A that has the letter m. All
    other axes are batch axes, which have capital letters in order. If `axes` is empty, the matrices
    lie in the last two axes.
    """
    shape_a = site.shape(0)
    shape_b = site.shape(1)
    rank = len(shape_a)
    if len(shape_b) != rank or rank < 2:
        raise InvalidShape(
            f"'A' {show(shape_a)} and 'B' {show(shape_b)} must have one rank, of at least two",
            hint="`unsqueeze` the one of lower rank",
        )
    if axes:
        require.length("axes", axes, 6, "axes a_m, a_k, b_k, b_n, c_m and c_n")
    last_axes = (rank - 2, rank - 1)
    a_m, a_k, b_k, b_n, c_m, c_n = axes or (*last_axes, *last_axes, *last_axes)

    def term(matrix_axes: Sequence[int], letters: str) -> str:
        """Return the letters of all axes of a matrix.

        For example, `matrix_axes` of (1, 2) and `letters` of "mk" give "Amk" if the rank is 3.
        """
        letter_by_axis = dict(zip(normal_axes(matrix_axes, rank), letters, strict=True))
        batch_letters = iter(string.ascii_uppercase)
        result = ""
        for axis in range(rank):
            result += letter_by_axis.get(axis) or next(batch_letters)
        return result

    return term((a_m, a_k), "mk"), term((b_k, b_n), "kn"), term((c_m, c_n), "mn")
