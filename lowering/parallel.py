"""Finds the axis along which each parameter is divided for tensor parallelism.

A product whose columns are divided gives a result that is divided along them. What computes item by
item, or moves axes, keeps it so. A product that sums over the divided axis then has its rows
divided, and needs one sum over devices (Megatron-LM, https://arxiv.org/abs/1909.08053, section 3).
These are choices of storage alone: for whatever a rule here does not see XLA moves data.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

from lowering.graph import Graph, Operation, Value
from lowering.kernels import contraction
from lowering.ops import FAMILIES
from lowering.rules import Rules

DIVIDED = True
# What is known of an axis: nothing, that it is divided, or which axis of a parameter it is.
Mark = bool | tuple[str, int] | None
Marks = list[Mark]

_RULES = Rules()  # by kind; later ones count more


def divided_axes(graph: Graph, count: int, least: int = 0) -> dict[str, int]:
    """Return the axis to divide into `count` parts by label, of parameters that have one.

    Those of fewer items than `least` have none.
    """
    large = {p for p in graph.parameters if math.prod(p.value.type.shape) >= least}
    walk = _Walk(count)
    walk.extents = {p.label: p.value.type.shape for p in large}
    for parameter in large:
        axes = range(len(parameter.value.type.shape))
        walk.marks[parameter.value] = [(parameter.label, axis) for axis in axes]
    walk.through(graph)
    return walk.chosen


class _Walk:
    def __init__(self, count: int) -> None:
        self.count = count
        self.chosen: dict[str, int] = {}
        self.extents: dict[str, Sequence[int]] = {}
        self.marks: dict[Value, Marks] = {}

    def through(self, graph: Graph) -> None:
        """Mark what all operations write."""
        for operation in graph.operations:
            if rule := _RULES.own.get(operation.kind):
                rule(self, operation)

    def of(self, operand: Any) -> Marks:
        """Return what is known of an operand's axes."""
        if not isinstance(operand, Value):
            return []
        return self.marks.get(operand, [None] * len(operand.type.shape))

    def divides(self, mark: Mark) -> bool:
        """Tell whether an axis is divided; that of a parameter becomes so if it can be."""
        if not isinstance(mark, tuple):
            return mark is DIVIDED
        label, axis = mark
        if label not in self.chosen and self.extents[label][axis] % self.count == 0:
            self.chosen[label] = axis
        return self.chosen.get(label) == axis

    def write(self, operation: Operation, marks: Marks) -> None:
        """Mark the results, all of one rank."""
        for value in operation.writes():
            self.marks[value] = [
                # In pieces that are no whole number a result is gathered.
                None if mark is DIVIDED and extent % self.count else mark
                for mark, extent in zip(marks, value.type.shape, strict=True)
            ]

    def product(
        self, operation: Operation, operands: Sequence[Any], terms: Sequence[str], result: str
    ) -> Marks:
        """Divide the operands of a sum of products along one letter; return the result's marks."""
        axes = [
            (letter, mark)
            for operand, term in zip(operands, terms, strict=True)
            for letter, mark in zip(term, self.of(operand), strict=True)
        ]
        # What is divided already counts most, then the columns of a parameter.
        letters = [letter for letter, mark in axes if mark is DIVIDED]
        columns = [x for x, mark in axes if isinstance(mark, tuple) and x in result]
        letters += [x for x in columns if sum(x in term for term in terms) == 1]
        for letter in letters:
            if any([self.divides(mark) for other, mark in axes if other == letter]):
                return [DIVIDED if other == letter else None for other in result]
        return [None] * len(result)


def _operands(operation: Operation) -> list[Any]:
    found: list[Any] = []
    for _, operand in operation.operands:
        found += operand if isinstance(operand, tuple) else [operand]
    return found


_FAMILIES = ("window", "resample", "selection", "reduce", "normalize")


@_RULES(*(kind for family in _FAMILIES for kind in FAMILIES[family]), "masked_softmax", "split")
def _along_others(walk: _Walk, operation: Operation) -> None:
    """Keep the axes along which nothing is computed: extents there are as before."""
    attributes = dict(operation.attributes)
    axes = attributes.get("axes", attributes.get("axis", ()))
    computed = axes if isinstance(axes, tuple) else (axes,)
    source = next(operation.reads())
    marks = walk.of(source)
    for value in operation.writes():
        if len(value.type.shape) != len(marks):
            continue
        pairs = zip(marks, source.type.shape, value.type.shape, strict=True)
        walk.marks[value] = [
            DIVIDED
            if mark is DIVIDED
            and n % walk.count == 0
            and ((n == before and axis not in computed) or operation.kind in ("slice", "split"))
            else None
            for axis, (mark, before, n) in enumerate(pairs)
        ]


@_RULES(*FAMILIES["activation"], *FAMILIES["elementwise"], "cast", "add_n", "batch_normalization")
def _by_item(walk: _Walk, operation: Operation) -> None:
    """Aligned from the left, as the standard broadcasts."""
    _, marks = _aligned(walk, [walk.of(operand) for operand in _operands(operation)])
    rank = max([len(value.type.shape) for value in operation.writes()], default=0)
    walk.write(operation, (marks + [None] * rank)[:rank])


_RULES("softmax", "log_softmax")(_along_others)


