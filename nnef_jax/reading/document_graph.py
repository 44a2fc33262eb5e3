"""Makes the graph of a document for given input shapes. Open extents are guessed if necessary."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from lowering.extents import UNKNOWN, is_known, show
from lowering.graph import Graph, Operation, TensorType, Value, substituted
from nnef_jax.errors import (
    InputError,
    NnefError,
    SemanticError,
    ShapeError,
    UnsupportedError,
    raise_all,
)
from nnef_jax.formats.base import ExtentImplied, ExtentNeeded, Frontend, Options, Shapes
from nnef_jax.garbage import uncollected

# Extents to try in place of open extents. The first is 1, because masks and batches of extent 1
# broadcast with any other extent. The second is 64, because it is large enough for windows and can
# be halved several times.
_GUESSES = (1, 64)


def flatten(frontend: Frontend, options: Options) -> Graph:
    """Return a document's graph for some options, without pauses for garbage collection."""
    with uncollected():
        return frontend.flatten(options)


class Flattened(NamedTuple):
    """The graph of a document for some options.

    `is_guessed` tells whether open extents of `graph` were guessed. `declared` is the graph for the
    document's own shapes. It is None if the options have no other shapes, or if there is no such
    graph.
    """

    graph: Graph
    declared: Graph | None
    is_guessed: bool


def flatten_and_check(frontend: Frontend, options: Options) -> Flattened:
    """Return the graph for the options, after checking `input_shapes` in the options."""
    shapes = options.input_shapes
    declared = None
    if shapes or options.extents:
        # There is no graph if the document's own shapes are wrong, or need the values in `extents`.
        with suppress(SemanticError, UnsupportedError, ExtentImplied):
            original = replace(options, input_shapes={}, extents={})
            declared, _ = _flatten_or_guess(frontend, original)
    _require_ranks(frontend, declared, shapes)
    graph, is_guessed = _flatten_or_guess(frontend, options)
    if not has_open_inputs(graph):
        require_no_constant_extents(declared, graph)
    return Flattened(graph, declared, is_guessed)


def _flatten_or_guess(frontend: Frontend, options: Options) -> tuple[Graph, bool]:
    """Return the graph for the options, and whether its open extents had to be guessed."""
    with suppress(ExtentNeeded):
        return flatten(frontend, options), False
    # The structure of the graph depends on an open extent. The graph for a guessed extent still has
    # the right names and ranks.
    states = frontend.state_shapes()
    errors: list[NnefError] = []
    for guess in _guesses(options, has_states=len(states) > 0):
        try:
            graph = flatten(frontend, guess)
        except (SemanticError, UnsupportedError) as error:
            errors.append(error)
        else:
            shapes = {**frontend.declared_shapes(options), **options.input_shapes}
            return _with_open_extents(graph, shapes, states), True
    first_error = errors[0]
    distinct_errors = {(error.message, error.span) for error in errors}
    if len(distinct_errors) > 1:
        first_guess, second_guess = _GUESSES
        hint = (
            f"this error is for open extents of {first_guess}, and {second_guess} does not fit "
            f"either: give them by {frontend.call_with_extents()}"
        )
        first_error.hint = f"{first_error.hint}; {hint}" if first_error.hint else hint
    raise first_error


def _guesses(options: Options, has_states: bool) -> list[Options]:
    """Return several options, to be tried in order. Each has a guess for the open extents."""
    smallest, *larger = [replace(options, open_extent=extent) for extent in _GUESSES]
    if not has_states:
        return [smallest, *larger]
    # A mask may cover both a state and an input, and then an extent of 1 does not fit the mask, the
    # state and the input at once. A first cycle is tried as well, because its state is shorter.
    first_cycle = replace(smallest, starts=True)
    return [smallest, first_cycle, *larger]


def with_implied(frontend: Frontend, options: Options, implied: ExtentImplied) -> Options:
    """Return options with the value of an open extent that the document implies.

    If the extent has a name, all extents with this name get the value. Raises InputError if the
    extent is not open.
    """
    input, axis = implied.input, implied.axis
    shapes = {**frontend.declared_shapes(options), **options.input_shapes}
    shape = list(shapes.get(input, ()))
    is_open = axis < len(shape) and shape[axis] is None
    if not is_open:
        raise InputError(str(implied), span=frontend.spans().get(input))
    names = frontend.extent_names().get(input, ())
    name = names[axis] if axis < len(names) else ""
    has_declared_shape = input not in options.input_shapes
    if name and has_declared_shape:
        return replace(options, extents={**options.extents, name: implied.extent})
    shape[axis] = implied.extent
    return replace(options, input_shapes={**options.input_shapes, input: shape})


