"""Holds a node while it is flattened: what it reads, its attributes, what it adds to the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, is_symbolic
from lowering.graph import Value, is_float
from lowering.location import Span
from nnef_jax.flattening.emission import Given
from nnef_jax.flattening.hostvalues import NotFolded
from nnef_jax.flattening.site import Site, Tensor, decides
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.document import ModelGraph, Node
from nnef_jax.formats.onnx.node_graph import NodeGraph
from nnef_jax.formats.onnx.tensor_types import dtype_of

_SCALES = 8  # real numbers, a scale an axis, which converters store in 16 bits and cast


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

    def wants(self, i: int) -> bool:
        """Tell whether an output has a name."""
        return i < len(self.node.outputs) and bool(self.node.outputs[i])

    def operand(self, i: int) -> Any:
        """Return a tensor that is an input, known or not; `operands` may have sequences."""
        if not self.has(i):
            raise InvalidOperation(f"input {i} is missing")
        if isinstance(self.operands[i], list):
            raise InvalidOperation(f"input {i} must be a tensor, it is a sequence")
        return self.operands[i]

    def optional(self, i: int) -> Any:
        """Return an input, known or not, None if it is left out."""
        return self.operand(i) if self.has(i) else None

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

    def axes(self, i: int, name: str = "axes") -> tuple[int, ...] | None:
        """Return axes, which are an input since some version, an attribute before; None if open."""
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

    def attribute(self, name: str, kind: type | tuple[type, ...], default: Any) -> Any:
        """Return an attribute of a type; raise InvalidOperation for another, or for none."""
        found = self.node.attributes.get(name, default)
        if found is None:
            raise InvalidOperation(f"attribute '{name}' is missing")
        if not isinstance(found, kind):
            raise InvalidOperation(f"attribute '{name}' is of the wrong type")
        return found

    def int(self, name: str, default: int | None = None) -> int:
        """Return an attribute that is a whole number."""
        return self.attribute(name, int, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an attribute that is 0 or 1."""
        return bool(self.attribute(name, int, int(default)))

    def number(self, name: str, default: float | None = None) -> float:
        """Return an attribute that is a number."""
        return float(self.attribute(name, (int, float), default))

    def ints(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return an attribute that is a list of whole numbers."""
        return self._items(name, int, default)

    def numbers(self, name: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        """Return an attribute that is a list of numbers."""
        return self._items(name, (int, float), default)

    def _items(self, name: str, kind: Any, default: Sequence[Any] | None) -> tuple[Any, ...]:
        found = tuple(self.attribute(name, (tuple, list), default))
        if not all(isinstance(x, kind) for x in found):
            raise InvalidOperation(f"attribute '{name}' is of the wrong type")
        return found

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

    def _emit(self, kind: str, operands: Given, attributes: Given, inserted: bool) -> Any:
        """Add an operation, unless its operands are known and decide shapes: it is computed."""
        if decides(operands.values(), _SCALES if kind == "cast" else 1):
            with suppress(NotFolded):
                return self.folded(kind, operands.values(), attributes)
        # `super()` without arguments is of another class where a dataclass has slots.
        return Site._emit(self, kind, operands, attributes, inserted)

    # Shorthands

    def term(self, kind: str, *operands: Any) -> Any:
        """Insert an operation on items, broadcast as in numpy; numbers take the tensors' dtype."""
        like = next(x for x in operands if isinstance(x, Value | Constant))
        typed = (x if isinstance(x, Value | Constant) else self.item(x, like) for x in operands)
        return self.insert(kind, dict(zip("xy", self.aligned(*typed), strict=False)))

    def constant(self, items: Any, dtype: str) -> Constant:
        """Return a known tensor."""
        return Constant(np.asarray(items, np.dtype(dtype)), dtype, derived=True)

    def numbers_of(self, items: Sequence[Any], dtype: str = "int64") -> Constant:
        """Return whole numbers, of which some may be symbolic, as a known tensor."""
        kind = object if any(map(is_symbolic, items)) else np.dtype(dtype)
        return Constant(np.array(items, kind), dtype, derived=True)

    def cast(self, x: Tensor, dtype: str) -> Any:
        """Return a tensor in a dtype that is computed in."""
        if self.dtype_of(x) == dtype:
            return x
        return self.insert("cast", {"input": x}, dtype=dtype)

    def reshaped(self, x: Tensor, shape: Sequence[int]) -> Any:
        """Return a tensor in another shape."""
        if tuple(shape) == self.shape(x):
            return x
        if isinstance(x, Constant) and not x.label and 0 not in shape and -1 not in shape:
            return Constant(x.array.reshape(tuple(shape)), x.type, derived=x.derived)
        return self.insert("reshape", {"input": x}, shape=tuple(shape), axis_start=0, axis_count=-1)

    def unsqueezed(self, x: Tensor, axes: Sequence[int]) -> Any:
        """Return a tensor with new axes of extent 1."""
        return self.insert("unsqueeze", {"input": x}, axes=tuple(axes)) if axes else x

    def aligned(self, *operands: Any) -> list[Any]:
        """Return operands of one rank, axes put before their own, as numpy broadcasts.

        A known single item is a literal where it has the dtype of one. Numbers stay.
        """
        tensors = [x for x in operands if isinstance(x, Value | Constant)]
        rank = max((self.rank(x) for x in tensors), default=0)

        def align(x: Any) -> Any:
            if not isinstance(x, Value | Constant):
                return x
            others = [y for y in tensors if y is not x and isinstance(y, Value)]
            if isinstance(x, Constant) and x.array.size == 1 and others:
                builder, dtype = self.graph.builder, self.dtype_of(x)
                literal = dtype in (builder.real, builder.integer, "bool")
                if literal and any(self.rank(y) == rank for y in others) and not x.label:
                    return x.array.reshape(-1)[0].item()
            missing = rank - self.rank(x)
            if not missing or (isinstance(x, Value) and not x.type.shape):
                return x
            if isinstance(x, Constant):
                return self.reshaped(x, (1,) * missing + self.shape(x))
            return self.unsqueezed(x, range(missing))

        return [align(x) for x in operands]

    def part(self, x: Tensor, axis: int, first: int, last: int) -> Any:
        """Return the items along an axis from one to before another."""
        if (first, last) == (0, self.shape(x)[axis]):
            return x
        window = {"axes": (axis,), "begin": (first,), "end": (last,), "stride": (1,)}
        return self.insert("slice", {"input": x}, **window)

    def chosen(self, condition: Tensor, x: Any, y: Any) -> Any:
        """Return x where the condition holds, else y; one may be a number."""
        like = x if isinstance(x, Value | Constant) else y
        x, y = (
            v if isinstance(v, Value | Constant) else self.constant(v, self.dtype_of(like))
            for v in (x, y)
        )
        condition, x, y = self.aligned(condition, x, y)
        given = {"condition": condition, "true_value": x, "false_value": y}
        return self.insert("select", given)

    def item(self, number: float, x: Tensor) -> float | int | Constant:
        """Return a number in the dtype of a tensor: a literal where it has that dtype."""
        dtype = self.dtype_of(x)
        if dtype == self.graph.builder.real:
            return float(number)
        literal = dtype == self.graph.builder.integer and int(number) == number
        return int(number) if literal else self.constant(number, dtype)

    def zero(self, x: Tensor) -> float | int | Constant:
        """Return 0 in the dtype of a tensor."""
        return self.item(0, x)

    def is_real(self, x: int | Tensor = 0) -> bool:
        """Tell whether a tensor holds real numbers."""
        return is_float(self.dtype_of(x))

    def volume(self, shape: Sequence[int]) -> Any:
        """Return how many items a shape has, UNKNOWN where an extent is."""
        return UNKNOWN if UNKNOWN in shape else math.prod(shape)
