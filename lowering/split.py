"""Splits a program into what depends on its parameters alone, and the call."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache, partial
from itertools import filterfalse
from operator import attrgetter, itemgetter
from typing import Any
from uuid import uuid4

import jax
import jax.numpy as jnp
import numpy as np

from lowering import jaxprs
from lowering.jaxprs import is_literal, primitive, variables
from lowering.prepare import Split
from lowering.program import Program
from lowering.recipe import Recipe, Step, params_of_numpy

# Beyond this growth a prepared value is a broadcast, cheaper to repeat than to read.
_GROWTH = 4
# Weights of few bits stay so: a prepared value has at most so many times the bits of an item, of 8
# bits if it is large. A language model would take eight times its memory otherwise.
_WIDTH = 4
_LARGE = 32 << 20  # bytes
# Operations that move no item. Kept, each result would be one more copy of a weight.
_FREE = ("broadcast_in_dim", "optimization_barrier", "reshape", "squeeze")
# Items of what a network of bfloat16 has in 32 bits, from which on it is kept in 16, and widened in
# each call: it would take twice the memory of the parameters, beside them.
_WIDE = 2 << 10


def split(program: Program, platform: str | None = None) -> Split:
    """Split a program by what its parameters alone give."""
    program = program.with_closed(jaxprs.inlined(program.closed))
    closed, parameters = program.closed, program.arguments[: program.parameters]
    kept, later = _parted(program)
    narrow = _narrow(program, kept)
    values = list(map(narrow.get, kept, kept))
    places = dict(zip(parameters, range(len(parameters)), strict=True))
    computed = [*filterfalse(places.__contains__, values)]
    early = filterfalse(program.is_late, program.equations)
    first = program.with_closed(
        jaxprs.of_equations(closed, [*early], computed, arguments=parameters)
    )
    if not narrow.keys().isdisjoint(computed):
        first = first.retraced(partial(_rounded, first, [v in narrow for v in computed]))
    arguments = [*kept, *program.arguments[len(parameters) :]]
    jaxpr = jaxprs.of_equations(closed, later, program.results, {}, arguments)
    last = jaxprs.as_call(jaxpr)

    def call(values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        return last(*map(_as_read, values, kept), *inputs)

    recipe = cache(partial(recipe_of, first))
    return Split(tuple(map(places.get, values)), first, call, platform, recipe, jaxpr)


def _as_read(x: Any, variable: Any) -> Any:
    """Return a value as the call reads it, which may be kept in fewer bits."""
    dtype = variable.aval.dtype
    return x if x.dtype == dtype else x.astype(dtype)


def _parted(program: Program) -> tuple[list[Any], list[Any]]:
    """Return variables to prepare, and the equations that a call evaluates."""
    sources = _sources(program)
    kept: dict[Any, None] = {}
    later: list[Any] = []
    wanted = set(variables(program.results))
    for equation in reversed(program.equations):
        is_late = program.is_late(equation)
        results = wanted.intersection(equation.outvars)
        for v in equation.outvars:
            is_early = v in results and not is_late and not _is_free(equation)
            if is_early and _is_worth_keeping(v, *sources[v]):
                kept[v] = None
        if is_late or not results <= kept.keys():
            later.append(equation)
            wanted.update(variables(equation.invars))
    return [*filter(wanted.__contains__, _roots(program)), *kept], later[::-1]


def _is_free(equation: Any) -> bool:
    """Tell whether a result has the items of the operand in the same order, in another shape."""
    name = primitive(equation)
    if name not in _FREE or (name == "reshape" and equation.params["dimensions"] is not None):
        return False
    sizes = map(_size, equation.invars), map(_size, equation.outvars)
    return not any(map(is_literal, equation.invars)) and [*sizes[0]] == [*sizes[1]]


def _roots(program: Program) -> list[Any]:
    return [*program.arguments[: program.parameters], *program.constants]


def _sources(program: Program) -> dict[Any, tuple[int, int]]:
    """Return the items of the largest of parameters that each prepared variable is computed of.

    And the bits of an item of it. Joined parts add their items.
    """
    sources: dict[Any, tuple[int, int]] = {}
    for variable in _roots(program):
        sources[variable] = _size(variable), _bits(variable)
    for equation in filterfalse(program.is_late, program.equations):
        read = list(map(sources.__getitem__, variables(equation.invars)))
        items, bits = max(read, default=(0, 1))
        if primitive(equation) in ("concatenate", "stack"):
            items = sum(map(itemgetter(0), read))
        sources.update(dict.fromkeys(equation.outvars, (items, bits)))
    return sources


def _is_narrow(program: Program) -> bool:
    """Tell whether all real arguments are of bfloat16."""
    real = {v.aval.dtype for v in program.arguments if jnp.issubdtype(v.aval.dtype, jnp.floating)}
    return real == {jnp.dtype(jnp.bfloat16)}


def _narrow(program: Program, kept: Iterable[Any]) -> dict[Any, Any]:
    """Map variables kept in 16 bits to those stored for them: sources, or rounded themselves."""
    if not _is_narrow(program):
        return {}
    narrow = {v: v for v in kept if v.aval.dtype == jnp.float32 and _size(v) >= _WIDE}
    for equation in program.equations:
        if primitive(equation) == "convert_element_type" and equation.outvars[0] in narrow:
            (source,) = equation.invars
            narrow |= {equation.outvars[0]: source} if source.aval.dtype == jnp.bfloat16 else {}
    return narrow


def _rounded(program: Program, chosen: Sequence[bool], *arguments: Any) -> list[Any]:
    pairs = zip(program(*arguments), chosen, strict=True)
    return [x.astype(jnp.bfloat16) if is_chosen else x for x, is_chosen in pairs]


def _is_worth_keeping(variable: Any, items: int, bits: int) -> bool:
    """Tell whether a value of parameters, with so many items of so many bits, is to be prepared."""
    size, width = _size(variable), _bits(variable) / bits
    if size > _GROWTH * items or width > _WIDTH:
        return False
    return width < _WIDTH or size * _bits(variable) // 8 <= _LARGE


def _bits(variable: Any) -> int:
    """Return the bits of an item, 8 of a truth value; numpy has bytes alone for those of 4."""
    digits = re.search("[0-9]+", variable.aval.dtype.name)
    return max(int(digits[0]), 1) if digits else 8


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)


def recipe_of(program: Program) -> Recipe:
    """Return the recipe of a program's results, all of which are variables."""
    count = len(program.arguments)
    places = dict(zip(program.arguments, range(count), strict=True))
    steps: list[Step] = []

    def add(step: Step) -> int:
        steps.append(step)
        return count + len(steps) - 1

    def place(operand: Any) -> int:
        if not is_literal(operand):
            return places[operand]
        value = np.asarray(operand.val, operand.aval.dtype)
        return add(Step(_text(value), constant=value))

    for variable, x in zip(program.constants, program.closed.consts, strict=True):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.extended)
        places[variable] = add(Step(_text(x), constant=None if is_key else np.asarray(x)))
    for equation in program.equations:
        operands, params = tuple(map(place, equation.invars)), params_of_numpy(equation)
        name = "" if params is None else primitive(equation)
        text = _text_of_equation(equation)
        for index, variable in enumerate(equation.outvars):
            step = Step(f"{text} {index}", operands, primitive=name, params=params or ())
            places[variable] = add(step)
    return Recipe(count, tuple(steps), tuple(map(places.__getitem__, program.results)))


