"""Counts the work in a compiled program: cycles by instruction, trips of loops, collectives."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*)")
_OPCODE = re.compile(r"[\])}] ([a-z][\w\-]*)\(")  # after a shape, its layout or a tuple of shapes
_SHAPE = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_LOOP = re.compile(r"condition=%?([\w.\-]+), body=%?([\w.\-]+)")
_BRANCHES = re.compile(r"(?:to_apply|branch_computations|\w+_computation)=(\{[^}]*\}|%?[\w.\-]+)")
_NAME = re.compile(r"[\w.\-]+")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_BOUND = re.compile(r" [su]\d+\[\]\S* constant\((\d+)\)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_CHANNEL = re.compile(r"channel_id=(\d+)")
_LISTED_GROUP = re.compile(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]*)\}")
_GROUPS = re.compile(r"replica_groups=\[\d+,(\d+)\]")
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_OPERANDS = re.compile(r"[^()]*")
_WITHOUT_WORK = {
    "bitcast", "conditional", "constant", "get-tuple-element", "parameter", "tuple", "while"
}  # fmt: skip
_FREE = {"ConcatBitcast", "X64Combine", "X64SplitLow", "X64SplitHigh"}  # they compute nothing
_BITS = {"pred": 8, "token": 0, "opaque": 0}


@dataclass(frozen=True)
class Instruction:
    """An instruction of a computation that runs by itself, so not one within a fusion."""

    name: str
    opcode: str
    definition: str
    runs: int  # how often a call of the program runs it; 1 in a loop of unknown length

    @property
    def cycles(self) -> int:
        """Return the compiler's estimate of the cycles of a run, 0 if it has none."""
        match = _CYCLES.search(self.definition)
        return int(match[1]) if match else 0


@dataclass(frozen=True)
class Collective:
    """Collectives of one kind in a call.

    Attributes:
        kind: HLO's name, such as "all-reduce".
        count: the number of collectives; a collective in a loop is counted by trips.
        bytes: bytes of their results on one device.
        exchanged: bytes that a device sends in rings: all-reduce 2 (n - 1) / n of its result, the
            others (n - 1) / n of the larger of operand and result, in a group of n devices.
        group: the largest number of devices in a group.
    """

    kind: str
    count: int
    bytes: int
    exchanged: float
    group: int


def computations(text: str) -> tuple[str, dict[str, list[tuple[str, str]]]]:
    """Return the name of the entry, and the names and definitions of instructions by computation.

    Computations precede their callers.
    """
    members: dict[str, list[tuple[str, str]]] = {}
    entry, inside = "", list[tuple[str, str]]()
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            inside = members.setdefault(match[2], [])
            entry = match[2] if match[1] else entry
        elif match := _INSTRUCTION.match(line):
            inside.append((match[1], match[2]))
    return entry, members


