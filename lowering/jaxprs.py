"""Reads and evaluates equations of traced functions.

No other module uses `jax.extend`. If a later jax breaks this one, `fallback` steps in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeGuard

import jax
import numpy as np
from jax.extend import core, source_info_util
from jax.interpreters import ad, batching, mlir

from lowering.fallback import or_else

CALL, SCAN, PRODUCT, CONVOLUTION = "jit", "scan", "dot_general", "conv_general_dilated"
_PROGRAM = "jit(program)"  # no name of an operation's, but a function's among those in profiles
# Primitives that call a function, and the parameter that holds it.
_CALLS = {
    CALL: "jaxpr",
    _PROGRAM: "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
}

# jax's classes, whose instances are typed by the protocols below.
_Jaxpr: Any = core.Jaxpr
_ClosedJaxpr: Any = getattr(core, "ClosedJaxpr", _Jaxpr)  # one class since jax 0.12
_Literal: Any = core.Literal

Params = dict[str, Any]  # of an equation, by name: each primitive has its own types


class Aval(Protocol):
    """The type of an operand: jax's abstract value."""

    shape: tuple[int, ...]  # extents may be symbolic
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        ...

    @property
    def size(self) -> int:
        """Return the number of items."""
        ...

    def update(self, *, shape: tuple[int, ...]) -> Aval:
        """Return the type with another shape."""
        ...

    def to_tangent_aval(self) -> Aval:
        """Return the type of tangents: integers have tangents of dtype float0."""
        ...


class Variable(Protocol):
    """A variable of a traced function, compared by identity."""

    aval: Aval


class Literal(Protocol):
    """A number that an equation or a traced function holds in the place of a variable."""

    aval: Aval
    val: Any  # a Python number, or a scalar of numpy


Atom = Variable | Literal  # an operand of an equation, or a result of a traced function


class Primitive(Protocol):
    """What an equation computes, apart from its parameters."""

    name: str
    multiple_results: bool

    def bind(self, *operands: object, **params: Any) -> Any:
        """Return the result, or a list if there are several; a trace gets an equation."""
        ...


class Equation(Protocol):
    """A line of a traced function: a primitive with its parameters, operands and results."""

    primitive: Primitive
    params: Params
    invars: Sequence[Atom]
    outvars: Sequence[Variable]
    effects: Set[object]
    ctx: object  # jax's context: memory, metadata for XLA
    source_info: Any  # jax's record of the place in the source; this module alone reads it

    def replace(self, **changes: Any) -> Equation:
        """Return the equation with other attributes."""
        ...


class Jaxpr(Protocol):
    """A traced function without the values of its constants."""

    constvars: Sequence[Variable]
    invars: Sequence[Variable]
    outvars: Sequence[Atom]
    eqns: Sequence[Equation]
    debug_info: Any
    effects: Set[object]

    def replace(self, **changes: Any) -> Jaxpr:
        """Return the function with other attributes."""
        ...


class ClosedJaxpr(Protocol):
    """A traced function with the values of its constants."""

    jaxpr: Jaxpr
    consts: Sequence[Any]
    in_avals: Sequence[Aval]
    out_avals: Sequence[Aval]
    effects: Set[object]


INLINED = "inlineable"  # XLA's name for whether a call may be inlined

_NAMES = ("DebugInfo", "Jaxpr", "Literal", "Primitive", "jaxpr_as_fun")


def require_names() -> None:
    """Raise AttributeError where jax lacks a name that this module uses."""
    for name in _NAMES:
        getattr(core, name)
    for name in ("current_name_stack", "user_context"):
        getattr(source_info_util, name)


def leave_out(folder: str) -> None:
    """Make frames of a folder's files no places in a user's program."""
    source_info_util.register_exclusion(folder)


def operation(name: str) -> Any:
    """Return a new primitive with any number of results, which holds a traced function `jaxpr`."""
    made = core.Primitive(name)
    made.multiple_results = True

    def bind_low_level(*operands: Any, jaxpr: Any, **params: Any) -> list[Any]:
        return or_else(
            lambda: made.bind(*operands, jaxpr=low_level(jaxpr), **params),
            lambda: made.impl(*operands, jaxpr=jaxpr, **params),
        )

    made.to_lojax = bind_low_level  # jax calls it where `jaxpr` has high-level primitives
    return made


