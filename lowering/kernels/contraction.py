"""Computes sums of products over named axes, as in `ij,kj->ik` (Einstein's convention).

Each letter names an axis. Axes whose letter is not in the result are summed. If an operand repeats
a letter, the diagonal of these axes is taken. Axes with the same letter must have equal extents, or
the extent 1. A letter that only the result has is an axis of extent 1.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Shape, broadcast_extent, show, volume
from lowering.kernels.precision import DType, left_operand_anywhere, precision_of


def parse(expr: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of each operand's axes, and the letters of the result's axes.

    "ij,jk->ik" gives ["ij", "jk"] and "ik". Letters that `expr` does not use replace `...`: for
    the ranks (3, 2), "...ij,jk->...ik" may give ["aij", "jk"] and "aik".
    """
    left, arrow, output = expr.replace(" ", "").partition("->")
    if not arrow or "," in output:
        raise InvalidOperation(
            f"'expr' must name the axes of the inputs and of one result, it is '{expr}'",
            hint="as in 'ij,kj->ik'",
        )
    terms = left.split(",")
    if "..." not in expr or len(terms) != len(ranks):
        return terms, output
    # This list has, for each term, the number of axes that `...` stands for.
    counts: list[int] = []
    for term, rank in zip(terms, ranks, strict=True):
        count = 0
        if "..." in term:
            named_axes = len(term.replace("...", ""))
            count = max(rank - named_axes, 0)
        counts.append(count)
    unused = [letter for letter in string.ascii_letters if letter not in expr]
    letters = "".join(unused[: max(counts)])
    # If `...` stands for fewer axes in a term than in others, the term gets the last letters:
    # numpy aligns axes at the end too.
    expanded_terms: list[str] = []
    for term, count in zip(terms, counts, strict=True):
        last_letters = letters[len(letters) - count :]
        expanded_terms.append(term.replace("...", last_letters))
    return expanded_terms, output.replace("...", letters)


def contracted_shape(shapes: Sequence[Shape], terms: Sequence[str], output: str) -> Shape:
    """Return the shape of the sum of products over the letters that are not in `output`.

    `terms` has the letters of the axes of each of the shapes. Raises InvalidOperation or
    InvalidShape if the letters do not fit the shapes.
    """
    if len(shapes) != len(terms):
        raise InvalidOperation(
            f"'expr' names the axes of {len(terms)} input(s), there are {len(shapes)}"
        )
    for number, (shape, term) in enumerate(zip(shapes, terms, strict=True)):
        if len(shape) != len(term):
            raise InvalidShape(
                f"input {number} has the shape {show(shape)}, 'expr' names its axes '{term}'",
                hint="one letter for each axis",
            )
    if len(set(output)) != len(output):
        raise InvalidOperation(f"the result of 'expr' must not repeat a letter, it is '{output}'")
    extents = _extents(shapes, terms)
    return tuple(extents.get(letter, 1) for letter in output)


def _extents(shapes: Sequence[Shape], terms: Sequence[str]) -> dict[str, int]:
    """Map each letter to the extent of its axis. Raises InvalidShape if operands do not agree."""
    extents: dict[str, int] = {}
    for shape, term in zip(shapes, terms, strict=True):
        for letter, extent in zip(term, shape, strict=True):
            broadcast = broadcast_extent(extents.get(letter, 1), extent)
            if broadcast is None:
                raise InvalidShape(
                    f"axis '{letter}' of 'expr' has the extents {extents[letter]} and {extent}, "
                    f"the inputs have the shapes {' and '.join(map(show, shapes))}",
                    hint="the extents of one letter must be equal, or 1",
                )
            extents[letter] = broadcast
    return extents


def multiply_adds(shapes: Sequence[Shape], terms: Sequence[str], output: str) -> int:
    """Return the number of multiply-adds of `contract`, which multiplies in the order of `_order`.

    If a letter is in one operand only, and not in the result, the axis of this letter is summed
    before the product. Such sums are not counted.
    """
    extents = _extents(shapes, terms)
    # This list has a set for each remaining operand: the letters of the axes along which the
    # operand is not broadcast.
    remaining: list[set[str]] = []
    for term, shape in zip(terms, shapes, strict=True):
        pairs = zip(term, shape, strict=True)
        remaining.append({letter for letter, extent in pairs if extent == extents[letter]})
    total = 0
    for indices in _order(remaining, output, extents):
        # The operands are popped from the last to the first, so that the other indices stay valid.
        operands = [remaining.pop(index) for index in sorted(indices, reverse=True)]
        needed_later = set(output).union(*remaining)
        product_letters = set[str]()  # letters that are not summed before the product
        for number, operand in enumerate(operands):
            other_operands = operands[:number] + operands[number + 1 :]
            product_letters |= operand & needed_later.union(*other_operands)
        if len(operands) > 1:
            total += volume(extents[letter] for letter in product_letters)
        remaining.append(product_letters & needed_later)
    return total


