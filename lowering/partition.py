"""Divides a traced function: what depends on parameters alone, and the rest."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from lowering import jaxprs
from lowering.host import HostProgram
from lowering.host_writer import host_program

# Beyond this growth a prepared value is a broadcast, cheaper to repeat than to read.
_GROWTH = 4
# Weights of few bits stay so: a prepared value has at most so many times the bits of an item, of 8
# bits if it is large. A language model would take eight times its memory otherwise.
_WIDTH = 4
_LARGE = 32 << 20  # bytes

_DIGITS = re.compile(r"[0-9]+")
Flat = Callable[..., Sequence[Any]]


class Divided(NamedTuple):
    """Holds what a `Split` is made of."""

    sources: tuple[int | None, ...]
    reads: tuple[int, ...]
    compute: Flat
    run: Flat
    program: Callable[[], HostProgram | None]


def divided(closed: Any, count: int) -> Divided:
    """Divide a traced function with `count` leading parameters."""
    jaxpr = closed.jaxpr
    parameters, inputs = jaxpr.invars[:count], jaxpr.invars[count:]
    roots = [*parameters, *jaxpr.constvars]
    early, late, kept = partition(jaxpr, roots)
    indices = {variable: index for index, variable in enumerate(parameters)}
    computed = [variable for variable in kept if variable not in indices]
    used = {v for equation in early for v in jaxprs.variables(equation.invars)}
    reads = tuple(index for variable, index in indices.items() if variable in used)
    compute = jaxprs.function("prepare", roots, computed, early)
    run = jaxprs.function("run", [*kept, *inputs], jaxpr.outvars, late)
    constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    program = partial(host_program, parameters, constants, early, computed)
    return Divided(tuple(map(indices.get, kept)), reads, compute, run, program)


def partition(jaxpr: Any, roots: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return equations to evaluate early, those for later, and the variables handed over."""
    known = _known_equations(jaxpr, roots)
    sources = _source_sizes(jaxpr, known, roots)
    # What prints has an effect, and no result.
    late = {id(e) for e in jaxpr.eqns if e.effects or not all(v in known for v in e.outvars)}
    needed_late = [*(v for e in jaxpr.eqns if id(e) in late for v in e.invars), *jaxpr.outvars]
    pending = [v for v in jaxprs.variables(needed_late) if v in known]
    kept: dict[Any, None] = {}
    while pending:
        variable = pending.pop()
        equation = known[variable]
        if equation is None or _is_worth_keeping(variable, *sources[variable]):
            kept[variable] = None
        elif id(equation) not in late:
            late.add(id(equation))
            pending += jaxprs.variables(equation.invars)
    needed = set(kept)
    early: list[Any] = []
    for equation in reversed(jaxpr.eqns):
        if (
            any(v in needed for v in equation.outvars)
            and known.get(equation.outvars[0]) is equation
        ):
            early.append(equation)
            needed.update(jaxprs.variables(equation.invars))
    return early[::-1], [e for e in jaxpr.eqns if id(e) in late], list(kept)


def _known_equations(jaxpr: Any, roots: Iterable[Any]) -> dict[Any, Any]:
    known: dict[Any, Any] = dict.fromkeys(roots)
    for equation in jaxpr.eqns:
        if not equation.effects and all(v in known for v in jaxprs.variables(equation.invars)):
            known.update((variable, equation) for variable in equation.outvars)
    return known


def _source_sizes(
    jaxpr: Any, known: dict[Any, Any], roots: Iterable[Any]
) -> dict[Any, tuple[int, int]]:
    """Return the items of each known variable's largest root, and the bits of an item of it.

    Joined parts add their items.
    """
    sizes = {variable: (_size(variable), _bits(variable)) for variable in roots}
    for equation in jaxpr.eqns:
        if any(known.get(variable) is equation for variable in equation.outvars):
            operands = [sizes[v] for v in jaxprs.variables(equation.invars)]
            items, bits = max(operands, default=(0, 1))
            if jaxprs.primitive(equation) in ("concatenate", "stack"):
                items = sum(size for size, _ in operands)
            sizes.update((variable, (items, bits)) for variable in equation.outvars)
    return sizes


def _is_worth_keeping(variable: Any, items: int, bits: int) -> bool:
    """Tell whether a value of parameters, with so many items of so many bits, is to be prepared."""
    size, width = _size(variable), _bits(variable) / bits
    if size > _GROWTH * items or width > _WIDTH:
        return False
    return width < _WIDTH or size * _bits(variable) // 8 <= _LARGE


def _bits(variable: Any) -> int:
    """Return the bits of an item, 8 of a truth value; numpy has bytes alone for those of 4."""
    found = _DIGITS.search(variable.aval.dtype.name)
    return max(int(found[0]), 1) if found else 8


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)
