"""Which tensors of two networks are the same: by name, as given, or by position."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnef_jax.errors import InputError
from nnef_jax.wording.similar import did_you_mean

_MOST = 10**8  # pairs of tensors between which a sequence is looked for: 0.4 GB


@dataclass(frozen=True, slots=True)
class TensorKind:
    """What is known of a tensor before its values: the kind of what computes it, if known."""

    kind: str
    shape: tuple[int, ...]
    output: int | None = None  # which output of the network it is


@dataclass(frozen=True, slots=True)
class Pair:
    """Two tensors that are taken as the same: their names, and why they are."""

    a: str
    b: str
    by: str  # "given", "name", "output" or "position"


def match(
    a: Mapping[str, TensorKind], b: Mapping[str, TensorKind], given: Mapping[str, str]
) -> list[Pair]:
    """Return the pairs in the order of `a`.

    First those `given`. Then those of one name, or of names that differ in nothing but characters
    other than letters and digits ("/conv1/Conv" and "conv1_conv" in ONNX and NNEF, say). Then the
    outputs, in order, if there are as many. Then, between any two of these, the longest common
    sequence of tensors of equal kind and shape.

    Raises InputError for a given name that there is not, or that is given twice.
    """
    for side, names, known in (("a", given.keys(), a), ("b", given.values(), b)):
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known)
                raise InputError(f"names: {side} has no tensor '{name}'", hint=hint)
    pairs = {x: Pair(x, y, "given") for x, y in given.items()}
    taken = set(given.values())
    for name, times in Counter(given.values()).items():
        if times > 1:
            same = [f"'{x}'" for x, y in given.items() if y == name]
            raise InputError(f"names: '{name}' of b is given for {' and '.join(same)}")

    def free(side: Mapping[str, TensorKind], used: Any) -> dict[str, TensorKind]:
        return {name: tensor for name, tensor in side.items() if name not in used}

    def add(found: Iterator[tuple[str, str]], by: str) -> None:
        for x, y in found:
            if x not in pairs and y not in taken:
                pairs[x] = Pair(x, y, by)
                taken.add(y)

    for spelled in (str, _simplified):
        add(_same(free(a, pairs), free(b, taken), spelled), "name")
    add(_outputs(a, b), "output")
    add(_between(a, b, dict(pairs)), "position")
    return [pairs[name] for name in a if name in pairs]


def _same(
    a: Mapping[str, TensorKind], b: Mapping[str, TensorKind], spelled: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    """Yield the names that are spelled alike, where just one of each side is."""
    sides: list[dict[str, list[str]]] = []
    for side in (a, b):
        names: dict[str, list[str]] = {}
        for name in side:
            names.setdefault(spelled(name), []).append(name)
        sides.append(names)
    for word, (x, *others) in sides[0].items():
        same = sides[1].get(word, [])
        if len(same) == 1 and not others:
            yield x, same[0]


def _simplified(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name).strip("_").lower()


def _outputs(a: Mapping[str, TensorKind], b: Mapping[str, TensorKind]) -> Iterator[tuple[str, str]]:
    sides = [{t.output: n for n, t in side.items() if t.output is not None} for side in (a, b)]
    if sides[0].keys() == sides[1].keys():
        yield from ((name, sides[1][index]) for index, name in sides[0].items())


def _between(
    a: Mapping[str, TensorKind], b: Mapping[str, TensorKind], known: Mapping[str, Pair]
) -> Iterator[tuple[str, str]]:
    """Yield pairs of tensors of one kind and shape, at one position between known pairs."""
    place = {name: index for index, name in enumerate(b)}
    taken = {pair.b for pair in known.values()}
    names, after = list(b), 0
    rest: list[str] = []
    for name in [*a, None]:
        pair = None if name is None else known.get(name)
        if name is not None and (pair is None or place[pair.b] < after):
            rest += [] if pair else [name]  # a pair out of order divides nothing
            continue
        start, after = after, len(names) if pair is None else place[pair.b] + 1
        yield from _common(rest, [x for x in names[start:after] if x not in taken], a, b)
        rest = []


def _common(
    x: Sequence[str], y: Sequence[str], a: Mapping[str, TensorKind], b: Mapping[str, TensorKind]
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a longest common sequence of kinds and shapes.

    Recorded tensors have no kind, and a shape alone says too little.
    """
    codes: dict[tuple[str, tuple[int, ...]], int] = {}
    rows = [
        [(n, codes.setdefault((side[n].kind, side[n].shape), len(codes))) for n in names]
        for side, names in ((a, [n for n in x if a[n].kind]), (b, [n for n in y if b[n].kind]))
    ]
    if not all(rows) or len(rows[0]) * len(rows[1]) > _MOST:
        return
    left, right = (np.array([code for _, code in row]) for row in rows)
    # lengths[i, j] is that of the first i and the first j, computed a row at a time.
    lengths = np.zeros((len(left) + 1, len(right) + 1), np.int32)
    for i, code in enumerate(left):
        best = np.maximum(lengths[i, 1:], lengths[i, :-1] + (right == code))
        lengths[i + 1, 1:] = np.maximum.accumulate(best)
    i, j, found = len(left), len(right), []
    while i and j:
        if lengths[i, j] == lengths[i - 1, j]:
            i -= 1
        elif lengths[i, j] == lengths[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            found.append((rows[0][i][0], rows[1][j][0]))
    yield from reversed(found)
