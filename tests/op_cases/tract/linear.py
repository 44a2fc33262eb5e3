"""Products of matrices of tract, and sums of products over named axes."""

from __future__ import annotations

from typing import Any

from tests.op_cases.case import Integers, OpCase, Real

from .rows import INTEGERS, row


def _matmul(name: str, a: Any, b: Any, not_differentiable: str = "", **attributes: Any) -> OpCase:
    return row(
        f"matmul_{name}", "matmul", a, b, not_differentiable=not_differentiable, **attributes
    )


def _linear(
    name: str, input: Any, filter: Any, bias: Any = 0.0, not_differentiable: str = ""
) -> OpCase:
    return row(
        f"linear_{name}", "linear", input, filter, bias, not_differentiable=not_differentiable
    )


def _einsum(
    name: str, expr: str, *inputs: Any, not_differentiable: str = "", **attributes: Any
) -> OpCase:
    return row(
        f"einsum_{name}",
        "tract_core_einsum",
        list(inputs),
        not_differentiable=not_differentiable,
        expr=expr,
        **{"acc": "f32"} | attributes,
    )


def _on_axes(name: str, a: Any, b: Any, axes: list[int], not_differentiable: str = "") -> OpCase:
    return row(
        f"matmul_axes_{name}",
        "tract_core_matmul",
        a,
        b,
        not_differentiable=not_differentiable,
        axes=axes,
    )


_MATRICES = (
    _matmul("rank3_transposed", Real((2, 3, 2)), Real((2, 4, 3)), transposeA=True, transposeB=True),
    _matmul("rank4_broadcast", Real((2, 1, 2, 3)), Real((1, 3, 3, 4))),
    _matmul("rank5_broadcast", Real((1, 2, 1, 2, 3)), Real((2, 1, 2, 4, 3)), transposeB=True),
    _matmul("left_of_lower_rank", Real((2, 3)), Real((2, 3, 4))),
    _matmul("right_of_lower_rank", Real((2, 2, 2, 3)), Real((4, 3)), transposeB=True),
    _matmul("column", Real((3, 4)), Real((4, 1))),
    _matmul("integers", Integers((2, 3, 4), -99, 100), Integers((1, 4, 2), -99, 100), INTEGERS),
    _matmul(
        "integers_transposed",
        Integers((4, 3), -99, 100),
        Integers((2, 4), -99, 100),
        INTEGERS,
        transposeA=True,
        transposeB=True,
    ),
    _linear("rank3", Real((2, 3, 5)), Real((1, 4, 5)), Real((1, 1, 4))),
    _linear("rank3_bias_for_rows", Real((2, 4, 5)), Real((1, 4, 5)), Real((1, 4))),
    _linear("rank4", Real((2, 2, 3, 5)), Real((1, 1, 4, 5)), Real((1, 1, 1, 4))),
    _linear("filter_of_lower_rank", Real((2, 3, 5)), Real((4, 5)), Real((1, 1, 4))),
    _linear("bias_rank0", Real((2, 3)), Real((4, 3)), Real(())),
    _linear("bias_literal", Real((2, 3)), Real((4, 3)), 0.5),
    _linear(
        "integers",
        Integers((2, 3), -99, 100),
        Integers((4, 3), -99, 100),
        Integers((1, 4), -999, 1000),
        INTEGERS,
    ),
)

