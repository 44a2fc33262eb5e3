"""Pairs the tensors of two networks: by given names, equal names, outputs, or position."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnef_jax.errors import InputError
from nnef_jax.wording.similar import did_you_mean

_MOST = 10**8  # entries of the table of a longest common sequence, 0.4 GB


@dataclass(frozen=True, slots=True)
class TensorKind:
    """A tensor without its values.

    Args:
        kind: the kind of its operation, "" if unknown.
        shape: its shape.
        output: its position among the network's outputs, or None.
    """

    kind: str
    shape: tuple[int, ...]
    output: int | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two tensors that are compared with one another, and the reason for the pair."""

    a: str
    b: str
    by: str  # "given", "name", "output" or "position"


def match(
    a: Mapping[str, TensorKind], b: Mapping[str, TensorKind], names: Mapping[str, str]
) -> list[Pair]:
    """Return the pairs in the order of `a`.

    The pairs are, in this order of precedence:

    - given: `names` has a name in `b` for each of some names in `a`.
    - name: equal names, or names that are equal without characters other than letters and digits,
      such as "/conv1/Conv" in ONNX and "conv1_conv" in NNEF.
    - output: the outputs in order, if both networks have equally many.
    - position: between two neighbouring pairs of those above, a longest common sequence of tensors
      of equal kind and shape.

    Raises InputError for an unknown name in `names`, and if two names in `a` have one name in `b`.
    """
    for side, in_side, tensors in (("a", names.keys(), a), ("b", names.values(), b)):
        for name in in_side:
            if name not in tensors:
                hint = did_you_mean(name, tensors)
                raise InputError(f"names: {side} has no tensor '{name}'", hint=hint)
    pairs = {x: Pair(x, y, "given") for x, y in names.items()}
    paired = set(names.values())
    for name, count in Counter(names.values()).items():
        if count > 1:
            same = [f"'{x}'" for x, y in names.items() if y == name]
            raise InputError(f"names: '{name}' of b is given for {' and '.join(same)}")

    def without(tensors: Mapping[str, TensorKind], used: Collection[str]) -> dict[str, TensorKind]:
        return {name: tensor for name, tensor in tensors.items() if name not in used}

    def add(candidates: Iterator[tuple[str, str]], by: str) -> None:
        for x, y in candidates:
            if x not in pairs and y not in paired:
                pairs[x] = Pair(x, y, by)
                paired.add(y)

    for spelling in (str, _simplified):
        add(_same(without(a, pairs), without(b, paired), spelling), "name")
    add(_outputs(a, b), "output")
    add(_between(a, b, dict(pairs)), "position")
    return [pairs[name] for name in a if name in pairs]


def _same(
    a: Mapping[str, TensorKind], b: Mapping[str, TensorKind], spelling: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    """Yield pairs of names with the same spelling, if one name of each side has this spelling."""
    in_a, in_b = _by_spelling(a, spelling), _by_spelling(b, spelling)
    for spelled, names in in_a.items():
        if len(names) == len(in_b.get(spelled, [])) == 1:
            yield names[0], in_b[spelled][0]


def _by_spelling(names: Iterable[str], spelling: Callable[[str], str]) -> dict[str, list[str]]:
    by_spelling: dict[str, list[str]] = {}
    for name in names:
        by_spelling.setdefault(spelling(name), []).append(name)
    return by_spelling


def _simplified(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name).strip("_").lower()


def _outputs(a: Mapping[str, TensorKind], b: Mapping[str, TensorKind]) -> Iterator[tuple[str, str]]:
    sides = [{t.output: n for n, t in side.items() if t.output is not None} for side in (a, b)]
    if sides[0].keys() == sides[1].keys():
        yield from ((name, sides[1][index]) for index, name in sides[0].items())


def _between(
    a: Mapping[str, TensorKind], b: Mapping[str, TensorKind], pairs: Mapping[str, Pair]
) -> Iterator[tuple[str, str]]:
    """Yield pairs of tensors of equal kind and shape, in the gaps between the pairs so far.

    Pairs divide both lists of tensors into segments. A pair that is out of order in b does not.
    """
    names_b = list(b)
    index = {name: i for i, name in enumerate(names_b)}
    paired = {pair.b for pair in pairs.values()}
    segment: list[str] = []
    end = 0
    for name in [*a, None]:
        pair = None if name is None else pairs.get(name)
        if name is not None and (pair is None or index[pair.b] < end):
            segment += [] if pair else [name]
            continue
        start, end = end, len(names_b) if pair is None else index[pair.b] + 1
        yield from _common(segment, [x for x in names_b[start:end] if x not in paired], a, b)
        segment = []


def _common(
    x: Sequence[str], y: Sequence[str], a: Mapping[str, TensorKind], b: Mapping[str, TensorKind]
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a longest common sequence of kinds and shapes.

    Recorded tensors are left out: they have no kind, and a shape alone is ambiguous.
    """
    codes: dict[tuple[str, tuple[int, ...]], int] = {}
    rows = [
        [(n, codes.setdefault((side[n].kind, side[n].shape), len(codes))) for n in names]
        for side, names in ((a, [n for n in x if a[n].kind]), (b, [n for n in y if b[n].kind]))
    ]
    if not all(rows) or len(rows[0]) * len(rows[1]) > _MOST:
        return
    left, right = (np.array([code for _, code in row]) for row in rows)
    # lengths[i, j]: the length of the common sequence of left[:i] and right[:j], row by row.
    lengths = np.zeros((len(left) + 1, len(right) + 1), np.int32)
    for i, code in enumerate(left):
        best = np.maximum(lengths[i, 1:], lengths[i, :-1] + (right == code))
        lengths[i + 1, 1:] = np.maximum.accumulate(best)
    i, j, pairs = len(left), len(right), list[tuple[str, str]]()
    while i and j:
        if lengths[i, j] == lengths[i - 1, j]:
            i -= 1
        elif lengths[i, j] == lengths[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((rows[0][i][0], rows[1][j][0]))
    yield from reversed(pairs)
