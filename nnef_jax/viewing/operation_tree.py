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

from lowering.graph import Call, Graph, Operation
from nnef_jax.parameters.module_names import Path, shared_start
from nnef_jax.viewing.modules import OperationUnit, count_live_tensors, find_modules, units_of

MOST = 60  # A group has at most this many members.
_RANGE_LENGTH = 40  # A range has about this many members.
_LONGEST_PERIOD = 1024  # The members of a group may repeat after at most this many members.
# A repetition must cover more than a tenth of a group's members. A shorter one is regarded as a
# coincidence.
_SMALLEST_SHARE = 1 / 10
_DEEPEST = 40  # Groups are nested at most this deeply.

By = Literal["root", "module", "call", "operation", "repetition", "range"]


@dataclass(eq=False)
class Group:
    """A group of operations and inner groups, with a label. `by` tells why they form a group."""

    label: str
    by: By
    members: list[Group | Operation]
    start: int  # This is the index of the group's first unit.
    repeats: int = 0  # If all members are groups of the same structure, this is their number.
    module: str = ""  # If the group is one operation, this is the name of its module.
    # Groups of equal structure have equal signatures. `_Folding.fold` computes the signature.
    signature: int = field(default=0, repr=False)


class _Key(NamedTuple):
    """A module or a call that contains a unit. Consecutive units with equal keys form a group.

    The field `identity` is the name of a module, or the object of a call. Two calls of one fragment
    therefore have different keys.
    """

    by: Literal["module", "call"]
    label: str
    identity: object


def tree_of(graph: Graph) -> Group:
    """Return the root of a tree of groups, whose leaves are the operations of a graph.

    The label of the root is the graph's name.
    """
    units = units_of(graph)
    live_counts = count_live_tensors(units, graph)
    find_modules(units, graph, live_counts)
    members = _members_in_range(units, _keys(units), start=0, end=len(units), depth=0)
    root = Group(graph.name, "root", members, start=0)
    _Folding(live_counts).fold(root)
    return root


def _keys(units: Sequence[OperationUnit]) -> list[tuple[_Key, ...]]:
    """Return the keys of the modules and calls that contain each unit, the outermost first.

    There are at most `_DEEPEST` keys for a unit. If a module contains all units of a call, the key
    of the module comes before the key of the call.
    """
    keys: list[list[_Key]] = [[] for _ in units]

    def add_modules(index: int, names: Path) -> None:
        """Add keys of modules to a unit. `index` is the unit's index; `names` are the modules."""
        keys[index] += [_Key("module", name, name) for name in names]

    def add_keys(start: int, end: int, module_count: int, depth: int) -> None:
        """Add the keys of the units from `start` to `end` that are still missing.

        The keys of `depth` calls around these units, and the keys of the first `module_count`
        modules in each unit's path, are there already.
        """

        def call_at_depth(index: int) -> tuple[Call, ...]:
            # The result is a tuple of one call. It is empty if the unit is in `depth` calls or
            # fewer.
            return units[index].calls[depth : depth + 1]

        for calls, indices_of_call in groupby(range(start, end), key=call_at_depth):
            indices = list(indices_of_call)
            if not calls or depth == _DEEPEST:
                for index in indices:
                    add_modules(index, units[index].path[module_count:])
                continue
            (call,) = calls
            shared_length = len(shared_start([units[index].path for index in indices]) or ())
            for index in indices:
                add_modules(index, units[index].path[module_count:shared_length])
                keys[index].append(_Key("call", call.fragment, call))
            add_keys(
                start=indices[0],
                end=indices[-1] + 1,
                module_count=max(module_count, shared_length),
                depth=depth + 1,
            )

    add_keys(start=0, end=len(units), module_count=0, depth=0)
    return [tuple(unit_keys[:_DEEPEST]) for unit_keys in keys]


def _members_in_range(
    units: Sequence[OperationUnit],
    keys: Sequence[tuple[_Key, ...]],
    start: int,
    end: int,
    depth: int,
) -> list[Group | Operation]:
    """Return the members of a group that contains the units from `start` to `end`.

    The first `depth` keys of these units are those of the group and of the groups around it.
    """

    def key_at_depth(index: int) -> tuple[_Key, ...]:
        # The result is a tuple of one key. It is empty if the unit has `depth` keys or fewer.
        return keys[index][depth : depth + 1]

    members: list[Group | Operation] = []
    for group_keys, indices_of_group in groupby(range(start, end), key=key_at_depth):
        indices = list(indices_of_group)
        if not group_keys:
            members += [_unit_member(units[index], index) for index in indices]
            continue
        (key,) = group_keys
        first_unit = indices[0]
        inner_members = _members_in_range(
            units, keys, start=first_unit, end=indices[-1] + 1, depth=depth + 1
        )
        group = Group(key.label, key.by, inner_members, start=first_unit)
        members.append(_unless_single(group))
    return members


