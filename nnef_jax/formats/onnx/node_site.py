"""The site of a node, and the graph to which the node's operations are added.

A graph in an attribute of a node is flattened into a separate graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from nnef_jax.flattening.emission import ByName, computation_dtype
from nnef_jax.flattening.hostvalues import NotFolded
from nnef_jax.flattening.operators.site import ON_ITEMS
from nnef_jax.flattening.site import Operand, Operands, Site, Tensor, is_folded
from nnef_jax.flattening.tensor_graph import Constant, TensorGraph
from nnef_jax.formats.base import ExtentImplied, Options
from nnef_jax.formats.onnx.document import ModelGraph, Node
from nnef_jax.formats.onnx.tensor_types import dtype_of

# A constant of real numbers is cast on the host if it has at most this many items. For example,
# converters store the scales of a resize in 16 bits, one scale for each axis. A node casts the
# scales to 32 bits.
_MOST_CAST_REALS = 8

# Descriptions of the values that an attribute may have, for errors. The keys are Python types.
_NUMBER_TYPES = (int, float)
_DESCRIPTIONS: Mapping[type | tuple[type, ...], str] = {
    int: "a whole number", _NUMBER_TYPES: "a number", str: "a text", tuple: "a list",
    Constant: "a tensor", ModelGraph: "a graph",
}  # fmt: skip


class NodeGraph(TensorGraph):
    """A flat graph under construction, to which the operations of nodes are added."""

    def __init__(
        self, options: Options, data: dict[str, NDArray[Any]], outer: TensorGraph | None = None
    ) -> None:
        super().__init__(options, data, outer)
        # Maps a label to the last number that was appended to it. For example, "w" is mapped to 2
        # after the label "w_2" was made.
        self._last_numbers: dict[str, int] = {}
        # Maps tensors to the indices of their nonzero items.
        self.nonzero_indices: dict[Value, Value] = {}

    @staticmethod
    def computation_dtype_with(options: Options, type: str) -> str:
        """Return the dtype in which the network computes tensors of the file's dtype `type`."""
        return computation_dtype(type, options.real)

    def is_literal(self, constant: Constant) -> bool:
        """Tell whether a constant becomes a literal of operations, not a tensor of the graph.

        Such a constant has a single item and is not an initialiser.
        """
        is_initializer = constant.label != ""
        return not is_initializer and super().is_literal(constant)

    def variable(self, constant: Constant, name: str, span: Span) -> Value:
        """Add an initialiser to the graph as a variable, and return the variable.

        `constant` is the initialiser, and `name` is the name of the variable.
        """
        array = constant.array
        label = constant.label
        # Initialisers of different graphs may have equal labels. The label of a later initialiser
        # gets a number at its end, such as "w_1".
        while self.builder.variable_of(label) and self.data[label] is not array:
            number = self._last_numbers.get(constant.label, 0) + 1
            self._last_numbers[constant.label] = number
            label = f"{constant.label}_{number}"
        self.data[label] = array
        type = TensorType(array.shape, self.computation_dtype(constant.type))
        return self.builder.variable(name, label, type, span)


