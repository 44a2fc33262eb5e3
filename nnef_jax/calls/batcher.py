"""The class that `Model.batcher` returns: it runs batches of any size by a few executables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from math import ceil
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowering import NotSeparableError, Program, batch_axes, described, jaxpr_evaluation, jaxprs
from lowering.extents import UNKNOWN, is_known
from lowering.graph import Graph, Value
from lowering.jaxprs import is_literal, primitive
from nnef_jax.calls.arguments import bind_inputs
from nnef_jax.calls.buckets import Buckets
from nnef_jax.errors import InputError, NnefError
from nnef_jax.execution.execution import Execution
from nnef_jax.formats.base import Progress
from nnef_jax.options import require
from nnef_jax.tensor_spec import TensorSpec

_CALL_THE_MODEL = "call the model itself: it takes a batch as it is"
_Arrays = Sequence[NDArray[Any]]


class Batcher:
    """A network that runs on batches of any size, as `Model.batcher` returns it.

    A batch is padded to the next larger size in `sizes`, and the rows of the padding are cut off
    the result. A batch that is larger than all sizes is split. The batch is the first axis of all
    inputs and outputs. A batcher is called like the model, and returns arrays of numpy. The rows of
    the arrays equal the rows that the model computes, except for rounding (docs/numerics.md).

    Axes with `buckets` are padded in the same way, to the next larger length. A batcher with
    buckets also takes a list for each input. The list has one array for each item of the batch.
    The arrays have no batch axis, and may have different lengths. Items of one bucket are computed
    in one batch. An output with a bucketed axis is then a list of arrays too.

    `inputs` and `outputs` describe the arguments and results of a call. The first extent of each
    input and output is None.
    """

    def __init__(
        self,
        execution: Execution,
        sizes: Sequence[int],
        buckets: Mapping[str, Sequence[int]] | None = None,
        masks: str | Sequence[str] = (),
    ) -> None:
        require_sizes(sizes)
        self._execution, self._unit, self._is_mapped = _batched(execution, max(sizes))
        # Each size is rounded up to a multiple of the unit.
        multiples = {ceil(size / self._unit) * self._unit for size in sizes}
        self.sizes: tuple[int, ...] = tuple(sorted(multiples))

        # The arguments are checked against inputs with an open batch.
        graph = execution.network.graph
        open_inputs: list[Value] = []
        for value in graph.inputs:
            open_shape = (UNKNOWN, *value.type.shape[1:])
            open_inputs.append(replace(value, type=replace(value.type, shape=open_shape)))
        self._network = replace(execution.network, graph=replace(graph, inputs=tuple(open_inputs)))
        self.inputs: tuple[TensorSpec, ...] = execution.network.specs(open_inputs)
        open_outputs: list[TensorSpec] = []
        for spec in execution.network.specs(graph.outputs, graph.output_names):
            open_outputs.append(replace(spec, shape=(None, *spec.shape[1:])))
        self.outputs: tuple[TensorSpec, ...] = tuple(open_outputs)

        self._buckets = Buckets.of(self._execution.network, buckets or {}, masks, self.inputs)
        if buckets and not masks:  # without a mask, the network treats padding as items
            _require_separate_lengths(self._execution, self._buckets)

    def compile(self, progress: Progress | None = None) -> None:
        """Compile for all sizes in parallel, or load executables from the model's `cache_dir`.

        Each size is compiled for each bucket. After each program, `progress` is called with the
        number of programs that are ready, and the number of all programs. Raises InputError if
        extents other than the batch and the axes of buckets are open. A network with such extents
        is compiled at its first call for a shape.
        """
        lengths = self._buckets.all_lengths()
        keys = [*product(reversed(self.sizes), lengths)]
        examples = [self._buckets.example(size, bucket) for size, bucket in keys]
        device: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]

        def run(example: _Arrays) -> None:
            with jax.default_device(device):  # The default device is set in each thread.
                jax.block_until_ready(self._run(example))

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for ready_count, _ in enumerate(pool.map(run, examples), start=1):
                if progress:
                    progress(ready_count, len(examples))

    def __call__(self, *args: ArrayLike, **kwargs: ArrayLike) -> Any:
        """Run the network on a batch.

        A mask may be left out: it is then 1 for all items of the other inputs. Raises InputError in
        the same cases as a call of the model, and for an item that is longer than all buckets.

        >>> embed = model.batcher((1, 8), buckets={"sequence": (32, 128)}, masks="attention_mask")
        >>> vectors = embed([[101, 7592, 102], [101, 2129, 2024, 2017, 102]])
        """
        if self._buckets.lengths:
            arguments = self._by_name(args, kwargs)
            if any(isinstance(x, list | tuple) for x in arguments.values()):
                return self._execution.packed(self._compute_items(arguments))
        outputs = self.compute(self.bind(args, kwargs))
        return self._execution.packed(outputs)

    def _by_name(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, Any]:
        """Return a dict from names of inputs to the arguments of a call.

        Raises InputError for too many arguments.
        """
        if len(args) == 1 and isinstance(args[0], Mapping):
            return {**args[0], **kwargs}
        names = [spec.name for spec in self.inputs]
        leaves_masks_out = len(args) + len(kwargs) < len(names)
        if leaves_masks_out:  # then the arguments by position exclude the masks
            names = [name for name in names if name not in self._buckets.masks]
        has_too_many = len(args) > len(names)
        is_passed_twice = bool(set(names[: len(args)]) & set(kwargs))
        if has_too_many or is_passed_twice:
            bind_inputs(self._network, args, kwargs)  # raises the error of the model
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def _compute_items(self, arguments: Mapping[str, Any]) -> list[Any]:
        """Return the outputs for items of different lengths, in order.

        `arguments` maps the name of each input to a sequence of items. An output is a list if it
        has the axis of a bucket.
        """
        counts = {name: len(items) for name, items in arguments.items()}
        _require_equal(counts)
        requests: list[list[NDArray[Any]]] = []
        for i in range(min(counts.values())):
            item = {name: np.asarray(items[i])[None] for name, items in arguments.items()}
            try:
                requests.append(self.bind((), item))
            except InputError as error:
                raise InputError(f"item {i}: {error.message}", hint=error.hint) from None
        if not requests:
            raise InputError("there are no items")
        results = self.compute_each(requests)
        outputs: list[Any] = []
        for index, axes in enumerate(self._buckets.output_axes):
            rows = [result[index][0] for result in results]
            outputs.append(rows if axes else np.stack(rows))
        return outputs

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[NDArray[Any]]:
        """Check the inputs of a batch, and return them as numpy arrays in order.

        Raises InputError if the inputs do not fit the network, differ in their number of items, or
        are longer than all buckets.
        """
        if self._buckets.masks:
            args, kwargs = (), self._buckets.with_masks(self._by_name(args, kwargs))
        arrays = [np.asarray(x) for x in bind_inputs(self._network, args, kwargs)]
        names = [spec.name for spec in self.inputs]
        _require_equal({name: len(x) for name, x in zip(names, arrays, strict=True)})
        self._buckets.lengths_of(arrays)  # raises InputError for lengths without a bucket
        return arrays

    def padded_shapes(self, arrays: _Arrays) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a request's inputs after padding, without the batch axis.

        `arrays` is the result of `bind`. Requests with equal shapes are computed by the same
        programs, and can be computed together.
        """
        return self._buckets.padded_shapes(arrays)

    @property
    def is_open(self) -> bool:
        """Tell whether an input has an open axis that is neither the batch nor bucketed.

        Then programs are compiled at the first call for a shape, and not by `compile`.
        """
        return self._buckets.has_open_axes

    def compute(self, arrays: _Arrays) -> list[NDArray[Any]]:
        """Return the outputs in order, computed from arrays that `bind` returned."""
        (outputs,) = self.compute_each([arrays])
        return outputs

    def compute_each(self, requests: Sequence[_Arrays]) -> list[list[NDArray[Any]]]:
        """Return the outputs of each request. A request is a result of `bind`.

        Requests whose items have equal shapes after padding are computed together.
        """
        lengths = [self._buckets.lengths_of(arrays) for arrays in requests]
        groups: dict[object, list[int]] = {}  # indices of requests, by padded shapes
        for i, arrays in enumerate(requests):
            groups.setdefault(self.padded_shapes(arrays), []).append(i)
        results: list[list[NDArray[Any]]] = [[] for _ in requests]
        for members in groups.values():
            # The requests of the group are joined to one batch.
            bucket = self._buckets.bucket(lengths[members[0]])
            padded = [self._buckets.padded(requests[i], bucket) for i in members]
            arrays_by_input = zip(*padded, strict=True)
            outputs = self._compute_padded([_joined(arrays) for arrays in arrays_by_input])
            # Each output of the batch is split into the outputs of the requests.
            stops = np.cumsum([len(requests[i][0]) for i in members])[:-1]
            parts: list[list[Any]] = [np.split(x, stops) for x in outputs]
            for i, outputs_of_request in zip(members, zip(*parts, strict=True), strict=True):
                results[i] = self._buckets.trimmed(outputs_of_request, lengths[i])
        return results

    def _compute_padded(self, arrays: _Arrays) -> list[NDArray[Any]]:
        """Return the outputs for a batch of any size, whose items have the lengths of a bucket."""
        item_count = len(arrays[0])
        largest = self.sizes[-1]
        starts = range(0, max(item_count, 1), largest)  # An empty batch has one part too.
        # All parts of a split batch are dispatched before the results of the first part are
        # fetched.
        results: list[Sequence[jax.Array]] = []
        for start in starts:
            part = [x[start : start + largest] for x in arrays]
            results.append(self._padded(part))
        outputs_of_parts: list[list[NDArray[Any]]] = []
        for start, outputs in zip(starts, results, strict=True):
            remaining_items = item_count - start  # Rows after these are padding.
            outputs_of_parts.append([np.asarray(x)[:remaining_items] for x in outputs])
        parts_of_outputs = zip(*outputs_of_parts, strict=True)
        return [_joined(parts_of_output) for parts_of_output in parts_of_outputs]

    def _padded(self, arrays: _Arrays) -> Sequence[jax.Array]:
        """Pad a batch to one of the sizes, run the network, and return the outputs.

        The padding is copies of the batch's last item, or zeros for an empty batch.
        """
        item_count = len(arrays[0])
        size = min(size for size in self.sizes if size >= item_count)
        if size == item_count:
            return self._run(arrays)
        padded: list[NDArray[Any]] = []
        for x in arrays:
            if item_count == 0:
                padded.append(np.zeros((size, *x.shape[1:]), x.dtype))
            else:
                last_item = x[-1:]
                copies = np.repeat(last_item, size - item_count, axis=0)
                padded.append(np.concatenate([x, copies]))
        return self._run(padded)

    def _run(self, arrays: _Arrays) -> Sequence[jax.Array]:
        """Return the outputs for a batch whose size is one of `sizes`."""
        execution = self._execution
        has_one_output = len(self.outputs) == 1
        if not self._is_mapped:
            result = execution.call(tuple(arrays), {})
            return [result] if has_one_output else result
        # With a unit of 4, an array of 12 items becomes 3 groups of 4 items: (12, 5) to (3, 4, 5).
        groups = [x.reshape(-1, self._unit, *x.shape[1:]) for x in arrays]
        result = execution.run(execution.map, {}, groups)
        outputs = [result] if has_one_output else result
        return [x.reshape(-1, *x.shape[2:]) for x in outputs]


