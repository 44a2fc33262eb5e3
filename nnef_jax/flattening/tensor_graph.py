"""Tensors known when a network is flattened, and a graph that takes them: weights, shapes, indices.

It is for formats whose networks are layers or nodes on tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from lowering import rounding
from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import MAX_RANK, UNKNOWN, is_symbolic, show
from lowering.graph import TensorType, Value
from lowering.location import Span
from nnef_jax.flattening.padded_axes import CountedEmission
from nnef_jax.formats.base import Options

_MOST = 4096  # items of whole numbers that stand in the graph instead of beside it
_ITEMS_PER_STEP = 4  # of a constant that stands in the graph
_INDICES = frozenset({"int32", "int64", "uint32", "uint64", "bool"})


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A known tensor of an element type: `label` is that of the weights that it is, "" if none.

    One that is `derived` follows from shapes, or is an operation's result on known tensors. Items
    are objects where extents among them are symbolic.
    """

    array: NDArray[Any]
    type: str  # as the format calls it
    label: str = ""
    derived: bool = False


class TensorGraph(CountedEmission, ABC):
    """A graph in the making. `data` has the weights by label that its variables stand for.

    What a body reads of `outer` is captured as inputs of it.
    """

    # What the format calls truth values, whole numbers of 64 bits and real ones of 32.
    TYPES: ClassVar[Mapping[str, str]] = {"b": "bool", "i": "int64", "f": "float32"}

    def __init__(
        self, options: Options, data: dict[str, NDArray[Any]], outer: TensorGraph | None = None
    ) -> None:
        super().__init__(options, self.computed_in(options, self.TYPES["i"]))
        self.data = data
        self.outer = outer
        self.tensors: dict[Constant, Value] = {}
        self.captured: dict[Value, Value] = {}  # inner to outer
        self._entered: dict[Value, Value] = {}  # outer to inner
        if outer is not None:
            self.is_body = True
            self.symbolic = None  # the extents of a body's inputs are known

    @staticmethod
    @abstractmethod
    def computed_in(options: Options, type: str) -> str:
        """Return the dtype that tensors of an element type are computed in."""

    @abstractmethod
    def variable(self, constant: Constant, name: str, span: Span) -> Value:
        """Add weights as a variable, with their data; return them as they are computed in."""

    def held(self, type: str) -> np.dtype[Any]:
        """Return the dtype that known tensors of an element type are computed in here."""
        return np.dtype(type)

    def element(self, dtype: str) -> str:
        """Return the element type that a dtype is."""
        return dtype

    def computed(self, type: str) -> str:
        """Return the dtype that tensors of an element type are computed in."""
        return self.computed_in(self.options, type)

    def is_literal(self, constant: Constant) -> bool:
        """Tell whether the only item of a known tensor may stand in operations as a number."""
        return self.computed(constant.type) in (self.builder.real, self.builder.integer, "bool")

    def body(self) -> Self:
        """Return an empty graph for a body."""
        return type(self)(self.options, self.data, self)

    def input(
        self, name: str, declared: Sequence[Any] | None, type: str, dtype: str, span: Span
    ) -> Value | Constant:
        """Add an input of the network of a declared shape, None if its rank is open.

        One whose value is fixed is known, in a dtype. Raises InvalidOperation, NnefError.
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
        if any(n is not UNKNOWN and n < 0 for n in shape):
            raise InvalidShape(f"its shape {show(shape)} has a negative extent")
        value = self.builder.input(name, TensorType(shape, self.computed(type)))
        self.require_bounds(value, span)
        if self.symbolic is not None:
            self.symbolic.declare(value, options.symbolic_shapes.get(name, shape))
        return value

    def fixing(self, *values: Value) -> str:
        """Return the hint that fixes tensors; those of a body follow from tensors around it."""
        if self.outer is None:
            return super().fixing(*values)
        behind = self.origins(values)
        if not behind <= self.captured.keys():
            return ""
        return self.outer.fixing(*(self.captured[x] for x in behind))

    def entered(self, value: Value, name: str = "") -> Value:
        """Return a tensor of the outer graph as an input of this one.

        One that is handed in has a name; any other raises InvalidOperation where it is padded.
        """
        if not name and self.outer is not None and value in self.outer.counts:
            raise InvalidOperation(
                f"how many items '{value.name}' has depends on values: a graph in a node cannot "
                "take it",
                "cut the network before it",
            )
        inner = self._entered.get(value)
        if inner is None:
            inner = self.builder.input(self.builder.unreserved(name or value.name), value.type)
            self._entered[value] = inner
            self.captured[inner] = value
        return inner

    def tensor(self, constant: Constant, name: str, span: Span) -> Value:
        """Return a known tensor as one of the graph: weights as a variable."""
        known = self.tensors.get(constant)
        if known is None:
            known = self.tensors[constant] = self._tensor(constant, name, span)
        return known

    def _tensor(self, constant: Constant, name: str, span: Span) -> Value:
        array = constant.array
        type = TensorType(array.shape, self.computed(constant.type))
        labels = self.options.labels
        is_parameter = constant.label and (labels is None or constant.label in labels)
        if not is_parameter or (type.dtype in _INDICES and array.size <= _MOST):
            self.meter.spend(array.size // _ITEMS_PER_STEP, f"'{name}'", span)
            items = tuple(narrowed(array, type.dtype).ravel().tolist())
            attributes = {"shape": type.shape, "value": items, "dtype": type.dtype}
            wanted = [self.builder.unreserved(name)]
            return self.add("constant", {}, attributes, wanted, span, inserted=True)[0]
        if self.outer is not None:
            return self.entered(self.outer.tensor(constant, name, span))
        wanted = name if self.builder.is_taken(name) else self.builder.unreserved(name)
        return self.variable(constant, wanted, span)


def narrowed(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return an array in a dtype: finite numbers beyond its range at its ends."""
    if array.dtype == object and any(map(is_symbolic, array.ravel())):
        return array
    wanted = np.dtype(dtype)
    if array.dtype.kind in "iuO" and wanted.kind in "iu":
        ends = np.iinfo(wanted)
        return np.clip(array, ends.min, ends.max).astype(wanted)
    return rounding.saturated(array, wanted)