@dataclass(slots=True, eq=False)
class NodeSite(Site[NodeGraph]):
    """A node that is being flattened into a graph.

    Args:
        node: the node.
        version: the version of the operator set.
        graph: the graph that operations are added to.
        operands: the operand for each input: a tensor, a list of tensors for a sequence, or None
            for an input that is left out.
        flatten_subgraph: a function that flattens a graph in the node and returns its outputs. Its
            arguments are that graph, the graph to add operations to, and a dict from names to
            inputs.
        prefix: the text before the names of tensors. It is "" for nodes of the model's graph.
    """

    node: Node
    version: int
    graph: NodeGraph
    operands: Sequence[Any]
    flatten_subgraph: Callable[..., Any]
    prefix: str = ""

    # Operands

    @property
    def operator(self) -> str:
        """Return the name of the operator."""
        return self.node.operator

    def is_read(self, i: int) -> bool:
        """Tell whether output `i` has a name, so that other nodes may read it."""
        return i < len(self.node.outputs) and bool(self.node.outputs[i])

    def operand(self, i: int) -> Any:
        """Return input `i`. Raises InvalidOperation if the input is left out or is a sequence."""
        if not self.has(i):
            raise InvalidOperation(f"input {i} is missing")
        if isinstance(self.operands[i], list):
            raise InvalidOperation(f"input {i} must be a tensor, it is a sequence")
        return self.operands[i]

    def integer(self, i: int, default: int | None = None) -> int:
        """Return the single integer in input `i`, which must be a constant.

        If the input is left out, return `default`.
        """
        if default is not None and not self.has(i):
            return default
        items = self.integers(i)
        if len(items) != 1:
            raise InvalidOperation(f"input {i} must be one number, it has {len(items)}")
        return items[0]

    def extent(self, x: int | Tensor, axis: int) -> int:
        """Return the extent of an operand along an axis.

        `x` is the operand or the index of an input. Raises ExtentNeeded if the extent is open.
        """
        extent = self.shape(x)[axis]
        if extent is UNKNOWN:
            return self.known_shape(x)[axis]
        return extent

    def imply(self, i: int, axis: int, extent: int) -> None:
        """Raise ExtentImplied if the extent of input `i` along `axis` is a wrong guess.

        `extent` is the right extent. Each open extent is replaced by the guess
        `options.open_extent`, so an extent that is equal to this number counts as a guess.
        """
        operand = self.operand(i)
        guess = self.graph.options.open_extent
        is_guess = guess is not UNKNOWN and self.shape(i)[axis] == guess
        if isinstance(operand, Value) and is_guess and guess != extent:
            raise ExtentImplied(operand.name, axis, extent)

    def axes(self, name: str, i: int) -> tuple[int, ...] | None:
        """Return the axes that an operator works on, as indices that are not negative.

        The axes are in input `i`. In old versions of operators, they are in the attribute `name`.
        Return None if the node has neither the input nor the attribute.
        """
        if self.has(i):
            axes: Sequence[int] = self.integers(i)
        elif name in self.node.attributes:
            axes = self.ints(name)
        else:
            return None
        return tuple(self.axis(axis) for axis in axes)

    def computation_dtype(self, dtype: str) -> str:
        """Return the dtype in which the network computes tensors of the file's dtype `dtype`."""
        return self.graph.computation_dtype(dtype)

    # Attributes

    def has_attribute(self, name: str) -> bool:
        """Tell whether the node has an attribute."""
        return name in self.node.attributes

    def attribute(self, name: str, kind: type | tuple[type, ...], default: Any) -> Any:
        """Return an attribute whose value has one of the Python types `kind`.

        If the node does not have the attribute, return `default`. Raises InvalidOperation if the
        value has another type, or if there is neither a value nor a default.
        """
        value = self.node.attributes.get(name, default)
        if value is None:
            raise InvalidOperation(f"attribute '{name}' is missing")
        if not isinstance(value, kind):
            raise self.wrong(name, _DESCRIPTIONS[kind], value)
        return value

    def int(self, name: str, default: int | None = None) -> int:
        """Return an attribute that is an integer."""
        return self.attribute(name, int, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an attribute that is 0 or 1, as a bool."""
        return bool(self.attribute(name, int, int(default)))

    def number(self, name: str, default: float | None = None) -> float:
        """Return an attribute that is a number."""
        return float(self.attribute(name, _NUMBER_TYPES, default))

    def ints(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return an attribute that is a list of integers."""
        return self._items(name, int, "a list of whole numbers", default)

    def numbers(self, name: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        """Return an attribute that is a list of numbers."""
        return self._items(name, _NUMBER_TYPES, "a list of numbers", default)

    def _items(
        self, name: str, kind: type | tuple[type, ...], due: str, default: Sequence[float] | None
    ) -> tuple[Any, ...]:
        """Return an attribute that is a list whose items have one of the Python types `kind`.

        `due` is the description of the list in errors, such as "a list of numbers".
        """
        default_items = None if default is None else tuple(default)
        items = self.attribute(name, tuple, default_items)
        if not all(isinstance(item, kind) for item in items):
            raise self.wrong(name, due, items)
        return items

    def spatial(self, name: str, rank: int, default: int | None = 1) -> tuple[int, ...]:
        """Return the attribute `name`, a list with an integer for each of `rank` spatial axes.

        If the attribute is missing, each item is `default`. If the default is None, the attribute
        is required.
        """
        default_items = None if default is None else [default] * rank
        items = self.ints(name, default_items)
        if len(items) != rank:
            raise InvalidOperation(f"'{name}' must have {rank} items, it has {len(items)}")
        return items

    def text(self, name: str, default: str | None = None) -> str:
        """Return an attribute that is a string."""
        return self.attribute(name, str, default)

    def dtype(self, name: str, default: int | None = None) -> str:
        """Return the dtype whose code is the value of the attribute `name`.

        `default` is the default of the code.
        """
        return dtype_of(self.int(name, default))

    def subgraph(self, name: str) -> ModelGraph:
        """Return an attribute that is a graph."""
        return self.attribute(name, ModelGraph, default=None)

    # Places and names

    @property
    def span(self) -> Span:
        """Return the place of the node in the listing."""
        return self.node.span

    @property
    def title(self) -> str:
        """Return the description of the node in errors, such as "node 'sum' (Add)"."""
        return self.node.title

    def input_title(self, i: int) -> str:
        """Return the description of input `i` in errors."""
        return f"input {i} '{self.node.inputs[i]}'"

    @property
    def name(self) -> str:
        """Return the prefix of the site, followed by the name of the first output that has a name.

        If no output has a name, the prefix is followed by the name of the node or of the operator.
        """
        for name in (*self.node.outputs, self.node.name):
            if name:
                return self.prefix + name
        return self.prefix + self.node.operator

    # Operations

    def _emit(self, kind: str, operands: ByName, attributes: ByName, inserted: bool) -> Any:
        """Add an operation to the graph, or compute the operation on the host; return the result.

        `kind` is the kind of the operation, such as "add". The host computes an operation if the
        operands are constant and the result may decide shapes. Operands of elementwise operations
        broadcast as in numpy, and Python numbers take the dtype of the tensors among the operands.
        `inserted` tells whether another operation of the node follows.
        """
        # Only operations on two tensors have an operand "y", and these operations are elementwise.
        is_elementwise = kind in ON_ITEMS or "y" in operands
        if is_elementwise:
            aligned_operands = self.aligned(*self._typed(operands.values()))
            operands = dict(zip(operands, aligned_operands, strict=True))
        if self.is_folded(kind, operands.values()):
            with suppress(NotFolded):
                return self.folded(kind, operands.values(), attributes)
        # `super()` without arguments fails here, since a dataclass with slots replaces the class.
        return Site._emit(self, kind, operands, attributes, inserted)

    def _typed(self, operands: Iterable[Any]) -> list[Any]:
        """Return operands. If there are tensors, numbers take the dtype of the last tensor."""
        operands = list(operands)
        tensors = [x for x in operands if isinstance(x, Tensor)]
        if not tensors:
            return operands
        return [self.item(x, like=tensors[-1]) for x in operands]

    def is_folded(self, kind: str, operands: Operands) -> bool:
        """Tell whether the host computes an operation, which is then not added to the graph."""
        most_reals = _MOST_CAST_REALS if kind == "cast" else 1
        return is_folded(operands, most_reals)

    # Shorthands

    def cast(self, x: Tensor, dtype: str) -> Any:
        """Cast a tensor to a dtype.

        The dtype may be wider than the dtypes in which the network computes.
        """
        is_too_wide = is_float(dtype) and self.computation_dtype(dtype) != dtype
        if is_too_wide and isinstance(x, Constant):
            # The graph would narrow a constant of this dtype. It does not narrow the result of an
            # operation, so the constant becomes a tensor of the graph before the cast.
            x = self.tensor(x)
        return Site.cast(self, x, dtype)

    def constant(self, items: ArrayLike, dtype: str) -> Constant:
        """Make a constant of a dtype. Items are clipped to the range of the dtype."""
        return Constant(rounding.saturated(items, dtype), dtype, derived=True)

    def numbers_of(self, items: Sequence[int], dtype: str = "int64") -> Constant:
        """Make a constant of integers. Some of the integers may be symbolic."""
        has_symbols = any(map(is_symbolic, items))
        array_dtype = object if has_symbols else np.dtype(dtype)
        return Constant(np.array(items, array_dtype), dtype, derived=True)

    def as_integer(self, x: int | Tensor) -> Any:
        """Cast an operand to the dtype in which the network computes int64.

        `x` is the operand itself or the index of an input.
        """
        return self.cast(self._operand(x), self.graph.builder.integer)

    def widened(self, x: Tensor) -> Any:
        """Cast a tensor to float32 if its dtype has 16 bits. Return other tensors unchanged."""
        return self.cast(x, "float32") if self.dtype_of(x) in rounding.HALVES else x

    def filled(self, number: float, dtype: str, shape: Sequence[int]) -> Any:
        """Make a tensor whose items are all equal to `number`."""
        rank = len(shape)
        item = self.constant(np.full([1] * rank, number), dtype)
        return self.step.broadcast(item, shape=tuple(shape)) if rank > 0 else item

    def unsqueezed(self, x: Tensor, axes: Sequence[int]) -> Any:
        """Insert axes of extent 1 into a tensor. `axes` are their indices in the result."""
        return self.step.unsqueeze(x, axes=tuple(axes)) if axes else x

    def squeezed(self, x: Tensor, *axes: int) -> Any:
        """Remove axes of extent 1 from a tensor."""
        return self.step.squeeze(x, axes=axes) if axes else x

    def total(self, x: Tensor, axes: Sequence[int]) -> Any:
        """Sum a tensor along axes. In the result, these axes have extent 1."""
        return self.step.sum_reduce(x, axes=tuple(axes), normalize=False)

    def product(self, a: Tensor, b: Tensor, *, flips: bool = False) -> Any:
        """Multiply two matrices. If `flips`, the second matrix is transposed first."""
        return self.step.matmul(a, b, transposeA=False, transposeB=flips)

    def aligned(self, *operands: Operand) -> list[Any]:
        """Reshape operands to the same rank, so that they broadcast as in numpy.

        Numbers are returned unchanged, and so are scalars that are not initialisers.
        """
        # The method of the base class leaves all scalars unchanged.
        ranks = [self.rank(x) for x in operands if isinstance(x, Tensor)]
        all_axes = range(max(ranks, default=0))
        with_axes: list[Any] = []
        for operand in operands:
            # An initialiser has a label.
            is_constant = isinstance(operand, Constant)
            if is_constant and operand.label != "" and operand.array.ndim == 0:
                with_axes.append(self.unsqueezed(operand, all_axes))
            else:
                with_axes.append(operand)
        return Site.aligned(self, *with_axes)

    def item(self, x: Operand, like: Tensor) -> Any:
        """Return the number `x` as an operand with the dtype of the tensor `like`.

        The operand is a Python number if the dtype is the network's default for real numbers or for
        integers. Otherwise the operand is a tensor. If `x` is a tensor or a symbolic extent, `x` is
        returned unchanged.
        """
        if isinstance(x, Tensor) or is_symbolic(x):
            return x
        dtype = self.dtype_of(like)
        if dtype == self.graph.builder.real:
            return float(x)
        if dtype == self.graph.builder.integer and int(x) == x:
            return int(x)
        number = self.constant(x, dtype)
        if self.dtype_of(number) == dtype:
            return number
        # The network computes the constant in another dtype: with `load(dtype="bfloat16")`, a
        # constant of float32 is computed in bfloat16. An operation can make the number in `dtype`.
        return self.insert("constant", {}, shape=(), value=(x,), dtype=dtype)

    def is_real(self, x: int | Tensor = 0) -> bool:
        """Tell whether a tensor holds real numbers."""
        return is_float(self.dtype_of(x))

    def volume(self, shape: Sequence[int]) -> int:
        """Return the product of the extents in a shape, or UNKNOWN if an extent is UNKNOWN.

        The product may be symbolic.
        """
        return UNKNOWN if UNKNOWN in shape else math.prod(shape)
