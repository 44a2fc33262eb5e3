"""The graph that layers are added to, with its weights; a layer in a body has one of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.graph import Attribute, TensorType, Value
from lowering.location import Span
from nnef_jax.errors import NnefError, SemanticError, ShapeError
from nnef_jax.flattening.counted import CountedEmission
from nnef_jax.formats.base import Options
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.element_types import NF4, computed, stored
from nnef_jax.formats.openvino.state_variables import Variable

_MOST = 4096  # items of integers that stand in the graph instead of beside it
_ITEMS_PER_STEP = 4  # of a constant that stands in the graph


class LayerGraph(CountedEmission):
    """A graph in the making. `data` has the weights by label that its variables stand for.

    A body's weights are captured from `outer`.
    """

    def __init__(
        self, options: Options, data: dict[str, NDArray[Any]], outer: LayerGraph | None = None
    ) -> None:
        super().__init__(options, computed("i64", options.real))
        self.data = data
        self.outer = outer
        if outer is not None:
            self.is_body = True
            self.symbolic = None  # the extents of a body's inputs are known
        self.tensors: dict[Constant, Value] = {}
        self.variables: Mapping[str, Variable] = {}
        self.captured: dict[Value, Value] = {}  # inner to outer

    def body(self) -> LayerGraph:
        """Return an empty graph for a body."""
        return LayerGraph(self.options, self.data, self)

    def tensor(self, constant: Constant, name: str, span: Span) -> Value:
        """Return a known tensor as one of the graph: weights as a variable."""
        known = self.tensors.get(constant)
        if known is None:
            known = self.tensors[constant] = self._tensor(constant, name, span)
        return known

    def _tensor(self, constant: Constant, name: str, span: Span) -> Value:
        array = constant.array
        dtype = computed(constant.type, self.options.real)
        type = TensorType(array.shape, dtype)
        is_index = constant.type in ("i32", "i64", "u32", "u64", "boolean")
        if not constant.label or (is_index and array.size <= _MOST):
            is_symbolic = array.dtype == object
            self.options.meter.spend(array.size // _ITEMS_PER_STEP, f"'{name}'", span)
            found = array if is_symbolic else narrowed(array, type.dtype)
            items: Any = tuple(found.ravel().tolist())
            attributes = {"shape": type.shape, "value": items, "dtype": type.dtype}
            wanted = [self.builder.unreserved(name)]
            return self.add("constant", {}, attributes, wanted, span, inserted=True)[0]
        if self.outer is not None:
            value = self.outer.tensor(constant, name, span)
            inner = self.builder.input(self.builder.unreserved(value.name), value.type)
            self.captured[inner] = value
            return inner
        wanted = name if self.builder.is_taken(name) else self.builder.unreserved(name)
        self.data[constant.label] = array
        type = TensorType(array.shape, stored(constant.type, self.options.real))
        value = self.builder.variable(wanted, constant.label, type, span)
        if constant.type == "nf4":
            return self._looked_up(value, wanted, span)
        if type.dtype == dtype:
            return value
        names = [self.builder.unreserved(f"{wanted}.{dtype}")]
        return self.add("cast", {"input": value}, {"dtype": dtype}, names, span, inserted=True)[0]

    def _looked_up(self, codes: Value, name: str, span: Span) -> Value:
        """Return the numbers that codes of 4 bits stand for."""

        def add(kind: str, operands: Mapping[str, Any], **attributes: Attribute) -> Value:
            names = [self.builder.unreserved(f"{name}.{kind}")]
            return self.add(kind, operands, attributes, names, span, inserted=True)[0]

        real = self.options.real
        table = add("constant", {}, shape=(len(NF4),), value=NF4, dtype=real)
        indices = add("cast", {"input": codes}, dtype="int32")
        return add("gather", {"input": table, "indices": indices}, axis=0)


def narrowed(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return whole numbers in a dtype, those beyond its range at its ends."""
    if np.issubdtype(array.dtype, np.integer) and np.issubdtype(np.dtype(dtype), np.integer):
        ends = np.iinfo(dtype)
        return np.clip(array, ends.min, ends.max).astype(dtype)
    return array.astype(dtype)


def located(error: InvalidOperation, what: str, span: Span) -> NnefError:
    """Return the error of a layer that does not take what it is given."""
    family = ShapeError if isinstance(error, InvalidShape) else SemanticError
    return family(f"{what}: {error.message}", span=span, hint=error.hint)
