"""The graph that layers are added to, with its weights; a layer in a body has one of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.builder import GraphBuilder
from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, volume
from lowering.graph import Attribute, TensorType, Value
from lowering.location import Span
from nnef_jax.errors import LimitError, NnefError, SemanticError, ShapeError
from nnef_jax.formats.base import Options
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.element_types import NF4, computed, stored
from nnef_jax.formats.openvino.symbolic import SymbolicShapes
from nnef_jax.formats.openvino.variables import Variable
from nnef_jax.limits import EXTENT, OPERATION, raising

_MOST = 4096  # items of integers that stand in the graph instead of beside it
_ITEMS_PER_STEP = 4  # of a constant that stands in the graph


@dataclass(frozen=True, slots=True, eq=False)
class Count:
    """How many items along an axis there are, a tensor [1]; what is behind them is padding.

    It is `marked` where the layer itself makes padding that can be told from items.
    """

    axis: int
    items: Value
    marked: bool = False


@dataclass(slots=True, eq=False)
class FlatGraph:
    """A graph in the making. `data` has the weights by label that its variables stand for."""

    options: Options
    data: dict[str, NDArray[Any]]
    builder: GraphBuilder
    tensors: dict[Constant, Value] = field(default_factory=dict[Constant, Value])
    variables: Mapping[str, Variable] = field(default_factory=dict[str, Variable])
    counts: dict[Value, Count] = field(default_factory=dict[Value, Count])
    symbolic: SymbolicShapes | None = None  # where `jax.export` keeps extents open
    outer: FlatGraph | None = None  # of which this is a body
    captured: dict[Value, Value] = field(default_factory=dict[Value, Value])  # inner to outer

    @classmethod
    def of(cls, options: Options, data: dict[str, NDArray[Any]]) -> FlatGraph:
        """Return an empty graph."""
        integer = computed("i64", options.real)
        builder = GraphBuilder(real=options.real, integer=integer)
        symbolic = SymbolicShapes(builder) if options.symbolic_shapes else None
        return cls(options, data, builder, symbolic=symbolic)

    def body(self) -> FlatGraph:
        """Return an empty graph for a body: weights are captured from this one."""
        builder = GraphBuilder(real=self.builder.real, integer=self.builder.integer)
        return FlatGraph(self.options, self.data, builder, outer=self)

    def emit(
        self,
        kind: str,
        operands: Mapping[str, Any],
        attributes: Mapping[str, Attribute],
        names: Sequence[str],
        span: Span,
        *,
        inserted: bool,
    ) -> tuple[Any, ...]:
        """Add an operation; raise InvalidOperation, LimitError."""
        limits, meter = self.options.meter.limits, self.options.meter
        if len(self.builder.operations) >= limits.operations:
            raise LimitError(
                f"the graph has more than {limits.operations} operations",
                span=span,
                hint=raising("operations"),
            )
        meter.spend(OPERATION, span=span)
        results = self.builder.operation(
            kind,
            {name: tuple(x) if isinstance(x, list) else x for name, x in operands.items()},
            attributes,
            names,
            span,
            inserted=inserted,
        )
        for result in results:
            for value in result if isinstance(result, tuple) else (result,):
                meter.steps += EXTENT * len(value.type.shape)
                if volume([n for n in value.type.shape if n != UNKNOWN]) > limits.tensor_items:
                    raise LimitError(
                        f"'{value.name}' has more than {limits.tensor_items} items",
                        span=span,
                        hint=raising("tensor_items"),
                    )
        return results

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
            return self.emit("constant", {}, attributes, wanted, span, inserted=True)[0]
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
        return self.emit("cast", {"input": value}, {"dtype": dtype}, names, span, inserted=True)[0]

    def _looked_up(self, codes: Value, name: str, span: Span) -> Value:
        """Return the numbers that codes of 4 bits stand for."""

        def add(kind: str, operands: Mapping[str, Any], **attributes: Attribute) -> Value:
            names = [self.builder.unreserved(f"{name}.{kind}")]
            return self.emit(kind, operands, attributes, names, span, inserted=True)[0]

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