def _order(
    terms: Sequence[set[str]], output: str, extents: dict[str, int]
) -> list[tuple[int, ...]]:
    """Return the indices of the operands that `jnp.einsum` multiplies at each of its steps.

    A step removes its operands from the list of operands, and appends the product to the list.
    `terms` has the letters of each operand.
    """
    arrays: list[Any] = []
    for term in terms:
        shape = [extents[letter] for letter in term]
        arrays.append(jax.ShapeDtypeStruct(shape, jnp.float32))
    path, _ = jnp.einsum_path(_equation(terms, output, extents), *arrays)
    return path


def _equation(terms: Iterable[Iterable[str]], output: str, extents: dict[str, int]) -> str:
    """Return the equation for `jnp.einsum`, as in "ab,bc->ac".

    `terms` has the letters of each operand. A letter outside of ASCII is replaced by a letter of
    ASCII. Letters of `output` that no operand has are left out.
    """
    names = dict(zip(extents, string.ascii_letters, strict=False))
    result = "".join(letter for letter in output if letter in extents)
    equation = ",".join(map("".join, terms)) + "->" + result
    return "".join(names.get(character, character) for character in equation)


def contract(
    operands: Sequence[Array],
    terms: Sequence[str],
    output: str,
    accumulator: DType,
    precision: lax.PrecisionLike,
) -> Array:
    """Sum the products of operands over the letters that are not in `output`.

    `terms` has the letters of the axes of each operand. All operands have one dtype. Sums are
    computed in the dtype `accumulator`.
    """
    full_arrays = [jnp.asarray(operand) for operand in operands]
    precision = precision_of(accumulator, precision)
    extents = _extents([array.shape for array in full_arrays], terms)
    arrays: list[Array] = []
    letters: list[str] = []
    for full_array, term in zip(full_arrays, terms, strict=True):
        array, remaining_letters = _without_broadcast_axes(full_array, term, extents)
        arrays.append(array)
        letters.append(remaining_letters)
    # Letters that no operand has are axes of extent 1, which are added to the result.
    added_axes = tuple(axis for axis, letter in enumerate(output) if letter not in extents)
    if not _is_product(letters, output):
        # `jnp.einsum` also sums single operands. These must have the dtype of the sums.
        arrays = [array.astype(accumulator) for array in arrays]
    elif arrays[0].dtype == jnp.bfloat16:
        # Here `_product` is needed, since it applies `left_operand_anywhere`.
        result = _product(arrays, letters, output, accumulator, precision)
        return jnp.expand_dims(result, added_axes)
    equation = _equation(letters, output, extents)
    result = jnp.einsum(equation, *arrays, precision=precision, preferred_element_type=accumulator)
    return jnp.expand_dims(result, added_axes)


def _without_broadcast_axes(array: Array, term: str, extents: dict[str, int]) -> tuple[Array, str]:
    """Return an operand without its broadcast axes, and the letters of the remaining axes.

    `term` has the letters of all axes. A broadcast axis has the extent 1, while its letter has more
    items in another operand.
    """
    remaining_letters = ""
    broadcast_axes: list[int] = []
    for axis, letter in enumerate(term):
        if array.shape[axis] == extents[letter]:
            remaining_letters += letter
        else:
            broadcast_axes.append(axis)
    return jnp.squeeze(array, tuple(broadcast_axes)), remaining_letters


def _product(
    arrays: Sequence[Array],
    terms: Sequence[str],
    output: str,
    accumulator: DType,
    precision: lax.PrecisionLike,
) -> Array:
    """Return the product of two operands. The left operand of the product is the first array.

    `jnp.einsum` may exchange the operands, but `left_operand_anywhere` must be applied to the left
    operand.
    """
    left, right = terms
    x, y = arrays
    # The lists have letters of axes.
    shared = [letter for letter in left if letter in right]
    batch = [letter for letter in shared if letter in output]
    sums = [letter for letter in shared if letter not in output]
    left_free = [letter for letter in left if letter not in right]
    right_free = [letter for letter in right if letter not in left]
    # The left operand is transposed before the barrier, so that the product needs no transposition.
    order = [*batch, *left_free, *sums]
    x = x.transpose([left.index(letter) for letter in order])
    x = left_operand_anywhere(x, accumulator)
    summed_axes = list(map(order.index, sums)), list(map(right.index, sums))
    batch_axes = list(map(order.index, batch)), list(map(right.index, batch))
    dimension_numbers = summed_axes, batch_axes
    result = lax.dot_general(x, y, dimension_numbers, precision, preferred_element_type=accumulator)
    letters = [*batch, *left_free, *right_free]
    return result.transpose([letters.index(letter) for letter in output if letter in letters])


def _is_product(terms: Sequence[str], output: str) -> bool:
    """Tell whether operands can be multiplied without separate sums and without a diagonal.

    There must be two terms, and no term may repeat a letter. A letter that is in only one of the
    `terms` must be in `output`. Otherwise the axis of this letter would be summed before the
    product.
    """
    has_diagonal = any(len(set(term)) != len(term) for term in terms)
    if len(terms) != 2 or has_diagonal:
        return False
    left, right = map(set, terms)
    letters_of_one = left ^ right
    return letters_of_one <= set(output)
