"""The buckets of a batcher: pads inputs along named axes to a few lengths, and trims outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
Lengths = Mapping[str, int]  # the length of an item along each bucketed axis, by the axis's name
_Axes = Mapping[int, str]  # the name of each bucketed axis of a tensor
_EXAMPLE = 8  # an extent in place of those that are open and have no bucket


@dataclass(frozen=True)
class Buckets:
    """The lengths for which programs are compiled, and the tensors that have these axes.

    An item is padded with zeros to the next larger length. A mask is thereby 0 beyond the length of
    the item. Without buckets, nothing is padded or trimmed.

    Attributes:
        lengths: the lengths of each axis, by the axis's name, in ascending order.
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
            axes.append({i: x for i, x in enumerate(extents) if i and x in lengths})
        ordered = {name: tuple(sorted({*values})) for name, values in lengths.items()}
        mask_names = (masks,) if isinstance(masks, str) else tuple(masks)
        buckets = cls(ordered, mask_names, inputs, tuple(axes))
        buckets._require_masks()
        output_axes = tuple(buckets._output_axes(network))
        return cls(ordered, mask_names, inputs, tuple(axes), output_axes)

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
        """Yield the axes of each output that are as long as a bucketed axis of the inputs.

        They are the axes that change with the length. Raises InputError for an axis that changes,
        but has another length.
        """
        shortest = {name: lengths[0] for name, lengths in self.lengths.items()}
        axes: list[dict[int, str]] = [{} for _ in network.graph.outputs]
        first = self._graph(network, shortest)
        for name, lengths in self.lengths.items():
            other, second = self._other_graph(network, shortest, name, lengths)
            for index, values in enumerate(zip(first.outputs, second.outputs, strict=True)):
                pairs = zip(*(value.type.shape for value in values), strict=True)
                for axis, extents in enumerate(pairs):
                    if extents == (shortest[name], other):
                        axes[index][axis] = name
                    elif extents[0] != extents[1]:
                        shown = network.graph.output_names[index]
                        raise InputError(
                            f"axis {axis} of output '{shown}' has {extents[0]} items if '{name}' "
                            f"is {shortest[name]}, and {extents[1]} if it is {other}, so that it "
                            "cannot be trimmed"
                        )
        yield from axes

    def _other_graph(
        self, network: Network, shortest: Lengths, name: str, lengths: Sequence[int]
    ) -> tuple[int, Graph]:
        """Return another length of an axis that the network takes, and the graph for it."""
        candidates = [*lengths[1:], lengths[0] + 1, max(lengths[0] - 1, 1)]
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
        """Return the shapes of the inputs for some lengths, with 8 for other open extents."""
        shapes: list[list[Any]] = []
        for value, axes in zip(network.graph.inputs, self.input_axes, strict=True):
            shape = [n if is_known((n,)) else _EXAMPLE for n in value.type.shape]
            shapes.append([lengths[axes[i]] if i in axes else n for i, n in enumerate(shape)])
        return shapes

    @property
    def has_open_axes(self) -> bool:
        """Tell whether an input has an open axis that is neither the batch nor has buckets."""
        return any(
            extent is None and axis not in axes
            for spec, axes in zip(self.inputs, self.input_axes, strict=True)
            for axis, extent in enumerate(spec.shape[1:], 1)
        )

    def all_lengths(self) -> list[dict[str, int]]:
        """Return all combinations of the lengths of the axes, the longest ones first."""
        combinations = product(*(reversed(values) for values in self.lengths.values()))
        return [dict(zip(self.lengths, values, strict=True)) for values in combinations]

    def example(self, size: int, lengths: Lengths) -> list[NDArray[Any]]:
        """Return inputs of a batch of `size` items to compile for: masks of ones, others zeros.

        Raises InputError for an input with another open extent.
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
        """Return the arguments of a call by name, with ones for masks that are not among them.

        Raises InputError if the length of such a mask is not known.
        """
        completed = dict(arguments)
        missing = [spec for spec in self.inputs if spec.name in self.masks]
        missing = [spec for spec in missing if spec.name not in arguments]
        if not missing:
            return completed
        axes = dict(zip([x.name for x in self.inputs], self.input_axes, strict=True))
        present = [(name, np.shape(x)) for name, x in arguments.items() if name in axes]
        lengths = self._lengths([(name, shape, axes[name]) for name, shape in present])
        for spec in missing:
            shape: list[Any] = [present[0][1][0] if present and present[0][1] else 1]
            shape += spec.shape[1:]
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
        """Return the lengths of tensors, which have a name, a shape and bucketed axes.

        Raises InputError if two tensors disagree.
        """
        lengths: dict[str, int] = {}
        first: dict[str, str] = {}
        for tensor, shape, axes in tensors:
            for axis, name in axes.items():
                if axis >= len(shape):
                    continue  # the number of axes is checked when the arrays are bound
                length = lengths.setdefault(name, shape[axis])
                source = first.setdefault(name, tensor)
                if length != shape[axis]:
                    message = f"'{name}' is {length} in '{source}', {shape[axis]} in '{tensor}'"
                    raise InputError(message)
        return lengths

    def bucket(self, lengths: Lengths) -> dict[str, int]:
        """Return the next larger length of each axis for which a program is compiled."""
        return {
            name: next(bound for bound in self.lengths[name] if bound >= length)
            for name, length in lengths.items()
        }

    def padded_shapes(self, arrays: Arrays) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of an item of the inputs, without the batch, after padding."""
        bucket = self.bucket(self.lengths_of(arrays))
        return tuple(
            tuple(bucket[axes[i]] if i in axes else n for i, n in enumerate(x.shape) if i)
            for x, axes in zip(arrays, self.input_axes, strict=True)
        )

    def padded(self, arrays: Arrays, bucket: Lengths) -> list[NDArray[Any]]:
        """Return inputs that are padded with zeros to the lengths of a bucket."""
        padded: list[NDArray[Any]] = []
        for x, axes in zip(arrays, self.input_axes, strict=True):
            widths = [(0, bucket[axes[i]] - n if i in axes else 0) for i, n in enumerate(x.shape)]
            padded.append(np.pad(x, widths) if any(after for _, after in widths) else x)
        return padded

    def trimmed(self, outputs: Arrays, lengths: Lengths) -> list[NDArray[Any]]:
        """Return outputs without the items that stand for padding."""
        trimmed: list[NDArray[Any]] = []
        for x, axes in zip(outputs, self.output_axes or ({},) * len(outputs), strict=True):
            index = [slice(lengths[axes[i]]) if i in axes else slice(None) for i in range(x.ndim)]
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
    """Return the message on a bucket for an axis that the network does not have."""
    if any(extents and extents[0] == name for extents in network.extent_names.values()):
        return f"'{name}' is the batch, whose sizes are the argument `sizes`"
    if not names:
        return f"there is no axis '{name}': the network has no open axes with names"
    return f"there is no axis '{name}', the open ones are {listed(sorted(names))}"
