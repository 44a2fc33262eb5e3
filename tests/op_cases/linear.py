"""Matrix multiplication (spec 4.6) and the fully connected layer (4.8.2)."""

from __future__ import annotations

from .case import Real, row

CASES = (
    row("matmul", "matmul", Real((2, 3)), Real((3, 4))),
    row("matmul_transpose_a", "matmul", Real((3, 2)), Real((3, 4)), transposeA=True),
    row("matmul_transpose_b", "matmul", Real((2, 3)), Real((4, 3)), transposeB=True),
    row(
        "matmul_transpose_both",
        "matmul",
        Real((3, 2)),
        Real((4, 3)),
        transposeA=True,
        transposeB=True,
    ),
    row("matmul_row_column", "matmul", Real((1, 5)), Real((5, 1))),
    row("matmul_outer", "matmul", Real((3, 1)), Real((1, 4))),
    row("matmul_batch", "matmul", Real((2, 2, 3)), Real((2, 3, 4))),
    row("matmul_batch_shared", "matmul", Real((3, 2, 3)), Real((1, 3, 2))),
    row(
        "matmul_batch_both_ways", "matmul", Real((2, 1, 2, 3)), Real((1, 3, 4, 3)), transposeB=True
    ),
    row("matmul_batch_transpose_a", "matmul", Real((2, 3, 2)), Real((2, 3, 4)), transposeA=True),
    row("linear", "linear", Real((2, 3)), Real((4, 3))),
    row("linear_bias", "linear", Real((2, 3)), Real((4, 3)), Real((1, 4))),
    row("linear_bias_literal", "linear", Real((2, 3)), Real((4, 3)), 0.5),
    row("linear_bias_one", "linear", Real((2, 3)), Real((1, 3)), Real((1, 1))),
)
