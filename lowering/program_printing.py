"""Writes programs as text with one equation per line, for people to read and compare."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from lowering import jaxprs
from lowering.jaxpr_types import Atom, Equation
from lowering.jaxprs import is_literal, primitive

_MOST_CHARACTERS = 60  # A longer value of a parameter is cut to this number of characters.
_PLACEMENT = re.compile("shardings?$|layouts$|^donated|mesh$")
_FUNCTION = re.compile("(_fun|_thunk)$")
# Parameters with these names are left out if all their entries are 1.
_BY_ONE = re.compile("(strides|dilation|group_count)$")


def printed(program: Any) -> str:
    """Return a program as text: arguments, equations (with types and places) and results.

    Variables are numbered in the order in which they appear. `*` marks equations that are
    evaluated only once, before all calls.
    """
    parameters = program.arguments[: program.parameters]
    inputs = program.arguments[program.parameters :]
    names: dict[Atom, str] = {}
    for letter, variables in (("p", parameters), ("x", inputs), ("c", program.constants)):
        names.update((variable, f"{letter}{i}") for i, variable in enumerate(variables))
    arguments = ", ".join(f"{names[v]}: {_type(v)}" for v in program.arguments)
    lines = [f"program({arguments})"]
    lines += _lines(program.equations, names, program.early, indent="  ")
    return "\n".join([*lines, f"  return {_named(program.results, names)}"])


def _lines(
    equations: Sequence[Equation], names: dict[Atom, str], early: Set[Atom], indent: str
) -> Iterator[str]:
    """Yield a line for each equation, and after it indented lines for its inner functions.

    `names` maps variables to names, and gets an item for each new variable. Equations whose results
    are in `early` are marked.
    """
    for equation in equations:
        for variable in equation.outvars:
            names[variable] = f"v{len(names)}"
        results = ", ".join(f"{names[v]}: {_type(v)}" for v in equation.outvars)
        has_results = len(equation.outvars) > 0
        is_early = has_results and all(v in early for v in equation.outvars)
        mark = "*" if is_early else " "
        text = f"{indent}{mark}{results} = {primitive(equation)} {_named(equation.invars, names)}"
        params = ", ".join(f"{name}={_shown(value)}" for name, value in _params(equation))
        if params:
            text += f" [{params}]"
        place_text = place(equation)
        if place_text:
            text += f"  # {place_text}"
        yield text
        for closed in jaxprs.function_params(equation):
            inner_names = dict(names)
            inner_names.update((v, f"a{i}") for i, v in enumerate(closed.jaxpr.invars))
            inner_equations = jaxprs.equations(closed)
            yield from _lines(inner_equations, inner_names, frozenset(), indent=f"{indent}    ")
            yield f"{indent}    return {_named(closed.jaxpr.outvars, inner_names)}"


def place(equation: Equation) -> str:
    """Return the name, the file and the line of the operation from which an equation comes.

    For example, it returns "conv1 graph.nnef:12". If the file is unknown, it returns "conv1".
    """
    file, line = jaxprs.document_line(equation)
    name = jaxprs.outer_scope(equation)
    return f"{name} {file}:{line}".strip() if file else name


def described(equation: Equation) -> str:
    """Return the primitive and the place of an equation as a text for messages."""
    name = primitive(equation)
    place_text = place(equation)
    return f"{name} of {place_text}" if place_text else name


def _params(equation: Equation) -> list[tuple[str, Any]]:
    """Return an equation's parameters that are worth printing, as pairs of name and value.

    Neutral values, functions, and placements of arrays are left out.
    """
    function_ids = {id(function) for function in jaxprs.function_params(equation)}
    pairs: list[tuple[str, Any]] = []
    for name, value in equation.params.items():
        is_placement = _PLACEMENT.search(name) is not None
        is_function = id(value) in function_ids or _FUNCTION.search(name) is not None
        # Only tuples are compared with (), since some other values raise an error.
        is_empty = isinstance(value, tuple) and not value
        if is_placement or is_function or is_empty or value is None or value is False:
            continue
        # A stride, a dilation or a number of groups is neutral if it is 1.
        is_neutral = _BY_ONE.search(name) is not None and {*np.ravel(value)} == {1}
        if not is_neutral:
            pairs.append((name, value))
    return pairs


def _shown(value: object) -> str:
    """Return the value of a parameter as text, cut to `_MOST_CHARACTERS` characters."""
    if isinstance(value, tuple):
        value = tuple(value)  # removes the class of named tuples from the text
    text = str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _named(operands: Sequence[Atom], names: Mapping[Atom, str]) -> str:
    """Return the names of variables and the values of literals, separated by spaces."""
    texts: list[str] = []
    for operand in operands:
        if is_literal(operand):
            texts.append(str(np.asarray(operand.val)))
        else:
            texts.append(names.get(operand, "?"))
    return " ".join(texts)


def _type(variable: Atom) -> str:
    """Return the type of a variable as text, for example `float32[2,3]`."""
    aval = variable.aval
    extents = ",".join(map(str, getattr(aval, "shape", ())))
    return f"{getattr(aval, 'dtype', aval)}[{extents}]"
