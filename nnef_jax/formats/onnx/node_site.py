"""The site of a node: operands and attributes, the graph that operations are added to, shorthands.

A graph in a node is flattened into a graph of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowering import rounding
from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, is_symbolic
from lowering.graph import TensorType, Value, is_float
from lowering.location import Span
from nnef_jax.flattening.emission import ByName, computed
from nnef_jax.flattening.hostvalues import NotFolded
from nnef_jax.flattening.operators.site import ON_ITEMS
from nnef_jax.flattening.site import Operand, Operands, Site, Tensor, decides
from nnef_jax.flattening.tensor_graph import Constant, TensorGraph
from nnef_jax.formats.base import Options
from nnef_jax.formats.onnx.document import ModelGraph, Node
from nnef_jax.formats.onnx.tensor_types import dtype_of

# A cast of at most so many real numbers is folded. Converters store the scales of a resize, one for
# each axis, in 16 bits, and cast them.
_SCALES = 8

# Descriptions of attributes in errors, by Python's type.
_NUMBER = (int, float)
_DUE: Mapping[type | tuple[type, ...], str] = {
    int: "a whole number", _NUMBER: "a number", str: "a text", tuple: "a list",
    Constant: "a tensor", ModelGraph: "a graph",
}  # fmt: skip


class NodeGraph(TensorGraph):
    """A graph under construction from nodes."""

    def __init__(
        self, options: Options, data: dict[str, NDArray[Any]], outer: TensorGraph | None = None
    ) -> None:
        super().__init__(options, data, outer)
        # By label: the number of further variables that are stored under it.
        self._copies: dict[str, int] = {}
        self.nonzero_indices: dict[Value, Value] = {}  # indices of nonzero items by tensor

    @staticmethod
    def computed_in(options: Options, type: str) -> str:
        """Return the dtype in which tensors with a dtype of the file are computed."""
        return computed(type, options.real)

    def is_literal(self, constant: Constant) -> bool:
        """Tell whether the only item of a known tensor may become a literal of operations."""
        return not constant.label and super().is_literal(constant)

    def variable(self, constant: Constant, name: str, span: Span) -> Value:
        """Add an initialiser as a variable."""
        array, label = constant.array, constant.label
        # Initialisers of graphs in nodes may have equal names.
        while self.builder.variable_of(label) and self.data[label] is not array:
            self._copies[constant.label] = self._copies.get(constant.label, 0) + 1
            label = f"{constant.label}_{self._copies[constant.label]}"
        self.data[label] = array
        type = TensorType(array.shape, self.computed(constant.type))
        return self.builder.variable(name, label, type, span)


@dataclass(slots=True, eq=False)
class NodeSite(Site[NodeGraph]):
    """A node that is flattened into a graph.

    Args:
        node: the node.
        version: the version of the operator set.
        graph: the graph that operations are added to.
        operands: for each input a tensor, a list of tensors for a sequence, or None if it is left
            out.
        within: a function of a graph in the node, the graph to add to, and inputs by name. It
            flattens the graph in the node and returns its outputs.
        prefix: the beginning of tensors' names in a graph of a node.
    """

    node: Node
    version: int
    graph: NodeGraph
    operands: Sequence[Any]
    within: Callable[..., Any]
    prefix: str = ""

    # Operands

    @property
    def operator(self) -> str:
        """Return the name of the operator."""
        return self.node.operator

    def is_read(self, i: int) -> bool:
        """Tell whether output `i` has a name."""
        return i < len(self.node.outputs) and bool(self.node.outputs[i])

    def operand(self, i: int) -> Any:
        """Return input `i`. Raises InvalidOperation if it is left out, or a sequence."""
        if not self.has(i):
            raise InvalidOperation(f"input {i} is missing")
        if isinstance(self.operands[i], list):
            raise InvalidOperation(f"input {i} must be a tensor, it is a sequence")
        return self.operands[i]

    def integer(self, i: int, default: int | None = None) -> int:
        """Return the only item of a known input of integers, or a default if it is left out."""
        if default is not None and not self.has(i):
            return default
        items = self.integers(i)
        if len(items) != 1:
            raise InvalidOperation(f"input {i} must be one number, it has {len(items)}")
        return items[0]

    def extent(self, x: int | Tensor, axis: int) -> int:
        """Return an extent of `x`, an operand or an input's index.

        Raises ExtentNeeded if the extent is open.
        """
        extent = self.shape(x)[axis]
        return self.known_shape(x)[axis] if extent is UNKNOWN else extent

    def axes(self, name: str, i: int) -> tuple[int, ...] | None:
        """Return the axes in input `i`, else in the attribute of old versions, else None."""
        if self.has(i):
            axes: Sequence[int] = self.integers(i)
        elif name in self.node.attributes:
            axes = self.ints(name)
        else:
            return None
        return tuple(self.axis(a) for a in axes)

    def computed(self, dtype: str) -> str:
        """Return the dtype in which tensors with a dtype of the file are computed."""
        return self.graph.computed(dtype)

    # Attributes

    def has_attribute(self, name: str) -> bool:
        """Tell whether the node has an attribute."""
        return name in self.node.attributes

    def attribute(self, name: str, kind: type | tuple[type, ...], default: Any) -> Any:
        """Return an attribute of one of Python's types.

        Raises InvalidOperation for another type, and if there is neither a value nor a default.
        """
        value = self.node.attributes.get(name, default)
        if value is None:
            raise InvalidOperation(f"attribute '{name}' is missing")
        if not isinstance(value, kind):
            raise self.wrong(name, _DUE[kind], value)
        return value

    def int(self, name: str, default: int | None = None) -> int:
        """Return an attribute that is an integer."""
        return self.attribute(name, int, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an attribute that is 0 or 1."""
        return bool(self.attribute(name, int, int(default)))

    def number(self, name: str, default: float | None = None) -> float:
        """Return an attribute that is a number."""
        return float(self.attribute(name, _NUMBER, default))

    def ints(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return an attribute that is a list of integers."""
        return self._items(name, int, "a list of whole numbers", default)

    def numbers(self, name: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        """Return an attribute that is a list of numbers."""
        return self._items(name, _NUMBER, "a list of numbers", default)

    def _items(
        self, name: str, kind: type | tuple[type, ...], due: str, default: Sequence[float] | None
    ) -> tuple[Any, ...]:
        default_items = None if default is None else tuple(default)
        items = self.attribute(name, tuple, default_items)
        if not all(isinstance(x, kind) for x in items):
            raise self.wrong(name, due, items)
        return items

    def spatial(self, name: str, rank: int, default: int | None = 1) -> tuple[int, ...]:
        """Return an attribute that is a list of `rank` integers, by default all `default`."""
        default_items = None if default is None else (default,) * rank
        items = self.ints(name, default_items)
        if len(items) != rank:
            raise InvalidOperation(f"'{name}' must have {rank} items, it has {len(items)}")
        return items

    def text(self, name: str, default: str | None = None) -> str:
        """Return an attribute that is a string."""
        return self.attribute(name, str, default)

    def dtype(self, name: str, default: int | None = None) -> str:
        """Return an attribute that is an element type, as a dtype of the file."""
        return dtype_of(self.int(name, default))

    def subgraph(self, name: str) -> ModelGraph:
        """Return an attribute that is a graph."""
        return self.attribute(name, ModelGraph, None)

    # Places and names

    @property
    def span(self) -> Span:
        """Return the place of the node in the listing."""
        return self.node.span

    @property
    def title(self) -> str:
        """Return the name of the node in errors."""
        return self.node.title

    def input_title(self, i: int) -> str:
        """Return the name of an input in errors."""
        return f"input {i} '{self.node.inputs[i]}'"

    @property
    def name(self) -> str:
        """Return the name of the first output."""
        first = next(filter(None, self.node.outputs), self.node.name or self.node.operator)
        return self.prefix + first

    # Operations

    def _emit(self, kind: str, operands: ByName, attributes: ByName, inserted: bool) -> Any:
        """Add an operation, or fold it if its operands are known and may decide shapes.

        Operands of elementwise kinds broadcast as in numpy. Numbers take the dtype of the tensors.
        """
        if kind in ON_ITEMS or "y" in operands:
            tensors = [x for x in operands.values() if isinstance(x, Tensor)]
            typed = list(operands.values())
            if tensors:
                typed = [self.item(x, tensors[-1]) for x in typed]
            operands = dict(zip(operands, self.aligned(*typed), strict=True))
        if self.decides(kind, operands.values()):
            with suppress(NotFolded):
                return self.folded(kind, operands.values(), attributes)
        # A dataclass with slots is a new class, for which `super()` without arguments fails.
        return Site._emit(self, kind, operands, attributes, inserted)

    def decides(self, kind: str, operands: Operands) -> bool:
        """Tell whether an operation of a kind is folded."""
        reals = _SCALES if kind == "cast" else 1
        return decides(operands, reals)

    # Shorthands

    def cast(self, x: Tensor, dtype: str) -> Any:
        """Return a tensor in a dtype, which may be wider than the network's computations are."""
        if isinstance(x, Constant) and is_float(dtype) and self.computed(dtype) != dtype:
            x = self.tensor(x)  # a constant would be narrowed again
        return Site.cast(self, x, dtype)

    def constant(self, items: ArrayLike, dtype: str) -> Constant:
        """Return a known tensor, with items clipped to the range of its dtype."""
        return Constant(rounding.saturated(items, dtype), dtype, derived=True)

    def numbers_of(self, items: Sequence[int], dtype: str = "int64") -> Constant:
        """Return integers, of which some may be symbolic, as a known tensor."""
        kind = object if any(map(is_symbolic, items)) else np.dtype(dtype)
        return Constant(np.array(items, kind), dtype, derived=True)

    def as_integer(self, x: int | Tensor) -> Any:
        """Return `x`, an operand or an input's index, in the dtype in which int64 is computed."""
        return self.cast(self._operand(x), self.graph.builder.integer)

    def wide(self, x: Tensor) -> Any:
        """Return a tensor in float32 if it has 16 bits, else unchanged."""
        return self.cast(x, "float32") if self.dtype_of(x) in rounding.HALVES else x

    def filled(self, number: float, dtype: str, shape: Sequence[int]) -> Any:
        """Return a tensor with the same number in all items."""
        one = self.constant(np.full((1,) * len(shape), number), dtype)
        return self.step.broadcast(one, shape=tuple(shape)) if shape else one

    def unsqueezed(self, x: Tensor, axes: Sequence[int]) -> Any:
        """Return a tensor with new axes of extent 1."""
        return self.step.unsqueeze(x, axes=tuple(axes)) if axes else x

    def squeezed(self, x: Tensor, *axes: int) -> Any:
        """Return a tensor without axes of extent 1."""
        return self.step.squeeze(x, axes=axes) if axes else x

    def total(self, x: Tensor, axes: Sequence[int]) -> Any:
        """Return the sum along axes. Its extents along these axes are 1."""
        return self.step.sum_reduce(x, axes=tuple(axes), normalize=False)

    def product(self, a: Tensor, b: Tensor, *, flips: bool = False) -> Any:
        """Return the matrix product a b, or a b^T if it `flips` b."""
        return self.step.matmul(a, b, transposeA=False, transposeB=flips)

    def aligned(self, *operands: Operand) -> list[Any]:
        """Return operands of one rank, as numpy broadcasts. Scalar initialisers get axes too."""
        rank = max((self.rank(x) for x in operands if isinstance(x, Tensor)), default=0)

        def with_axes(x: Operand) -> Any:
            if isinstance(x, Constant) and x.label and not x.array.shape:
                return self.unsqueezed(x, range(rank))
            return x

        return Site.aligned(self, *map(with_axes, operands))

    def item(self, x: Operand, like: Tensor) -> Any:
        """Return a number as an operand with the dtype of a tensor, if possible as a literal.

        Tensors and symbolic extents are returned unchanged.
        """
        dtype = self.dtype_of(like)
        if isinstance(x, Tensor) or is_symbolic(x):
            return x
        if dtype == self.graph.builder.real:
            return float(x)
        if dtype == self.graph.builder.integer and int(x) == x:
            return int(x)
        number = self.constant(x, dtype)
        if self.dtype_of(number) == dtype:
            return number
        # `constant` has dtypes of the file, and none of these is computed in `dtype`: a float32
        # tensor after `load(dtype="bfloat16")`.
        return self.insert("constant", {}, shape=(), value=(x,), dtype=dtype)

    def is_real(self, x: int | Tensor = 0) -> bool:
        """Tell whether a tensor holds real numbers."""
        return is_float(self.dtype_of(x))

    def volume(self, shape: Sequence[int]) -> int:
        """Return the number of items in a shape, UNKNOWN if an extent is UNKNOWN."""
        return UNKNOWN if UNKNOWN in shape else math.prod(shape)
