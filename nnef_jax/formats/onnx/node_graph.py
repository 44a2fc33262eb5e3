"""The graph that nodes are added to, with its parameters; a graph in a node has one of its own."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from lowering.graph import TensorType, Value
from lowering.location import Span
from nnef_jax.flattening.emission import computed
from nnef_jax.flattening.tensor_graph import Constant, TensorGraph
from nnef_jax.formats.base import Options


class NodeGraph(TensorGraph):
    """A graph in the making, of nodes."""

    def __init__(
        self, options: Options, data: dict[str, NDArray[Any]], outer: TensorGraph | None = None
    ) -> None:
        super().__init__(options, data, outer)
        self._labels: dict[str, int] = {}  # how many variables have a label made of one
        self.places: dict[Value, Value] = {}  # of items that are not 0

    @staticmethod
    def computed_in(options: Options, type: str) -> str:
        """Return the dtype that tensors of a dtype of the file are computed in."""
        return computed(type, options.real)

    def is_literal(self, constant: Constant) -> bool:
        """Tell whether the only item of a known tensor may stand in operations as a number."""
        return not constant.label and super().is_literal(constant)

    def variable(self, constant: Constant, name: str, span: Span) -> Value:
        """Add an initialiser as a variable."""
        array, label = constant.array, constant.label  # graphs in nodes may have the same names
        while self.builder.variable_of(label) and self.data[label] is not array:
            self._labels[constant.label] = self._labels.get(constant.label, 0) + 1
            label = f"{constant.label}_{self._labels[constant.label]}"
        self.data[label] = array
        type = TensorType(array.shape, self.computed(constant.type))
        return self.builder.variable(name, label, type, span)
