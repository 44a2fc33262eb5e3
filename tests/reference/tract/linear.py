"""Products of matrices of tract, and sums of products over named axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.reference.elementwise import add


def matmul(A, B, transposeA=False, transposeB=False):
    A = np.swapaxes(A, -1, -2) if transposeA else A
    B = np.swapaxes(B, -1, -2) if transposeB else B
    return np.matmul(A, B)


def item(operand, letters, place):
    """Return the item at indices by letter. Axes of extent 1 are broadcast."""
    return operand[
        tuple(
            place[letter] if extent > 1 else 0
            for letter, extent in zip(letters, operand.shape, strict=True)
        )
    ]


def contract(operands, terms, result):
    """Sum over all indices of letters that the result does not have."""
    extents: dict[str, int] = {}
    for operand, term in zip(operands, terms, strict=True):
        for letter, extent in zip(term, operand.shape, strict=True):
            extents[letter] = max(extents.get(letter, 1), extent)
    for letter in result:
        extents.setdefault(letter, 1)
    output = np.zeros([extents[letter] for letter in result], operands[0].dtype)
    for index in np.ndindex(*extents.values()):
        place = dict(zip(extents, index, strict=True))
        product = 1
        for operand, term in zip(operands, terms, strict=True):
            product = product * item(operand, term, place)
        output[tuple(place[letter] for letter in result)] += product
    return output


def einsum(inputs, expr, acc, output=""):
    left, result = expr.replace(" ", "").split("->")
    terms = left.split(",")
    for k, (x, term) in enumerate(zip(inputs, terms, strict=True)):
        terms[k] = term.replace("...", "ABC"[3 - (x.ndim - len(term.replace("...", ""))) :])
    longest = max((sum(letter in "ABC" for letter in term) for term in terms), default=0)
    value = contract(inputs, terms, result.replace("...", "ABC"[3 - longest :]))
    dtype = output or acc
    return value.astype(np.float64) if dtype.startswith("f") else value


def matmul_on_axes(A, B, axes):
    a_m, a_k, b_k, b_n, c_m, c_n = axes
    A, B = np.moveaxis(A, (a_m, a_k), (-2, -1)), np.moveaxis(B, (b_k, b_n), (-2, -1))
    return np.moveaxis(np.matmul(A, B), (-2, -1), (c_m, c_n))


OPERATIONS: dict[str, Callable[..., Any]] = {
    "matmul": matmul,
    "linear": lambda input, filter, bias=0.0: add(matmul(input, filter, transposeB=True), bias),
    "tract_core_einsum": einsum,
    "tract_core_matmul": matmul_on_axes,
}
