"""Products of matrices: operands of several ranks, and terms of Einstein's notation for axes."""

from __future__ import annotations

import string
from collections.abc import Sequence

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import padded, show
from lowering.ops import require
from lowering.ops.require import normal_axes
from nnef_jax.formats.tract.meaning import Draft


def same_rank(draft: Draft) -> None:
    """Give the operand of fewer axes leading ones; a vector is a column."""
    shapes = {name: draft.shape(name) for name in list(draft.operands)[:2]}
    rank = max(map(len, shapes.values()))
    for name, shape in shapes.items():
        matrix = padded(shape, 2)
        if len(shape) < rank:
            leading, trailing = max(rank - len(matrix), 0), len(matrix) - len(shape)
            axes = [*range(leading), *range(rank - trailing, rank)]
            draft.before(name, "unsqueeze", axes=axes)


def einsum(draft: Draft) -> None:
    """Return the type of the sums unless another one is asked for."""
    draft.attributes["dtype"] = draft.attributes["dtype"] or draft.attributes["accumulator"]


def legacy_matmul(draft: Draft) -> None:
    """Write the axes of a product in letters."""
    a, b, c = _terms(draft)
    dtype = draft.dtype("a")
    draft.operands = {"inputs": [draft.operands["a"], draft.operands["b"]]}
    draft.attributes = {"expr": f"{a},{b}->{c}", "accumulator": dtype, "dtype": dtype}


def _terms(draft: Draft) -> tuple[str, str, str]:
    """Return the letters of two operands and the result for the `axes` [a_m,a_k,b_k,b_n,c_m,c_n].

    They are m, k and n, and capitals for the batch: the other axes of each, in their order. Without
    axes the matrices are in the last two.
    """
    axes, ranks = draft.attributes.pop("axes"), {len(draft.shape(x)) for x in ("a", "b")}
    if len(ranks) > 1 or min(ranks) < 2:
        raise InvalidShape(
            f"'A' {show(draft.shape('a'))} and 'B' {show(draft.shape('b'))} must have one rank, "
            "of at least two",
            hint="`unsqueeze` the one of lower rank",
        )
    (rank,) = ranks
    if axes:
        require.length("axes", axes, 6, "axes a_m, a_k, b_k, b_n, c_m and c_n")
    a_m, a_k, b_k, b_n, c_m, c_n = axes or (rank - 2, rank - 1) * 3

    def term(axes: Sequence[int], letters: str) -> str:
        named = dict(zip(normal_axes(axes, rank), letters, strict=True))
        batch = iter(string.ascii_uppercase)
        return "".join(named.get(axis) or next(batch) for axis in range(rank))

    return term((a_m, a_k), "mk"), term((b_k, b_n), "kn"), term((c_m, c_n), "mn")


def quantized_einsum(draft: Draft) -> None:
    """Tell the two operands apart."""
    inputs = draft.operands.pop("inputs")
    if len(inputs) != 2:
        raise InvalidOperation(f"there must be two inputs, there are {len(inputs)}")
    draft.operands["a"], draft.operands["b"] = inputs
    sums, dtype = draft.attributes.pop("acc"), draft.attributes.pop("output")
    draft.attributes["dtype"] = dtype or sums


def quantized_matmul(draft: Draft) -> None:
    """Take bias, a0 and a_scale for each row, b0 and b_scale for each column, or one for all."""
    a, b, c = _terms(draft)
    draft.attributes["expr"] = f"{a},{b},m,m,m,n,n,,->{c}"
