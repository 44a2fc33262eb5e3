"""A layer or node while it is flattened: its operands, folding, and shorthands for operations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard, TypeVar, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.extents import Shape, is_known, is_symbolic
from lowering.graph import Value
from nnef_jax.flattening.by_kind import ByKind
from nnef_jax.flattening.computed_extents import extents_of
from nnef_jax.flattening.emission import ByName
from nnef_jax.flattening.empty_lists import require_for_empty_lists
from nnef_jax.flattening.host_operations import evaluate
from nnef_jax.flattening.hostvalues import LARGEST, NotFolded
from nnef_jax.flattening.operators.site import OperatorSite
from nnef_jax.flattening.symbolic import shape_array
from nnef_jax.flattening.tensor_graph import Constant, TensorGraph
from nnef_jax.formats.base import ExtentNeeded

Tensor = Value | Constant
Operand = Tensor | float  # a number becomes a literal of the operation
Operands = Iterable[Operand | Sequence[Operand] | None]  # a sequence is an operand array
_Graph = TypeVar("_Graph", bound=TensorGraph, covariant=True)
_FEW = 64  # the largest number of items of a stored integer tensor that is folded
# Operations whose results are rounded towards 0. The host would need the signs of the operands.
_TRUNCATING = frozenset({"div", "rem"})
_FOLDED_KINDS = "iufbO"  # numpy's codes for the kinds of arrays that are folded


class Site(OperatorSite[_Graph]):
    """A layer or a node that is being flattened. Its operands are constant or computed tensors.

    `version` is the version of the operator's domain. In a body, names of tensors begin with
    `prefix`.
    """

    __slots__ = ()
    version: int
    prefix: str

    @abstractmethod
    def is_read(self, i: int) -> bool:
        """Tell whether output `i` must be computed, because other layers or nodes may read it."""

    def spend(self, steps: Any) -> None:
        """Count steps as `OperatorSite.spend` does. An open extent counts as 1."""
        if is_symbolic(steps):
            steps = self.graph.bound(steps)
        OperatorSite.spend(self, 1 if is_symbolic(steps) else steps)

    def _operand(self, x: int | Tensor) -> Tensor:
        """Return the input with index `x`, or `x` itself if it is an operand."""
        return self.operand(x) if isinstance(x, int) else x

    def tensor(self, x: int | Tensor) -> Value:
        """Return an operand as a tensor of the graph.

        `x` is the operand itself or the index of an input.
        """
        operand = self._operand(x)
        if isinstance(operand, Value):
            return operand
        return self.graph.tensor(operand, operand.label or f"{self.name}.constant", self.span)

    def known(self, x: int | Tensor) -> NDArray[Any]:
        """Return the array of an operand that must be constant when the network is flattened.

        `x` is the operand or the index of an input. Raises InvalidOperation if the network computes
        the operand.
        """
        operand = self._operand(x)
        if isinstance(operand, Constant):
            return operand.array
        # Computed integers count as constants too if they can be symbolic extents.
        extents = extents_of(self.graph, operand, self.span)
        if extents is not None:
            return shape_array(extents).reshape(operand.type.shape)
        title = self.input_title(x) if isinstance(x, int) else f"'{operand.name}'"
        raise InvalidOperation(
            f"{title} is computed by the network, it must be known when the network is read",
            self.graph.hint_to_fix(operand),
        )

    def input_title(self, i: int) -> str:
        """Return the text that describes an input in errors."""
        return f"input {i}"

    def integers(self, x: int | Tensor) -> list[int]:
        """Return the items of a constant operand as integers, which may be symbolic extents."""
        items = self.known(x).reshape(-1).tolist()
        return [n if is_symbolic(n) else int(n) for n in items]

    def scalar(self, i: int, default: float | None = None) -> float:
        """Return the first item of input `i`, which must be a constant.

        Return `default` if the input is left out.
        """
        if default is not None and not self.has(i):
            return default
        return float(self.known(i).ravel()[0])

    def shape(self, x: int | Tensor = 0) -> Shape:
        """Return the shape of an operand. Extents may be UNKNOWN.

        `x` is the operand itself or the index of an input.
        """
        operand = self._operand(x)
        return operand.type.shape if isinstance(operand, Value) else operand.array.shape

    def known_shape(self, x: int | Tensor = 0) -> Shape:
        """Return the shape of an operand, in which every extent is a number or symbolic.

        `x` is the operand itself or the index of an input. Extents are symbolic if `jax.export`
        keeps them open. Otherwise ExtentNeeded is raised for an open extent.
        """
        operand = self._operand(x)
        shape = self.shape(operand)
        if is_known(shape):
            return shape
        if self.graph.symbolic is None or isinstance(operand, Constant):
            raise ExtentNeeded
        return self.graph.symbolic.shape_of(operand)

    def dtype_of(self, x: int | Tensor = 0) -> str:
        """Return the dtype in which the network computes an operand.

        `x` is the operand itself or the index of an input.
        """
        operand = self._operand(x)
        if isinstance(operand, Value):
            return operand.type.dtype
        return self.graph.computation_dtype(operand.type)

    def _emit(self, kind: str, operands: ByName, attributes: ByName, inserted: bool) -> Any:
        """Add an operation of a kind to the graph, and return its result or a tuple of results.

        `inserted` is as for `OperatorSite._emit`.
        """
        tensors = {parameter: self._in_graph(x) for parameter, x in operands.items()}
        builder = self.graph.builder
        name = f"{self.name}.{kind}" if inserted else self.name
        # Only the first operation that is not inserted has the name of the layer or node.
        if inserted or builder.is_taken(name):
            name = builder.unreserved(name)
        results = self.graph.add(kind, tensors, attributes, [name], self.span, inserted=inserted)
        return results[0] if len(results) == 1 else results

    def _in_graph(self, operand: Any) -> Any:
        """Add an operand to the graph: a constant tensor, or an array with constant tensors.

        In the result, each constant tensor is replaced by a tensor of the graph.
        """
        if isinstance(operand, list | tuple):
            items = cast("Sequence[Any]", operand)
            return tuple([self._in_graph(item) for item in items])
        return self.tensor(operand) if isinstance(operand, Constant) else operand

    # Folding: operations on constant tensors

    def folded(self, kind: str, operands: Operands, attributes: ByName) -> Any:
        """Compute an operation on constant tensors on the host, and return the result.

        If the operation has several results, return a list. Raises NotFolded if the network must
        compute the operation.
        """
        operands = list(operands)
        if kind == "cast" and isinstance(operands[0], Constant):
            type = self.graph.element(attributes["dtype"])
            return self.converted(operands[0], type)

        if kind in _TRUNCATING and any(map(self._may_be_negative, _flat(operands))):
            raise NotFolded

        def compute(*host_values: Any) -> Any:
            return evaluate(kind, host_values, attributes)

        return self.evaluated(compute, operands)

    def _may_be_negative(self, x: Operand | None) -> bool:
        """Tell whether a constant has an extent that depends on lists and may be negative."""
        if not isinstance(x, Constant) or x.array.dtype != object:
            return False
        return any(map(self.graph.may_be_negative, x.array.ravel()))

    def evaluated(self, function: Callable[..., Any], operands: Operands) -> Any:
        """Apply a function of host values to constant tensors; return constant tensors.

        If the function returns a list, the result is a list. If the function raises NotFolded, so
        does this method.
        """
        operands = list(operands)
        constants = [x for x in _flat(operands) if isinstance(x, Constant)]
        self.spend(sum(x.array.size for x in constants))
        host_values = [_host_value(x) for x in operands]
        computed = function(*host_values)
        if self.graph.has_lists:
            symbols = self.graph.symbols.most.keys()
            require_for_empty_lists(function, host_values, computed, symbols)
        # The results have the type of the first operand that is not bool.
        logical = self.graph.TYPES["b"]
        other_types = [x.type for x in constants if x.type != logical]
        type = other_types[0] if other_types else logical
        is_list = isinstance(computed, list)
        arrays = cast("list[Any]", computed) if is_list else [computed]
        results = [_as_constant(self.graph, array, type) for array in arrays]
        self.spend(sum(x.array.size for x in results))
        return results if is_list else results[0]

    def converted(self, x: Constant, type: str) -> Constant:
        """Convert a constant tensor to another element type.

        Raises NotFolded if the tensor has symbolic extents and `type` is not a signed integer type
        of 32 or 64 bits. Smaller types wrap large numbers.
        """
        dtype = self.graph.array_dtype(type)
        if x.array.dtype == object and any(map(is_symbolic, x.array.ravel())):
            if dtype.kind == "i" and dtype.itemsize >= 4:
                return Constant(x.array, type, derived=True)
            raise NotFolded
        with np.errstate(all="ignore"):
            return Constant(x.array.astype(dtype), type, derived=True)

    # Shorthands

    def listed(self, x: Tensor, axis: int, count: Value, limit: Any = None) -> Value:
        """Return the first `count` items of a tensor along an axis, as a list.

        `count` is a tensor with a single integer. This integer is at most the extent `limit`. The
        default of `limit` is the extent of the axis. Raises ExtentNeeded for an open extent.
        """
        value = self.tensor(x)
        limit = self.known_shape(value)[axis] if limit is None else limit
        extent = self.graph.symbol(count, limit)
        most = self.graph.bound(limit)
        return self.step.counted(value, count, axis=axis, extent=extent, most=most)

    def cast(self, x: Tensor, dtype: str) -> Any:
        """Cast a tensor to a dtype.

        If the network computes the tensor in this dtype already, return it unchanged.
        """
        if self.dtype_of(x) == dtype:
            return x
        return self.insert("cast", {"input": x}, dtype=dtype)

    def reshaped(self, x: Tensor, shape: Sequence[int], first: int = 0, count: int = -1) -> Any:
        """Reshape a tensor: replace the extents of `count` axes, from the axis `first` on.

        The extents `shape` take the place of the replaced extents. By default, all extents of the
        tensor are replaced.
        """
        shape = tuple(shape)
        replaces_all = (first, count) == (0, -1)
        if not replaces_all:
            return self.step.reshape(x, shape=shape, axis_start=first, axis_count=count)
        if shape == self.shape(x):
            return x
        has_placeholder = 0 in shape or -1 in shape  # these stand for extents that follow from `x`
        # Weights keep their label, so they are not reshaped here.
        if isinstance(x, Constant) and not x.label and not has_placeholder:
            return Constant(x.array.reshape(shape), x.type, derived=x.derived)
        return self.insert("reshape", {"input": x}, shape=shape, axis_start=0, axis_count=-1)

    def last_reshape(self, x: Tensor, shape: Sequence[int]) -> Any:
        """Add a reshape as the last operation of the layer or node."""
        return self.emit("reshape", {"input": x}, shape=tuple(shape), axis_start=0, axis_count=-1)

    def aligned(self, *operands: Operand) -> list[Any]:
        """Bring operands to the same rank. New axes come first, as in numpy's broadcasting.

        A constant tensor with a single item becomes a literal if the graph allows it. Numbers and
        scalars are returned unchanged.
        """
        tensors = [x for x in operands if isinstance(x, Value | Constant)]
        rank = max(map(self.rank, tensors), default=0)

        # A literal has no axes, so one computed tensor must have the rank of the result.
        has_full_value = any(isinstance(x, Value) and self.rank(x) == rank for x in tensors)

        def align(x: Operand) -> Operand:
            if not isinstance(x, Value | Constant):
                return x
            if has_full_value and self._is_literal(x):
                return x.array.reshape(-1)[0].item()
            if self.rank(x) in (0, rank):
                return x
            new_axis_count = rank - self.rank(x)
            if isinstance(x, Constant) and not x.label:
                new_extents = [1] * new_axis_count
                return self.reshaped(x, [*new_extents, *self.shape(x)])
            return self.insert("unsqueeze", {"input": x}, axes=tuple(range(new_axis_count)))

        return [align(x) for x in operands]

    def _is_literal(self, x: Tensor) -> TypeGuard[Constant]:
        """Tell whether a tensor is a constant of one item that can be a literal of the graph.

        A symbolic extent is not a literal.
        """
        if not isinstance(x, Constant):
            return False
        has_one_number = x.array.size == 1 and not is_symbolic(x.array.reshape(-1)[0])
        return has_one_number and self.graph.is_literal(x)

    def transposed(self, x: Tensor, axes: Sequence[int]) -> Any:
        """Permute the axes of a tensor."""
        is_identity = list(axes) == list(range(len(axes)))
        if is_identity:
            return x
        return self.insert("transpose", {"input": x}, axes=tuple(axes))

    def chain(self, x: Tensor, *steps: tuple[str, Sequence[Operand], ByName]) -> Any:
        """Apply several operations to a tensor, one after the other; return the result.

        Each step has three items: the name of the operation, the operands that follow the tensor,
        and the attributes, such as ("mul", [2.0], {}). Steps with the name "" are skipped. The last
        step becomes the last operation of the layer or node.
        """
        named_steps = [step for step in steps if step[0] != ""]
        if not named_steps:
            return self.last.copy(x)
        *first_steps, last_step = named_steps
        for kind, operands, attributes in first_steps:
            add_operation = getattr(self.step, kind)
            x = add_operation(x, *operands, **attributes)
        kind, operands, attributes = last_step
        add_last_operation = getattr(self.last, kind)
        return add_last_operation(x, *operands, **attributes)

    def root(self, x: Tensor, add: ByKind | None = None, degree: float = 2) -> Any:
        """Compute x^(1/degree) for x >= 0, with the derivative 0 at x = 0.

        `add` adds the last of the operations. Pass `site.last` if the root is the last operation of
        the layer or node. The default is `site.step`.
        """
        step = self.step
        is_zero = step.eq(x, 0.0)
        # The derivative of the root is infinite at 0. Where x is 0, the root of 1 is computed
        # instead, and is not used.
        positive = step.select(is_zero, 1.0, x)
        root = step.sqrt(positive) if degree == 2 else step.pow(positive, 1 / degree)
        last = step if add is None else add
        return last.select(is_zero, x, root)

    def part(self, x: Tensor, axis: int, first: int, last: int, step: int = 1) -> Any:
        """Return the items `first:last:step` of a tensor along an axis, as in a Python slice."""
        takes_all_items = (first, last, step) == (0, self.shape(x)[axis], 1)
        if takes_all_items:
            return x
        return self.step.slice(x, axes=(axis,), begin=(first,), end=(last,), stride=(step,))

    def cut_or_padded(self, x: Tensor, axis: int, size: int, value: float = 0.0) -> Any:
        """Cut a tensor to `size` items along an axis, or pad the end of the axis with `value`."""
        axis = self.axis(axis, self.rank(x))
        missing = size - self.known_shape(x)[axis]
        if missing <= 0:
            return self.part(x, axis, first=0, last=size)
        padding = [(0, 0)] * self.rank(x)
        padding[axis] = (0, missing)
        return self.step.pad(x, padding=padding, border="constant", value=value)

    def positions(self, count: int, axis: int = 0, rank: int = 1, start: int = 0) -> Value:
        """Make a tensor of the integers `start`, `start` + 1, ... along one axis.

        The tensor has `count` items along `axis`. It has `rank` axes, and all other axes have
        extent 1. `start` may be symbolic.
        """
        dtype = self.graph.builder.integer
        end = start + count
        indices = self.insert("range", {}, start=start, end=end, step=1, dtype=dtype)
        new_axes = tuple(i for i in range(rank) if i != axis)
        if not new_axes:
            return indices
        return self.insert("unsqueeze", {"input": indices}, axes=new_axes)


def is_folded(operands: Operands, reals: int = 1) -> bool:
    """Tell whether an operation on `operands` is computed on the host while the network is read.

    Such an operation is likely part of the computation of a shape. All operands must be constant.
    If no operand is derived from shapes or from other constant tensors, each operand must have few
    items: few integers, or at most `reals` real numbers.
    """
    flat = [*_flat(operands)]
    constants = [x for x in flat if isinstance(x, Constant)]
    has_computed = any(isinstance(x, Value) for x in flat)
    if has_computed or not constants:
        return False
    if not all(_is_foldable(x) for x in constants):
        return False
    if any(x.derived for x in constants):
        return True
    return all(_has_few_items(x, reals) for x in constants)


def _is_foldable(x: Constant) -> bool:
    """Tell whether the size and the dtype of a constant tensor let the host compute with it."""
    return x.array.size <= LARGEST and x.array.dtype.kind in _FOLDED_KINDS


def _has_few_items(x: Constant, reals: int) -> bool:
    """Tell whether a constant tensor has at most `_FEW` integers, or at most `reals` real numbers.

    For a matrix of quantised weights, the result is true only if the matrix has a single item.
    """
    is_real = x.array.dtype.kind == "f"
    if is_real:
        return x.array.size <= reals
    is_quantised_matrix = x.array.ndim > 1 and x.type not in ("int32", "int64", "bool")
    most = 1 if is_quantised_matrix else _FEW
    return x.array.size <= most


def _flat(operands: Operands) -> Iterator[Operand | None]:
    """Yield the operands, and the items of an operand array in the place of the array."""
    for operand in operands:
        if isinstance(operand, list | tuple):
            yield from operand
        else:
            yield cast("Operand | None", operand)


def _host_value(x: Operand | Sequence[Operand] | None) -> Any:
    """Convert an operand to a host value, and a list of operands to a list of host values."""
    if isinstance(x, list | tuple):
        return [_host_value(item) for item in x]
    array = x.array if isinstance(x, Constant) else np.asarray(x)
    is_integral = array.dtype.kind in "iu"
    return array.astype(object) if is_integral else array


def _as_constant(graph: TensorGraph, x: NDArray[Any], type: str) -> Constant:
    """Convert a host value to a constant tensor of the element type `type`.

    If the host value has items of another kind (bool, integer or real) than the type, the tensor
    has the type that the graph uses for the items' kind.
    """
    # Kinds are "b" for bool, "i" for integers and "f" for real numbers.
    item_kind = {"b": "b", "O": "i"}.get(x.dtype.kind, "f")
    dtype = graph.array_dtype(type)
    type_kind = "i" if dtype.kind == "u" else dtype.kind
    if item_kind != type_kind:
        type = graph.TYPES[item_kind]
        dtype = graph.array_dtype(type)
    if item_kind != "i":
        return Constant(x.astype(dtype), type, derived=True)
    has_symbols = any(map(is_symbolic, x.ravel()))
    array = x if has_symbols else _wrapped(x, dtype)
    return Constant(array, type, derived=True)


def _wrapped(x: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert integers to an integer dtype. Numbers beyond the dtype's range wrap around."""
    limits = ml_dtypes.iinfo(dtype)
    least = int(limits.min)
    count = int(limits.max) - least + 1
    # For int8, `least` is -128 and `count` is 256: 130 becomes (130 + 128) % 256 - 128 = -126.
    wrapped = (x - least) % count + least
    return np.asarray(wrapped).astype(dtype)
