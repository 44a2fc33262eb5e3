"""Reads, rewrites and evaluates the equations of traced functions.

No other module uses `jax.extend`. If a later version of jax breaks this module, `lowering.fallback`
runs networks unoptimised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import is_
from typing import Any, TypeGuard, TypeVar

import jax
import numpy as np
from jax import Array
from jax.extend import core, source_info_util
from jax.interpreters import ad, batching, mlir

from lowering.fallback import or_else
from lowering.jaxpr_types import (
    Atom,
    Aval,
    ClosedJaxpr,
    Equation,
    Jaxpr,
    Literal,
    Variable,
)

T = TypeVar("T")

CALL, SCAN, PRODUCT, CONVOLUTION = "jit", "scan", "dot_general", "conv_general_dilated"
_PROGRAM = "jit(program)"  # profiles show it as a function, not as an operation
# Primitives that call a function, and the parameter that holds the function.
_CALLS = {
    CALL: "jaxpr",
    _PROGRAM: "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
}

# jax's classes. The protocols of `jaxpr_types` are the types of their instances.
_Jaxpr: Any = core.Jaxpr
_ClosedJaxpr: Any = getattr(core, "ClosedJaxpr", _Jaxpr)  # since jax 0.12 both are one class
_Literal: Any = core.Literal
_Variable: Any = core.Var

INLINED = "inlineable"  # passes do not inline a call that has this XLA attribute

_NAMES = ("DebugInfo", "Jaxpr", "Literal", "Primitive", "jaxpr_as_fun")


def require_names() -> None:
    """Raise AttributeError if the installed jax lacks a name that this module uses."""
    for name in _NAMES:
        getattr(core, name)
    for name in ("current_name_stack", "user_context"):
        getattr(source_info_util, name)


def leave_out(folder: str) -> None:
    """Keep jax from recording files of a folder as the source of equations."""
    source_info_util.register_exclusion(folder)


def function_primitive(name: str) -> Any:
    """Return a new primitive that has several results and a parameter `jaxpr`.

    The parameter is a traced function.
    """
    primitive = core.Primitive(name)
    primitive.multiple_results = True

    def bind_low_level(*operands: Array, jaxpr: ClosedJaxpr, **params: object) -> list[Array]:
        return or_else(
            lambda: primitive.bind(*operands, jaxpr=low_level(jaxpr), **params),
            lambda: primitive.impl(*operands, jaxpr=jaxpr, **params),
        )

    # jax calls this function if `jaxpr` has high-level primitives.
    primitive.to_lojax = bind_low_level
    return primitive


def low_level(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return a traced function in which low-level equations replace jax's high-level primitives.

    Since jax 0.12 `jnp.searchsorted`, `nonzero`, `frexp` and other functions trace to
    high-level primitives, for which no pass has rules. The derivative rules of these primitives
    are lost here, so that a function must be differentiated before.
    """
    if not getattr(closed.jaxpr, "is_high", False):
        return closed
    return jax.jit(as_function(closed)).trace(*closed.in_avals).lojax.jaxpr


def call_primitive(name: str) -> Any:
    """Return a new primitive that evaluates the traced function in its parameter `jaxpr`."""

    def evaluate(*operands: Array, jaxpr: ClosedJaxpr) -> list[Array]:
        return as_function(jaxpr)(*operands)

    primitive = function_primitive(name)
    primitive.def_impl(evaluate)
    primitive.def_abstract_eval(lambda *_, jaxpr: jaxpr.out_avals)
    mlir.register_lowering(primitive, mlir.lower_fun(evaluate, multiple_results=True))
    return primitive


def identity(name: str, transpose: Callable[..., Any]) -> Any:
    """Return a new linear primitive that returns its operand.

    `transpose` is the transposition rule of the primitive.
    """
    primitive = core.Primitive(name)

    def same(x: T, **_: object) -> T:
        return x

    primitive.def_impl(same)
    primitive.def_abstract_eval(same)
    ad.deflinear2(primitive, transpose)
    batching.defvectorized(primitive)
    mlir.register_lowering(primitive, lambda _, x, **__: [x])
    return primitive


_program = call_primitive(_PROGRAM)


def _lowering_rule(context: Any, *operands: Any, jaxpr: Any) -> Any:
    return mlir.core_call_lowering(context, *operands, name="program", call_jaxpr=jaxpr)


mlir.register_lowering(_program, _lowering_rule)


