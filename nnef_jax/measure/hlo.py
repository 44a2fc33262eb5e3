"""Tells which operations of a document each instruction of a compiled program computes.

Operations are traced under their names, which XLA keeps in the metadata of what it makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*)")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|\w+_computations?)=(\{[^}]*\}|[^,\s]+)")
_NAME = re.compile(r"[\w.\-]+")
_CONTROL = re.compile(r" (?:while|conditional|call)\(")
_PATH = re.compile(r'op_name="([^"]*)"')
_TRANSFORMED = re.compile(r"(?!jit\()\w+\((.*)\)")


@dataclass(frozen=True, slots=True)
class HloProgram:
    """A compiled program: the operations of each instruction by its name, in no order."""

    module: str
    operations: dict[str, frozenset[str]]
    control: frozenset[str]  # instructions whose time is that of others: loops, calls, conditionals
    loops: int


def program_of(text: str, names: Collection[str]) -> HloProgram:
    """Return what the text of a compiled module tells of operations of these names.

    A fusion has those of all that is fused in it.
    """
    known = frozenset(names)
    slashes = max([name.count("/") for name in names], default=0)
    own: dict[str, set[str]] = {}  # by instruction
    called: dict[str, list[str]] = {}  # computations by instruction
    members: dict[str, list[str]] = {}  # instructions by computation
    control: set[str] = set()
    loops = 0
    inside: list[str] = []
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            inside = members.setdefault(match[1], [])
        elif match := _INSTRUCTION.match(line):
            name, rest = match.groups()
            rest, _, metadata = rest.partition(", metadata={")
            inside.append(name)
            path = _PATH.search(metadata)
            operation = _operation(path[1], known, slashes) if path else None
            own[name] = {operation} if operation else set()
            called[name] = [n for found in _CALLED.findall(rest) for n in _NAME.findall(found)]
            if _CONTROL.search(rest):
                control.add(name)
                loops += " while(" in rest
    # A computation stands before what calls it, so that what is inside is known.
    for instructions in members.values():
        for name in instructions:
            own[name].update(*[own[n] for c in called[name] for n in members.get(c, ())])
    module = re.match(r"HloModule ([^,\s]+)", text)
    operations = {name: frozenset(found) for name, found in own.items()}
    return HloProgram(module[1] if module else "", operations, frozenset(control), loops)


def _operation(path: str, names: frozenset[str], most: int) -> str | None:
    """Return the outermost name in "jit(net)/conv1/transpose", but for the primitive's at the end.

    A name may hold `most` slashes itself. Derivatives have names such as "transpose(jvp(conv1))".
    What is within an operation may have names of its own, of a loop's body.
    """
    parts = path.split("/")[:-1]
    for start in range(len(parts)):
        for end in range(min(len(parts), start + 1 + most), start, -1):
            part = "/".join(parts[start:end])
            while part not in names and (match := _TRANSFORMED.fullmatch(part)):
                part = match[1]
            if part in names:
                return part
    return None