_EINSUMS = (
    _einsum("linear", "ij,kj->ik", Real((2, 3)), Real((4, 3)), output=""),
    _einsum("attention", "bcij,bckj->bcik", Real((2, 2, 3, 4)), Real((2, 2, 5, 4))),
    _einsum("transposed_result", "mk,kn->nm", Real((2, 3)), Real((3, 4))),
    _einsum("batch_inside", "imk,kin->mni", Real((2, 3, 4)), Real((4, 2, 3))),
    _einsum("outer", "i,j->ij", Real((3,)), Real((4,))),
    _einsum("scalar", "i,i->", Real((5,)), Real((5,))),
    _einsum("elementwise", "ij,ij->ij", Real((2, 3)), Real((2, 3))),
    _einsum("summed_in_one", "mak,nk->mn", Real((2, 3, 4)), Real((5, 4))),
    _einsum("summed_in_both", "ia,ib->i", Real((3, 2)), Real((3, 4))),
    _einsum("diagonal", "ii->i", Real((4, 4))),
    _einsum("trace", "ii->", Real((4, 4))),
    _einsum("diagonal_of_product", "iij,jk->ik", Real((3, 3, 2)), Real((2, 4))),
    _einsum("permutation", "abc->cab", Real((2, 3, 4))),
    _einsum("axis_of_the_result_alone", "amk,nk->mbn", Real((1, 2, 3)), Real((4, 3))),
    _einsum("sum", "abc->b", Real((2, 3, 4))),
    _einsum("three", "bi,kij,bj->bk", Real((2, 3)), Real((4, 3, 5)), Real((2, 5))),
    _einsum("four", "ab,bc,cd,de->ae", Real((2, 3)), Real((3, 2)), Real((2, 3)), Real((3, 2))),
    _einsum("broadcast_batch", "bmk,bkn->bmn", Real((1, 2, 3)), Real((4, 3, 2))),
    _einsum("broadcast_both", "abmk,abkn->abmn", Real((2, 1, 2, 3)), Real((1, 3, 3, 2))),
    _einsum("broadcast_sum", "mk,kn->mn", Real((2, 1)), Real((3, 4))),
    _einsum("broadcast_diagonal", "ii,ij->ij", Real((1, 3)), Real((3, 2))),
    _einsum("letters_of_all_kinds", "Zé, éb -> bZ", Real((2, 3)), Real((3, 4))),
    _einsum(
        "integers",
        "mk,kn->mn",
        Integers((2, 3), -128, 128),
        Integers((3, 4), -128, 128),
        not_differentiable=INTEGERS,
        acc="i32",
    ),
    _einsum(
        "integers_summed_in_one",
        "mak,kn->mn",
        Integers((2, 3, 4), -128, 128),
        Integers((4, 2), -128, 128),
        not_differentiable=INTEGERS,
        acc="i32",
    ),
    _einsum(
        "integers_to_reals",
        "mk,nk->mn",
        Integers((2, 3), -9, 10),
        Integers((4, 3), -9, 10),
        not_differentiable="its operands are integers",
    ),
    _einsum("ellipsis", "...ij,jk->...ik", Real((2, 2, 3, 4)), Real((4, 2))),
    _einsum("ellipsis_of_two_ranks", "i...,...j->...ij", Real((2, 4, 3)), Real((3, 5))),
    _einsum("ellipsis_empty_and_summed", "...i,...i->i", Real((2, 3)), Real((3,))),
    _einsum("output", "ij,kj->ik", Real((2, 3)), Real((4, 3)), output="f32"),
)

_AXES = (
    _on_axes("plain", Real((2, 3)), Real((3, 4)), [0, 1, 0, 1, 0, 1]),
    _on_axes("negative", Real((2, 2, 3)), Real((2, 3, 4)), [-2, -1, -2, -1, -2, -1]),
    _on_axes("transposed", Real((3, 2)), Real((4, 3)), [1, 0, 1, 0, 1, 0]),
    _on_axes("batch_last", Real((2, 3, 5)), Real((3, 4, 5)), [0, 1, 0, 1, 0, 1]),
    _on_axes("batch_inside", Real((2, 5, 3)), Real((3, 5, 4)), [0, 2, 0, 2, 2, 0]),
    _on_axes("two_batches", Real((2, 1, 2, 3)), Real((4, 1, 2, 3)), [2, 3, 3, 0, 2, 3]),
    _on_axes(
        "integers",
        Integers((2, 3), -99, 100),
        Integers((3, 4), -99, 100),
        [0, 1, 0, 1, 0, 1],
        INTEGERS,
    ),
)

CASES: tuple[OpCase, ...] = (*_MATRICES, *_EINSUMS, *_AXES)