def require_sizes(sizes: Sequence[int]) -> None:
    """Raise TypeError or InputError unless there are sizes, all of them positive integers."""
    for size in sizes:
        require("a size", size, int, "a number of items")
    if not sizes or min(sizes) < 1:
        raise InputError(f"sizes must be numbers of items, at least one; they are {[*sizes]}")


def _require_equal(counts: Mapping[str, int]) -> None:
    """Raise InputError unless all inputs have equally many items, as counted in `counts`."""
    if len({*counts.values()}) > 1:
        numbers = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise InputError(f"the inputs have different numbers of items: {numbers}")


def _joined(parts: _Arrays) -> NDArray[Any]:
    """Concatenate arrays along the batch. A single array is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class _Batched(NamedTuple):
    """An execution for batches whose size is a multiple of `unit`.

    If `is_mapped` is true, the execution takes exactly `unit` items, and a batch is run in groups
    of `unit` items.
    """

    execution: Execution
    unit: int
    is_mapped: bool


def _batched(execution: Execution, largest: int) -> _Batched:
    """Return the variant of an execution that takes batches of any size.

    If the network declares a fixed batch, the variant has an open batch. If the batch cannot be
    opened, since the network fixes the batch size elsewhere too, the execution is mapped over
    groups of the declared size. Raises InputError if items of a batch may depend on one another.
    This is checked for batches of up to `largest` items.
    """
    network = execution.network
    graph = network.graph
    layout = execution.definition.layout
    unit = layout.parts if layout else 1
    _require_batch_axes(graph)

    # 1. All inputs have an open batch.
    extents = {value.type.shape[0] for value in graph.inputs}
    if extents == {UNKNOWN}:
        sizes_to_compare = (2, 3)
        _require_separate(execution, *sizes_to_compare, largest=largest)
        return _Batched(execution, unit, is_mapped=False)

    # 2. All inputs declare the same size, and the batch can be opened.
    declared, *different_extents = extents
    has_one_batch = not different_extents and is_known((declared,)) and declared != 0
    if not has_one_batch:
        shapes = ", ".join(map(str, network.specs(graph.inputs)))
        raise InputError(f"the inputs have no batch of the same size: {shapes}")
    try:
        opened = execution.with_network(network.with_open_batch(execution.arrays.stored))
        sizes_to_compare = (declared + 1, declared + 2)
        _require_separate(opened, *sizes_to_compare, largest=largest)
        return _Batched(opened, unit, is_mapped=False)
    except NnefError:
        if layout:  # groups of the declared size cannot be sharded over the mesh
            raise

    # 3. The network takes batches of the declared size only. It is mapped over groups of this size.
    for value in graph.outputs:
        if value.type.shape[0] != declared:
            raise InputError(f"output '{value.name}' has no axis for a batch of {declared} items")
    if declared > 1:
        _require_separate(execution, declared)
    return _Batched(execution, declared, is_mapped=True)


def _require_batch_axes(graph: Graph) -> None:
    """Raise InputError if a graph cannot take batches.

    A graph cannot take batches if it has a state, has no inputs, or has an input or output without
    axes.
    """
    if graph.states:
        raise InputError(f"{graph.name} has a state, which items of a batch would share")
    for kind, values in (("input", graph.inputs), ("output", graph.outputs)):
        for value in values:
            if not value.type.shape:
                raise InputError(f"{kind} '{value.name}' has no axis for a batch")
    if not graph.inputs:
        raise InputError(f"{graph.name} has no inputs")


def _require_separate(execution: Execution, *sizes: int, largest: int = 0) -> None:
    """Raise InputError if items of a batch may depend on one another, or on the number of items.

    The programs of the network for the batch sizes `sizes` must be equal except for extents. A
    network that divides by the number of items, for instance, has different programs. A program
    whose constants have a row for each item is also checked for a batch of `largest` items. Raises
    NnefError if the network does not take a batch of one of these sizes.
    """
    size, *other_sizes = sizes
    program = _program(execution, size)
    _require_rows(execution, program)
    has_constant_rows = any(size in variable.aval.shape for variable in program.constants)
    if largest > size and has_constant_rows:
        _require_rows(execution, _program(execution, largest))
    for other_size in other_sizes:
        if not _are_equal_but_for_extents(program, _program(execution, other_size)):
            message = "the computation depends on the number of items"
            raise InputError(message, hint=_CALL_THE_MODEL)


def _require_rows(execution: Execution, program: Program) -> None:
    """Raise InputError unless each output has a row for each item, computed from this item alone.

    The batch is the first axis of all inputs.
    """
    inputs = program.arguments[program.parameters :]
    batch_axis_by_input = dict.fromkeys(inputs, 0)
    try:
        axes = batch_axes(program, batch_axis_by_input, resizes=False)
    except NotSeparableError as error:
        equation = described(error.args[0])
        message = f"items of a batch may depend on one another, by {equation}"
        raise InputError(message, hint=_CALL_THE_MODEL) from None
    names = execution.network.graph.output_names
    for name, result in zip(names, program.results, strict=True):
        if axes.get(result) != 0:
            message = f"output '{name}' has no row for each item of a batch"
            raise InputError(message, hint=_CALL_THE_MODEL)


def _require_separate_lengths(execution: Execution, buckets: Buckets) -> None:
    """Raise InputError if items along the axis of a bucket may depend on one another.

    Padding would then change the results, unless a mask tells the network which items are padding.
    """
    longest = buckets.all_lengths()[0]
    program = _program_of(execution, buckets.shapes(execution.network, longest))
    inputs = program.arguments[program.parameters :]
    for name in longest:
        axis_by_input = {
            variable: axis
            for variable, axes in zip(inputs, buckets.input_axes, strict=True)
            for axis, name_of_axis in axes.items()
            if name_of_axis == name
        }
        try:
            batch_axes(program, axis_by_input, resizes=False)
        except NotSeparableError as error:
            equation = described(error.args[0])
            message = f"items along '{name}' may depend on one another, by {equation}"
            hint = "masks= names the inputs that are 0 where an item is padding"
            raise InputError(message, hint=hint) from None


def _program(execution: Execution, size: int) -> Program:
    """Return the program for a batch of `size` items, before optimisation passes."""
    network = execution.network
    try:
        graph = network.example()  # with lengths for open extents
    except NnefError:
        graph = network.graph
    return _program_of(execution, [(size, *value.type.shape[1:]) for value in graph.inputs])


def _program_of(execution: Execution, shapes: Sequence[Sequence[Any]]) -> Program:
    """Return the program for inputs of the shapes `shapes`, before optimisation passes."""
    input_types = [
        jax.ShapeDtypeStruct(tuple(shape), value.type.dtype)
        for shape, value in zip(shapes, execution.network.graph.inputs, strict=True)
    ]
    labels = execution.definition.labels
    arrays = [execution.arrays.stored(label) for label in labels]
    parameter_types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    function = execution.outputs.of_lists(labels)
    jaxpr = jaxpr_evaluation.make_jaxpr(function, parameter_types, input_types)
    return Program(jaxprs.spliced(jaxpr, "plain"), len(parameter_types))


def _are_equal_but_for_extents(a: Program, b: Program) -> bool:
    """Tell whether two programs are equal in everything but the extents of arrays.

    The programs must have the same primitives in the same order. Constants of equal shape must have
    equal values.
    """
    primitives_a, literals_a = _primitives_and_literals(a)
    primitives_b, literals_b = _primitives_and_literals(b)
    if primitives_a != primitives_b:
        return False
    # The lists may have different lengths. The longer list is then compared up to the length of the
    # shorter list.
    literals = zip(literals_a, literals_b, strict=False)
    constants = zip(a.closed.consts, b.closed.consts, strict=False)
    for constant_a, constant_b in [*literals, *constants]:
        have_equal_shapes = np.shape(constant_a) == np.shape(constant_b)
        if have_equal_shapes and not np.array_equal(constant_a, constant_b):
            return False
    return True


def _primitives_and_literals(program: Program) -> tuple[list[str], list[Any]]:
    """Return the names of a program's primitives, and the values of all operands in order.

    The value of an operand that is not a literal is None.
    """
    primitives: list[str] = []
    literals: list[Any] = []
    for equation in jaxprs.innermost(program.closed.jaxpr):
        primitives.append(primitive(equation))
        for operand in equation.invars:
            literals.append(operand.val if is_literal(operand) else None)
    return primitives, literals
