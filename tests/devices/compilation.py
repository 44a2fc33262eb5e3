"""Compiles many small functions for a topology, and says which the compiler refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import pytest

from nnef_jax.errors import InputError
from nnef_jax.measure.topologies import topology_of
from nnef_jax.measure.unattached import LoweredFunction, Refused, compile_for, lowered_program

Case = tuple[Callable[..., Any], Sequence[Any]]  # a function, and its arguments' types

_TOGETHER = 24  # functions in one program


def refusals(topology: str, cases: Mapping[str, Case]) -> dict[str, str]:
    """Return the reasons why functions do not lower or compile, by name.

    Many functions are one program. If it is refused, each of them is compiled alone.
    """
    devices = topology_of(topology)
    try:
        devices.require_compiler()
    except InputError as error:
        pytest.skip(str(error).splitlines()[0])
    reasons: dict[str, str] = {}
    programs: dict[tuple[str, ...], LoweredFunction] = {}
    names = [*cases]
    for start in range(0, len(names), _TOGETHER):
        group = names[start : start + _TOGETHER]
        try:
            programs[tuple(group)] = _joined([cases[name] for name in group], topology)
        except Exception:
            for name in group:
                try:
                    programs[(name,)] = _joined([cases[name]], topology)
                except Exception as error:
                    reasons[name] = f"lowering: {type(error).__name__}: {str(error)[:300]}"
    compiled = compile_for(devices, [*programs.values()])
    refused = [group for group, x in zip(programs, compiled, strict=True) if isinstance(x, Refused)]
    single = {(name,): _joined([cases[name]], topology) for group in refused for name in group}
    for (name,), x in zip(single, compile_for(devices, [*single.values()]), strict=True):
        if isinstance(x, Refused):
            reasons[name] = f"{'aborted: ' if x.aborted else ''}{x.reason[:300]}"
    return reasons


def _joined(cases: Sequence[Case], topology: str) -> LoweredFunction:
    functions, arguments = zip(*cases, strict=True)

    def run(arguments: Sequence[Sequence[Any]]) -> list[Any]:
        return [f(*xs) for f, xs in zip(functions, arguments, strict=True)]

    return lowered_program(jax.jit(run), (list(arguments),), topology_of(topology).chip.platform)