def _unit_member(unit: OperationUnit, index: int) -> Group | Operation:
    """Return a unit as a member of a group. `index` is the index of the unit."""
    if len(unit.operations) == 1:
        return unit.main
    by = "operation" if len(unit.operations) <= MOST else "range"
    return Group(unit.main.name, by, list(unit.operations), start=index)


def _unless_single(group: Group) -> Group | Operation:
    """Return the only member of a group with one member. Return any other group unchanged.

    If the group is a module, the name of the module is added to the label of the member. Let the
    group be the module "blocks". If its only member is the module "0", the label becomes
    "blocks.0". If its only member is a call of the fragment "norm", the label becomes
    "blocks: norm".
    """
    if len(group.members) > 1:
        return group
    (member,) = group.members
    if isinstance(member, Operation):
        # The only member is an operation. The box of the operation also shows the label of the
        # group, the name of its call or module.
        return Group(member.name, "operation", [member], start=group.start, module=group.label)
    if member.by == "operation":
        names = [member.module]
        if group.by == "module":
            names.insert(0, group.label)
        member.module = ".".join([name for name in names if name])
    elif group.by == member.by == "module":
        member.label = f"{group.label}.{member.label}"
    elif group.by == "module":
        member.label = f"{group.label}: {member.label}"
    return member


class _Folding:
    """Folds a tree: puts members into new groups until no group has too many members.

    The innermost groups are folded first. In a group, repeated members are put into new groups
    before ranges of other members are.
    """

    def __init__(self, live_counts: Sequence[int]) -> None:
        self.live_counts = live_counts
        # Maps structures of members to numbers. The numbers are compared instead of the structures.
        self.structure_numbers: dict[object, int] = {}

    def fold(self, group: Group) -> None:
        """Change a group and the groups inside it, until none of them has too many members."""
        for member in group.members:
            if isinstance(member, Group):
                self.fold(member)
        # A group with by="operation" is an operation and the operations that prepare its operands.
        # These operations stay together.
        is_unit = group.by == "operation"
        if not is_unit:
            self._wrap_repetitions(group)
        signatures = [self._signature(member) for member in group.members]
        are_alike = len(signatures) > 1 and len({*signatures}) == 1
        if are_alike and isinstance(group.members[0], Group):
            group.repeats = len(signatures)
        group.signature = self._number_of(("group", *signatures))
        while not is_unit and len(group.members) > MOST:
            group.members = [*_ranges(group.members, self._start_of(group))]

    def _signature(self, member: Group | Operation) -> int:
        """Return a number for a member. Members of equal structure have equal numbers.

        The structure consists of the kinds of all operations, and of how they are nested.
        """
        if isinstance(member, Group):
            return member.signature
        return self._number_of(member.kind)

    def _number_of(self, structure: object) -> int:
        """Return the number of a structure. Equal structures have equal numbers."""
        return self.structure_numbers.setdefault(structure, len(self.structure_numbers))

    def _start_of(self, group: Group) -> Callable[[int], int]:
        """Return a function from the index of a member to the index of its first unit."""
        starts: list[int] = []
        next_unit = group.start
        for member in group.members:
            if isinstance(member, Group):
                next_unit = member.start
            starts.append(next_unit)
            next_unit += _units_in(member)
        last_unit = len(self.live_counts) - 1

        def start_of(index: int) -> int:
            # `_units_in` counts each operation as a unit, although several operations may form one
            # unit. The sum may therefore be larger than the index of the last unit.
            return min(starts[index], last_unit)

        return start_of

    def _wrap_repetitions(self, group: Group) -> None:
        """Replace repeated members of a group by inner groups, while there are too many members.

        The repeated members become one inner group. If the period is longer than 1, this inner
        group contains a group for each repetition.
        """
        # Each round replaces one repetition. The number of rounds is bounded.
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
                # All members are alike. An inner group would have the same members as this group.
                return
            members = group.members[first:end]
            wrapper = Group(_from_to(members), "repetition", members, start=start_of(first))
            if period > 1:
                blocks = self._blocks(group, range(first, end, period), start_of)
                wrapper.label = f"{_size(blocks[0])} operations"
                wrapper.members = [*blocks]
            self.fold(wrapper)
            group.members[first:end] = [wrapper]

    def _blocks(
        self, group: Group, block_starts: range, start_of: Callable[[int], int]
    ) -> list[Group]:
        """Divide members of a group into blocks. Return a group for each: "#1", "#2" and so on.

        Args:
            group: the group.
            block_starts: the index of the first member of each block. The step of this range is the
                number of members in a block.
            start_of: a function from the index of a member to the index of its first unit.
        """
        blocks: list[Group] = []
        for number, block_start in enumerate(block_starts, start=1):
            block_members = group.members[block_start : block_start + block_starts.step]
            first_unit = start_of(block_start)
            block = Group(f"#{number}", "repetition", block_members, start=first_unit)
            self.fold(block)
            blocks.append(block)
        return blocks

    def _blocks_range(
        self, repetition: _Repetition, start_of: Callable[[int], int]
    ) -> tuple[int, int]:
        """Return the range (first, end) of the members that are in complete blocks of a repetition.

        The number of members of a block is the period. At least two blocks must fit into the
        repetition, which leaves several possible first members. The first member is the one before
        which the fewest tensors are live.
        """
        start, period, length = repetition
        # After a shift, two blocks must still fit into the range. With the period 3 and the length
        # 7, the shifts are 0 and 1.
        shift_count = min(period, length - 2 * period + 1)
        counts = [self.live_counts[start_of(start + shift)] for shift in range(shift_count)]
        shift = counts.index(min(counts))
        block_count = (length - shift) // period
        first = start + shift
        return first, first + block_count * period


