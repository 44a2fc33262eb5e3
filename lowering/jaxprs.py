"""Reads and evaluates equations of traced functions.

No other module uses `jax.extend.core`. If a later jax breaks this one, `fallback` steps in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.extend import core

CALL, SCAN, PRODUCT, CONVOLUTION = "jit", "scan", "dot_general", "conv_general_dilated"
ARITHMETIC = ("add", "sub", "mul", "div")
SHAPING = ("broadcast_in_dim", "reshape", "squeeze", "transpose")
JOINING = ("concatenate", "stack")

# fmt: off
ELEMENTWISE = (
    "abs", "add", "and", "asin", "asinh", "acos", "acosh", "atan", "atan2", "atanh", "cbrt",
    "ceil", "clamp", "convert_element_type", "copy", "cos", "cosh", "div", "eq", "erf",
    "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "imag", "integer_pow",
    "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne",
    "neg", "nextafter", "not", "or", "pow", "real", "reduce_precision", "rem", "round", "rsqrt",
    "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin",
    "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor",
)
# fmt: on

# Primitives that call a function, and the parameter that holds it.
_CALLS = {CALL: "jaxpr", "custom_jvp_call": "call_jaxpr"}


def primitive(equation: Any) -> str:
    """Return the name of an equation's primitive."""
    return equation.primitive.name


def is_literal(operand: Any) -> bool:
    """Tell a number that an equation holds from a variable."""
    return isinstance(operand, core.Literal)


def variables(operands: Iterable[Any]) -> list[Any]:
    """Return the operands that are no literals."""
    return [operand for operand in operands if not is_literal(operand)]


def function(
    title: str, arguments: Sequence[Any], results: Sequence[Any], equations: Sequence[Any]
) -> Callable[..., list[Any]]:
    """Return the function of these variables that evaluates the equations."""
    names = tuple(f"x{i}" for i in range(len(arguments)))
    paths = tuple(f"result[{i}]" for i in range(len(results)))
    info = core.DebugInfo(title, title, names, paths)
    jaxpr = core.Jaxpr([], arguments, results, equations, debug_info=info)
    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, []))


def scan_counts(equation: Any) -> tuple[int, int]:
    """Return how many operands of a scan are constants, and how many its carry."""
    params = equation.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()  # since jax 0.12
    return len(constants), len(carry)


def bind(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Return the results of an equation as it stands."""
    pairs = zip(equation.invars, operands, strict=True)
    given = {variable: operand for variable, operand in pairs if not is_literal(variable)}
    run = function(primitive(equation), list(given), equation.outvars, [equation])
    return run(*given.values())


def inlined(closed: Any) -> Any:
    """Inline calls of functions; derivatives of one's own are lost."""

    def run(*arguments: Any) -> list[Any]:
        return evaluate(closed.jaxpr, values_of(closed, arguments))

    return jax.make_jaxpr(run)(*closed.in_avals)


def values_of(closed: Any, arguments: Sequence[Any]) -> dict[Any, Any]:
    """Return the values of a function's constants and arguments by variable."""
    values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, arguments, strict=True))
    return values


def evaluate(jaxpr: Any, values: dict[Any, Any]) -> list[Any]:
    """Return the results of all equations, called functions included."""

    def compute(equation: Any, operands: Sequence[Any]) -> list[Any]:
        parameter = _CALLS.get(primitive(equation))
        if parameter is None:
            return bind(equation, operands)
        called = equation.params[parameter]
        return evaluate(called.jaxpr, values_of(called, operands))

    for equation in jaxpr.eqns:
        place(equation, values, compute)
    return [read(v, values) for v in jaxpr.outvars]


def place(
    equation: Any, values: dict[Any, Any], compute: Callable[..., Sequence[Any]] = bind
) -> None:
    """Add the results of an equation to the values of variables."""
    operands = [read(v, values) for v in equation.invars]
    with scope(equation):
        values.update(zip(equation.outvars, compute(equation, operands), strict=True))


def scope(equation: Any) -> AbstractContextManager[object]:
    """Name what is traced after the operation that the equation comes from."""
    return jax.named_scope(str(equation.source_info.name_stack))


def read(operand: Any, values: Mapping[Any, Any]) -> Any:
    """Return the value of a variable or a literal."""
    return operand.val if is_literal(operand) else values[operand]
