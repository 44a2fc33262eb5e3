"""Evaluates the equations of traced functions, and traces functions to equations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.extend import core, source_info_util

from lowering.jaxpr_types import Atom, ClosedJaxpr, Equation, Variable
from lowering.jaxprs import closed_jaxpr, inlined, is_literal, primitive, unnamed, variables

# These are classes of jax. Their instances have the types that `jaxpr_types` declares.
_Jaxpr: Any = core.Jaxpr
_Variable: Any = core.Var


def low_level(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return a traced function with low-level equations in place of high-level primitives.

    Since jax 0.12 `jnp.searchsorted`, `nonzero`, `frexp` and other functions trace to
    high-level primitives, for which no pass has rules. The returned function lacks the derivative
    rules of these primitives, so a function must be differentiated before this call.
    """
    if not getattr(closed.jaxpr, "is_high", False):
        return closed
    return jax.jit(as_function(closed)).trace(*closed.in_avals).lojax.jaxpr


def as_function(closed: ClosedJaxpr) -> Callable[..., list[Any]]:
    """Return a Python function that evaluates a traced function.

    If the Python function is traced, it adds the equations of the traced function to the trace.
    """
    return core.jaxpr_as_fun(closed)


def make_jaxpr(function: Callable[..., object], *arguments: object) -> ClosedJaxpr:
    """Trace a function for arguments of the types of `arguments`, which are pytrees."""
    closed: Any = jax.make_jaxpr(function)(*arguments)
    return closed


def make_jaxpr_and_types(
    function: Callable[..., object], *arguments: object
) -> tuple[ClosedJaxpr, Any]:
    """Trace a function. Return the traced function, and the types of the function's result.

    The types are a pytree of `jax.ShapeDtypeStruct`.
    """
    closed_and_types: Any = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return closed_and_types


def trace_at(
    equation: Equation, function: Callable[..., object], operands: Sequence[object]
) -> tuple[list[Equation], Any, dict[Variable, Any]]:
    """Trace a function to equations that get the name and place of `equation`.

    `operands` are pytrees of variables and literals. The function gets arrays for variables,
    and numpy arrays for literals. Three items are returned: the new equations, the function's
    result as a pytree of variables and literals, and a dict. The new equations may read constants.
    The dict maps the variables of these constants to the values.
    """
    leaves, tree = jax.tree.flatten(tuple(operands))

    def with_arrays(*arrays: Array) -> object:
        """Call the function with arrays in place of the variables in `operands`."""
        values = dict(zip(variables(leaves), arrays, strict=True))
        arguments: list[Any] = []
        for leaf in leaves:
            if is_literal(leaf):
                arguments.append(np.asarray(leaf.val, leaf.aval.dtype))
            else:
                arguments.append(values[leaf])
        return function(*jax.tree.unflatten(tree, arguments))

    types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in variables(leaves)]
    with np.errstate(all="ignore"):  # literals may overflow, or be divided by 0
        closed, result_types = make_jaxpr_and_types(with_arrays, *types)
    closed = inlined(closed)
    operand_by_argument = dict(zip(closed.jaxpr.invars, variables(leaves), strict=True))

    def operand_for(v: Atom) -> Atom:
        """Return v, or the operand for v if v is an argument of the traced function."""
        return v if is_literal(v) else operand_by_argument.get(v, v)

    equations: list[Equation] = []
    source = equation.source_info
    for inner in closed.jaxpr.eqns:
        name_stack = source.name_stack + inner.source_info.name_stack
        source_info = source.replace(name_stack=name_stack)
        invars = list(map(operand_for, inner.invars))
        equations.append(inner.replace(invars=invars, source_info=source_info))
    result_tree = jax.tree.structure(result_types)
    results = jax.tree.unflatten(result_tree, map(operand_for, closed.jaxpr.outvars))
    constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    return equations, results, constants


def scanned(
    equation: Equation,
    step: Callable[..., Sequence[Array]],
    constants: Sequence[Array],
    start: Sequence[Any],
    stacks: Sequence[Array],
    **changes: Any,
) -> list[Array]:
    """Evaluate a scan with `step` in place of its body, and with changed parameters.

    `step` takes the constants, the carry, and an item of each stack, as separate arguments. It
    returns the new carry and the items of the results, in one sequence. The carry of the first
    iteration is `start`. The final carry and the stacked items are returned in one list. `changes`
    maps names of parameters, such as the length, to new values.
    """

    def iterate(carry: Sequence[Array], items: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        results = list(step(*constants, *carry, *items))
        return results[: len(start)], results[len(start) :]

    options = {name: equation.params[name] for name in ("length", "reverse", "unroll")} | changes
    final_carry, stacked_items = jax.lax.scan(iterate, list(start), list(stacks), **options)
    return [*final_carry, *stacked_items]


def bind(equation: Equation, operands: Sequence[Any], **params: object) -> list[Array]:
    """Evaluate an equation on operands, with `params` in place of some of its parameters.

    In a trace, the new equation gets the current name scope instead of the scope of `equation`.
    """
    # Make a function of this one equation. All operands become arguments, even literals, since
    # `operands` may hold other values.
    arguments = [_Variable(operand.aval) for operand in equation.invars]
    new_params = equation.params | params
    new_equation = unnamed(equation).replace(params=new_params, invars=arguments)
    name = primitive(equation)
    argument_names = ("",) * len(arguments)
    result_paths = ("",) * len(equation.outvars)
    info = core.DebugInfo(name, name, argument_names, result_paths)
    constants: list[Variable] = []
    jaxpr = _Jaxpr(constants, arguments, equation.outvars, [new_equation], debug_info=info)
    return as_function(closed_jaxpr(jaxpr, constants))(*operands)


def values_of(closed: ClosedJaxpr, arguments: Sequence[Any]) -> dict[Variable, Any]:
    """Map the variables of a function's constants and arguments to their values."""
    values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, arguments, strict=True))
    return values


def scope(equation: Equation) -> AbstractContextManager[object]:
    """Give the name and place of `equation` to the equations traced in a `with` block."""
    info = equation.source_info
    names = source_info_util.current_name_stack()
    if info.name_stack.stack:
        names = names.extend(str(info.name_stack))
    return source_info_util.user_context(info.traceback, name_stack=names)