class HloText:
    """The instructions of a program in the text of its optimised HLO module."""

    def __init__(self, text: str) -> None:
        self._entry, self._computations = computations(text)

    @cached_property
    def instructions(self) -> list[Instruction]:
        """Return the instructions that run by themselves, with those of loops and branches."""
        return list(self._running(self._entry, 1))

    def _running(self, computation: str, runs: int) -> Iterator[Instruction]:
        for name, definition in self._computations.get(computation, ()):
            shape_and_opcode = definition.partition(", metadata={")[0]
            opcode = _OPCODE.search(f"]{shape_and_opcode}")
            kind = opcode[1] if opcode else ""
            yield Instruction(name, kind, definition, runs)
            if kind == "while" and (loop := _LOOP.search(definition)):
                trips = self._trips(definition, loop[1])
                yield from self._running(loop[2], runs * (trips or 1))
            elif kind in ("conditional", "call", "async-start"):
                for group in _BRANCHES.findall(definition):
                    for branch in _NAME.findall(group):
                        yield from self._running(branch, runs)

    def _trips(self, definition: str, condition: str) -> int | None:
        """Return the number of trips of a loop, None if only a run knows it."""
        if match := _TRIPS.search(definition):
            return int(match[1])
        lines = [text for _, text in self._computations.get(condition, ())]
        bounds = [match[1] for text in lines if (match := _BOUND.search(f" {text}"))]
        is_counted = any("direction=LT" in text for text in lines)
        return int(bounds[0]) if is_counted and len(bounds) == 1 else None

    @cached_property
    def open_loops(self) -> int:
        """Return the number of loops whose trips only a run knows."""
        loops = [(x, _LOOP.search(x.definition)) for x in self.instructions if x.opcode == "while"]
        return sum(self._trips(x.definition, loop[1]) is None for x, loop in loops if loop)

    @cached_property
    def cycles(self) -> dict[str, int]:
        """Return the estimated cycles of a call by instruction."""
        cycles: defaultdict[str, int] = defaultdict(int)
        for x in self.instructions:
            if x.cycles:
                cycles[x.name] += x.cycles * x.runs
        return dict(cycles)

    @property
    def trips_factor(self) -> float:
        """Return the cycles of a call over those with each loop's body counted once."""
        once = sum({x.name: x.cycles for x in self.instructions}.values())
        return sum(self.cycles.values()) / once if once else 1.0

    @cached_property
    def accessed_bytes(self) -> int:
        """Return the bytes that instructions read and write in a call, without caches."""
        sizes = {x.name: _written_bytes(x) for x in self.instructions}
        total = 0
        for x in self.instructions:
            if x.opcode not in _WITHOUT_WORK:
                operands = _OPERANDS.search(x.definition.partition(f" {x.opcode}(")[2])
                names = _NAME.findall(operands[0]) if operands else ()
                read = sum(sizes.get(name, 0) for name in names)
                total += x.runs * (read + sizes[x.name])
        return total

    @cached_property
    def custom_calls(self) -> dict[str, int]:
        """Return the number of custom calls that compute, by target."""
        counts: defaultdict[str, int] = defaultdict(int)
        for x in self.instructions:
            if x.opcode == "custom-call" and (target := _TARGET.search(x.definition)):
                counts[target[1]] += x.runs
        return {target: n for target, n in sorted(counts.items()) if target not in _FREE}

    @cached_property
    def collectives(self) -> list[Collective]:
        """Return the collectives of a call by kind.

        A collective counts once for each channel: the compiler may write one as several steps.
        """
        by_channel: dict[tuple[str, str], tuple[Instruction, str]] = {}
        for x in self.instructions:
            kind = x.opcode.removesuffix("-start")
            if kind in _COLLECTIVES:
                channel = _CHANNEL.search(x.definition)
                by_channel.setdefault((kind, channel[1] if channel else x.name), (x, kind))
        totals: dict[str, Collective] = {}
        for x, kind in by_channel.values():
            group = _group(x.definition)
            size = _result_bytes(x)
            larger = size * group if kind == "reduce-scatter" else size
            factor = 2 if kind == "all-reduce" else 1
            exchanged = larger if "permute" in kind else factor * larger * (group - 1) / group
            before = totals.get(kind, Collective(kind, 0, 0, 0.0, 0))
            totals[kind] = Collective(
                kind,
                before.count + x.runs,
                before.bytes + size * x.runs,
                before.exchanged + exchanged * x.runs,
                max(before.group, group),
            )
        return [totals[kind] for kind in sorted(totals)]


def _written_bytes(instruction: Instruction) -> int:
    """Return the bytes of an instruction's results."""
    shapes = instruction.definition.partition(f" {instruction.opcode}(")[0]
    return sum(_bytes(*match) for match in _SHAPE.findall(shapes))


def _result_bytes(instruction: Instruction) -> int:
    """Return the bytes of a collective's result; that of a start is the second half of a tuple."""
    shapes = instruction.definition.partition(f" {instruction.opcode}(")[0]
    sizes = [_bytes(*match) for match in _SHAPE.findall(shapes)]
    if instruction.opcode.endswith("-start") and len(sizes) > 1:
        sizes = sizes[len(sizes) // 2 :] if instruction.opcode != "all-reduce-start" else sizes
    return sum(sizes)


def _bytes(dtype: str, extents: str) -> int:
    bits = _BITS.get(dtype)
    if bits is None:
        digits = re.search(r"\d+", dtype)
        bits = int(digits[0]) if digits else 8
    return math.prod(map(int, filter(None, extents.split(",")))) * bits // 8


def _group(definition: str) -> int:
    """Return the number of devices that exchange data."""
    if match := _GROUPS.search(definition):
        return int(match[1])
    if match := _MESH_GROUPS.search(definition):
        sizes: Mapping[str, str] = dict(re.findall(r"'(\w+)'=(\d+)", match[1]))
        return math.prod(int(sizes[x]) for x in re.findall(r"'(\w+)'", match[2]))
    if match := _LISTED_GROUP.search(definition):
        return len(match[1].split(","))
    return 1
