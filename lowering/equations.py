"""Evaluates equations of traced functions, one or all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core

# Primitives that call a function, and the parameter that holds it.
_CALLS = {"jit": "jaxpr", "custom_jvp_call": "call_jaxpr"}


def bind(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of an equation as it stands."""
    given = {
        variable: operand
        for variable, operand in zip(equation.invars, operands, strict=True)
        if not isinstance(variable, core.Literal)
    }
    info = core.DebugInfo(equation.primitive.name, "equation", ("x",) * len(given), None)
    jaxpr = core.Jaxpr([], list(given), equation.outvars, [equation], debug_info=info)
    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, []))(*given.values())


def inlined(closed: Any) -> Any:
    """The same without calls of functions; derivatives of one's own are lost."""

    def run(*arguments: Any) -> list[Any]:
        return evaluate(closed.jaxpr, closed.consts, arguments)

    return jax.make_jaxpr(run)(*closed.in_avals)


def evaluate(
    jaxpr: Any,
    constants: Sequence[Any],
    arguments: Sequence[Any],
    change: Callable[[Any], Any] | None = None,
) -> list[Any]:
    """The results of all equations, those of called functions too, each as `change` makes it."""
    values = dict(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def compute(equation: Any, operands: Sequence[Any]) -> list[Any]:
        name = _CALLS.get(equation.primitive.name)
        if name is None:
            return bind(equation if change is None else change(equation), operands)
        called = equation.params[name]
        return evaluate(called.jaxpr, called.consts, operands, change)

    for equation in jaxpr.eqns:
        place(equation, values, compute)
    return [read(v, values) for v in jaxpr.outvars]


def place(
    equation: Any,
    values: dict[Any, Any],
    compute: Callable[[Any, Sequence[Any]], Sequence[Any]] = bind,
) -> None:
    """Add the results of an equation to the values of variables."""
    operands = [read(v, values) for v in equation.invars]
    with jax.named_scope(str(equation.source_info.name_stack)):
        values.update(zip(equation.outvars, compute(equation, operands), strict=True))


def read(variable: Any, values: Mapping[Any, Any]) -> Any:
    """The value of a variable or a literal."""
    return variable.val if isinstance(variable, core.Literal) else values[variable]
