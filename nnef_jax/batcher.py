"""`Model.batcher`: batches of any size by programs for few sizes, which are compiled ahead."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from lowering import NotSeparableError, Program, batch_axes, described, jaxprs
from lowering.extents import UNKNOWN, is_known
from lowering.jaxprs import is_literal, primitive
from nnef_jax.call_arguments import bind_inputs
from nnef_jax.errors import InputError, NnefError
from nnef_jax.execution.execution import Execution
from nnef_jax.formats.base import Progress
from nnef_jax.options import require
from nnef_jax.tensor_spec import TensorSpec

_AS_IT_IS = "call the model itself: it takes a batch as it is"


class Batcher:
    """Runs a network on batches of any size; `Model.batcher` makes it.

    A batch is filled up to the next of `sizes`, and the result cut; a larger one is split. The
    batch is the first axis of all inputs and outputs. It is called as the model is, and returns
    arrays of numpy: rows equal those of a call of the model but for rounding (docs/numerics.md).

    `inputs` and `outputs` describe what a call takes and returns: their first extent is None.
    """

    def __init__(self, execution: Execution, sizes: Sequence[int]) -> None:
        require_sizes(sizes)
        self._execution, unit, self._is_mapped = _separate(execution, max(sizes))
        self.sizes = tuple(sorted({-(-size // unit) * unit for size in sizes}))
        self._unit = unit
        graph = execution.network.graph
        opened = [
            replace(v, type=replace(v.type, shape=(UNKNOWN, *v.type.shape[1:])))
            for v in graph.inputs
        ]
        self._taken = replace(execution.network, graph=replace(graph, inputs=tuple(opened)))
        self.inputs = execution.network.specs(opened)
        specs = execution.network.specs(graph.outputs, graph.output_names)
        self.outputs = tuple(replace(x, shape=(None, *x.shape[1:])) for x in specs)

    def compile(self, progress: Progress | None = None) -> None:
        """Compile for all sizes, in threads, or find what is compiled in the model's `cache_dir`.

        `progress` is called with how many are ready, and of how many. Raises InputError where more
        extents than the batch are open: such a network is compiled at its first call of a shape.
        """
        examples = {size: zeros(self.inputs, size) for size in reversed(self.sizes)}
        device: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]

        def run(size: int) -> None:
            with jax.default_device(device):  # which each thread has its own of
                jax.block_until_ready(self._run(examples[size]))

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for done, _ in enumerate(pool.map(run, examples), 1):
                if progress:
                    progress(done, len(self.sizes))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network on a batch. Raises InputError as a call of the model does."""
        return self._execution.packed(self.compute(self.bind(args, kwargs)))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[NDArray[Any]]:
        """Return the arrays of a batch in order; InputError where they do not fit."""
        arrays = [np.asarray(x) for x in bind_inputs(self._taken, args, kwargs)]
        counts = {spec.name: len(x) for spec, x in zip(self.inputs, arrays, strict=True)}
        if len({*counts.values()}) > 1:
            told = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise InputError(f"the inputs have different numbers of items: {told}")
        return arrays

    def compute(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the outputs for what `bind` returned, in order."""
        count, most = len(arrays[0]), self.sizes[-1]
        starts = range(0, count or 1, most)
        found = [self._padded([x[start : start + most] for x in arrays]) for start in starts]
        rows = [[np.asarray(x)[: count - n] for x in y] for y, n in zip(found, starts, strict=True)]
        return [_joined(parts) for parts in zip(*rows, strict=True)]

    def _padded(self, arrays: Sequence[NDArray[Any]]) -> Sequence[Any]:
        """Run the network on a batch that is filled up with its last item."""
        count = len(arrays[0])
        size = next(size for size in self.sizes if size >= count)
        if not count:
            arrays = [np.zeros((size, *x.shape[1:]), x.dtype) for x in arrays]
        elif size > count:
            arrays = [np.concatenate([x, np.repeat(x[-1:], size - count, axis=0)]) for x in arrays]
        return self._run(arrays)

    def _run(self, arrays: Sequence[NDArray[Any]]) -> Sequence[Any]:
        """Return the outputs for a batch of one of the sizes."""
        execution = self._execution
        if self._is_mapped:
            groups = [x.reshape(-1, self._unit, *x.shape[1:]) for x in arrays]
            found = execution.run(execution.map, {}, groups)
        else:
            found = execution.call(tuple(arrays), {})
        found = found if len(self.outputs) > 1 else [found]
        return [x.reshape(-1, *x.shape[2:]) for x in found] if self._is_mapped else found


def require_sizes(sizes: Sequence[int]) -> None:
    """Raise TypeError or InputError for what are no sizes of batches."""
    for size in sizes:
        require("a size", size, int, "a number of items")
    if not sizes or min(sizes) < 1:
        raise InputError(f"sizes must be numbers of items, at least one; they are {[*sizes]}")


def zeros(inputs: Sequence[TensorSpec], size: int | None = None) -> list[NDArray[Any]]:
    """Return zeros for inputs, a batch of a size if given; InputError where extents are open."""
    shapes = [spec.shape if size is None else (size, *spec.shape[1:]) for spec in inputs]
    for spec, shape in zip(inputs, shapes, strict=True):
        if None in shape:
            hint = "give its other extents by load(..., input_shapes=...)"
            raise InputError(f"the shape of input '{spec}' is not known", hint=hint)
    return [np.zeros(x, spec.dtype) for x, spec in zip(shapes, inputs, strict=True)]  # pyright: ignore


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _separate(execution: Execution, most: int) -> tuple[Execution, int, bool]:
    """Return the execution of batches of at most so many items, their unit, and if it is mapped.

    A network that declares its batch is taken for any batch. Where it wrote that down elsewhere, it
    is mapped over batches of the declared size, which may be 1. Raises InputError where items of a
    batch may depend on one another.
    """
    network, layout = execution.network, execution.definition.layout
    graph = network.graph
    unit = layout.parts if layout else 1
    if graph.states:
        raise InputError(f"{graph.name} has a state, which items of a batch would share")
    for kind, values in (("input", graph.inputs), ("output", graph.outputs)):
        for value in values:
            if not value.type.shape:
                raise InputError(f"{kind} '{value.name}' has no axis for a batch")
    extents = {value.type.shape[0] for value in graph.inputs}
    if not extents:
        raise InputError(f"{graph.name} has no inputs")
    if extents == {UNKNOWN}:
        _require_separate(execution, 2, 3, most=most)
        return execution, unit, False
    (declared, *others) = extents
    if others or not is_known((declared,)) or not declared:
        shapes = ", ".join(map(str, network.specs(graph.inputs)))
        raise InputError(f"the inputs have no batch of the same size: {shapes}")
    try:
        opened = execution.with_network(network.opened(execution.arrays.stored))
        _require_separate(opened, declared + 1, declared + 2, most=most)
        return opened, unit, False
    except NnefError:
        if layout:
            raise
    for value in graph.outputs:
        if value.type.shape[0] != declared:
            raise InputError(f"output '{value.name}' has no axis for a batch of {declared} items")
    if declared > 1:
        _require_separate(execution, declared)
    return execution, declared, True


def _require_separate(execution: Execution, size: int, *others: int, most: int = 0) -> None:
    """Raise InputError where items of a batch may meet, NnefError where there is none of a size.

    Nor may anything but extents differ in the programs for the `others`: a number of items, say,
    that rows are divided by. Constants with an item for each must be alike in `most` items too.
    """
    program = _program(execution, size)
    _require_rows(execution, program)
    if most > size and any(size in v.aval.shape for v in program.constants):
        _require_rows(execution, _program(execution, most))
    if not all(_is_alike(program, _program(execution, other)) for other in others):
        raise InputError("what is computed depends on the number of items", hint=_AS_IT_IS)


def _require_rows(execution: Execution, program: Program) -> None:
    """Raise InputError where a program has no row for each item, or items may meet in it."""
    try:
        inputs = program.arguments[program.parameters :]
        axes = batch_axes(program, dict.fromkeys(inputs, 0), resizes=False)
    except NotSeparableError as error:
        what = described(error.args[0])
        message = f"items of a batch may depend on one another, by {what}"
        raise InputError(message, hint=_AS_IT_IS) from None
    names = execution.network.graph.output_names
    for name, result in zip(names, program.results, strict=True):
        if axes.get(result) != 0:
            message = f"output '{name}' has no row for each item of a batch"
            raise InputError(message, hint=_AS_IT_IS)


def _program(execution: Execution, size: int) -> Program:
    """Return the network as it is written, for so many items."""
    network = execution.network
    try:
        example = network.example()
    except NnefError:
        example = network.graph
    types = [jax.ShapeDtypeStruct((size, *v.type.shape[1:]), v.type.dtype) for v in example.inputs]
    labels = execution.definition.labels
    own = [execution.arrays.stored(label) for label in labels]
    own = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in own]
    traced = jaxprs.make_jaxpr(execution.outputs.of_lists(labels), own, types)
    return Program(jaxprs.spliced(traced, "plain"), len(own))


def _is_alike(one: Program, other: Program) -> bool:
    """Tell whether two programs compute with the same numbers, but for extents."""
    equations = [[*jaxprs.innermost(x.closed.jaxpr)] for x in (one, other)]
    names = [[primitive(e) for e in x] for x in equations]
    operands = [[v for e in x for v in e.invars] for x in equations]
    numbers = [[v.val if is_literal(v) else None for v in x] for x in operands]
    pairs = [
        *zip(*numbers, strict=False),
        *zip(one.closed.consts, other.closed.consts, strict=False),
    ]
    alike = (np.array_equal(x, y) for x, y in pairs if np.shape(x) == np.shape(y))
    return names[0] == names[1] and all(alike)
