"""Writes what is computed of parameters alone as a program for the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from lowering.host import ARITHMETIC, MOVES, HostProgram, Step
from lowering.jaxprs import is_literal, primitive, variables

_REAL = {np.dtype(x) for x in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)}
_MOVED = "biufc"  # kinds of dtypes; beside these all that are real
_COMPUTED = {np.dtype(np.float32), np.dtype(np.float64)}


def host_program(
    arguments: Sequence[Any],
    constants: Mapping[Any, Any],
    equations: Sequence[Any],
    results: Sequence[Any],
) -> HostProgram | None:
    """Return a function of variables as a program, or None where it has other operations."""
    if not all(map(_is_known, equations)):
        return None
    return _Writer(arguments, constants).program(equations, results)


def _is_known(equation: Any) -> bool:
    name, types = primitive(equation), {v.aval.dtype for v in (*equation.invars, *equation.outvars)}
    if name in ARITHMETIC:
        return len(types) == 1 and types <= _COMPUTED
    if name == "convert_element_type":
        return types <= _REAL
    if name == "reshape" and equation.params["dimensions"] is not None:
        return False
    _, names = MOVES.get(name, (None, ("",)))
    moved = all(x in _REAL or (isinstance(x, np.dtype) and x.kind in _MOVED) for x in types)
    return moved and len(equation.outvars) == 1 and all(x in equation.params for x in names)


class _Writer:
    """Writes a program, a place after the other."""

    def __init__(self, arguments: Sequence[Any], constants: Mapping[Any, Any]) -> None:
        self._places = {v: place for place, v in enumerate([*arguments, *constants])}
        self._count = len(self._places)
        self._constants = {self._places[v]: np.asarray(x) for v, x in constants.items()}
        self._groups: dict[int, list[Step]] = {}  # of the step at a place

    def program(self, equations: Sequence[Any], results: Sequence[Any]) -> HostProgram:
        kept = set(results)
        readers = {v: e for e in equations for v in variables(e.invars)}  # the last ones
        for equation in equations:
            operands = tuple(map(self._place_of, equation.invars))
            ended = {
                self._places[v]
                for v in variables(equation.invars)
                if readers[v] is equation and v not in kept
            }
            (result,) = equation.outvars
            _, names = MOVES.get(primitive(equation), (None, ()))
            params = tuple(equation.params[name] for name in names)
            place = self._places[result] = self._next()
            last = tuple(sorted(ended & self._groups.keys()))
            step = Step(primitive(equation), operands, params, place, result in kept, last)
            self._groups[place] = self._joined(operands)
            self._groups[place].append(step)
        groups = {id(group): tuple(group) for group in self._groups.values()}
        wanted = tuple(self._places[v] for v in results)
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