def primitive(equation: Equation) -> str:
    """Return the name of an equation's primitive."""
    return equation.primitive.name


def closed_jaxpr(jaxpr: Jaxpr, constants: Iterable[object]) -> ClosedJaxpr:
    """Return a traced function with values for the constants of `jaxpr`."""
    return _ClosedJaxpr(jaxpr, list(constants))


def is_closed(value: object) -> TypeGuard[ClosedJaxpr]:
    """Tell whether a value is a traced function that has the values of its constants."""
    return isinstance(value, _ClosedJaxpr)


def is_traced(value: object) -> TypeGuard[Jaxpr]:
    """Tell whether a value is a traced function, with or without the values of its constants."""
    return isinstance(value, _Jaxpr) or is_closed(value)


def equations(closed: ClosedJaxpr) -> Sequence[Equation]:
    """Return the equations of a traced function."""
    return closed.jaxpr.eqns


def is_literal(operand: Atom) -> TypeGuard[Literal]:
    """Tell whether an operand is a literal number, and not a variable."""
    return isinstance(operand, _Literal)


def variables(operands: Iterable[Atom]) -> list[Variable]:
    """Return the variables among some operands, and leave out literals."""
    return [operand for operand in operands if not is_literal(operand)]


def as_function(closed: ClosedJaxpr) -> Callable[..., list[Any]]:
    """Return a Python function that evaluates a traced function.

    In a trace it adds all equations of the function to the trace.
    """
    return core.jaxpr_as_fun(closed)


def as_call(closed: ClosedJaxpr) -> Callable[..., list[Any]]:
    """Return a Python function that adds one call of a traced function to the current trace.

    XLA inlines the call. To trace the equations again instead would take 0.09 s for ResNet-50.
    """
    if closed.effects:  # the surrounding trace must see them
        return as_function(closed)
    return lambda *operands: _program.bind(*operands, jaxpr=closed)


def lifted(closed: ClosedJaxpr, chosen: Callable[[Any], bool]) -> tuple[ClosedJaxpr, list[Any]]:
    """Turn the constants of a traced function for which `chosen` is true into leading arguments.

    Returns the new function, and the list of the constants that became arguments.
    """
    moved: dict[Variable, Any] = {}
    remaining: dict[Variable, Any] = {}
    for variable, constant in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        constants = moved if chosen(constant) else remaining
        constants[variable] = constant
    if not moved:
        return closed, []
    jaxpr = closed.jaxpr.replace(
        constvars=list(remaining),
        invars=[*moved, *closed.jaxpr.invars],
        debug_info=closed.jaxpr.debug_info.with_unknown_names(),
    )
    return closed_jaxpr(jaxpr, remaining.values()), list(moved.values())


def retyped(
    closed: ClosedJaxpr,
    shapes: Mapping[Variable, Sequence[int]],
    change: Callable[[Equation], Equation],
) -> ClosedJaxpr:
    """Return a traced function whose variables have other shapes.

    `shapes` maps variables to their new shapes. `change` takes an equation and returns it with
    parameters that fit the new shapes.
    """
    types: dict[Atom, Variable] = {
        v: _retyped(v, v.aval.update(shape=tuple(shape))) for v, shape in shapes.items()
    }

    def mapped(operands: Iterable[Atom]) -> list[Atom]:
        return [v if is_literal(v) else types.get(v, v) for v in operands]

    def changed(equation: Equation) -> Equation:
        invars = mapped(equation.invars)
        outvars = mapped(equation.outvars)
        return change(equation).replace(invars=invars, outvars=outvars)

    jaxpr = closed.jaxpr.replace(
        invars=mapped(closed.jaxpr.invars),
        outvars=mapped(closed.jaxpr.outvars),
        eqns=list(map(changed, closed.jaxpr.eqns)),
    )
    return closed_jaxpr(jaxpr, closed.consts)


