"""Counts the work in a compiled program: cycles by instruction, loop iterations, collectives."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*)")
# The opcode follows a shape, the layout of a shape, or a tuple of shapes.
_OPCODE = re.compile(r"[\])}] ([a-z][\w\-]*)\(")
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
# Targets of custom calls that compute nothing.
_FREE = {"ConcatBitcast", "X64Combine", "X64SplitLow", "X64SplitHigh"}
_BITS = {"pred": 8, "token": 0, "opaque": 0}


@dataclass(frozen=True)
class Instruction:
    """An instruction that runs by itself and not within a fusion.

    Attributes:
        name: the name of the instruction.
        opcode: the name of its operation in HLO.
        definition: the text after the name.
        runs: how often the instruction runs in a call of the program. A loop of unknown length
            counts as one iteration.
    """

    name: str
    opcode: str
    definition: str
    runs: int

    @property
    def cycles(self) -> int:
        """Return the compiler's estimate of the cycles of one run, or 0 if there is none."""
        match = _CYCLES.search(self.definition)
        return int(match[1]) if match else 0


@dataclass(frozen=True)
class Collective:
    """The collectives (exchanges between devices) of one kind in a call.

    Attributes:
        kind: the name in HLO, such as "all-reduce".
        count: the number of collectives. A collective in a loop counts once for each iteration.
        bytes: bytes of the collectives' results on one device.
        exchanged: bytes that one device sends if n devices form a ring. For an all-reduce this is 2
            (n - 1) / n of the result. For the other kinds it is (n - 1) / n of the operand or the
            result, whichever is larger.
        group: the number of devices in the largest group that exchanges data.
    """

    kind: str
    count: int
    bytes: int
    exchanged: float
    group: int


def computations(text: str) -> tuple[str, dict[str, list[tuple[str, str]]]]:
    """Split a program into computations.

    Returns the name of the entry, and a dict from the name of each computation to the names and
    definitions of its instructions. Computations precede their callers.
    """
    by_computation: dict[str, list[tuple[str, str]]] = {}
    entry = ""
    instructions: list[tuple[str, str]] = []
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            is_entry, name = match.groups()
            instructions = by_computation.setdefault(name, [])
            if is_entry:
                entry = name
        elif match := _INSTRUCTION.match(line):
            name, definition = match.groups()
            instructions.append((name, definition))
    return entry, by_computation


