"""Holds a node while it is flattened: what it reads, its attributes, and the graph it is added to.

A graph in a node has a graph of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering import rounding
from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, is_symbolic
from lowering.graph import TensorType, Value, is_float
from lowering.location import Span
from nnef_jax.flattening.emission import ByName, computed
from nnef_jax.flattening.hostvalues import NotFolded
from nnef_jax.flattening.operators.site import ON_ITEMS
from nnef_jax.flattening.site import Site, Tensor, decides
from nnef_jax.flattening.tensor_graph import Constant, TensorGraph
from nnef_jax.formats.base import Options
from nnef_jax.formats.onnx.document import ModelGraph, Node
from nnef_jax.formats.onnx.tensor_types import dtype_of

_SCALES = 8  # real numbers, a scale an axis, which converters store in 16 bits and cast


# What attributes are, by their types here.
_NUMBER = (int, float)
_DUE: Mapping[type | tuple[type, ...], str] = {
    int: "a whole number", _NUMBER: "a number", str: "a text", tuple: "a list",
    Constant: "a tensor", ModelGraph: "a graph",
}  # fmt: skip


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


@dataclass(slots=True, eq=False)
class NodeSite(Site[NodeGraph]):
    """A node that is flattened into a graph. `operands` are by input, None if left out.

    An operand is a tensor, known or not, or a list of these for a sequence.
    """

    node: Node
    version: int  # of the operator set
    graph: NodeGraph
    operands: Sequence[Any]
    within: Callable[..., Any]  # flattens a graph in an attribute
    prefix: str = ""  # of names, in a graph of a node

    # What it reads

    @property
    def operator(self) -> str:
        """Return the name of the operator."""
        return self.node.operator

    def is_read(self, i: int) -> bool:
        """Tell whether an output has a name."""
        return i < len(self.node.outputs) and bool(self.node.outputs[i])

    def operand(self, i: int) -> Any:
        """Return a tensor that is an input, known or not; `operands` may have sequences."""
        if not self.has(i):
            raise InvalidOperation(f"input {i} is missing")
        if isinstance(self.operands[i], list):
            raise InvalidOperation(f"input {i} must be a tensor, it is a sequence")
        return self.operands[i]

    def integer(self, i: int, default: int | None = None) -> int:
        """Return the one whole number that a known input has."""
        if default is not None and not self.has(i):
            return default
        found = self.integers(i)
        if len(found) != 1:
            raise InvalidOperation(f"input {i} must be one number, it has {len(found)}")
        return found[0]

    def extent(self, x: int | Tensor, axis: int) -> int:
        """Return an extent of an input; raise ExtentNeeded where it is open."""
        found = self.shape(x)[axis]
        return self.known_shape(x)[axis] if found is UNKNOWN else found

    def axes(self, name: str, i: int) -> tuple[int, ...] | None:
        """Return axes that are an attribute, and input `i` since some version; None if neither."""
        if self.has(i):
            found: Sequence[int] = self.integers(i)
        elif name in self.node.attributes:
            found = self.ints(name)
        else:
            return None
        return tuple(self.axis(a) for a in found)

    def computed(self, dtype: str) -> str:
        """Return the dtype that tensors of a dtype of the file are computed in."""
        return self.graph.computed(dtype)

    # Attributes

    def has_attribute(self, name: str) -> bool:
        """Tell whether the node has an attribute."""
        return name in self.node.attributes

    def attribute(self, name: str, kind: type | tuple[type, ...], default: Any) -> Any:
        """Return an attribute of a type; raise InvalidOperation for another, or for none."""
        found = self.node.attributes.get(name, default)
        if found is None:
            raise InvalidOperation(f"attribute '{name}' is missing")
        if not isinstance(found, kind):
            raise self.wrong(name, _DUE[kind], found)
        return found

    def int(self, name: str, default: int | None = None) -> int:
        """Return an attribute that is a whole number."""
        return self.attribute(name, int, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an attribute that is 0 or 1."""
        return bool(self.attribute(name, int, int(default)))

    def number(self, name: str, default: float | None = None) -> float:
        """Return an attribute that is a number."""
        return float(self.attribute(name, _NUMBER, default))

    def ints(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return an attribute that is a list of whole numbers."""
        return self._items(name, int, "a list of whole numbers", default)

    def numbers(self, name: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        """Return an attribute that is a list of numbers."""
        return self._items(name, _NUMBER, "a list of numbers", default)

    def _items(
        self, name: str, kind: Any, due: str, default: Sequence[Any] | None
    ) -> tuple[Any, ...]:
        items = self.attribute(name, tuple, None if default is None else tuple(default))
        if not all(isinstance(x, kind) for x in items):
            raise self.wrong(name, due, items)
        return items

    def spatial(self, name: str, rank: int, default: int | None = 1) -> tuple[int, ...]:
        """Return an attribute that is a list of whole numbers, `rank` of them."""
        items = self.ints(name, None if default is None else (default,) * rank)
        if len(items) != rank:
            raise InvalidOperation(f"'{name}' must have {rank} items, it has {len(items)}")
        return items

    def text(self, name: str, default: str | None = None) -> str:
        """Return an attribute that is a text."""
        return self.attribute(name, str, default)

    def dtype(self, name: str, default: int | None = None) -> str:
        """Return an attribute that is an element type, as the file has it."""
        return dtype_of(self.int(name, default))

    def subgraph(self, name: str) -> ModelGraph:
        """Return an attribute that is a graph."""
        return self.attribute(name, ModelGraph, None)

    # What it adds

    @property
    def span(self) -> Span:
        """Return where the listing of nodes has it."""
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
        """Return the start of its tensors' names: its first output."""
        first = next(filter(None, self.node.outputs), self.node.name or self.node.operator)
        return self.prefix + first

    def _emit(self, kind: str, operands: ByName, attributes: ByName, inserted: bool) -> Any:
        """Add an operation, unless its operands are known and decide shapes: it is computed.

        Operands of one on items broadcast as in numpy, and numbers take the tensors' dtype.
        """
        if kind in ON_ITEMS or "y" in operands:
            tensors = [x for x in operands.values() if isinstance(x, Tensor)]
            typed = (self.item(x, tensors[-1]) if tensors else x for x in operands.values())
            operands = dict(zip(operands, self.aligned(*typed), strict=True))
        if self.decides(kind, operands.values()):
            with suppress(NotFolded):
                return self.folded(kind, operands.values(), attributes)
        # `super()` without arguments is of another class where a dataclass has slots.
        return Site._emit(self, kind, operands, attributes, inserted)

    def decides(self, kind: str, operands: Iterable[Any]) -> bool:
        """Tell whether the result of a kind is known when the network is read."""
        return decides(operands, _SCALES if kind == "cast" else 1)

    # Shorthands

    def cast(self, x: Any, dtype: str) -> Any:
        """Return a tensor in a dtype that is computed in, or one that is wider."""
        if isinstance(x, Constant) and is_float(dtype) and self.computed(dtype) != dtype:
            x = self.tensor(x)  # a constant of the dtype would be narrowed again
        return Site.cast(self, x, dtype)

    def constant(self, items: Any, dtype: str) -> Constant:
        """Return a known tensor."""
        return Constant(rounding.saturated(items, dtype), dtype, derived=True)

    def numbers_of(self, items: Sequence[Any], dtype: str = "int64") -> Constant:
        """Return whole numbers, of which some may be symbolic, as a known tensor."""
        kind = object if any(map(is_symbolic, items)) else np.dtype(dtype)
        return Constant(np.array(items, kind), dtype, derived=True)

    def whole(self, x: int | Tensor) -> Any:
        """Return an input as whole numbers of 64 bits, in the dtype that these are computed in."""
        return self.cast(self.operand(x) if isinstance(x, int) else x, self.graph.builder.integer)

    def wide(self, x: Tensor) -> Any:
        """Return a tensor in 32 bits at least."""
        return self.cast(x, "float32") if self.dtype_of(x) in rounding.HALVES else x

    def filled(self, number: float, dtype: str, shape: Sequence[int]) -> Any:
        """Return a tensor of one number everywhere."""
        one = self.constant(np.full((1,) * len(shape), number), dtype)
        return self.step.broadcast(one, shape=tuple(shape)) if shape else one

    def unsqueezed(self, x: Tensor, axes: Sequence[int]) -> Any:
        """Return a tensor with new axes of extent 1."""
        return self.step.unsqueeze(x, axes=tuple(axes)) if axes else x

    def squeezed(self, x: Tensor, *axes: int) -> Any:
        """Return a tensor without axes of extent 1."""
        return self.step.squeeze(x, axes=axes) if axes else x

    def total(self, x: Tensor, axes: Sequence[int]) -> Any:
        """Return sums along axes, which stay."""
        return self.step.sum_reduce(x, axes=tuple(axes), normalize=False)

    def product(self, a: Tensor, b: Tensor, *, flips: bool = False) -> Any:
        """Return the product of matrices, of which the second may be transposed."""
        return self.step.matmul(a, b, transposeA=False, transposeB=flips)

    def aligned(self, *operands: Any) -> list[Any]:
        """Return operands of one rank; a stored scalar beside axes is a number, no weight."""
        rank = max((self.rank(x) for x in operands if isinstance(x, Tensor)), default=0)
        is_stored = [isinstance(x, Constant) and x.label and not x.array.shape for x in operands]
        pairs = zip(operands, is_stored, strict=True)
        taken = (self.unsqueezed(x, range(rank)) if stored else x for x, stored in pairs)
        return Site.aligned(self, *taken)

    def item(self, x: Any, like: Tensor) -> Any:
        """Return a number in the dtype of a tensor, a literal where it has that dtype.

        Tensors and symbolic extents stay.
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
        # No type of the file is computed in it, as where `load(dtype="bfloat16")` has sums wide.
        return self.insert("constant", {}, shape=(), value=(x,), dtype=dtype)

    def is_real(self, x: int | Tensor = 0) -> bool:
        """Tell whether a tensor holds real numbers."""
        return is_float(self.dtype_of(x))

    def volume(self, shape: Sequence[int]) -> Any:
        """Return how many items a shape has, UNKNOWN where an extent is."""
        return UNKNOWN if UNKNOWN in shape else math.prod(shape)
