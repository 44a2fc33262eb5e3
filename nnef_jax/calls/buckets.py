"""The buckets of a batcher: pads inputs along named axes to a few lengths, and trims outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowering.extents import is_known
from lowering.graph import Graph
from nnef_jax.errors import InputError, NnefError
from nnef_jax.options import require
from nnef_jax.reading.network import Network
from nnef_jax.tensor_spec import TensorSpec
from nnef_jax.wording.similar import did_you_mean, listed

Arrays = Sequence[NDArray[Any]]
Lengths = Mapping[str, int]  # maps the name of a bucketed axis to an item's length
_Axes = Mapping[int, str]  # maps the index of a bucketed axis to the axis's name
_EXAMPLE = 8  # the extent of an open axis without buckets


@dataclass(frozen=True)
class Buckets:
    """The axis lengths for which programs are compiled, and the tensors with these axes.

    An item is padded with zeros to the next larger length. A mask is thereby 0 beyond the length of
    the item. Without buckets, nothing is padded or trimmed.

    Attributes:
        lengths: maps the name of each axis to the lengths of its buckets, in ascending order.
        masks: the names of inputs that are 1 for items, and 0 for padding.
        inputs: the inputs of a call.
        input_axes: the bucketed axes of each input. Axis 0 is the batch.
        output_axes: the bucketed axes of each output.
    """

    lengths: Mapping[str, tuple[int, ...]]
    masks: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    input_axes: tuple[_Axes, ...]
    output_axes: tuple[_Axes, ...] = ()

    @classmethod
    def of(
        cls,
        network: Network,
        lengths: Mapping[str, Sequence[int]],
        masks: str | Sequence[str],
        inputs: tuple[TensorSpec, ...],
    ) -> Buckets:
        """Check the arguments of `Model.batcher`, and return the buckets of a network.

        Raises TypeError for lengths that are not numbers. Raises InputError for an axis or mask
        that the network does not have, and for an output that cannot be trimmed.
        """
        require("buckets", lengths, Mapping, "a dict of lengths by the name of an axis")
        names = [*network.extent_names.values()]
        open_names = {name for extents in names for name in extents[1:] if name}
        for name, values in lengths.items():
            _require_lengths(name, values)
            if name not in open_names:
                raise InputError(_unknown(name, network, open_names))
        axes: list[_Axes] = []
        for spec in inputs:
            extents = network.extent_names.get(spec.name, ())
            axes.append({i: name for i, name in enumerate(extents) if i > 0 and name in lengths})
        ordered = {name: tuple(sorted({*values})) for name, values in lengths.items()}
        mask_names = (masks,) if isinstance(masks, str) else tuple(masks)
        # The axes of the outputs follow from the axes of the inputs.
        of_inputs = cls(ordered, mask_names, inputs, tuple(axes))
        of_inputs._require_masks()
        return replace(of_inputs, output_axes=tuple(of_inputs._output_axes(network)))

    def _require_masks(self) -> None:
        """Raise InputError unless each mask is an input with a bucketed axis."""
        axes_by_name = dict(zip([x.name for x in self.inputs], self.input_axes, strict=True))
        for name in self.masks:
            if name not in axes_by_name:
                hint = did_you_mean(name, [*axes_by_name])
                raise InputError(f"masks has '{name}', which is no input", hint=hint)
            if not axes_by_name[name]:
                message = f"the mask '{name}' has no axis of {listed([*self.lengths]) or 'buckets'}"
                raise InputError(message)

    def _output_axes(self, network: Network) -> Iterator[_Axes]:
        """Yield the bucketed axes of each output.

        The graphs for two lengths of a bucketed axis of the inputs are compared. An axis of an
        output is bucketed if it has the length of the inputs' axis in both graphs. Raises
        InputError if an axis of an output changes in another way.
        """
        shortest = {name: lengths[0] for name, lengths in self.lengths.items()}
        axes: list[dict[int, str]] = [{} for _ in network.graph.outputs]
        graph = self._graph(network, shortest)
        for name, lengths in self.lengths.items():
            length = shortest[name]
            second_length, second_graph = self._second_graph(network, shortest, name, lengths)
            pairs = zip(graph.outputs, second_graph.outputs, strict=True)
            for index, (output, second_output) in enumerate(pairs):
                extents = zip(output.type.shape, second_output.type.shape, strict=True)
                for axis, (extent, second_extent) in enumerate(extents):
                    if (extent, second_extent) == (length, second_length):
                        axes[index][axis] = name
                    elif extent != second_extent:
                        shown = network.graph.output_names[index]
                        raise InputError(
                            f"axis {axis} of output '{shown}' has {extent} items if '{name}' "
                            f"is {length}, and {second_extent} if it is {second_length}, so that "
                            "it cannot be trimmed"
                        )
        yield from axes

    def _second_graph(
        self, network: Network, shortest: Lengths, name: str, lengths: Sequence[int]
    ) -> tuple[int, Graph]:
        """Return a second length of the axis `name`, and the graph for this length.

        The first length is `shortest[name]`. All other axes have their lengths in `shortest`. A
        network may refuse some lengths, so several are tried.
        """
        candidates = [*lengths[1:], lengths[0] + 1]
        if lengths[0] > 1:
            candidates.append(lengths[0] - 1)
        errors: list[NnefError] = []
        for length in candidates:
            try:
                return length, self._graph(network, {**shortest, name: length})
            except NnefError as error:
                errors.append(error)
        raise errors[0]

    def _graph(self, network: Network, lengths: Lengths) -> Graph:
        """Return the graph of a network for some lengths."""
        return network.specialise([tuple(shape) for shape in self.shapes(network, lengths)])

    def shapes(self, network: Network, lengths: Lengths) -> list[list[Any]]:
        """Return the shapes of the inputs for some lengths of the bucketed axes.

        Other open extents are 8.
        """
        shapes: list[list[Any]] = []
        for value, axes in zip(network.graph.inputs, self.input_axes, strict=True):
            shape = [n if is_known((n,)) else _EXAMPLE for n in value.type.shape]
            for axis, name in axes.items():
                shape[axis] = lengths[name]
            shapes.append(shape)
        return shapes

    @property
    def has_open_axes(self) -> bool:
        """Tell whether an input has an open axis without buckets, other than the batch."""
        return any(
            extent is None and axis not in axes
            for spec, axes in zip(self.inputs, self.input_axes, strict=True)
            for axis, extent in enumerate(spec.shape)
            if axis > 0
        )

    def all_lengths(self) -> list[dict[str, int]]:
        """Return all combinations of the axes' bucket lengths, the longest lengths first."""
        combinations = product(*(reversed(values) for values in self.lengths.values()))
        return [dict(zip(self.lengths, values, strict=True)) for values in combinations]

    def example(self, size: int, lengths: Lengths) -> list[NDArray[Any]]:
        """Return inputs to compile for: masks of ones, and zeros for all other inputs.

        The batch has `size` items, and the bucketed axes have these lengths. Raises InputError if
        another extent of an input is open.
        """
        arrays: list[NDArray[Any]] = []
        for spec, axes in zip(self.inputs, self.input_axes, strict=True):
            shape = [size, *spec.shape[1:]]
            for axis, name in axes.items():
                shape[axis] = lengths[name]
            if None in shape:
                hint = "give its other extents by load(..., input_shapes=...)"
                raise InputError(f"the shape of input '{spec}' is not known", hint=hint)
            fill: Any = 1 if spec.name in self.masks else 0
            arrays.append(np.full(shape, fill, spec.dtype))  # pyright: ignore
        return arrays

    def with_masks(self, arguments: Mapping[str, ArrayLike]) -> dict[str, Any]:
        """Return a dict from names of inputs to arguments. Missing masks are arrays of ones.

        Raises InputError if the length of a missing mask is not known.
        """
        completed = dict(arguments)
        masks = [spec for spec in self.inputs if spec.name in self.masks]
        missing = [spec for spec in masks if spec.name not in arguments]
        if not missing:
            return completed
        axes = dict(zip([x.name for x in self.inputs], self.input_axes, strict=True))
        present = [(name, np.shape(x)) for name, x in arguments.items() if name in axes]
        lengths = self._lengths([(name, shape, axes[name]) for name, shape in present])
        # The batch is the first axis of the first argument. An argument without axes is refused
        # when the arguments are bound.
        _, first_shape = present[0] if present else ("", ())
        batch = first_shape[0] if first_shape else 1
        for spec in missing:
            shape: list[Any] = [batch, *spec.shape[1:]]
            for axis, name in axes[spec.name].items():
                shape[axis] = lengths.get(name)
            if None in shape:
                raise InputError(f"the length of the mask '{spec.name}' is not known: pass it")
            completed[spec.name] = np.ones(shape, spec.dtype)  # pyright: ignore
        return completed

    def lengths_of(self, arrays: Arrays) -> dict[str, int]:
        """Return the lengths of the inputs of a request along the bucketed axes.

        Raises InputError if two inputs disagree, or if a length exceeds all buckets.
        """
        names = [spec.name for spec in self.inputs]
        shapes = [x.shape for x in arrays]
        lengths = self._lengths([*zip(names, shapes, self.input_axes, strict=True)])
        for name, length in lengths.items():
            longest = self.lengths[name][-1]
            if length > longest:
                raise InputError(
                    f"'{name}' is {length}, the largest bucket is {longest}",
                    hint="batcher(..., buckets=...) lists them",
                )
        return lengths

    def _lengths(self, tensors: Sequence[tuple[str, Sequence[int], _Axes]]) -> dict[str, int]:
        """Return the lengths of tensors along the bucketed axes.

        Each tensor is described by a name, a shape and its bucketed axes. Raises InputError if two
        tensors have different lengths along one axis.
        """
        lengths: dict[str, int] = {}
        first_tensors: dict[str, str] = {}  # maps an axis to the first tensor with this axis
        for tensor, shape, axes in tensors:
            for axis, name in axes.items():
                if axis >= len(shape):
                    continue  # the number of axes is checked when the arrays are bound
                length = lengths.setdefault(name, shape[axis])
                first = first_tensors.setdefault(name, tensor)
                if length != shape[axis]:
                    message = f"'{name}' is {length} in '{first}', {shape[axis]} in '{tensor}'"
                    raise InputError(message)
        return lengths

    def bucket(self, lengths: Lengths) -> dict[str, int]:
        """Return the bucket for each length: the shortest bucket of the axis that can hold it."""
        return {
            name: next(bound for bound in self.lengths[name] if bound >= length)
            for name, length in lengths.items()
        }

    def padded_shapes(self, arrays: Arrays) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the inputs after padding, without the batch."""
        bucket = self.bucket(self.lengths_of(arrays))
        shapes: list[tuple[int, ...]] = []
        for x, axes in zip(arrays, self.input_axes, strict=True):
            shape = list(x.shape)
            for axis, name in axes.items():
                shape[axis] = bucket[name]
            shapes.append(tuple(shape[1:]))
        return tuple(shapes)

    def padded(self, arrays: Arrays, bucket: Lengths) -> list[NDArray[Any]]:
        """Return inputs that are padded with zeros to the lengths of a bucket."""
        padded: list[NDArray[Any]] = []
        for x, axes in zip(arrays, self.input_axes, strict=True):
            widths = [(0, 0)] * x.ndim
            for axis, name in axes.items():
                widths[axis] = (0, bucket[name] - x.shape[axis])
            needs_padding = any(after > 0 for _, after in widths)
            padded.append(np.pad(x, widths) if needs_padding else x)
        return padded

    def trimmed(self, outputs: Arrays, lengths: Lengths) -> list[NDArray[Any]]:
        """Return outputs without the items that were computed from padding.

        `lengths` are the lengths before padding.
        """
        trimmed: list[NDArray[Any]] = []
        no_axes: _Axes = {}
        output_axes = self.output_axes or [no_axes] * len(outputs)
        for x, axes in zip(outputs, output_axes, strict=True):
            index = [slice(None)] * x.ndim
            for axis, name in axes.items():
                index[axis] = slice(lengths[name])
            trimmed.append(x[tuple(index)])
        return trimmed


def _require_lengths(name: str, values: Sequence[int]) -> None:
    """Raise TypeError or InputError unless there are lengths, all of them positive integers."""
    for value in values:
        require(f"a length of '{name}'", value, int, "a number of items")
    if not values or min(values) < 1:
        expected = f"lengths of '{name}' must be numbers of items, at least one"
        raise InputError(f"{expected}; they are {[*values]}")


def _unknown(name: str, network: Network, names: set[str]) -> str:
    """Return the error message for buckets of `name`, which is not one of the axes `names`."""
    if any(extents and extents[0] == name for extents in network.extent_names.values()):
        return f"'{name}' is the batch, whose sizes are the argument `sizes`"
    if not names:
        return f"there is no axis '{name}': the network has no open axes with names"
    return f"there is no axis '{name}', the open ones are {listed(sorted(names))}"
