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
# The text before the opcode is a shape such as f32[2,3], a layout such as {1,0}, or a tuple of
# shapes in parentheses. The text therefore ends in "]", "}" or ")".
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
# Custom calls with these targets compute nothing.
_TARGETS_WITHOUT_WORK = {"ConcatBitcast", "X64Combine", "X64SplitLow", "X64SplitHigh"}
_BITS = {"pred": 8, "token": 0, "opaque": 0}


@dataclass(frozen=True)
class Instruction:
    """An instruction of a program, outside of fusions.

    Attributes:
        name: the name of the instruction.
        opcode: the name of the instruction's operation in HLO, such as "add".
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
        exchanged: bytes that one device sends if n devices form a ring. For an all-reduce of b
            bytes the number is 2 b (n - 1) / n. For a permutation it is b. For the remaining kinds
            it is b (n - 1) / n, where b is the size of the operand or of the result, whichever is
            larger.
        group: the number of devices in the largest group that exchanges data.
    """

    kind: str
    count: int
    bytes: int
    exchanged: float
    group: int


def computations(text: str) -> tuple[str, dict[str, list[tuple[str, str]]]]:
    """Split a program into computations.

    The first result is the name of the computation that runs first. The second result maps the name
    of each computation to its instructions. An instruction is a pair (name, definition).
    Computations precede their callers.
    """
    instructions_by_computation: dict[str, list[tuple[str, str]]] = {}
    entry = ""
    # These are the instructions of the computation to which the current line belongs.
    instructions: list[tuple[str, str]] = []
    for line in text.splitlines():
        computation = _COMPUTATION.match(line)
        if computation:
            entry_mark, computation_name = computation.groups()
            instructions = instructions_by_computation.setdefault(computation_name, [])
            if entry_mark:
                entry = computation_name
            continue
        instruction = _INSTRUCTION.match(line)
        if instruction:
            name, definition = instruction.groups()
            instructions.append((name, definition))
    return entry, instructions_by_computation


class HloText:
    """The instructions of a program in the text of its optimised HLO module."""

    def __init__(self, text: str) -> None:
        self._entry, self._computations = computations(text)

    @cached_property
    def instructions(self) -> list[Instruction]:
        """Return the instructions outside fusions, also the instructions in loops and branches."""
        return list(self._running(self._entry, runs=1))

    def _running(self, computation: str, runs: int) -> Iterator[Instruction]:
        """Yield the instructions of a computation and of the computations that it calls.

        The computation runs `runs` times in a call of the program.
        """
        for name, definition in self._computations.get(computation, ()):
            before_metadata = definition.partition(", metadata={")[0]
            match = _OPCODE.search(before_metadata)
            opcode = match[1] if match else ""
            yield Instruction(name, opcode, definition, runs)
            loop = _LOOP.search(definition) if opcode == "while" else None
            if loop is not None:
                condition, body = loop.groups()
                # A loop of unknown length counts as one iteration.
                iterations = self._iterations(definition, condition) or 1
                yield from self._running(body, runs * iterations)
            elif opcode in ("conditional", "call", "async-start"):
                # It is not known which branch of a conditional runs, so all branches count.
                for branches in _BRANCHES.findall(definition):
                    for branch in _NAME.findall(branches):
                        yield from self._running(branch, runs)

    def _iterations(self, definition: str, condition: str) -> int | None:
        """Return the number of iterations of a loop, or None if the text does not tell the number.

        `definition` is the definition of the loop, and `condition` is the name of its condition.
        """
        trip_count = _TRIPS.search(definition)
        if trip_count:
            return int(trip_count[1])
        # A loop counts from 0 while `counter < bound`. So if the condition has a comparison "less
        # than" and a single constant, the constant is `bound`, the number of iterations.
        bounds: list[int] = []
        has_less_than = False
        for _name, condition_definition in self._computations.get(condition, ()):
            bound = _BOUND.search(f" {condition_definition}")
            if bound:
                bounds.append(int(bound[1]))
            if "direction=LT" in condition_definition:
                has_less_than = True
        return bounds[0] if has_less_than and len(bounds) == 1 else None

    @cached_property
    def loops_of_unknown_length(self) -> int:
        """Return the number of loops for which the text does not tell the number of iterations."""
        count = 0
        for instruction in self.instructions:
            is_loop = instruction.opcode == "while"
            loop = _LOOP.search(instruction.definition) if is_loop else None
            if loop is not None:
                condition, _body = loop.groups()
                if self._iterations(instruction.definition, condition) is None:
                    count += 1
        return count

    @cached_property
    def cycles(self) -> dict[str, int]:
        """Return a dict that maps the name of an instruction to its estimated cycles in a call.

        The cycles of all runs of an instruction are summed.
        """
        cycles: defaultdict[str, int] = defaultdict(int)
        for instruction in self.instructions:
            if instruction.cycles:
                cycles[instruction.name] += instruction.cycles * instruction.runs
        return dict(cycles)

    @property
    def trips_factor(self) -> float:
        """Return the factor by which the iterations of loops lengthen a call.

        The factor is a quotient of two numbers of cycles: the cycles of a call, and the cycles of a
        call in which the body of each loop runs once.
        """
        # An instruction may be listed several times. In this dict it occurs once.
        cycles_of_one_run = {x.name: x.cycles for x in self.instructions}
        cycles_without_loops = sum(cycles_of_one_run.values())
        if cycles_without_loops == 0:
            return 1.0
        return sum(self.cycles.values()) / cycles_without_loops

    @cached_property
    def accessed_bytes(self) -> int:
        """Return the bytes that instructions read and write in a call, without caches."""
        written_bytes = {x.name: _written_bytes(x) for x in self.instructions}
        total = 0
        for instruction in self.instructions:
            if instruction.opcode in _WITHOUT_WORK:
                continue
            # The definition "f32[2] add(%x, %y), metadata=..." has the operands "%x, %y".
            after_opcode = instruction.definition.partition(f" {instruction.opcode}(")[2]
            operands = _OPERANDS.search(after_opcode)
            operand_names = _NAME.findall(operands[0]) if operands else ()
            read_bytes = sum(written_bytes.get(name, 0) for name in operand_names)
            total += instruction.runs * (read_bytes + written_bytes[instruction.name])
        return total

    @cached_property
    def custom_calls(self) -> dict[str, int]:
        """Return the number of custom calls in a call of the program, by target.

        Custom calls that compute nothing are left out.
        """
        counts: defaultdict[str, int] = defaultdict(int)
        for instruction in self.instructions:
            if instruction.opcode == "custom-call":
                match = _TARGET.search(instruction.definition)
                if match and match[1] not in _TARGETS_WITHOUT_WORK:
                    counts[match[1]] += instruction.runs
        return dict(sorted(counts.items()))

    @cached_property
    def collectives(self) -> list[Collective]:
        """Return the collectives of a call, one object for each kind.

        Instructions with the same channel count as one collective, because the compiler may write a
        collective as several instructions.
        """
        # Maps a kind and a channel to the first instruction with this kind and channel.
        instructions: dict[tuple[str, str], Instruction] = {}
        for instruction in self.instructions:
            # An asynchronous "all-gather" is a pair of "all-gather-start" and "all-gather-done".
            kind = instruction.opcode.removesuffix("-start")
            if kind in _COLLECTIVES:
                match = _CHANNEL.search(instruction.definition)
                channel = match[1] if match else instruction.name
                instructions.setdefault((kind, channel), instruction)
        totals: dict[str, Collective] = {}
        for (kind, _channel), instruction in instructions.items():
            runs = instruction.runs
            group = _group_size(instruction.definition)
            result_bytes = _result_bytes(instruction)
            exchanged_bytes = _exchanged_bytes(kind, result_bytes, group)
            nothing = Collective(kind, count=0, bytes=0, exchanged=0.0, group=0)
            total = totals.get(kind, nothing)
            totals[kind] = Collective(
                kind,
                count=total.count + runs,
                bytes=total.bytes + result_bytes * runs,
                exchanged=total.exchanged + exchanged_bytes * runs,
                group=max(total.group, group),
            )
        return [totals[kind] for kind in sorted(totals)]


