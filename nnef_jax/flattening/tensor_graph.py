"""Constant tensors (weights, shapes, indices), and a graph with constant tensors as operands.

The formats that describe a network by layers or nodes on tensors use this module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from lowering import rounding
from lowering.errors import InvalidOperation, InvalidShape, UnsupportedOperation
from lowering.extents import MAX_RANK, UNKNOWN, is_symbolic, show
from lowering.graph import Call, Rule, TensorType, Value, is_integer
from lowering.location import Span
from lowering.tracing import CUT_BEFORE
from nnef_jax.flattening.emission import ByName
from nnef_jax.flattening.list_operations import list_operation
from nnef_jax.flattening.lists import ListEmission, quoted
from nnef_jax.flattening.symbolic import SymbolicShapes
from nnef_jax.formats.base import Options

# The largest number of items of integer weights that are constants; larger weights are variables.
_MOST_CONSTANT_ITEMS = 4096
_ITEMS_PER_STEP = 4  # a step of the meter stands for this number of a constant's items
_INDICES = frozenset({"int32", "int64", "uint32", "uint64", "bool"})


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A tensor whose items are known when the network is flattened, before it runs.

    Args:
        array: the items. They are Python objects if symbolic extents are among them.
        type: the element type, by its name in the format.
        label: the label of the weights, if the tensor is weights. Otherwise "".
        derived: whether the tensor is computed from shapes or from other constant tensors.
    """

    array: NDArray[Any]
    type: str
    label: str = ""
    derived: bool = False