def _aligned(walk: _Walk, operands: Sequence[Marks]) -> tuple[bool, Marks]:
    """Return the marks of a result along the axes of its operands."""
    rank = max(map(len, operands), default=0)
    columns = [[m[axis] for m in operands if axis < len(m)] for axis in range(rank)]
    known = all(any(isinstance(mark, tuple) for mark in marks) or not marks for marks in operands)
    result: Marks = []
    for column in columns:
        if DIVIDED in column:  # a bias is divided as what it is added to
            for mark in column:
                walk.divides(mark)
            result.append(DIVIDED)
        else:
            result.append(next((m for m in column if m), None) if known else None)
    return known, result


@_RULES("linear", "matmul")
def _linear(walk: _Walk, operation: Operation) -> None:
    operands = dict(operation.operands)
    if operation.kind == "linear":
        left, right, turned = operands["input"], operands["filter"], (False, True)
    else:
        attributes = dict(operation.attributes)
        left, right = operands["A"], operands["B"]
        turned = bool(attributes["transposeA"]), bool(attributes["transposeB"])
    rank = len(walk.of(left))
    if rank < 2 or len(walk.of(right)) != rank:
        return
    batch = string.ascii_lowercase[: rank - 2]
    rows, columns = ("KM" if turned[0] else "MK"), ("NK" if turned[1] else "KN")
    marks = walk.product(operation, (left, right), (batch + rows, batch + columns), batch + "MN")
    if "bias" in operands:
        _, marks = _aligned(walk, [marks, walk.of(operands["bias"])])
    walk.write(operation, marks)


@_RULES("einsum")
def _einsum(walk: _Walk, operation: Operation) -> None:
    operands = _operands(operation)
    expr = str(dict(operation.attributes)["expr"])
    terms, result = contraction.parse(expr, [len(walk.of(x)) for x in operands])
    if [len(term) for term in terms] == [len(walk.of(x)) for x in operands]:
        walk.write(operation, walk.product(operation, operands, terms, result))


@_RULES("attention")
def _attention(walk: _Walk, operation: Operation) -> None:
    """Keep heads apart."""
    *batch, heads, _, _ = walk.of(next(operation.reads()))
    walk.write(operation, [*batch, heads, None, None])


@_RULES("conv", "deconv")
def _conv(walk: _Walk, operation: Operation) -> None:
    """By output channel."""
    operands = dict(operation.operands)
    groups: Any = dict(operation.attributes)["groups"] or next(operation.reads()).type.shape[1]
    filter = walk.of(operands["filter"])
    axis = 1 if operation.kind == "deconv" else 0
    if groups != 1 and (axis or groups % walk.count):
        return
    marks: Marks = [None] * len(filter)
    marks[1] = DIVIDED if walk.divides(filter[axis]) else None
    walk.write(operation, _aligned(walk, [marks, walk.of(operands["bias"])])[1])


@_RULES("gather")
def _gather(walk: _Walk, operation: Operation) -> None:
    """Divide a table of words by word, else by width; what is looked up is whole."""
    marks = walk.of(dict(operation.operands)["input"])
    axis = dict(operation.attributes)["axis"]
    if len(marks) == 2 and isinstance(axis, int) and not walk.divides(marks[axis]):
        walk.divides(marks[1 - axis])


@_RULES("transpose")
def _transpose(walk: _Walk, operation: Operation) -> None:
    marks = walk.of(next(operation.reads()))
    axes: Any = dict(operation.attributes)["axes"]
    walk.write(operation, [marks[axis] for axis in axes] + marks[len(axes) :])


@_RULES("reshape", "squeeze", "unsqueeze")
def _reshape(walk: _Walk, operation: Operation) -> None:
    """Pass on what is one axis before and after, and what divides by the first of several."""
    (source,), (target,) = operation.reads(), operation.writes()
    pairs = zip(walk.of(source), source.type.shape, strict=True)
    before = [(mark, n) for mark, n in pairs if n != 1]
    marks: Marks = [None] * len(target.type.shape)
    after = [(axis, n) for axis, n in enumerate(target.type.shape) if n != 1]
    while before and after:
        (mark, size), (axis, extent) = before.pop(0), after.pop(0)
        if size == extent:
            marks[axis] = mark
            continue
        if mark is DIVIDED:
            marks[axis] = DIVIDED
        while size != extent:  # take the rest of this group of axes
            if size < extent and before:
                size *= before.pop(0)[1]
            elif size > extent and after:
                extent *= after.pop(0)[1]
            else:  # extents that are not known
                return
    walk.write(operation, marks)


@_RULES("concat")
def _concat(walk: _Walk, operation: Operation) -> None:
    operands = [walk.of(x) for x in _operands(operation)]
    axis = dict(operation.attributes)["axis"]
    columns = enumerate(zip(*operands, strict=False))
    walk.write(operation, [(i != axis and {*marks} == {DIVIDED}) or None for i, marks in columns])


@_RULES("scan")
def _scan(walk: _Walk, operation: Operation) -> None:
    """Go through the body, whose states are whole at first."""
    attributes: dict[str, Any] = dict(operation.attributes)
    operands: dict[str, Any] = dict(operation.operands)
    body, scanned = attributes["body"], operands["scanned"]
    given = (*scanned, *operands["full"])
    axes = {*zip(range(len(scanned)), attributes["axes"], strict=True)}
    for number, (inner, outer) in enumerate(zip(body.inputs, given, strict=False)):
        marks = walk.of(outer)
        if len(marks) == len(inner.type.shape):
            walk.marks[inner] = [
                None if (number, axis) in axes else mark for axis, mark in enumerate(marks)
            ]
    walk.through(body)
    values = body.outputs[len(operands["initial"]) :]
    for value, inner in zip(operation.writes(), values, strict=False):
        walk.marks[value] = [mark if mark is DIVIDED else None for mark in walk.of(inner)]