def _written_bytes(instruction: Instruction) -> int:
    """Return the number of bytes of an instruction's results."""
    return sum(_result_sizes(instruction))


def _result_sizes(instruction: Instruction) -> list[int]:
    """Return the number of bytes of each result of an instruction."""
    shapes, _, _operands = instruction.definition.partition(f" {instruction.opcode}(")
    return [_bytes(dtype, extents) for dtype, extents in _SHAPE.findall(shapes)]


def _exchanged_bytes(kind: str, result_bytes: int, group: int) -> float:
    """Return the number of bytes that one device sends in a collective.

    `group` is the number of devices, which form a ring. An array is divided into as many parts as
    there are devices. Each device sends all parts but one, so of n parts it sends n - 1.
    """
    # In a permutation each device sends its array to one other device.
    if "permute" in kind:
        return result_bytes
    if kind == "reduce-scatter":
        # The operand, which is `group` times as large as the result, passes through the ring.
        bytes_in_ring = result_bytes * group
    elif kind == "all-reduce":
        # The array passes through the ring twice: first to be summed, then to be distributed.
        bytes_in_ring = 2 * result_bytes
    else:
        bytes_in_ring = result_bytes
    return bytes_in_ring * (group - 1) / group


def _result_bytes(instruction: Instruction) -> int:
    """Return the number of bytes of a collective's result.

    The instruction "all-gather-start" returns a tuple, with the operands in the first half and the
    results in the second half. The instructions that start other collectives do the same, except
    "all-reduce-start", which returns only the results.
    """
    sizes = _result_sizes(instruction)
    opcode = instruction.opcode
    has_operands = opcode.endswith("-start") and opcode != "all-reduce-start"
    if has_operands and len(sizes) > 1:
        first_result = len(sizes) // 2
        sizes = sizes[first_result:]
    return sum(sizes)


def _bytes(dtype: str, extents: str) -> int:
    """Return the number of bytes of an array: 24 for the dtype "f32" and the extents "2,3"."""
    bits = _BITS.get(dtype)
    if bits is None:
        # The first number in the name is the number of bits: 4 in "s4", and 8 in "f8e4m3fn".
        digits = re.search(r"\d+", dtype)
        bits = int(digits[0]) if digits else 8
    items = math.prod([int(extent) for extent in extents.split(",") if extent])
    return items * bits // 8


def _group_size(definition: str) -> int:
    """Return the number of devices in a group that exchanges data in a collective."""
    # The text "replica_groups=[2,4]" describes 2 groups of 4 devices.
    groups = _GROUPS.search(definition)
    if groups:
        return int(groups[1])
    # The text "replica_groups=mesh['a'=2,'b'=4] {'b'}" describes groups of 4 devices along axis b.
    mesh_groups = _MESH_GROUPS.search(definition)
    if mesh_groups:
        mesh, axes = mesh_groups.groups()
        extents: Mapping[str, str] = dict(re.findall(r"'(\w+)'=(\d+)", mesh))
        return math.prod(int(extents[axis]) for axis in re.findall(r"'(\w+)'", axes))
    # The text "replica_groups={{0,1},{2,3}}" describes groups of 2 devices.
    listed_group = _LISTED_GROUP.search(definition)
    if listed_group:
        return len(listed_group[1].split(","))
    return 1
