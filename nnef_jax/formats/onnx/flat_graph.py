"""The graph that nodes are added to, with its parameters; a graph in a node has one of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.extents import is_symbolic
from lowering.graph import TensorType, Value
from lowering.location import Span
from nnef_jax.flattening.counted import CountedEmission
from nnef_jax.formats.base import Options
from nnef_jax.formats.onnx.constants import Constant
from nnef_jax.formats.onnx.element_types import computed

_MOST = 4096  # items of whole numbers that stand in the graph instead of beside it
_ITEMS_PER_STEP = 4  # of a constant that stands in the graph


class NodeGraph(CountedEmission):
    """A graph in the making. `data` has the arrays by label that its variables stand for.

    The parameters of an inner graph are captured from `outer`.
    """

    def __init__(
        self, options: Options, data: dict[str, NDArray[Any]], outer: NodeGraph | None = None
    ) -> None:
        super().__init__(options, computed("int64", options.real))
        self.data = data
        self.outer = outer
        self.tensors: dict[Constant, Value] = {}
        self.captured: dict[Value, Value] = {}  # inner to outer
        self._entered: dict[Value, Value] = {}  # outer to inner
        self._labels: dict[str, int] = {}  # how many variables have a label made of one
        self.places: dict[Value, Value] = {}  # of items that are not 0
        if outer is not None:
            self.is_body = True
            self.symbolic = None  # the extents of its inputs are known

    def inner(self) -> NodeGraph:
        """Return an empty graph in this one."""
        return NodeGraph(self.options, self.data, self)

    def entered(self, value: Value) -> Value:
        """Return what a tensor of the graph around this one is in here. Raises InvalidOperation."""
        if self.outer is not None and value in self.outer.counts:
            raise InvalidOperation(
                f"how many items '{value.name}' has depends on values: a graph in a node cannot "
                "take it",
                "cut the network before it",
            )
        inner = self._entered.get(value)
        if inner is None:
            inner = self.builder.input(self.builder.unreserved(value.name), value.type)
            self._entered[value] = inner
            self.captured[inner] = value
        return inner

    def tensor(self, constant: Constant, name: str, span: Span) -> Value:
        """Return a known tensor as one of the graph: an initialiser as a variable."""
        known = self.tensors.get(constant)
        if known is None:
            known = self.tensors[constant] = self._tensor(constant, name, span)
        return known

    def _tensor(self, constant: Constant, name: str, span: Span) -> Value:
        array = constant.array
        dtype = computed(constant.dtype, self.options.real)
        type = TensorType(array.shape, dtype)
        is_index = constant.dtype in ("int32", "int64", "bool")
        if not constant.label or (is_index and array.size <= _MOST):
            self.meter.spend(array.size // _ITEMS_PER_STEP, f"'{name}'", span)
            items = tuple(narrowed(array, dtype).ravel().tolist())
            attributes = {"shape": type.shape, "value": items, "dtype": dtype}
            wanted = [self.builder.unreserved(name)]
            return self.add("constant", {}, attributes, wanted, span, inserted=True)[0]
        if self.outer is not None:
            return self.entered(self.outer.tensor(constant, name, span))
        wanted = name if self.builder.is_taken(name) else self.builder.unreserved(name)
        label = constant.label  # graphs in nodes may have the same names
        while self.builder.variable_of(label) and self.data[label] is not array:
            self._labels[constant.label] = self._labels.get(constant.label, 0) + 1
            label = f"{constant.label}_{self._labels[constant.label]}"
        self.data[label] = array
        return self.builder.variable(wanted, label, type, span)


def narrowed(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return an array in a dtype: whole numbers beyond its range at its ends."""
    if array.dtype == object and any(map(is_symbolic, array.ravel())):
        return array
    wanted = np.dtype(dtype)
    if array.dtype.kind in "iuO" and wanted.kind in "iu":
        ends = np.iinfo(wanted)
        return np.clip(array, ends.min, ends.max).astype(wanted)
    return array.astype(wanted)
