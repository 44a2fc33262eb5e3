"""Walks a graph once under JAX tracing: named scopes, notes on errors, captured intermediates."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lowering.errors import InvalidComputation, InvalidOperation
from lowering.extents import differ, is_static, is_symbolic, known, show, volume
from lowering.forward_only import forward_only
from lowering.graph import NARROW, Graph, Operation, Result, Value, mapped, python_name
from lowering.location import Span
from lowering.ops import rules
from lowering.work import multiply_adds

_PRODUCTS = 32  # multiply-adds that take as long as an item of a constant
_TRACING = 20_000  # items that take as long to compute as a few operations of jax to trace


@dataclass(frozen=True, slots=True)
class Context:
    """Gives a rule the settings of the trace that it is part of.

    Args:
        precision: of products; None is jax's default.
        fold: is told how many items are computed on the host, before they are.
        straight_through: whether rounding has a derivative, that of what it rounds.
        refusal: returns the error to raise where a missing derivative is asked for. Other errors
            are raised as they are.
        operation: the one whose rule this context is for; `trace` sets it.
    """

    precision: jax.lax.PrecisionLike = None
    fold: Callable[[int], None] = lambda items: None
    straight_through: bool = False
    refusal: Callable[[InvalidComputation], Exception] = lambda error: error
    operation: Operation | None = None

    def unroll(self, times: int) -> None:
        """Count how often a rule writes out operations of jax."""
        self.fold(_TRACING * times)

    def forward_only(self, arrays: Sequence[Array], reason: str, hint: str) -> list[Array]:
        """Return arrays whose derivatives in reverse mode are an error that says why."""
        operation = self.operation
        if operation is None:
            return list(arrays)
        message = f"'{operation.kind}' has no derivatives in reverse mode: {reason}"

        def refuse() -> Exception:
            return self.refusal(InvalidComputation(message, operation, hint))

        return [forward_only(x, refuse) for x in arrays]


def trace(
    graph: Graph,
    context: Context,
    parameters: Mapping[str, Any],
    states: Mapping[str, Any],
    inputs: Sequence[Any],
    wanted: Iterable[Value] | None = None,
    edits: Mapping[Value, Callable[[Any], Any]] | None = None,
) -> dict[Value, Any]:
    """Return the `wanted` values and all that they depend on; by default outputs and next states.

    `parameters` (of those needed) and `states` are arrays by label, `inputs` in the graph's order.
    Nobody compares their types with the graph's: the caller does. A label that is missing is a
    KeyError. `edits` make of a value what its readers get instead.
    What depends on constants alone is a numpy array. Raise InvalidComputation where a rule refuses
    its arguments, returns other types than it inferred, as for arrays of other shapes, or cannot
    take an empty tensor; other errors get a note that names the operation and its place.
    """
    values: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    needed = graph.needed if wanted is None else graph.dependencies(wanted)
    for parameter in graph.parameters:
        if parameter.value in needed:
            values[parameter.value] = parameters[parameter.label]
    for state in graph.states:
        if not state.is_started:
            values[state.value] = states[state.label]
    edits = edits or {}
    for value in values.keys() & edits.keys():
        values[value] = edits[value](values[value])
    for operation in graph.operations:
        if needed.isdisjoint(operation.writes()):
            continue
        try:
            results = compute(operation, context, values)
        except InvalidComputation:
            raise
        except Exception as error:
            for value in operation.reads():
                shape = np.shape(values[value])
                if 0 in shape:  # a maximum of nothing, an index into nothing
                    found = f"is empty, it is {show(shape)}"
                elif value.type.dtype in NARROW:  # jax computes few things in these
                    found = f"is {value.type.dtype}"
                else:
                    continue
                message = f"'{operation.kind}' cannot be computed: '{value.name}' {found}"
                raise InvalidComputation(message, operation) from error
            error.add_note(_note(operation))
            raise
        for value, result in zip(operation.writes(), results, strict=True):
            values[value] = edits[value](result) if value in edits else result
    return values


def compute(operation: Operation, context: Context, values: Mapping[Value, Any]) -> list[Any]:
    """Return the results of an operation, on the values that it reads.

    Raise InvalidComputation where its rule refuses them, or returns other types than it inferred.
    """

    def read(x: Any) -> Any:
        return values[x] if isinstance(x, Value) else x

    operands = {name: mapped(operand, read) for name, operand in operation.operands}

    def results() -> list[Any]:
        returned = apply_rule(operation, context, operands)
        returned = returned if isinstance(returned, tuple) else (returned,)
        return list(_checked(operation, operation.results, returned, "results"))

    static = is_static(tuple(operands.values())) and not _is_staged(operation.attributes)
    if static:
        types = [value.type for value in (*operation.reads(), *operation.writes())]
        items = sum([volume(known(type.shape)) for type in types])
        context.fold(items + multiply_adds(operation) // _PRODUCTS)
        with jax.ensure_compile_time_eval():
            return jax.tree.map(np.asarray, results())
    with jax.named_scope(operation.name):
        return _call_at(operation, results)


def apply_rule(operation: Operation, context: Context, operands: Mapping[str, Any]) -> Any:
    """Return the results of an operation's rule on operands by name, as the rule returns them.

    Raise InvalidComputation where the rule refuses them.
    """
    rule = operation.rule or rules[operation.kind]
    arguments = {python_name(n): x for n, x in ({**operands} | dict(operation.attributes)).items()}
    if rule.wants_context:
        arguments["ctx"] = replace(context, operation=operation)
    try:
        return rule.lower(**arguments)
    except InvalidComputation:  # of an operation in a body
        raise
    except InvalidOperation as error:
        message = f"'{operation.kind}': {error.message}"
        raise InvalidComputation(message, operation, error.hint) from error


def _is_staged(attribute: Any) -> bool:
    """Tell whether an attribute keeps all from the host: a symbolic extent, a repeated graph."""
    if isinstance(attribute, tuple):
        return any(map(_is_staged, attribute))  # pyright: ignore[reportUnknownArgumentType]
    return is_symbolic(attribute) or isinstance(attribute, Graph)


def _checked(
    operation: Operation, declared: Result | tuple[Result, ...], found: Any, what: str
) -> Iterator[Any]:
    """Yield the arrays that a rule returned, one after the other, in their inferred types."""
    if isinstance(declared, Value):
        yield _typed(operation, declared, found)
        return
    items: Sequence[Any] = found if isinstance(found, list | tuple) else (found,)
    if len(items) != len(declared):
        raise _invalid(operation, f"{len(items)} {what}, it inferred {len(declared)}")
    for result, item in zip(declared, items, strict=True):
        yield from _checked(operation, result, item, "tensors in a list")


def _typed(operation: Operation, value: Value, array: Any) -> Any:
    """Return the array in the inferred type; convert a weakly typed one, of literals alone."""
    inferred = value.type
    if isinstance(array, bool | int | float):
        array = jnp.asarray(array)
    if not (hasattr(array, "shape") and hasattr(array, "dtype")):
        raise _invalid(operation, f"no array but {type(array).__name__} for '{value.name}'")
    dtype = np.dtype(inferred.dtype)
    if getattr(array, "weak_type", False):
        kinds = (jnp.floating, jnp.integer)
        if any(jnp.issubdtype(array.dtype, k) and jnp.issubdtype(dtype, k) for k in kinds):
            array = jnp.asarray(array, dtype)
    if array.dtype == dtype and array.shape == inferred.shape:
        return array
    # The graph does not know symbolic extents.
    pairs = zip(inferred.shape, array.shape, strict=False)
    if (
        array.dtype != dtype
        or len(array.shape) != len(inferred.shape)
        or any(differ(n, m) for n, m in pairs if not is_symbolic(m))
    ):
        found = f"{array.dtype}{show(array.shape)}"
        raise _invalid(operation, f"{found} for '{value.name}', it inferred {inferred}")
    return array


def _invalid(operation: Operation, found: str) -> InvalidComputation:
    return InvalidComputation(
        f"the rule of '{operation.kind}' returns {found}",
        operation,
        hint="correct `infer` or `lower` of the rule",
    )


def _note(operation: Operation) -> str:
    types = ", ".join(str(value.type) for value in operation.reads())
    place = f"{operation.span}: " if operation.span else ""
    return f"{place}{operation.name} = {operation.kind}({types})"


def _call_at(operation: Operation, run: Callable[[], Any]) -> Any:
    """Return the result of `run`, called by a frame at the operation's place in the document.

    jax takes the place of an operation from the frames of Python that trace it. So HLO, profiles
    and tracebacks say which line of the document computes what, as templating languages do it.
    """
    _leave_out_packages()
    return run() if operation.span is None else _frame(operation.span, operation.name)(run)


@cache
def _leave_out_packages() -> None:
    """Make frames of these packages no places in a user's program; those around them are.

    What it imports takes 15 ms, which a process that finds all in a cache does without.
    """
    # A later jax may lack what is needed, and names a file of ours instead.
    with suppress(ImportError, AttributeError):
        from lowering.jaxprs import leave_out

        for package in ("lowering", "nnef_jax"):
            leave_out(f"{Path(__file__).parents[1] / package}/")


def _frame(span: Span, name: str) -> Callable[..., Any]:
    """Return a function of this name that calls its argument, at this place."""
    line, column = span.source.position(span.offset)
    start, end = column - 1, column - 1 + span.length
    place: Any = {"lineno": line, "col_offset": start, "end_lineno": line, "end_col_offset": end}
    call = ast.Call(ast.Name("run", ast.Load(), **place), [], [], **place)
    parameters = ast.arguments([], [ast.arg("run", **place)], None, [], [], None, [])
    expression = ast.Expression(ast.Lambda(parameters, call, **place))
    function: Any = eval(compile(expression, span.source.name, "eval"), {})
    function.__code__ = function.__code__.replace(co_name=name, co_qualname=name)
    return function