def of_equations(
    closed: ClosedJaxpr,
    equations: Sequence[Equation],
    results: Sequence[Atom],
    constants: Mapping[Variable, Any] | None = None,
    arguments: Sequence[Variable] | None = None,
) -> ClosedJaxpr:
    """Return a traced function that consists of some equations and computes `results`.

    `constants` maps variables to the values of constants. By default the constants and
    arguments are those of `closed`. Constants on which no result depends are left out.
    Equations on which no result depends are left out unless they have effects.
    """
    needed = set(variables(results))
    steps: list[Equation] = []
    for equation in reversed(equations):
        if equation.effects or not needed.isdisjoint(equation.outvars):
            steps.append(equation)
            needed.update(variables(equation.invars))
    steps.reverse()
    jaxpr = closed.jaxpr
    if constants is None:
        constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    constants = {v: x for v, x in constants.items() if v in needed}
    if arguments is None:
        arguments = jaxpr.invars
    pruned = jaxpr.replace(
        constvars=list(constants),
        invars=list(arguments),
        outvars=list(results),
        eqns=steps,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return closed_jaxpr(pruned, constants.values())


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
    pair: Any = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return pair


def trace_at(
    equation: Equation, function: Callable[..., object], operands: Sequence[object]
) -> tuple[list[Equation], Any, dict[Variable, Any]]:
    """Trace a function to equations that get the name and place of `equation`.

    `operands` are pytrees of variables and literals. The function gets arrays for variables,
    and numpy arrays for literals. Three items are returned: the new equations, the function's
    result as a pytree of variables and literals, and a map from variables to the values of
    constants.
    """
    leaves, tree = jax.tree.flatten(tuple(operands))

    def flat(*arrays: Array) -> object:
        values = dict(zip(variables(leaves), arrays, strict=True))
        arguments: list[Any] = []
        for v in leaves:
            if is_literal(v):
                arguments.append(np.asarray(v.val, v.aval.dtype))
            else:
                arguments.append(values[v])
        return function(*jax.tree.unflatten(tree, arguments))

    types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in variables(leaves)]
    with np.errstate(all="ignore"):  # literals may overflow, or be divided by 0
        closed, shapes = make_jaxpr_and_types(flat, *types)
    closed = inlined(closed)
    renamed = dict(zip(closed.jaxpr.invars, variables(leaves), strict=True))
    outer = equation.source_info

    def mapped(v: Atom) -> Atom:
        return v if is_literal(v) else renamed.get(v, v)

    steps: list[Equation] = []
    for e in closed.jaxpr.eqns:
        info = outer.replace(name_stack=outer.name_stack + e.source_info.name_stack)
        steps.append(e.replace(invars=list(map(mapped, e.invars)), source_info=info))
    results = jax.tree.unflatten(jax.tree.structure(shapes), map(mapped, closed.jaxpr.outvars))
    return steps, results, dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))


def with_inner(equation: Equation, change: Callable[[ClosedJaxpr], ClosedJaxpr]) -> Equation:
    """Return an equation with `change(function)` in place of each traced function it evaluates."""
    functions = function_params(equation)
    changed_functions = list(map(change, functions))
    if all(map(is_, functions, changed_functions)):
        return equation
    changed_by_id: dict[int, object] = dict(zip(map(id, functions), changed_functions, strict=True))

    def changed(value: object) -> object:
        # Branches of a choice are a tuple. Dimension numbers have a subclass of tuple.
        if type(value) is tuple:
            return tuple(map(changed, value))
        return changed_by_id.get(id(value), value)

    return equation.replace(params={k: changed(v) for k, v in equation.params.items()})


def without_forwarded(closed: ClosedJaxpr, keep: int) -> tuple[ClosedJaxpr, list[int | None]]:
    """Leave out results of a traced function that only return one of its arguments.

    The first `keep` results always stay. The list that is returned too has an item for each
    later result: the index of the argument that the result is, or None if the result is
    computed.
    """
    argument_numbers = {variable: i for i, variable in enumerate(closed.jaxpr.invars)}
    first = closed.jaxpr.outvars[:keep]
    later = closed.jaxpr.outvars[keep:]
    sources = [None if is_literal(v) else argument_numbers.get(v) for v in later]
    computed = [v for v, source in zip(later, sources, strict=True) if source is None]
    return of_equations(closed, closed.jaxpr.eqns, [*first, *computed]), sources


def depending(closed: ClosedJaxpr, chosen: Iterable[bool]) -> list[bool]:
    """Tell, for each result, whether it may depend on an argument for which `chosen` is true."""
    dependent = {v for v, choice in zip(closed.jaxpr.invars, chosen, strict=True) if choice}
    for equation in closed.jaxpr.eqns:
        if not dependent.isdisjoint(variables(equation.invars)):
            dependent.update(equation.outvars)
    return [not is_literal(v) and v in dependent for v in closed.jaxpr.outvars]


