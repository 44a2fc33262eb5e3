"""Matrix multiplication (spec 4.6) and the fully connected layer (4.8.2)."""

from __future__ import annotations

from .case import OpCase, Real

CASES = (
    OpCase("matmul", "matmul", {"A": Real((2, 3)), "B": Real((3, 4))}),
    OpCase(
        "matmul_transpose_a", "matmul", {"A": Real((3, 2)), "B": Real((3, 4))}, {"transposeA": True}
    ),
    OpCase(
        "matmul_transpose_b", "matmul", {"A": Real((2, 3)), "B": Real((4, 3))}, {"transposeB": True}
    ),
    OpCase(
        "matmul_transpose_both",
        "matmul",
        {"A": Real((3, 2)), "B": Real((4, 3))},
        {"transposeA": True, "transposeB": True},
    ),
    OpCase("matmul_row_column", "matmul", {"A": Real((1, 5)), "B": Real((5, 1))}),
    OpCase("matmul_outer", "matmul", {"A": Real((3, 1)), "B": Real((1, 4))}),
    OpCase("matmul_batch", "matmul", {"A": Real((2, 2, 3)), "B": Real((2, 3, 4))}),
    OpCase("matmul_batch_shared", "matmul", {"A": Real((3, 2, 3)), "B": Real((1, 3, 2))}),
    OpCase(
        "matmul_batch_both_ways",
        "matmul",
        {"A": Real((2, 1, 2, 3)), "B": Real((1, 3, 4, 3))},
        {"transposeB": True},
    ),
    OpCase(
        "matmul_batch_transpose_a",
        "matmul",
        {"A": Real((2, 3, 2)), "B": Real((2, 3, 4))},
        {"transposeA": True},
    ),
    OpCase("linear", "linear", {"input": Real((2, 3)), "filter": Real((4, 3))}),
    OpCase(
        "linear_bias",
        "linear",
        {"input": Real((2, 3)), "filter": Real((4, 3)), "bias": Real((1, 4))},
    ),
    OpCase(
        "linear_bias_literal",
        "linear",
        {"input": Real((2, 3)), "filter": Real((4, 3)), "bias": 0.5},
    ),
    OpCase(
        "linear_bias_one",
        "linear",
        {"input": Real((2, 3)), "filter": Real((1, 3)), "bias": Real((1, 1))},
    ),
)