def _text_of_equation(equation: Any) -> str:
    types = list(map(attrgetter("aval"), equation.invars))
    parts = primitive(equation), types, equation.params, repr(equation.ctx)
    # jax reads its setting where an equation does not say it.
    setting: Any = jax.config
    precision = setting.jax_default_matmul_precision if "precision" in equation.params else None
    return _text((parts, precision))


def _text(item: Any) -> str:
    """Return a text that no other item has, the same in any process where there is one."""
    match item:
        case np.ndarray() | jax.Array():
            array = _on_host(item)
            content = hashlib.sha256(array.tobytes()).hexdigest()
            return f"{item.dtype}{array.shape}{content}"
        case dict():
            return _text(sorted((repr(key), _text(x)) for key, x in item.items()))
        case tuple() | list() if type(item) in (tuple, list):
            return f"({','.join(map(_text, item))})"
        case _ if jaxprs.is_traced(item):  # its text leaves constants out
            constants = list(getattr(item, "consts", ()))
            return _text((str(item), constants, list(map(_text_of_equation, item.eqns))))
        case _:
            text = repr(item)
            is_function = callable(item) and not isinstance(item, type)
            return f"{text} {uuid4()}" if is_function or " at 0x" in text else text


def _on_host(array: Any) -> Any:
    """Return an array of numpy; for random keys, which numpy lacks, their numbers."""
    if not jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return np.asarray(array)
    with jax.ensure_compile_time_eval():  # also where a function is traced
        return np.asarray(jax.random.key_data(array))