def spliced(
    closed: ClosedJaxpr, platform: str | None, *, keeps_derivatives: bool = False
) -> ClosedJaxpr:
    """Replace calls by the equations of the called functions.

    A choice between platforms is replaced by the branch for `platform`. If `platform` is None,
    the choice stays. If `keeps_derivatives` is true, calls of functions with custom derivatives
    stay too.
    """

    def callee(equation: Equation) -> ClosedJaxpr | None:
        # The platforms of each branch; None for a branch for all platforms.
        choices = equation.params.get("branches_platforms")
        if platform is not None and choices and primitive(equation) == "cond":
            is_for_platform = [x is None or platform in x for x in choices]
            return equation.params["branches"][is_for_platform.index(True)]
        if keeps_derivatives and primitive(equation) != CALL:
            return None
        return _called_function(equation)

    return _spliced(closed, callee)


def inlined(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Replace all calls by the equations of the called functions. Custom derivatives are lost."""
    return _spliced(closed, _called_function)


def _spliced(
    closed: ClosedJaxpr, callee_of: Callable[[Equation], ClosedJaxpr | None]
) -> ClosedJaxpr:
    """Replace each equation by the equations of the function `callee_of(equation)`.

    The equation stays if the function is None. The equations are copied instead of traced
    again: to trace the 3000 equations of ResNet-18 takes 0.13 s.
    """
    if all(callee_of(e) is None for e in closed.jaxpr.eqns):
        return closed
    equations: list[Equation] = []
    constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def add_equations(jaxpr: Jaxpr, values: dict[Variable, Atom], outer: Any) -> list[Atom]:
        """Add the equations of a function, and return the operands that stand for its results.

        `values` maps variables of the function to operands. `outer` is the source information
        of the call, or None for the outermost function.
        """

        def operand_for(v: Atom) -> Atom:
            return v if is_literal(v) else values.get(v, v)

        for e in jaxpr.eqns:
            operands = list(map(operand_for, e.invars))
            results = list(e.outvars)
            info = e.source_info
            if outer is not None:  # each call of a function needs variables of its own
                results = list(map(_renewed, results))
                info = outer.replace(name_stack=outer.name_stack + info.name_stack)
            callee = callee_of(e)
            if callee is None:
                equations.append(e.replace(invars=operands, outvars=results, source_info=info))
            else:
                renewed = list(map(_renewed, callee.jaxpr.constvars))
                constants.update(zip(renewed, callee.consts, strict=True))
                # The index of a branch precedes the arguments.
                arguments = operands[len(operands) - len(callee.in_avals) :]
                inner_values = dict(zip(callee.jaxpr.constvars, renewed, strict=True))
                inner_values.update(zip(callee.jaxpr.invars, arguments, strict=True))
                results = add_equations(callee.jaxpr, inner_values, info)
            values.update(zip(e.outvars, results, strict=True))
        return list(map(operand_for, jaxpr.outvars))

    outvars = add_equations(closed.jaxpr, {}, None)
    jaxpr = closed.jaxpr.replace(constvars=list(constants), eqns=equations, outvars=outvars)
    return closed_jaxpr(jaxpr, constants.values())


def _retyped(variable: Variable, aval: Aval) -> Variable:
    kind: Any = type(variable)  # jax has a subclass for variables that nothing reads
    return kind(aval)


def _renewed(variable: Variable) -> Variable:
    """Return a new variable that has the type of `variable`."""
    return _retyped(variable, variable.aval)


def _called_function(equation: Equation) -> ClosedJaxpr | None:
    parameter = _CALLS.get(primitive(equation))
    metadata = getattr(equation.ctx, "xla_metadata", None) or ()
    if parameter is None or INLINED in metadata:
        return None
    return equation.params[parameter]


def called(equation: Equation) -> ClosedJaxpr | None:
    """Return the function that an equation calls, or None if the equation is no call."""
    parameter = _CALLS.get(primitive(equation))
    if parameter is None:
        return recomputed(equation)
    return equation.params[parameter]


def function_params(equation: Equation) -> list[ClosedJaxpr]:
    """Return the traced functions among an equation's parameters."""
    values: list[object] = []
    for value in equation.params.values():
        values += value if isinstance(value, tuple) else (value,)
    return [x for x in values if is_closed(x)]


def recomputed(equation: Equation) -> ClosedJaxpr | None:
    """Return the function that a `jax.checkpoint` evaluates, or None for another equation."""
    if primitive(equation) != "remat2":
        return None
    return closed_jaxpr(equation.params["jaxpr"], [])


def innermost(jaxpr: Jaxpr) -> Iterator[Equation]:
    """Yield all equations that evaluate no functions, also the equations of inner functions."""
    for equation, _ in repeated(jaxpr):
        yield equation


def repeated(jaxpr: Jaxpr, times: int = 1) -> Iterator[tuple[Equation, int]]:
    """Yield each equation that evaluates no functions, and how often it is evaluated.

    An equation in the body of a scan is evaluated in each iteration of the scan. `times` is the
    number of evaluations of `jaxpr`.
    """
    for equation in jaxpr.eqns:
        functions = function_params(equation)
        if not functions:
            yield equation, times
        iterations = equation.params["length"] if primitive(equation) == SCAN else 1
        for closed in functions:
            yield from repeated(closed.jaxpr, times * iterations)


def scan_counts(equation: Equation) -> tuple[int, int]:
    """Return the number of a scan's constants, and the number of its carried values."""
    params = equation.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()  # since jax 0.12
    return len(constants), len(carry)


def scan_parts(equation: Equation, operands: Sequence[T]) -> tuple[list[T], list[T], list[T]]:
    """Divide a scan's operands into its constants, its initial carry, and its stacked inputs."""
    count, carried = scan_counts(equation)
    constants = list(operands[:count])
    carry = list(operands[count : count + carried])
    return constants, carry, list(operands[count + carried :])


def scanned(
    equation: Equation,
    step: Callable[..., Sequence[Array]],
    constants: Sequence[Array],
    start: Sequence[Any],
    stacks: Sequence[Array],
) -> list[Array]:
    """Evaluate a scan with `step` in place of its body.

    `step` takes the constants, the carry, and an item of each stack, as separate arguments. It
    returns the new carry and the items of the results, in one sequence. The final carry and the
    stacked items are returned in one list.
    """

    def iterate(carry: Sequence[Array], items: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        results = list(step(*constants, *carry, *items))
        return results[: len(start)], results[len(start) :]

    options = {name: equation.params[name] for name in ("length", "reverse", "unroll")}
    last, collected = jax.lax.scan(iterate, list(start), list(stacks), **options)
    return [*last, *collected]


def bind(equation: Equation, operands: Sequence[Any], **params: object) -> list[Array]:
    """Evaluate an equation on operands, with the parameters `params` in place of its own.

    If this call is traced, the new equation gets the current name scope instead of the scope of
    `equation`.
    """
    equation = unnamed(equation).replace(params=equation.params | params)
    # Literals become arguments too: `operands` may hold other values.
    arguments = [_Variable(v.aval) for v in equation.invars]
    equation = equation.replace(invars=arguments)
    name = primitive(equation)
    argument_names = ("",) * len(arguments)
    result_paths = ("",) * len(equation.outvars)
    info = core.DebugInfo(name, name, argument_names, result_paths)
    jaxpr = _Jaxpr([], arguments, equation.outvars, [equation], debug_info=info)
    return core.jaxpr_as_fun(closed_jaxpr(jaxpr, []))(*operands)


def unnamed(equation: Equation) -> Equation:
    """Return an equation without name scopes, which tell the operation it comes from."""
    info = equation.source_info
    return equation.replace(source_info=info.replace(name_stack=type(info.name_stack)()))


def values_of(closed: ClosedJaxpr, arguments: Sequence[Any]) -> dict[Variable, Any]:
    """Map the variables of a function's constants and arguments to their values."""
    values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, arguments, strict=True))
    return values


def scope(equation: Equation) -> AbstractContextManager[object]:
    """Give the name and place of `equation` to equations traced in a `with` block."""
    info = equation.source_info
    names = source_info_util.current_name_stack()
    if info.name_stack.stack:
        names = names.extend(str(info.name_stack))
    return source_info_util.user_context(info.traceback, name_stack=names)


def outer_scope(equation: Equation) -> str:
    """Return the name of the operation from which an equation comes, or "".

    It is the outermost name scope of the equation.
    """
    stack = equation.source_info.name_stack.stack
    return stack[0].name if stack else ""


def document_line(equation: Equation) -> tuple[str, int]:
    """Return the document's file name and the line from which an equation comes, or ("", 0)."""
    traceback = equation.source_info.traceback
    frames = [] if traceback is None else traceback.frames
    for frame in frames:
        if not frame.file_name.endswith(".py") and not frame.file_name.startswith("<"):
            return frame.file_name, frame.line_num
    return "", 0