class _Repetition(NamedTuple):
    """A range of members that repeats.

    After the first `period` members of the range, each member has the same structure as the member
    that is `period` places before it.
    """

    start: int
    period: int
    length: int


def _longest_repetition(signatures: NDArray[np.int64]) -> _Repetition | None:
    """Return the longest range of signatures that repeats with a period, or None.

    A range that covers at most a tenth of the signatures is not taken.
    """
    longest_repetition: _Repetition | None = None
    most_repeated = int(len(signatures) * _SMALLEST_SHARE)
    longest_period = min(len(signatures) // 2, _LONGEST_PERIOD)
    for period in range(1, longest_period + 1):
        is_repeated = signatures[period:] == signatures[:-period]
        # In [False, True, True, False, True] the stretches of True are 1:3 and 4:5. `bounds` is
        # then [1, 3, 4, 5], with the starts 1 and 4, and the ends 3 and 5.
        (bounds,) = np.diff(is_repeated, prepend=False, append=False).nonzero()
        starts = bounds[::2]
        ends = bounds[1::2]
        lengths = ends - starts
        repeated = int(lengths.max(initial=0))
        if repeated >= period and repeated > most_repeated:
            most_repeated = repeated
            start = int(starts[lengths.argmax()])
            # `repeated` is the number of members that equal an earlier one. The first block, of
            # `period` members, is also in the range.
            longest_repetition = _Repetition(start, period, repeated + period)
    return longest_repetition


def _ranges(members: list[Group | Operation], start_of: Callable[[int], int]) -> list[Group]:
    """Divide many members into ranges of about equal length. Return a group for each range.

    `start_of` is a function from the index of a member to the index of its first unit.
    """
    range_count = max(2, ceil(len(members) / _RANGE_LENGTH))
    # For 100 members in 3 ranges, the bounds are 0, 33, 66 and 100.
    bounds = [len(members) * number // range_count for number in range(range_count + 1)]
    ranges: list[Group] = []
    for start, end in pairwise(bounds):
        range_members = members[start:end]
        label = _from_to(range_members)
        ranges.append(Group(label, "range", range_members, start=start_of(start)))
    return ranges


def _from_to(members: Sequence[Group | Operation]) -> str:
    """Return the label of a group: the labels of its first and its last member."""
    return f"{_label_of(members[0])} … {_label_of(members[-1])}"


def _label_of(member: Group | Operation) -> str:
    """Return the label of a group, or the name of an operation."""
    return member.label if isinstance(member, Group) else member.name


def _size(member: Group | Operation) -> int:
    """Return the number of operations in a group, or 1 for an operation."""
    return 1 if isinstance(member, Operation) else sum(map(_size, member.members))


def _units_in(member: Group | Operation) -> int:
    """Return the number of units in a group, or 1 for an operation."""
    if isinstance(member, Operation) or member.by == "operation":
        return 1
    return sum(map(_units_in, member.members))