def low_level(closed: Any) -> Any:
    """Return a traced function without jax's high-level primitives, which no pass knows.

    `jnp.searchsorted`, `nonzero`, `frexp` and others trace to these since jax 0.12. Their
    derivatives are not those of the equations that they become: differentiate first.
    """
    if not getattr(closed.jaxpr, "is_high", False):
        return closed
    return jax.jit(as_function(closed)).trace(*closed.in_avals).lojax.jaxpr


def region(name: str) -> Any:
    """Return a new primitive that evaluates the traced function `jaxpr` that it holds."""

    def run(*operands: Any, jaxpr: Any) -> list[Any]:
        return as_function(jaxpr)(*operands)

    made = operation(name)
    made.def_impl(run)
    made.def_abstract_eval(lambda *_, jaxpr: jaxpr.out_avals)
    mlir.register_lowering(made, mlir.lower_fun(run, multiple_results=True))
    return made


def identity(name: str, transpose: Callable[..., Any]) -> Any:
    """Return a new primitive that returns its operand, and is transposed by a function."""
    made = core.Primitive(name)

    def same(x: Any, **_: Any) -> Any:
        return x

    made.def_impl(same)
    made.def_abstract_eval(same)
    ad.deflinear2(made, transpose)
    batching.defvectorized(made)
    mlir.register_lowering(made, lambda _, x, **__: [x])
    return made


_program = region(_PROGRAM)


def _lowering_rule(context: Any, *operands: Any, jaxpr: Any) -> Any:
    return mlir.core_call_lowering(context, *operands, name="program", call_jaxpr=jaxpr)


mlir.register_lowering(_program, _lowering_rule)


def primitive(equation: Equation) -> str:
    """Return the name of an equation's primitive."""
    return equation.primitive.name


def closed_jaxpr(jaxpr: Jaxpr, constants: Iterable[Any]) -> ClosedJaxpr:
    """Return a traced function with these values of its constants."""
    return _ClosedJaxpr(jaxpr, list(constants))


def is_closed(value: object) -> TypeGuard[ClosedJaxpr]:
    """Tell whether a parameter of an equation is a traced function."""
    return isinstance(value, _ClosedJaxpr)


def is_traced(value: object) -> TypeGuard[Jaxpr]:
    """Tell whether a parameter of an equation is a traced function, closed or not."""
    return isinstance(value, _Jaxpr) or is_closed(value)


def equations(closed: ClosedJaxpr) -> Sequence[Equation]:
    """Return the equations of a traced function."""
    return closed.jaxpr.eqns


def is_literal(operand: Atom) -> TypeGuard[Literal]:
    """Tell a number that an equation holds from a variable."""
    return isinstance(operand, _Literal)


def variables(operands: Iterable[Atom]) -> list[Variable]:
    """Return the operands that are no literals."""
    return [operand for operand in operands if not is_literal(operand)]


def as_function(closed: Any) -> Callable[..., list[Any]]:
    """Return a traced function as one that can be called, or traced again."""
    return core.jaxpr_as_fun(closed)


def as_call(closed: Any) -> Callable[..., list[Any]]:
    """Return a traced function as one that a trace calls, to be compiled as it stands.

    XLA inlines it. To trace it anew takes ResNet-50 0.09 s.
    """
    if closed.effects:  # of which the trace around it must know
        return as_function(closed)
    return lambda *operands: _program.bind(*operands, jaxpr=closed)


