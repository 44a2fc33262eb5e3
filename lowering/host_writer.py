"""Writes the computation on parameters alone as a program for the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from lowering.extents import MAX_RANK
from lowering.facts import facts
from lowering.host_program import HostProgram, Step
from lowering.jaxprs import is_literal, primitive, variables
from lowering.program import Program

_REAL = {np.dtype(x) for x in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)}
_MOVED = "biufc"  # kinds of dtypes; beside these all that are real
_COMPUTED = {np.dtype(np.float32), np.dtype(np.float64)}


def host_program(program: Program) -> HostProgram | None:
    """Return a program as one for the host, or None where it has other operations."""
    return _StepWriter(program).written() if all(map(_is_known, program.equations)) else None


def _is_known(equation: Any) -> bool:
    name, known = primitive(equation), facts(equation)
    every = (*equation.invars, *equation.outvars)
    types = {v.aval.dtype for v in every}
    if known.numpy is None or len(equation.outvars) > 1 or not {*known.reads} <= {*equation.params}:
        return False
    if any(v.aval.ndim > MAX_RANK for v in every):
        return False
    if name == "reshape" and equation.params["dimensions"] is not None:
        return False
    if not known.moves:
        return len(types) == 1 and types <= _COMPUTED
    if name == "convert_element_type":
        return types <= _REAL
    return all(x in _REAL or (isinstance(x, np.dtype) and x.kind in _MOVED) for x in types)


class _StepWriter:
    """Writes a program, a place after the other."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._places = {v: i for i, v in enumerate([*program.arguments, *program.constants])}
        self._count = len(self._places)
        pairs = zip(program.constants, program.closed.consts, strict=True)
        self._constants = {self._places[v]: np.asarray(x) for v, x in pairs}
        self._groups: dict[int, list[Step]] = {}  # of the step at a place

    def written(self) -> HostProgram:
        program = self._program
        readers = {v: e for e in program.equations for v in variables(e.invars)}  # the last ones
        readers |= dict.fromkeys(program.results)
        for equation in program.equations:
            operands = tuple(map(self._place_of, equation.invars))
            ended = {self._places[v] for v in variables(equation.invars) if readers[v] is equation}
            (result,) = equation.outvars
            params = tuple(equation.params[name] for name in facts(equation).reads)
            place = self._places[result] = self._next()
            last = tuple(sorted(ended & self._groups.keys()))
            kept = readers[result] is None
            step = Step(primitive(equation), operands, params, place, kept, last)
            self._groups[place] = self._joined(operands)
            self._groups[place].append(step)
        groups = {id(group): tuple(group) for group in self._groups.values()}
        wanted = tuple(self._places[v] for v in program.results)
        return HostProgram(self._constants, tuple(groups.values()), wanted)

    def _place_of(self, operand: Any) -> int:
        if not is_literal(operand):
            return self._places[operand]
        place = self._next()
        self._constants[place] = np.asarray(operand.val, operand.aval.dtype)
        return place

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def _joined(self, operands: Sequence[int]) -> list[Step]:
        """Return the group of the steps that compute operands, joined if they are several."""
        found = {id(self._groups[x]): self._groups[x] for x in operands if x in self._groups}
        group, *others = sorted(found.values(), key=len, reverse=True) or [list[Step]()]
        for other in others:
            group += other
            self._groups.update((step.place, group) for step in other)
        return group
