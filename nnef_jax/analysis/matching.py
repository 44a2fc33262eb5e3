"""Pairs the tensors of two networks: by names from the user, equal names, outputs, or position."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnef_jax.errors import InputError
from nnef_jax.wording.similar import did_you_mean

# The table for a longest common sequence has an entry for each pair of tensors. 10^8 entries take
# 0.4 GB. Sequences that need more entries are not paired.
_MOST_ENTRIES = 10**8


@dataclass(frozen=True, slots=True)
class TensorKind:
    """A tensor without its values.

    Args:
        kind: the kind of the operation that computes the tensor, such as "conv"; "" if unknown.
        shape: the shape of the tensor.
        output: the position of the tensor among the network's outputs, or None if it is not an
            output.
    """

    kind: str
    shape: tuple[int, ...]
    output: int | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """The names of two paired tensors, one of `a` and one of `b`, and the reason for the pair."""

    a: str
    b: str
    by: str  # The reason is "given", "name", "output" or "position".


def match(
    a: Mapping[str, TensorKind], b: Mapping[str, TensorKind], names: Mapping[str, str]
) -> list[Pair]:
    """Return pairs of tensors in the order of `a`.

    Tensors are paired in four ways. The first way that applies to a tensor is taken:

    - given: the pair is in `names`, a dict from names in `a` to names in `b`.
    - name: equal names, or names that become equal if only letters and digits are kept, such as
      "/conv1/Conv" in ONNX and "conv1_conv" in NNEF.
    - output: the outputs in order, if both networks have equally many outputs.
    - position: a longest common sequence of tensors of equal kind and shape, between two
      neighbouring pairs from the other three ways.

    Raises InputError for an unknown name in `names`, and if `names` pairs two names in `a` with one
    name in `b`.
    """
    _require_tensors("a", names.keys(), a)
    _require_tensors("b", names.values(), b)
    _require_single_partners(names)
    pairs = {name_a: Pair(name_a, name_b, "given") for name_a, name_b in names.items()}
    paired_b = set(names.values())

    def add_unpaired(candidates: Iterator[tuple[str, str]], by: str) -> None:
        """Add a pair for each candidate whose two tensors have no partner yet."""
        for name_a, name_b in candidates:
            if name_a not in pairs and name_b not in paired_b:
                pairs[name_a] = Pair(name_a, name_b, by)
                paired_b.add(name_b)

    # `str` leaves a name as it is, so equal names are paired before similar names.
    for spelling_of in (str, _letters_and_digits):
        unpaired_a = {name: tensor for name, tensor in a.items() if name not in pairs}
        unpaired_b = {name: tensor for name, tensor in b.items() if name not in paired_b}
        add_unpaired(_with_same_spelling(unpaired_a, unpaired_b, spelling_of), "name")
    add_unpaired(_outputs(a, b), "output")
    # `_between` gets a copy of `pairs`, because `add_unpaired` changes `pairs` in the meantime.
    add_unpaired(_between(a, b, dict(pairs)), "position")
    return [pairs[name] for name in a if name in pairs]


def _require_single_partners(names: Mapping[str, str]) -> None:
    """Raise InputError if `names` pairs two names in `a` with one name in `b`."""
    for name_b, count in Counter(names.values()).items():
        if count > 1:
            names_a = [f"'{name_a}'" for name_a, partner in names.items() if partner == name_b]
            raise InputError(f"names: '{name_b}' of b is given for {' and '.join(names_a)}")


def _require_tensors(network: str, names: Iterable[str], tensors: Mapping[str, TensorKind]) -> None:
    """Raise InputError if one of `names` is not the name of a tensor.

    `network` is the name of the network in the message, "a" or "b".
    """
    for name in names:
        if name not in tensors:
            hint = did_you_mean(name, tensors)
            raise InputError(f"names: {network} has no tensor '{name}'", hint=hint)


def _with_same_spelling(
    a: Mapping[str, TensorKind], b: Mapping[str, TensorKind], spelling_of: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    """Yield pairs of a name of `a` and a name of `b` that have the same spelling.

    `spelling_of` is a function that simplifies a name. A spelling gives a pair only if exactly one
    name of `a` and exactly one name of `b` have the spelling.
    """
    names_by_spelling_a = _by_spelling(a, spelling_of)
    names_by_spelling_b = _by_spelling(b, spelling_of)
    for spelling, names_a in names_by_spelling_a.items():
        names_b = names_by_spelling_b.get(spelling, [])
        are_single_names = len(names_a) == 1 and len(names_b) == 1
        if are_single_names:
            yield names_a[0], names_b[0]


def _by_spelling(names: Iterable[str], spelling_of: Callable[[str], str]) -> dict[str, list[str]]:
    """Return a dict from each spelling to names. `spelling_of` returns the spelling of a name."""
    by_spelling: dict[str, list[str]] = {}
    for name in names:
        by_spelling.setdefault(spelling_of(name), []).append(name)
    return by_spelling


def _letters_and_digits(name: str) -> str:
    # For example, "/conv1/Conv" becomes "conv1_conv".
    return re.sub(r"[\W_]+", "_", name).strip("_").lower()


def _outputs(a: Mapping[str, TensorKind], b: Mapping[str, TensorKind]) -> Iterator[tuple[str, str]]:
    """Yield pairs of outputs at the same position, if both networks have equally many outputs."""
    outputs_a = {tensor.output: name for name, tensor in a.items() if tensor.output is not None}
    outputs_b = {tensor.output: name for name, tensor in b.items() if tensor.output is not None}
    if outputs_a.keys() == outputs_b.keys():
        for index, name in outputs_a.items():
            yield name, outputs_b[index]


def _between(
    a: Mapping[str, TensorKind], b: Mapping[str, TensorKind], pairs: Mapping[str, Pair]
) -> Iterator[tuple[str, str]]:
    """Yield pairs of tensors of equal kind and shape, in the gaps between the pairs in `pairs`.

    `pairs` maps names of tensors in `a` to the pairs that were found so far. These pairs divide the
    tensors of `a` and the tensors of `b` into segments. The dividing pairs must have the same order
    in `a` and in `b`. A pair that comes later in `a`, but earlier in `b`, than the previous
    dividing pair is passed over.
    """
    names_b = list(b)
    index_b = {name: index for index, name in enumerate(names_b)}
    paired_b = {pair.b for pair in pairs.values()}

    def unpaired_names_b(start: int, end: int) -> list[str]:
        return [name for name in names_b[start:end] if name not in paired_b]

    segment_a: list[str] = []
    start_b = 0
    for name in a:
        pair = pairs.get(name)
        if pair is None:
            segment_a.append(name)
            continue
        is_in_order = index_b[pair.b] >= start_b
        if is_in_order:
            end_b = index_b[pair.b] + 1
            yield from _common(segment_a, unpaired_names_b(start_b, end_b), a, b)
            segment_a = []
            start_b = end_b
    yield from _common(segment_a, unpaired_names_b(start_b, len(names_b)), a, b)


def _common(
    names_a: Sequence[str],
    names_b: Sequence[str],
    a: Mapping[str, TensorKind],
    b: Mapping[str, TensorKind],
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a longest common sequence of tensors with equal kinds and shapes.

    Recorded tensors are left out. Their kind is unknown, and a shape by itself is ambiguous.
    """
    names_a = [name for name in names_a if a[name].kind]
    names_b = [name for name in names_b if b[name].kind]
    entry_count = len(names_a) * len(names_b)
    if entry_count == 0 or entry_count > _MOST_ENTRIES:
        return  # There is nothing to pair, or the table would take too much memory.
    codes: dict[tuple[str, tuple[int, ...]], int] = {}

    def code_of(tensor: TensorKind) -> int:
        """Return a number. Tensors of equal kind and shape have equal numbers."""
        return codes.setdefault((tensor.kind, tensor.shape), len(codes))

    codes_a = np.array([code_of(a[name]) for name in names_a])
    codes_b = np.array([code_of(b[name]) for name in names_b])
    lengths = _common_lengths(codes_a, codes_b)
    # The loop goes through the table from its end to its start, and adds the last pair first.
    pairs: list[tuple[str, str]] = []
    i = len(codes_a)
    j = len(codes_b)
    while i > 0 and j > 0:
        if lengths[i, j] == lengths[i - 1, j]:
            i -= 1
        elif lengths[i, j] == lengths[i, j - 1]:
            j -= 1
        else:
            i -= 1
            j -= 1
            pairs.append((names_a[i], names_b[j]))
    yield from reversed(pairs)


def _common_lengths(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return a table of the lengths of longest common sequences, [len(a) + 1, len(b) + 1].

    Entry [i, j] is the length L[i, j] for a[:i] and b[:j]. It is the largest of L[i - 1, j] and
    L[i, j - 1]. If a[i - 1] equals b[j - 1], it is also at least L[i - 1, j - 1] + 1.
    """
    lengths = np.zeros((len(a) + 1, len(b) + 1), np.int32)
    for i, item in enumerate(a):
        without_item = lengths[i, 1:]
        with_item = lengths[i, :-1] + (b == item)
        lengths[i + 1, 1:] = np.maximum.accumulate(np.maximum(without_item, with_item))
    return lengths
