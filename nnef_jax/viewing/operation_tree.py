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
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowering.graph import Graph, Operation
from nnef_jax.parameters.module_names import Path
from nnef_jax.viewing.modules import OperationUnit, find_modules, live_counts, units_of

MOST = 60  # the largest number of members of a group
_RANGE_LENGTH = 40  # the number of members of a range
_LONGEST_PERIOD = 1024
# A repetition of a smaller share of a group's members is regarded as a coincidence.
_SMALLEST_SHARE = 1 / 10
_DEEPEST = 40  # the largest depth of nested groups

By = Literal["root", "module", "call", "operation", "repetition", "range"]


@dataclass(eq=False)
class Group:
    """A group of operations and inner groups, with a label. `by` is the kind of the group."""

    label: str
    by: By
    members: list[Group | Operation]
    start: int  # the index of the first unit
    repeats: int = 0  # the number of members, if all have the same structure
    module: str = ""  # the name of the module, if the group is one operation
    signature: int = field(default=0, repr=False)


class _Key(NamedTuple):
    """A module or a call that contains a unit. Consecutive units with equal keys form a group."""

    by: Literal["module", "call"]
    label: str
    identity: object


def tree_of(graph: Graph) -> Group:
    """Return the root of a tree of groups, whose leaves are the operations of a graph.

    The label of the root is the graph's name.
    """
    units = units_of(graph)
    counts = live_counts(units, graph)
    find_modules(units, graph, counts)
    members = _members_in_range(units, _keys(units), 0, len(units), 0)
    root = Group(graph.name, "root", members, 0)
    _Folding(counts).fold(root)
    return root


def _keys(units: Sequence[OperationUnit]) -> list[tuple[_Key, ...]]:
    """Return, for each unit, the modules and calls that contain it, outermost first.

    There are at most `_DEEPEST` keys for a unit. A call comes after the modules that contain all
    units of the call.
    """
    keys: list[list[_Key]] = [[] for _ in units]

    def add_modules(index: int, names: Path) -> None:
        keys[index] += [_Key("module", name, name) for name in names]

    def add_keys(start: int, end: int, used: int, depth: int) -> None:
        """Add the keys of the units from `start` to `end`, for calls nested in `depth` calls.

        The first `used` modules of each unit's path are keys already.
        """
        stretches = groupby(range(start, end), key=lambda i: units[i].calls[depth : depth + 1])
        for calls, stretch in stretches:
            indices = list(stretch)
            if not calls or depth == _DEEPEST:
                for i in indices:
                    add_modules(i, units[i].path[used:])
                continue
            paths = [units[i].path for i in indices]
            shared = min(map(len, paths))
            while len({path[:shared] for path in paths}) > 1:
                shared -= 1
            for i in indices:
                add_modules(i, units[i].path[used:shared])
                keys[i].append(_Key("call", calls[0].fragment, calls[0]))
            add_keys(indices[0], indices[-1] + 1, max(used, shared), depth + 1)

    add_keys(0, len(units), 0, 0)
    return [tuple(unit_keys[:_DEEPEST]) for unit_keys in keys]


def _members_in_range(
    units: Sequence[OperationUnit],
    keys: Sequence[tuple[_Key, ...]],
    start: int,
    end: int,
    depth: int,
) -> list[Group | Operation]:
    members: list[Group | Operation] = []
    stretches = groupby(range(start, end), key=lambda i: keys[i][depth : depth + 1])
    for keys_at_depth, stretch in stretches:
        indices = list(stretch)
        if not keys_at_depth:
            members += [_unit_member(units[i], i) for i in indices]
            continue
        (key,) = keys_at_depth
        first = indices[0]
        inner = _members_in_range(units, keys, first, indices[-1] + 1, depth + 1)
        members.append(_unless_single(Group(key.label, key.by, inner, first)))
    return members


def _unit_member(unit: OperationUnit, index: int) -> Group | Operation:
    if len(unit.operations) == 1:
        return unit.main
    by = "operation" if len(unit.operations) <= MOST else "range"
    return Group(unit.main.name, by, list(unit.operations), index)


