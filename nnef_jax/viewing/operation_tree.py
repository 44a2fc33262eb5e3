"""Folds the operations of a graph into a tree of groups with a bounded number of members.

A group is a contiguous range of the order of computation, so that no edge between groups goes
backwards. Groups are modules and fragment calls. Where these have too many members, groups of
repeated members are added, and ranges where nothing repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lowering.graph import Graph, Operation
from nnef_jax.viewing.modules import OperationUnit, alive, find_modules, units_of

MOST = 60  # members of a group
_RANGE = 40  # members of a range
_LONGEST_PERIOD = 1024
_DEEPEST = 40  # nested groups

By = Literal["root", "module", "call", "operation", "repetition", "range"]


@dataclass(eq=False)
class Group:
    """A group of operations and groups under one label; `by` is its kind."""

    label: str
    by: By
    members: list[Group | Operation]
    start: int  # index of its first unit
    repeats: int = 0  # number of members if all have the same structure
    module: str = ""  # for the group of one operation
    signature: int = field(default=0, repr=False)


_Key = tuple[str, str, object]  # by, label, identity


def tree_of(graph: Graph) -> Group:
    """Return the tree of a graph's operations; its root has the graph's name."""
    units = units_of(graph)
    living = alive(units, graph)
    find_modules(units, graph, living)
    keys = _keys(units)
    root = Group(graph.name, "root", _nested(units, keys, 0, len(units), 0), 0)
    _Folding(living).fold(root)
    return root


def _keys(units: Sequence[OperationUnit]) -> list[tuple[_Key, ...]]:
    """Return the groups that contain each unit, outermost first, at most `_DEEPEST` ones.

    A call comes after the start of the module path that all its units share.
    """
    keys: list[list[_Key]] = [[] for _ in units]

    def add(start: int, end: int, used: int, depth: int) -> None:
        """Add the keys from a depth of calls on; `used` parts of the paths are keys already."""
        stretches = groupby(range(start, end), key=lambda i: units[i].calls[depth : depth + 1])
        for calls, stretch in stretches:
            indices = list(stretch)
            if not calls or depth == _DEEPEST:
                for i in indices:
                    keys[i] += [("module", name, name) for name in units[i].path[used:]]
                continue
            paths = [units[i].path for i in indices]
            shared = min(map(len, paths))
            while len({path[:shared] for path in paths}) > 1:
                shared -= 1
            for i in indices:
                keys[i] += [("module", name, name) for name in units[i].path[used:shared]]
                keys[i].append(("call", calls[0].fragment, calls[0]))
            add(indices[0], indices[-1] + 1, max(used, shared), depth + 1)

    add(0, len(units), 0, 0)
    return [tuple(key[:_DEEPEST]) for key in keys]


def _nested(
    units: Sequence[OperationUnit],
    keys: Sequence[tuple[_Key, ...]],
    start: int,
    end: int,
    depth: int,
) -> list[Group | Operation]:
    members: list[Group | Operation] = []
    for key, stretch in groupby(range(start, end), key=lambda i: keys[i][depth : depth + 1]):
        indices = list(stretch)
        first, last = indices[0], indices[-1]
        if not key:
            members += [_leaf(units[i], i) for i in indices]
            continue
        by, label, _ = key[0]
        inner = _nested(units, keys, first, last + 1, depth + 1)
        members.append(_joined(Group(label, "call" if by == "call" else "module", inner, first)))
    return members


def _leaf(unit: OperationUnit, index: int) -> Group | Operation:
    if len(unit.operations) == 1:
        return unit.main
    by = "operation" if len(unit.operations) <= MOST else "range"
    return Group(unit.main.name, by, list(unit.operations), index)


def _joined(group: Group) -> Group | Operation:
    """Return a group, or its only member instead."""
    if len(group.members) > 1:
        return group
    (member,) = group.members
    if isinstance(member, Operation):
        # The box of a single operation has the name of its call or module.
        return Group(member.name, "operation", [member], group.start, module=group.label)
    if member.by == "operation":
        name = group.label if group.by == "module" else ""
        member.module = ".".join(filter(None, (name, member.module)))
    elif group.by == member.by == "module":
        member.label = f"{group.label}.{member.label}"
    elif group.by == "module":
        member.label = f"{group.label}: {member.label}"
    return member


class _Folding:
    """Bounds the number of members of groups, and finds repetitions, innermost groups first."""

    def __init__(self, living: Sequence[int]) -> None:
        self.living = living
        self.numbers: dict[object, int] = {}

    def fold(self, group: Group) -> None:
        for member in group.members:
            if isinstance(member, Group):
                self.fold(member)
        if group.by != "operation":
            self._wrap_repetitions(group)
        signatures = [self._signature(member) for member in group.members]
        if len(signatures) > 1 and len({*signatures}) == 1 and isinstance(group.members[0], Group):
            group.repeats = len(signatures)
        group.signature = self.numbers.setdefault(("group", *signatures), len(self.numbers))
        while group.by != "operation" and len(group.members) > MOST:
            group.members = [*_ranges(group.members, self._start_of(group))]

    def _signature(self, member: Group | Operation) -> int:
        """Return a number for the structure of a member: the nested kinds of its operations."""
        if isinstance(member, Group):
            return member.signature
        return self.numbers.setdefault(member.kind, len(self.numbers))

    def _start_of(self, group: Group) -> Callable[[int], int]:
        """Return the function from a member's index to the index of its first unit."""
        starts: list[int] = []
        at = group.start
        for member in group.members:
            at = member.start if isinstance(member, Group) else at
            starts.append(at)
            at += _units_in(member)
        last = len(self.living) - 1  # several operations may share a unit
        return lambda index: min(starts[index], last)

    def _wrap_repetitions(self, group: Group) -> None:
        for _ in range(MOST):
            if len(group.members) <= MOST:
                return
            signatures = np.array([self._signature(member) for member in group.members])
            repetition = _repetition(signatures)
            if repetition is None:
                return
            first, period, covered = repetition
            where = self._start_of(group)
            # Start where the fewest tensors are alive.
            choices = range(min(period, covered - 2 * period + 1))
            shift = min(choices, key=lambda i: self.living[where(first + i)])
            first, count = first + shift, (covered - shift) // period
            end = first + count * period
            members = group.members[first:end]
            if period == 1 and len(members) == len(group.members):
                return
            wrapper = Group(_from_to(members), "repetition", members, where(first))
            if period > 1:
                starts = range(first, end, period)
                blocks = [
                    Group(f"#{number}", "repetition", group.members[i : i + period], where(i))
                    for number, i in enumerate(starts, 1)
                ]
                for block in blocks:
                    self.fold(block)
                wrapper.label, wrapper.members = f"{_size(blocks[0])} operations", [*blocks]
            self.fold(wrapper)
            group.members[first:end] = [wrapper]


