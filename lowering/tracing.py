"""Evaluates a graph under jax tracing, with name scopes, edits, and errors that name the place."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lowering.errors import InvalidComputation, InvalidOperation
from lowering.extents import differ, is_static, is_symbolic, show, volume, with_ones
from lowering.forward_only import forward_only
from lowering.graph import NARROW, Graph, Operation, Result, Value, mapped, python_name
from lowering.location import Span
from lowering.ops import rules
from lowering.symbol_values import Dimensions, SymbolValues, symbols_in
from lowering.work import multiply_adds

T = TypeVar("T")

_MULTIPLY_ADDS = 32  # this number of multiply-adds takes as long as folding one item
CUT_BEFORE = "cut the network before it"  # a hint
# To fold an operation is to compute it on the host while the graph is traced. To fold this number
# of items takes as long as to trace a few operations of jax.
_ITEMS_OF_A_TRACE = 20_000


@dataclass(frozen=True, slots=True)
class Context:
    """The settings of a trace that rules read.

    Args:
        precision: the precision of products, or None for jax's default.
        fold: a function that is called with a number of items before the host computes these
            items.
        straight_through: whether the derivative of rounding is 1 instead of 0.
        refusal: a function that converts the error for a missing derivative to the error that
            is raised.
        operation: the operation whose rule gets this context. `trace` sets it.
        dimensions: jax's symbolic dimensions for the extents of lists. `trace` sets them if the
            graph has lists.
        symbols: the values of the extents of lists, if lists are padded arrays in this trace. None
            if lists are arrays with symbolic extents. `trace` sets them with `dimensions`.
    """

    precision: jax.lax.PrecisionLike = None
    fold: Callable[[int], None] = lambda items: None
    straight_through: bool = False
    refusal: Callable[[InvalidComputation], Exception] = lambda error: error
    operation: Operation | None = None
    dimensions: Dimensions | None = None
    symbols: SymbolValues | None = None

    def unroll(self, times: int) -> None:
        """Call `fold` for a rule that traces a group of jax operations `times` times."""
        self.fold(_ITEMS_OF_A_TRACE * times)

    def forward_only(self, arrays: Sequence[Array], reason: str, hint: str) -> list[Array]:
        """Return arrays that raise an error if they are differentiated in reverse mode.

        `reason` and `hint` are parts of the error's message.
        """
        operation = self.operation
        if operation is None:
            return list(arrays)
        message = f"'{operation.kind}' has no derivatives in reverse mode: {reason}"

        def refuse() -> Exception:
            return self.refusal(InvalidComputation(message, operation, hint))

        return [forward_only(array, refuse) for array in arrays]


def trace(
    graph: Graph,
    context: Context,
    parameters: Mapping[str, Any],
    states: Mapping[str, Any],
    inputs: Sequence[Any],
    values: Iterable[Value] | None = None,
    edits: Mapping[Value, Callable[[Any], Any]] | None = None,
) -> dict[Value, Any]:
    """Evaluate a graph, and return the arrays of its values.

    The result maps the requested values, and all values on which they depend, to arrays. Values
    that depend only on constants are numpy arrays. Raises KeyError for a missing label. Raises
    InvalidComputation if a rule refuses its arguments, cannot take an empty tensor, or returns
    other types than it inferred, as may happen for inputs of undeclared shapes. Other errors
    get a note with the operation's place in the document.

    Args:
        graph: the graph.
        context: the settings for rules.
        parameters: maps labels to arrays. Parameters on which no requested value depends may be
            left out.
        states: maps labels to arrays.
        inputs: arrays in the order of the graph's inputs. Their types are not checked.
        values: the requested values, by default the outputs and the next states.
        edits: maps values to functions. Operations that read such a value get the result of the
            function for this value instead.
    """
    arrays: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    # The requested values, and all values on which they depend.
    needed = graph.needed if values is None else graph.dependencies(values)
    for parameter in graph.parameters:
        if parameter.value in needed:
            arrays[parameter.value] = parameters[parameter.label]
    for state in graph.states:
        if not state.is_started:  # otherwise the graph computes the state
            arrays[state.value] = states[state.label]
    edits = edits or {}
    for value in arrays.keys() & edits.keys():
        arrays[value] = edits[value](arrays[value])
    context = _with_symbols(context, graph)
    for operation in graph.operations:
        if needed.isdisjoint(operation.writes()):
            continue
        try:
            results = compute(operation, context, arrays)
        except InvalidComputation:
            raise
        except Exception as error:
            fault = _fault(operation, arrays)
            if fault:
                message = f"'{operation.kind}' cannot be computed: {fault}"
                raise InvalidComputation(message, operation) from error
            error.add_note(_note(operation))
            raise
        for value, result in zip(operation.writes(), results, strict=True):
            arrays[value] = _edited(result, edits[value]) if value in edits else result
    if context.symbols is not None:
        # A list with padding is returned as an array.
        return {value: getattr(x, "array", x) for value, x in arrays.items()}
    return arrays


def _with_symbols(context: Context, graph: Graph) -> Context:
    """Return the context with new dimensions and symbols, if the graph has lists."""
    if graph.symbols and context.dimensions is None:
        return replace(context, dimensions=Dimensions(), symbols=SymbolValues())
    if context.symbols is not None:
        # The graph is the body of an operation. The symbols of a body stay in the body.
        return replace(context, symbols=context.symbols.inner())
    return context


def _edited(x: Any, edit: Callable[[Any], Any]) -> Any:
    """Apply an edit to an array. For a list with padding, edit the padded array of the list."""
    return replace(x, array=edit(x.array)) if _is_list(x) else edit(x)


def _fault(operation: Operation, arrays: Mapping[Value, Any]) -> str:
    """Return a fault of an operand that may be the reason why an operation failed, or "".

    For example, an empty tensor has no maximum, and jax supports few operations in dtypes with
    few bits.
    """
    for value in operation.reads():
        shape = np.shape(arrays[value])
        if 0 in shape:
            return f"'{value.name}' is empty, it is {show(shape)}"
        if value.type.dtype in NARROW:
            return f"'{value.name}' is {value.type.dtype}"
    return ""


def compute(operation: Operation, context: Context, values: Mapping[Value, Any]) -> list[Any]:
    """Return an operation's results. The keys of `values` are the tensors that the operation reads.

    Raises InvalidComputation if the rule of the operation refuses the arrays, or returns other
    types than it inferred.
    """

    def read(operand: Any) -> Any:
        return values[operand] if isinstance(operand, Value) else operand

    operands = {name: mapped(operand, read) for name, operand in operation.operands}
    if context.dimensions is not None:
        operation = _with_dimensions(operation, context.dimensions)
    if context.symbols is not None and _has_lists(operation, operands):
        with jax.named_scope(operation.name):
            return _call_at(operation, lambda: _on_lists(operation, context, operands))
    is_constant = is_static(tuple(operands.values())) and not _is_staged(operation.attributes)
    if not is_constant:
        with jax.named_scope(operation.name):
            return _call_at(operation, lambda: _results(operation, context, operands))
    # Compute the results of a constant operation on the host.
    item_count = 0
    for value in (*operation.reads(), *operation.writes()):
        item_count += volume(with_ones(value.type.shape))
    context.fold(item_count + multiply_adds(operation) // _MULTIPLY_ADDS)
    with jax.ensure_compile_time_eval():
        return jax.tree.map(np.asarray, _results(operation, context, operands))


def _results(operation: Operation, context: Context, operands: Mapping[str, Any]) -> list[Any]:
    """Apply the rule of an operation, and return the checked results in one list."""
    returned = apply_rule(operation, context, operands)
    returned = returned if isinstance(returned, tuple) else (returned,)
    return list(_checked(operation, operation.results, returned, "results"))


def _on_lists(operation: Operation, context: Context, operands: Mapping[str, Any]) -> list[Any]:
    """Compute an operation on lists, whose arrays have padding.

    The rule is traced with symbolic extents, and the traced equations are evaluated on the padded
    arrays. Raises InvalidComputation if this is not possible.
    """
    from lowering.padding import NotPaddableError, on_padded

    assert context.symbols is not None
    symbolic_context = replace(context, symbols=None)

    def on_symbolic(operands: Mapping[str, Any]) -> list[Any]:
        return _results(operation, symbolic_context, operands)

    try:
        return on_padded(on_symbolic, operands, context.symbols)
    except NotPaddableError as error:
        message = f"'{operation.kind}' cannot be computed for a list: {error}"
        raise InvalidComputation(message, operation, CUT_BEFORE) from error


def _with_dimensions(operation: Operation, dimensions: Dimensions) -> Operation:
    """Return an operation whose attributes have dimensions of jax for the extents of lists."""
    if not any(symbols_in(x) for _, x in operation.attributes):
        return operation
    attributes = tuple((name, dimensions.of(x)) for name, x in operation.attributes)
    return replace(operation, attributes=attributes)


def apply_rule(operation: Operation, context: Context, operands: Mapping[str, Any]) -> Any:
    """Apply the rule of an operation to its operands, and return what the rule returns.

    `operands` maps parameters of the rule to operands. Raises InvalidComputation if the rule
    refuses the operands.
    """
    rule = operation.rule or rules[operation.kind]
    values = {**operands, **dict(operation.attributes)}
    arguments = {python_name(name): value for name, value in values.items()}
    if rule.wants_context:
        arguments["ctx"] = replace(context, operation=operation)
    try:
        return rule.lower(**arguments)
    except InvalidComputation:  # raised by an operation in the body of a loop
        raise
    except InvalidOperation as error:
        message = f"'{operation.kind}': {error.message}"
        raise InvalidComputation(message, operation, error.hint) from error


def _has_lists(operation: Operation, operands: Mapping[str, Any]) -> bool:
    """Tell whether an operation reads or writes a list, or computes with the length of a list."""
    if any(symbols_in(x) for _, x in operation.attributes):
        return True
    return any(map(_is_list, operands.values()))


def _is_list(operand: Any) -> bool:
    """Tell whether an operand is a list with padding, or contains such a list."""
    if isinstance(operand, list | tuple):
        return any(map(_is_list, operand))  # pyright: ignore[reportUnknownArgumentType]
    return hasattr(operand, "array")


def _is_staged(attribute: object) -> bool:
    """Tell whether an attribute has a symbolic extent or a graph, and so cannot be folded."""
    if isinstance(attribute, tuple):
        return any(map(_is_staged, attribute))  # pyright: ignore[reportUnknownArgumentType]
    return is_symbolic(attribute) or isinstance(attribute, Graph)


def _checked(
    operation: Operation, declared: Result | tuple[Result, ...], returned: Any, noun: str
) -> Iterator[Any]:
    """Yield the arrays that a rule returned, in order, each of them checked by `_typed`.

    Raises InvalidComputation if `returned` has another structure than the operation's results,
    which are `declared`. In the message of the error, `noun` stands for the returned objects.
    """
    if isinstance(declared, Value):
        yield _typed(operation, declared, returned)
        return
    items: Sequence[Any] = returned if isinstance(returned, list | tuple) else (returned,)
    if len(items) != len(declared):
        raise _invalid(operation, f"{len(items)} {noun}, it inferred {len(declared)}")
    for result, item in zip(declared, items, strict=True):
        yield from _checked(operation, result, item, "tensors in a list")


def _typed(operation: Operation, value: Value, array: Any) -> Any:
    """Return an array that a rule returned, with the type that the rule inferred for `value`.

    A Python number is converted, and so is an array of a weak type, which comes from literals.
    Raises InvalidComputation for any other array that has another type.
    """
    inferred = value.type
    if isinstance(array, bool | int | float):
        array = jnp.asarray(array)
    is_array = hasattr(array, "shape") and hasattr(array, "dtype")
    if not is_array:
        raise _invalid(operation, f"no array but {type(array).__name__} for '{value.name}'")
    dtype = np.dtype(inferred.dtype)
    if getattr(array, "weak_type", False):
        for kind in (jnp.floating, jnp.integer):
            if jnp.issubdtype(array.dtype, kind) and jnp.issubdtype(dtype, kind):
                array = jnp.asarray(array, dtype)
    has_shape = array.shape == inferred.shape or _agree(array.shape, inferred.shape)
    if array.dtype != dtype or not has_shape:
        returned = f"{array.dtype}{show(array.shape)}"
        raise _invalid(operation, f"{returned} for '{value.name}', it inferred {inferred}")
    return array


def _agree(shape: Sequence[int], inferred: Sequence[int]) -> bool:
    """Tell whether a shape agrees with an inferred shape.

    The inferred shape has UNKNOWN in the place of symbolic extents.
    """
    if len(shape) != len(inferred):
        return False
    for extent, inferred_extent in zip(shape, inferred, strict=True):
        if not is_symbolic(extent) and differ(inferred_extent, extent):
            return False
    return True


def _invalid(operation: Operation, returned: str) -> InvalidComputation:
    """Return the error for an operation whose rule returns a wrong result.

    The text `returned` describes the result.
    """
    return InvalidComputation(
        f"the rule of '{operation.kind}' returns {returned}",
        operation,
        hint="correct `infer` or `lower` of the rule",
    )


def _note(operation: Operation) -> str:
    """Return a line with an operation's place, name, kind and the types of its operands."""
    types = ", ".join(str(value.type) for value in operation.reads())
    place = f"{operation.span}: " if operation.span else ""
    return f"{place}{operation.name} = {operation.kind}({types})"