def has_open_inputs(graph: Graph) -> bool:
    """Tell whether at least one input of a graph has an open extent."""
    return not all(is_known(value.type.shape) for value in graph.inputs)


def _require_ranks(frontend: Frontend, declared: Graph | None, shapes: Shapes) -> None:
    """Raise InputError for shapes whose rank differs from the rank in the document."""
    if declared is None:
        return
    extent_names = frontend.extent_names()
    errors: list[InputError] = []
    for value in declared.inputs:
        name = value.name
        if name not in shapes:
            continue
        rank = len(shapes[name])
        if rank != len(value.type.shape):
            shape = show(value.type.shape, extent_names.get(name, ()))
            message = f"input_shapes gives '{name}' rank {rank}, the graph declares {shape}"
            errors.append(InputError(message, span=frontend.spans().get(name)))
    raise_all(errors)


def require_no_constant_extents(declared: Graph | None, graph: Graph) -> None:
    """Raise ShapeError if `input_shapes` changes an extent that is a constant in a reshape.

    `declared` is the graph for the document's own shapes, and `graph` is the graph for the shapes
    in `input_shapes`.
    """
    if declared is None or len(declared.operations) != len(graph.operations):
        return  # the operations of the two graphs cannot be compared
    errors: list[ShapeError] = []
    for original, changed in zip(declared.operations, graph.operations, strict=True):
        if original.kind == changed.kind == "reshape":
            error = _constant_extent(original, changed)
            if error is not None:
                errors.append(error)
    raise_all(errors)


def _constant_extent(original: Operation, changed: Operation) -> ShapeError | None:
    """Return the error for a reshape whose result keeps a declared extent, or None.

    `original` is the reshape for the document's own shapes, and `changed` is the reshape for other
    shapes. For example, the document has a reshape from (1, 8) to (1, 2, 4). For a batch of 2, the
    reshape from (2, 8) to (1, 4, 4) keeps the extent 1.
    """
    original_operand_shape = next(original.reads()).type.shape
    original_result_shape = next(original.writes()).type.shape
    operand_shape = next(changed.reads()).type.shape
    result_shape = next(changed.writes()).type.shape
    # A reshape may change the rank, so the shapes may have different lengths.
    original_extents = zip(original_operand_shape, original_result_shape, strict=False)
    for axis, (extent, result_extent) in enumerate(original_extents):
        if extent != result_extent:
            break  # the reshape splits or joins this axis and later ones
        keeps_extent = axis < len(result_shape) and result_shape[axis] == extent
        if keeps_extent and operand_shape[axis] != extent:
            return ShapeError(
                f"'reshape' of {show(operand_shape)} to {show(result_shape)} keeps the extent "
                f"{extent} that the document's input shapes had at axis {axis}, input_shapes made "
                f"it {operand_shape[axis]}",
                span=changed.span,
                calls=changed.calls,
                hint="write 0 there in the document, which takes the extent of the input",
            )
    return None


def _with_open_extents(graph: Graph, shapes: Shapes, states: Shapes) -> Graph:
    """Return a graph in which all extents are open, except the extents of inputs and states.

    `shapes` maps names of inputs to shapes, and `states` maps labels of states to shapes. In a
    shape, None is an open extent. All extents of an input without a shape are open too.
    """
    state_shapes: dict[Value, Sequence[int | None]] = {}
    for state in graph.states:
        if state.label in states:
            state_shapes[state.value] = states[state.label]
    computed = chain.from_iterable(operation.writes() for operation in graph.operations)
    opened_values: dict[Value, Value] = {}
    for value in dict.fromkeys((*graph.inputs, *computed, *state_shapes)):
        extents = state_shapes.get(value)
        if not extents:  # the value is no state, or has no extents
            all_open = [None] * len(value.type.shape)
            extents = shapes.get(value.name, all_open)
        shape = tuple(UNKNOWN if extent is None else extent for extent in extents)
        opened_values[value] = replace(value, type=TensorType(shape, value.type.dtype))

    def opened(value: Value) -> Value:
        return opened_values.get(value, value)

    def with_opened_values(operation: Operation) -> Operation:
        """Return an operation with open extents of its operands and results."""
        results: Any = substituted(operation.results, opened_values)
        return replace(operation.reading(opened_values), results=results)

    return replace(
        graph,
        inputs=tuple(map(opened, graph.inputs)),
        outputs=tuple(map(opened, graph.outputs)),
        operations=tuple(map(with_opened_values, graph.operations)),
        states=tuple(state.substituted(opened_values) for state in graph.states),
        aliases={name: opened(value) for name, value in graph.aliases.items()},
    )