def _repetition(signatures: NDArray[np.int64]) -> tuple[int, int, int] | None:
    """Return start, period and length of the longest repetition, None if there is none."""
    best: tuple[int, int, int] | None = None
    longest = len(signatures) // 10  # shorter repetitions are taken for coincidences
    for period in range(1, min(len(signatures) // 2, _LONGEST_PERIOD) + 1):
        equal = signatures[period:] == signatures[:-period]
        (bounds,) = np.diff(equal, prepend=False, append=False).nonzero()
        lengths = bounds[1::2] - bounds[::2]
        if len(lengths) and (length := int(lengths.max())) >= period and length > longest:
            longest = length
            best = int(bounds[2 * lengths.argmax()]), period, length + period
    return best


def _ranges(members: list[Group | Operation], where: Callable[[int], int]) -> list[Group]:
    """Cut a long row of members into ranges of about equal length."""
    pieces = max(2, -(-len(members) // _RANGE))
    bounds = [len(members) * i // pieces for i in range(pieces + 1)]
    return [
        Group(_from_to(members[a:b]), "range", members[a:b], where(a)) for a, b in pairwise(bounds)
    ]


def _from_to(members: Sequence[Group | Operation]) -> str:
    first, last = (x.label if isinstance(x, Group) else x.name for x in (members[0], members[-1]))
    return f"{first} … {last}"


def _size(member: Group | Operation) -> int:
    """Return the number of operations in a member."""
    return 1 if isinstance(member, Operation) else sum(map(_size, member.members))


def _units_in(member: Group | Operation) -> int:
    if isinstance(member, Operation) or member.by == "operation":
        return 1
    return sum(map(_units_in, member.members))
