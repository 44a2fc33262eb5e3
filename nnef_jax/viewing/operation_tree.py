"""Folds the operations of a graph into a tree of groups with a bounded number of members.

A group is a contiguous range in the order of computation, so that no edge between groups goes
backwards. Groups are modules and fragment calls. If a module or call has too many members, groups
of repeated members are added, and ranges of members where nothing repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lowering.graph import Graph, Operation
from nnef_jax.viewing.modules import OperationUnit, alive, find_modules, units_of

MOST = 60  # the largest number of members of a group
_RANGE = 40  # the number of members of a range
_LONGEST_PERIOD = 1024
_DEEPEST = 40  # the largest depth of nested groups

By = Literal["root", "module", "call", "operation", "repetition", "range"]


@dataclass(eq=False)
class Group:
    """A group of operations and groups under one label. `by` is the kind of the group."""

    label: str
    by: By
    members: list[Group | Operation]
    start: int  # the index of the first unit
    repeats: int = 0  # the number of members, if all have the same structure
    module: str = ""  # the name of the module, if the group is one operation
    signature: int = field(default=0, repr=False)


_Key = tuple[str, str, object]  # (by, label, identity)


def tree_of(graph: Graph) -> Group:
    """Return the tree of a graph's operations. The root of the tree has the graph's name."""
    units = units_of(graph)
    living = alive(units, graph)
    find_modules(units, graph, living)
    keys = _keys(units)
    root = Group(graph.name, "root", _nested(units, keys, 0, len(units), 0), 0)
    _Folding(living).fold(root)
    return root


def _keys(units: Sequence[OperationUnit]) -> list[tuple[_Key, ...]]:
    """Return the groups that contain each unit, outermost first, at most `_DEEPEST` groups.

    A call comes after the start of the module path that all units of the call share.
    """
    keys: list[list[_Key]] = [[] for _ in units]

    def add(start: int, end: int, used: int, depth: int) -> None:
        """Add the keys of units `start` to `end`, from the calls at `depth` on.

        The first `used` modules of each path are keys already.
        """
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
        if not key:
            members += [_leaf(units[i], i) for i in indices]
            continue
        key_by, label, _ = key[0]
        by: By = "call" if key_by == "call" else "module"
        first = indices[0]
        inner = _nested(units, keys, first, indices[-1] + 1, depth + 1)
        members.append(_joined(Group(label, by, inner, first)))
    return members


def _leaf(unit: OperationUnit, index: int) -> Group | Operation:
    if len(unit.operations) == 1:
        return unit.main
    by = "operation" if len(unit.operations) <= MOST else "range"
    return Group(unit.main.name, by, list(unit.operations), index)


def _joined(group: Group) -> Group | Operation:
    """Return a group, or its only member in place of the group."""
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
    """The folding of groups until each has a bounded number of members.

    The innermost groups are folded first. Repeated members become groups.
    """

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
        are_alike = len(signatures) > 1 and len({*signatures}) == 1
        if are_alike and isinstance(group.members[0], Group):
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
        """Return a function from the index of a member to the index of its first unit."""
        starts: list[int] = []
        unit = group.start
        for member in group.members:
            if isinstance(member, Group):
                unit = member.start
            starts.append(unit)
            unit += _units_in(member)
        last = len(self.living) - 1  # Several operations may share a unit.
        return lambda index: min(starts[index], last)

    def _wrap_repetitions(self, group: Group) -> None:
        for _ in range(MOST):
            if len(group.members) <= MOST:
                return
            signatures = np.array([self._signature(member) for member in group.members])
            repetition = _repetition(signatures)
            if repetition is None:
                return
            start, period, covered = repetition
            start_of = self._start_of(group)
            # The first block starts where the fewest tensors are alive.
            shifts = range(min(period, covered - 2 * period + 1))
            shift = min(shifts, key=lambda i: self.living[start_of(start + i)])
            first = start + shift
            end = first + (covered - shift) // period * period
            members = group.members[first:end]
            if period == 1 and len(members) == len(group.members):
                return
            wrapper = Group(_from_to(members), "repetition", members, start_of(first))
            if period > 1:
                blocks: list[Group] = []
                for number, i in enumerate(range(first, end, period), 1):
                    block_members = group.members[i : i + period]
                    block = Group(f"#{number}", "repetition", block_members, start_of(i))
                    self.fold(block)
                    blocks.append(block)
                wrapper.label = f"{_size(blocks[0])} operations"
                wrapper.members = [*blocks]
            self.fold(wrapper)
            group.members[first:end] = [wrapper]


def _repetition(signatures: NDArray[np.int64]) -> tuple[int, int, int] | None:
    """Return start, period and length of the longest repetition, or None if there is none."""
    best: tuple[int, int, int] | None = None
    longest = len(signatures) // 10  # Shorter repetitions are regarded as coincidences.
    for period in range(1, min(len(signatures) // 2, _LONGEST_PERIOD) + 1):
        is_repeated = signatures[period:] == signatures[:-period]
        # Each stretch of True lies between a bound with an even index and the next bound.
        (bounds,) = np.diff(is_repeated, prepend=False, append=False).nonzero()
        lengths = bounds[1::2] - bounds[::2]
        length = int(lengths.max(initial=0))
        if length >= period and length > longest:
            longest = length
            start = int(bounds[2 * lengths.argmax()])
            best = start, period, length + period
    return best


def _ranges(members: list[Group | Operation], where: Callable[[int], int]) -> list[Group]:
    """Cut a long row of members into ranges of about equal length."""
    pieces = max(2, ceil(len(members) / _RANGE))
    bounds = [len(members) * i // pieces for i in range(pieces + 1)]
    ranges: list[Group] = []
    for start, end in pairwise(bounds):
        piece = members[start:end]
        ranges.append(Group(_from_to(piece), "range", piece, where(start)))
    return ranges


def _from_to(members: Sequence[Group | Operation]) -> str:
    return f"{_label_of(members[0])} … {_label_of(members[-1])}"


def _label_of(member: Group | Operation) -> str:
    return member.label if isinstance(member, Group) else member.name


def _size(member: Group | Operation) -> int:
    """Return the number of operations in a member."""
    return 1 if isinstance(member, Operation) else sum(map(_size, member.members))


def _units_in(member: Group | Operation) -> int:
    if isinstance(member, Operation) or member.by == "operation":
        return 1
    return sum(map(_units_in, member.members))