def lifted(closed: Any, chosen: Callable[[Any], bool]) -> tuple[Any, list[Any]]:
    """Make the chosen constants arguments, which come first; return these too."""
    pairs = list(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    moved = [(variable, x) for variable, x in pairs if chosen(x)]
    if not moved:
        return closed, []
    kept = [(variable, x) for variable, x in pairs if not chosen(x)]
    jaxpr = closed.jaxpr.replace(
        constvars=[variable for variable, _ in kept],
        invars=[*(variable for variable, _ in moved), *closed.jaxpr.invars],
        debug_info=closed.jaxpr.debug_info.with_unknown_names(),
    )
    return closed_jaxpr(jaxpr, [x for _, x in kept]), [x for _, x in moved]


def retyped(closed: Any, shapes: Mapping[Any, Sequence[int]], change: Callable[[Any], Any]) -> Any:
    """Return a traced function with other shapes of some variables, its equations changed."""
    types = {v: type(v)(v.aval.update(shape=tuple(shape))) for v, shape in shapes.items()}

    def mapped(operands: Iterable[Any]) -> list[Any]:
        return [v if is_literal(v) else types.get(v, v) for v in operands]

    jaxpr = closed.jaxpr.replace(
        invars=mapped(closed.jaxpr.invars),
        outvars=mapped(closed.jaxpr.outvars),
        eqns=[
            change(e).replace(invars=mapped(e.invars), outvars=mapped(e.outvars))
            for e in closed.jaxpr.eqns
        ],
    )
    return closed_jaxpr(jaxpr, closed.consts)


def of_equations(
    closed: Any,
    equations: Sequence[Any],
    results: Sequence[Any],
    constants: Mapping[Any, Any] | None = None,
    arguments: Sequence[Any] | None = None,
) -> Any:
    """Return a traced function with other equations and results, constants and arguments.

    Equations and constants that no result depends on are left out, unless they have effects.
    """
    wanted = set(variables(results))
    kept: list[Any] = []
    for equation in reversed(equations):
        if equation.effects or not wanted.isdisjoint(equation.outvars):
            kept.append(equation)
            wanted.update(variables(equation.invars))
    jaxpr = closed.jaxpr
    if constants is None:
        constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    constants = {v: x for v, x in constants.items() if v in wanted}
    made = jaxpr.replace(
        constvars=list(constants),
        invars=list(jaxpr.invars if arguments is None else arguments),
        outvars=list(results),
        eqns=kept[::-1],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return closed_jaxpr(made, list(constants.values()))


def trace_at(
    equation: Any, function: Callable[..., Any], operands: Sequence[Any]
) -> tuple[list[Any], Any, dict[Any, Any]]:
    """Trace a function of pytrees of variables; what is a literal it gets as an array of numpy.

    Return its equations, its result as a pytree of operands, and its constants. They are named as
    an equation is, and stand at its place in the document.
    """
    leaves, tree = jax.tree.flatten(tuple(operands))

    def flat(*arrays: Any) -> Any:
        values = dict(zip(variables(leaves), arrays, strict=True))
        read = [np.asarray(v.val, v.aval.dtype) if is_literal(v) else values[v] for v in leaves]
        return function(*jax.tree.unflatten(tree, read))

    types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in variables(leaves)]
    with np.errstate(all="ignore"):  # literals may overflow, or be divided by 0
        closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*types)
    closed = inlined(closed)
    renamed = dict(zip(closed.jaxpr.invars, variables(leaves), strict=True))
    outer = equation.source_info

    def mapped(v: Any) -> Any:
        return v if is_literal(v) else renamed.get(v, v)

    steps = [
        e.replace(
            invars=list(map(mapped, e.invars)),
            source_info=outer.replace(name_stack=outer.name_stack + e.source_info.name_stack),
        )
        for e in closed.jaxpr.eqns
    ]
    results = jax.tree.unflatten(jax.tree.structure(shapes), map(mapped, closed.jaxpr.outvars))
    return steps, results, dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))