def _call_at(operation: Operation, run: Callable[[], T]) -> T:
    """Call `run` from a Python frame that is at the operation's place in the document.

    jax takes the source of an equation from the Python frames that trace it. With such a frame HLO,
    profiles and tracebacks name the line of the document.
    """
    _leave_out_packages()
    if operation.span is None:
        return run()
    return _frame(operation.span, operation.name)(run)


@cache
def _leave_out_packages() -> None:
    """Keep jax from recording files of these packages as the source of equations.

    This function imports `lowering.jaxprs`, which takes 15 ms. A process that finds all
    executables in a cache does not call this function.
    """
    # With a version of jax that lacks these functions, errors show lines of these packages.
    with suppress(ImportError, AttributeError):
        from lowering.jaxprs import leave_out

        for package in ("lowering", "nnef_jax"):
            leave_out(f"{Path(__file__).parents[1] / package}/")


def _frame(span: Span, name: str) -> Callable[..., Any]:
    """Return the function `lambda run: run()`, with a name and a place in the document.

    Tracebacks show `name` as the name of the function, and `span` as its place.
    """
    line, column = span.source.position(span.offset)
    first_column = column - 1
    place: Any = {
        "lineno": line,
        "col_offset": first_column,
        "end_lineno": line,
        "end_col_offset": first_column + span.length,
    }
    run = ast.Name("run", ast.Load(), **place)
    call = ast.Call(func=run, args=[], keywords=[], **place)
    parameters = ast.arguments(
        posonlyargs=[],
        args=[ast.arg("run", **place)],
        vararg=None,
        kwonlyargs=[],
        kw_defaults=[],
        kwarg=None,
        defaults=[],
    )
    expression = ast.Expression(ast.Lambda(args=parameters, body=call, **place))
    function: Any = eval(compile(expression, span.source.name, "eval"), {})
    function.__code__ = function.__code__.replace(co_name=name, co_qualname=name)
    return function