class HloText:
    """The instructions of a program in the text of its optimised HLO module."""

    def __init__(self, text: str) -> None:
        self._entry, self._computations = computations(text)

    @cached_property
    def instructions(self) -> list[Instruction]:
        """Return the instructions that run by themselves, including those in loops and branches."""
        return list(self._running(self._entry, 1))

    def _running(self, computation: str, runs: int) -> Iterator[Instruction]:
        for name, definition in self._computations.get(computation, ()):
            shape_and_opcode = definition.partition(", metadata={")[0]
            opcode = _OPCODE.search(f"]{shape_and_opcode}")
            kind = opcode[1] if opcode else ""
            yield Instruction(name, kind, definition, runs)
            loop = _LOOP.search(definition) if kind == "while" else None
            if loop is not None:
                condition, body = loop.groups()
                trips = self._iterations(definition, condition)
                yield from self._running(body, runs * (trips or 1))
            elif kind in ("conditional", "call", "async-start"):
                for group in _BRANCHES.findall(definition):
                    for branch in _NAME.findall(group):
                        yield from self._running(branch, runs)

    def _iterations(self, definition: str, condition: str) -> int | None:
        """Return the number of iterations of a loop, or None if the number is known only in a run.

        `definition` is the definition of the loop, and `condition` is the name of its condition.
        """
        if match := _TRIPS.search(definition):
            return int(match[1])
        definitions = [text for _, text in self._computations.get(condition, ())]
        matches = [_BOUND.search(f" {text}") for text in definitions]
        bounds = [int(match[1]) for match in matches if match]
        is_counted = any("direction=LT" in text for text in definitions)
        return bounds[0] if is_counted and len(bounds) == 1 else None

    @cached_property
    def loops_of_unknown_length(self) -> int:
        """Return the number of loops for which the text does not tell the number of iterations."""
        count = 0
        for x in self.instructions:
            loop = _LOOP.search(x.definition) if x.opcode == "while" else None
            if loop is not None and self._iterations(x.definition, loop[1]) is None:
                count += 1
        return count

    @cached_property
    def cycles(self) -> dict[str, int]:
        """Return the estimated cycles of all runs of an instruction in a call, by its name."""
        cycles: defaultdict[str, int] = defaultdict(int)
        for x in self.instructions:
            if x.cycles:
                cycles[x.name] += x.cycles * x.runs
        return dict(cycles)

    @property
    def trips_factor(self) -> float:
        """Return the factor by which the iterations of loops lengthen a call.

        The factor is the number of cycles in a call, divided by the number of cycles if the body of
        each loop ran once.
        """
        cycles_once = sum({x.name: x.cycles for x in self.instructions}.values())
        if not cycles_once:
            return 1.0
        return sum(self.cycles.values()) / cycles_once

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
        """Return the number of custom calls in a call of the program, by target.

        Custom calls that compute nothing are left out.
        """
        counts: defaultdict[str, int] = defaultdict(int)
        for x in self.instructions:
            target = _TARGET.search(x.definition) if x.opcode == "custom-call" else None
            if target is not None:
                counts[target[1]] += x.runs
        return {target: counts[target] for target in sorted(counts) if target not in _FREE}

    @cached_property
    def collectives(self) -> list[Collective]:
        """Return the collectives of a call, one object for each kind.

        Instructions with the same channel count as one collective, because the compiler may write a
        collective as several instructions.
        """
        by_channel: dict[tuple[str, str], tuple[Instruction, str]] = {}
        for x in self.instructions:
            kind = x.opcode.removesuffix("-start")
            if kind in _COLLECTIVES:
                match = _CHANNEL.search(x.definition)
                channel = match[1] if match else x.name
                by_channel.setdefault((kind, channel), (x, kind))
        totals: dict[str, Collective] = {}
        for x, kind in by_channel.values():
            group = _group_size(x.definition)
            size = _result_bytes(x)
            exchanged = _exchanged_bytes(kind, size, group)
            total = totals.get(kind, Collective(kind, 0, 0, 0.0, 0))
            totals[kind] = Collective(
                kind,
                total.count + x.runs,
                total.bytes + size * x.runs,
                total.exchanged + exchanged * x.runs,
                max(total.group, group),
            )
        return [totals[kind] for kind in sorted(totals)]


def _written_bytes(instruction: Instruction) -> int:
    """Return the number of bytes of an instruction's results."""
    shapes = instruction.definition.partition(f" {instruction.opcode}(")[0]
    return sum(_bytes(*match) for match in _SHAPE.findall(shapes))


def _exchanged_bytes(kind: str, size: int, group: int) -> float:
    """Return the bytes that one device sends in a collective, as `Collective.exchanged`.

    `size` is the bytes of the result, and `group` is the number of devices.
    """
    if "permute" in kind:
        return size
    if kind == "reduce-scatter":
        size *= group  # The operand is larger than the result.
    factor = 2 if kind == "all-reduce" else 1
    return factor * size * (group - 1) / group


def _result_bytes(instruction: Instruction) -> int:
    """Return the number of bytes of a collective's result.

    An instruction that starts a collective has a tuple as its result, with the operands in the
    first half and the results in the second half. The start of an all-reduce is different: its
    tuple has only results.
    """
    shapes = instruction.definition.partition(f" {instruction.opcode}(")[0]
    sizes = [_bytes(*match) for match in _SHAPE.findall(shapes)]
    is_start = instruction.opcode.endswith("-start") and len(sizes) > 1
    if is_start and instruction.opcode != "all-reduce-start":
        sizes = sizes[len(sizes) // 2 :]
    return sum(sizes)


def _bytes(dtype: str, extents: str) -> int:
    bits = _BITS.get(dtype)
    if bits is None:
        digits = re.search(r"\d+", dtype)
        bits = int(digits[0]) if digits else 8
    items = math.prod(map(int, filter(None, extents.split(","))))
    return items * bits // 8


def _group_size(definition: str) -> int:
    """Return the number of devices in a group that exchanges data in a collective."""
    if match := _GROUPS.search(definition):
        return int(match[1])
    if match := _MESH_GROUPS.search(definition):
        sizes: Mapping[str, str] = dict(re.findall(r"'(\w+)'=(\d+)", match[1]))
        return math.prod(int(sizes[x]) for x in re.findall(r"'(\w+)'", match[2]))
    if match := _LISTED_GROUP.search(definition):
        return len(match[1].split(","))
    return 1