def with_inner(equation: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to each traced function that an equation holds."""
    pairs = [(closed, change(closed)) for closed in inner(equation)]
    if all(a is b for a, b in pairs):
        return equation
    made = {id(a): b for a, b in pairs}

    def changed(value: Any) -> Any:
        if type(value) is tuple:  # branches; dimension numbers are a class of tuples
            return tuple(map(changed, value))
        return made.get(id(value), value)

    return equation.replace(params={k: changed(v) for k, v in equation.params.items()})


def without_forwarded(closed: Any, keep: int) -> tuple[Any, list[int | None]]:
    """Leave out results that are arguments, but for the first ones, which are kept.

    Return also which argument each of the others is, or None.
    """
    places = {variable: i for i, variable in enumerate(closed.jaxpr.invars)}
    first, others = closed.jaxpr.outvars[:keep], closed.jaxpr.outvars[keep:]
    sources = [None if is_literal(v) else places.get(v) for v in others]
    made = [v for v, source in zip(others, sources, strict=True) if source is None]
    return of_equations(closed, closed.jaxpr.eqns, [*first, *made]), sources


def depending(closed: Any, chosen: Iterable[bool]) -> list[bool]:
    """Tell which results may depend on the chosen arguments."""
    dependent = {v for v, choice in zip(closed.jaxpr.invars, chosen, strict=True) if choice}
    for equation in closed.jaxpr.eqns:
        if not dependent.isdisjoint(variables(equation.invars)):
            dependent.update(equation.outvars)
    return [not is_literal(v) and v in dependent for v in closed.jaxpr.outvars]


def spliced(closed: Any, platform: str | None, *, keeps_derivatives: bool = False) -> Any:
    """Return the function with the equations of those that it calls on a platform in their place.

    Without a platform no branch is chosen by it. Calls that have derivatives of their own may stay.
    """

    def callee(equation: Any) -> Any:
        is_choice = primitive(equation) == "cond" and equation.params.get("branches_platforms")
        if is_choice and platform is not None:
            fits = [x is None or platform in x for x in equation.params["branches_platforms"]]
            return equation.params["branches"][fits.index(True)]
        stays = keeps_derivatives and primitive(equation) != CALL
        return None if stays else _called_function(equation)

    return _spliced(closed, callee)


def inlined(closed: Any) -> Any:
    """Inline calls of functions; derivatives of one's own are lost."""
    return _spliced(closed, _called_function)


def _spliced(closed: Any, callee_of: Callable[[Any], Any]) -> Any:
    """Put equations of called functions into the place of calls, without tracing them anew.

    ResNet-18 has 3000 equations, which would take 0.13 s.
    """
    if all(callee_of(e) is None for e in closed.jaxpr.eqns):
        return closed
    equations: list[Any] = []
    constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def add(jaxpr: Any, values: dict[Any, Any], outer: Any) -> list[Any]:
        def now(v: Any) -> Any:
            return v if is_literal(v) else values.get(v, v)

        for e in jaxpr.eqns:
            operands, info, results = list(map(now, e.invars)), e.source_info, list(e.outvars)
            if outer is not None:  # variables are of this call alone
                stack = outer.name_stack + info.name_stack
                info, results = outer.replace(name_stack=stack), list(map(_renewed, results))
            callee = callee_of(e)
            if callee is None:
                equations.append(e.replace(invars=operands, outvars=results, source_info=info))
            else:
                renewed = list(map(_renewed, callee.jaxpr.constvars))
                constants.update(zip(renewed, callee.consts, strict=True))
                taken = operands[len(operands) - len(callee.in_avals) :]
                inside = dict(zip(callee.jaxpr.constvars, renewed, strict=True))
                inside.update(zip(callee.jaxpr.invars, taken, strict=True))
                results = add(callee.jaxpr, inside, info)
            values.update(zip(e.outvars, results, strict=True))
        return list(map(now, jaxpr.outvars))

    outvars = add(closed.jaxpr, {}, None)
    jaxpr = closed.jaxpr.replace(constvars=list(constants), eqns=equations, outvars=outvars)
    return closed_jaxpr(jaxpr, list(constants.values()))


def _renewed(variable: Any) -> Any:
    """Return another variable of the same type."""
    return type(variable)(variable.aval)


def _called_function(equation: Any) -> Any:
    parameter = _CALLS.get(primitive(equation))
    stays = INLINED in (getattr(equation.ctx, "xla_metadata", None) or ())
    return None if parameter is None or stays else equation.params[parameter]


def called(equation: Any) -> Any:
    """Return the function that an equation calls, None of another equation."""
    parameter = _CALLS.get(primitive(equation))
    return recomputed(equation) if parameter is None else equation.params[parameter]


def inner(equation: Any) -> list[Any]:
    """Return the traced functions that an equation holds."""
    held: list[Any] = []
    for value in equation.params.values():
        held += value if isinstance(value, tuple) else (value,)
    return [x for x in held if is_closed(x)]


def recomputed(equation: Any) -> Any:
    """Return the function whose values a derivative computes again, None of another equation."""
    is_one = primitive(equation) == "remat2"
    return closed_jaxpr(equation.params["jaxpr"], []) if is_one else None


def innermost(jaxpr: Any) -> Iterator[Any]:
    """Return the equations of a function and of those in it that hold no functions themselves."""
    for equation, _ in repeated(jaxpr):
        yield equation


def repeated(jaxpr: Any, times: int = 1) -> Iterator[tuple[Any, int]]:
    """Return the innermost equations, and how often a call evaluates each: those of scans."""
    for equation in jaxpr.eqns:
        turns = times * equation.params["length"] if primitive(equation) == SCAN else times
        held = inner(equation)
        for closed in held:
            yield from repeated(closed.jaxpr, turns)
        if not held:
            yield equation, times


def scan_counts(equation: Any) -> tuple[int, int]:
    """Return how many operands of a scan are constants, and how many its carry."""
    params = equation.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()  # since jax 0.12
    return len(constants), len(carry)


def scan_parts(equation: Any, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the operands of a scan that are constants, the start of its carry, and stacks."""
    count, carried = scan_counts(equation)
    return [*operands[:count]], [*operands[count:][:carried]], [*operands[count + carried :]]


def scanned(
    equation: Any,
    step: Callable[..., Sequence[Any]],
    constants: Sequence[Any],
    start: Sequence[Any],
    stacks: Sequence[Any],
) -> list[Any]:
    """Run a scan with another step, from constants, carry and items to new carry and items."""

    def turn(carry: Sequence[Any], items: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        results = list(step(*constants, *carry, *items))
        return results[: len(start)], results[len(start) :]

    options = {name: equation.params[name] for name in ("length", "reverse", "unroll")}
    last, collected = jax.lax.scan(turn, list(start), list(stacks), **options)
    return [*last, *collected]


def bind(equation: Any, operands: Sequence[Any], **params: Any) -> list[Any]:
    """Return the results of an equation, named by the scope that is entered.

    Some of its parameters may be other ones.
    """
    equation = unnamed(equation).replace(params=equation.params | params)
    arguments = [
        core.Var(v.aval) for v in equation.invars
    ]  # of literals too: others may take theirs
    equation, name = equation.replace(invars=arguments), primitive(equation)
    paths = tuple("" for _ in equation.outvars)
    info = core.DebugInfo(name, name, tuple("" for _ in arguments), paths)
    jaxpr = _Jaxpr([], arguments, equation.outvars, [equation], debug_info=info)
    return core.jaxpr_as_fun(closed_jaxpr(jaxpr, []))(*operands)


def unnamed(equation: Any) -> Any:
    """Return an equation without the name of an operation that it comes from."""
    info = equation.source_info
    return equation.replace(source_info=info.replace(name_stack=type(info.name_stack)()))


def values_of(closed: Any, arguments: Sequence[Any]) -> dict[Any, Any]:
    """Return the values of a function's constants and arguments by variable."""
    values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, arguments, strict=True))
    return values