def _unless_single(group: Group) -> Group | Operation:
    """Return a group, or, if the group has only one member, this member."""
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
    """The folding of a tree, which makes groups until each group has a bounded number of members.

    The innermost groups are folded first. Repeated members become groups.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self.live_counts = counts
        self.numbers: dict[object, int] = {}  # numbers of structures

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
        group.signature = self._number(("group", *signatures))
        while group.by != "operation" and len(group.members) > MOST:
            group.members = [*_ranges(group.members, self._start_of(group))]

    def _signature(self, member: Group | Operation) -> int:
        """Return a number that is equal for members of equal structure.

        The structure consists of the kinds of all operations, and of how they are nested.
        """
        if isinstance(member, Group):
            return member.signature
        return self._number(member.kind)

    def _number(self, structure: object) -> int:
        return self.numbers.setdefault(structure, len(self.numbers))

    def _start_of(self, group: Group) -> Callable[[int], int]:
        """Return a function from the index of a member to the index of its first unit."""
        starts: list[int] = []
        unit = group.start
        for member in group.members:
            if isinstance(member, Group):
                unit = member.start
            starts.append(unit)
            unit += _units_in(member)
        last = len(self.live_counts) - 1  # Several operations may share a unit.
        return lambda index: min(starts[index], last)

    def _wrap_repetitions(self, group: Group) -> None:
        for _ in range(MOST):
            if len(group.members) <= MOST:
                return
            signatures = np.array([self._signature(member) for member in group.members])
            repetition = _longest_repetition(signatures)
            if repetition is None:
                return
            start_of = self._start_of(group)
            first, end = self._blocks_range(repetition, start_of)
            period = repetition.period
            is_whole_group = end - first == len(group.members)
            if period == 1 and is_whole_group:
                return
            members = group.members[first:end]
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

    def _blocks_range(
        self, repetition: _Repetition, start_of: Callable[[int], int]
    ) -> tuple[int, int]:
        """Return the range (first, end) of the members that the whole blocks of a repetition cover.

        A block has as many members as the period. The first block starts at the member before which
        the fewest tensors are live, but so early that at least two blocks fit.
        """
        start, period, length = repetition
        shifts = range(min(period, length - 2 * period + 1))
        shift = min(shifts, key=lambda i: self.live_counts[start_of(start + i)])
        block_count = (length - shift) // period
        first = start + shift
        return first, first + block_count * period


class _Repetition(NamedTuple):
    """A range of members that repeats: each member equals the one that is `period` before it."""

    start: int
    period: int
    length: int


def _longest_repetition(signatures: NDArray[np.int64]) -> _Repetition | None:
    """Return the longest range of signatures that repeats with a period, or None."""
    best: _Repetition | None = None
    longest = int(len(signatures) * _SMALLEST_SHARE)
    for period in range(1, min(len(signatures) // 2, _LONGEST_PERIOD) + 1):
        is_repeated = signatures[period:] == signatures[:-period]
        # Each stretch of True lies between a bound with an even index and the next bound.
        (bounds,) = np.diff(is_repeated, prepend=False, append=False).nonzero()
        lengths = bounds[1::2] - bounds[::2]
        length = int(lengths.max(initial=0))
        if length >= period and length > longest:
            longest = length
            start = int(bounds[2 * lengths.argmax()])
            best = _Repetition(start, period, length + period)
    return best


def _ranges(members: list[Group | Operation], start_of: Callable[[int], int]) -> list[Group]:
    """Cut a long row of members into ranges of about equal length.

    `start_of` is a function from the index of a member to the index of its first unit.
    """
    count = max(2, ceil(len(members) / _RANGE_LENGTH))
    bounds = [len(members) * i // count for i in range(count + 1)]
    ranges: list[Group] = []
    for start, end in pairwise(bounds):
        range_members = members[start:end]
        ranges.append(Group(_from_to(range_members), "range", range_members, start_of(start)))
    return ranges


def _from_to(members: Sequence[Group | Operation]) -> str:
    return f"{_label_of(members[0])} … {_label_of(members[-1])}"


def _label_of(member: Group | Operation) -> str:
    return member.label if isinstance(member, Group) else member.name


def _size(member: Group | Operation) -> int:
    """Return the number of operations in a group, or 1 for an operation."""
    return 1 if isinstance(member, Operation) else sum(map(_size, member.members))


def _units_in(member: Group | Operation) -> int:
    if isinstance(member, Operation) or member.by == "operation":
        return 1
    return sum(map(_units_in, member.members))