class TensorGraph(ListEmission, ABC):
    """A graph under construction whose operands may be constant tensors.

    `data` maps labels of the graph's variables to weights. `outer` is None, or the graph around a
    body. A body reads tensors of the outer graph through inputs. `captured` maps such an input to
    the tensor of the outer graph.
    """

    # The names of bool, int64 and float32 in the format.
    TYPES: ClassVar[Mapping[str, str]] = {"b": "bool", "i": "int64", "f": "float32"}

    def __init__(
        self, options: Options, data: dict[str, NDArray[Any]], outer: TensorGraph | None = None
    ) -> None:
        super().__init__(options, self.computation_dtype_with(options, self.TYPES["i"]), outer)
        self.data = data
        self.outer = outer
        self.tensors: dict[Constant, Value] = {}
        # Maps an input of this graph to the outer tensor that it stands for.
        self.captured: dict[Value, Value] = {}
        self._input_by_outer: dict[Value, Value] = {}  # the inverse of `captured`
        if outer is not None:
            self.is_body = True
            self.symbolic: SymbolicShapes | None = None  # a body is built for known extents
            if self.has_lists:
                self.begin_symbolic()

    @staticmethod
    @abstractmethod
    def computation_dtype_with(options: Options, type: str) -> str:
        """Return the dtype in which the network computes tensors of an element type."""

    @abstractmethod
    def variable(self, constant: Constant, name: str, span: Span) -> Value:
        """Add weights to the graph as a variable; return a tensor in the dtype of computation.

        `constant` holds the weights, and `name` is the name of the variable.
        """

    def add(
        self, kind: str, operands: ByName, attributes: ByName, names: Sequence[str],
        span: Span | None, calls: tuple[Call, ...] = (), *, rule: Rule | None = None,
        inserted: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Add an operation as `Emission.add` does.

        If operands are lists, other operations may be added before and after this operation.
        """
        if self.has_lists and rule is None:
            operands_or_results = list_operation(self, kind, operands, attributes, span)
            if isinstance(operands_or_results, list):
                return tuple(operands_or_results)  # the operation was added
            operands = operands_or_results
        return super().add(
            kind, operands, attributes, names, span, calls, rule=rule, inserted=inserted
        )

    def array_dtype(self, type: str) -> np.dtype[Any]:
        """Return the dtype of the arrays that hold constant tensors of an element type."""
        return np.dtype(type)

    def element(self, dtype: str) -> str:
        """Return the name of the element type that stands for a dtype in the format."""
        return dtype

    def computation_dtype(self, type: str) -> str:
        """Return the dtype in which this graph computes tensors of an element type."""
        return self.computation_dtype_with(self.options, type)

    def is_literal(self, constant: Constant) -> bool:
        """Tell whether a constant tensor with a single item can be a literal of operations.

        The tensor must have one of the dtypes that literals have.
        """
        literal_dtypes = (self.builder.real, self.builder.integer, "bool")
        return self.computation_dtype(constant.type) in literal_dtypes

    def body(self) -> Self:
        """Return an empty graph for a body."""
        return type(self)(self.options, self.data, self)

    def input(
        self, name: str, declared: Sequence[int | str | None] | None, type: str, dtype: str,
        span: Span,
    ) -> Value | Constant:  # fmt: skip
        """Add an input of the network to the graph and return its tensor.

        If the user fixes the input's value, the tensor is constant.

        Args:
            name: the input's name.
            declared: the declared shape, or None if the rank is open.
            type: the input's element type.
            dtype: the dtype of a value that the user fixes.
            span: the input's place in the source.

        Raises InvalidOperation if the shape is not valid or the fixed value does not fit the
        declared shape, and NnefError if the input exceeds a limit.
        """
        options = self.options
        if name in options.values:
            return Constant(options.value(name, declared, dtype), type, derived=True)
        if declared is None and name not in options.input_shapes:
            hint = f"give it: load(..., input_shapes={{{name!r}: (None, None)}}), None is open"
            raise InvalidOperation("its rank is open", hint)
        shape = options.shape(name, declared or ())
        if len(shape) > MAX_RANK:
            raise InvalidOperation(f"it has {len(shape)} axes, arrays have at most {MAX_RANK}")
        if any(extent is not UNKNOWN and extent < 0 for extent in shape):
            raise InvalidShape(f"its shape {show(shape)} has a negative extent")
        value = self.builder.input(name, TensorType(shape, self.computation_dtype(type)))
        self.require_bounds(value, span)
        if self.symbolic is not None:
            self.symbolic.declare(value, options.symbolic_shapes.get(name, shape))
        return value

    def hint_to_fix(self, *values: Value) -> str:
        """Return a hint that tells which input of the network to fix, to make `values` constant.

        In a body, return "" unless `values` are computed only from tensors of the outer graph.
        """
        if self.outer is None:
            return super().hint_to_fix(*values)
        origins = self.origins(values)
        if not origins <= self.captured.keys():
            return ""
        outer_values = [self.captured[x] for x in origins]
        return self.outer.hint_to_fix(*outer_values)

    def input_for(self, value: Value, name: str = "") -> Value:
        """Return the input that this body has for a tensor of the outer graph.

        `name` is the name of the input if it is new, by default the name of the tensor.
        """
        inner = self._input_by_outer.get(value)
        if inner is None:
            inner = self.builder.input(self.builder.unreserved(name or value.name), value.type)
            self._input_by_outer[value] = inner
            self.captured[inner] = value
            self.declare(inner, value)
            if self.outer is not None and is_integer(value.type.dtype):
                bounds = self.outer.bounds
                self.bounds.declare(inner, bounds.most(value), bounds.is_count(value))
        return inner

    def refusal_of_operator(self, operands: Mapping[str, object]) -> UnsupportedOperation | None:
        """Return the error for an operator that needs to know a number of items before a run.

        `operands` maps names in the document to operands. Return None if no operand depends on a
        number of items.
        """
        reason = "the operator needs this number before the network runs"
        for name, x in operands.items():
            if isinstance(x, Value) and self.is_list(x):
                return self.refusal(x, reason)
            if isinstance(x, Constant) and x.array.dtype == object:
                counts = self.count_names(tuple(x.array.ravel()))
                if counts:
                    message = (
                        f"'{name}' depends on the number of items that {quoted(counts)} tells: "
                        f"{reason}"
                    )
                    return UnsupportedOperation(message, CUT_BEFORE)
        for name, x in operands.items():
            if self.has_lists and isinstance(x, Value) and is_integer(x.type.dtype):
                message = f"'{name}' depends on values, and more must be known of it before a run"
                return UnsupportedOperation(message, CUT_BEFORE)
        return None

    def declare(self, inner: Value, value: Value) -> None:
        """Give the input `inner` of this graph the symbolic extents of `value`.

        `value` is a tensor of the outer graph. If `value` has no symbolic extents, do nothing.
        """
        if self.outer is not None and self.outer.is_list(value):
            self.begin_symbolic().declare(inner, self.outer.shape_of(value))

    def tensor(self, constant: Constant, name: str, span: Span) -> Value:
        """Return a constant tensor as a tensor of the graph. Weights become a variable."""
        value = self.tensors.get(constant)
        if value is None:
            value = self._new_tensor(constant, name, span)
            self.tensors[constant] = value
        return value

    def _new_tensor(self, constant: Constant, name: str, span: Span) -> Value:
        """Add a constant tensor to the graph, as an operation `constant` or as a variable."""
        array = constant.array
        dtype = self.computation_dtype(constant.type)
        labels = self.options.labels  # None stands for all labels
        is_weight = constant.label != "" and (labels is None or constant.label in labels)
        is_short_index = dtype in _INDICES and array.size <= _MOST_CONSTANT_ITEMS
        if is_short_index or not is_weight:
            self.meter.spend(array.size // _ITEMS_PER_STEP, f"'{name}'", span)
            items = tuple(narrowed(array, dtype).ravel().tolist())
            attributes = {"shape": array.shape, "value": items, "dtype": dtype}
            names = [self.builder.unreserved(name)]
            results = self.add("constant", {}, attributes, names, span, inserted=True)
            return results[0]
        if self.outer is not None:  # a body has no variables
            outer_tensor = self.outer.tensor(constant, name, span)
            return self.input_for(outer_tensor)
        if not self.builder.is_taken(name):  # the builder adds a suffix to a name that is taken
            name = self.builder.unreserved(name)
        return self.variable(constant, name, span)


def narrowed(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Convert an array to a dtype. Finite numbers are clipped to the range of the dtype.

    An array with symbolic extents is returned unchanged.
    """
    has_symbols = array.dtype == object and any(map(is_symbolic, array.ravel()))
    if has_symbols:
        return array
    narrow_dtype = np.dtype(dtype)
    has_integers = array.dtype.kind in "iuO"  # signed, unsigned or Python's integers
    if has_integers and narrow_dtype.kind in "iu":
        limits = np.iinfo(narrow_dtype)
        return np.clip(array, limits.min, limits.max).astype(narrow_dtype)
    return rounding.saturated(array, narrow_dtype)