def place(
    equation: Any, values: dict[Any, Any], compute: Callable[..., Sequence[Any]] = bind
) -> None:
    """Add the results of an equation to the values of variables."""
    operands = [read(v, values) for v in equation.invars]
    with scope(equation):
        values.update(zip(equation.outvars, compute(equation, operands), strict=True))


def scope(equation: Any) -> AbstractContextManager[object]:
    """Name traced equations after the operation, and its line, of this equation."""
    info = equation.source_info
    names = source_info_util.current_name_stack()
    if info.name_stack.stack:
        names = names.extend(str(info.name_stack))
    return source_info_util.user_context(info.traceback, name_stack=names)


def outer_scope(equation: Any) -> str:
    """Return the name of the operation that an equation comes from, in all that it calls."""
    stack = equation.source_info.name_stack.stack
    return stack[0].name if stack else ""


def document_line(equation: Any) -> tuple[str, int]:
    """Return the document and its line that an equation comes from; "" where none is known."""
    traceback = equation.source_info.traceback
    frames = [] if traceback is None else traceback.frames
    for frame in frames:
        if not frame.file_name.endswith(".py") and not frame.file_name.startswith("<"):
            return frame.file_name, frame.line_num
    return "", 0


def read(operand: Any, values: Mapping[Any, Any]) -> Any:
    """Return the value of a variable or a literal."""
    return operand.val if is_literal(operand) else values[operand]
