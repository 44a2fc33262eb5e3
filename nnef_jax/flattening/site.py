"""A layer or a node while it is flattened: known tensors, and shorthands for operations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.extents import Shape, is_known, is_symbolic
from lowering.graph import Value
from nnef_jax.flattening.by_kind import ByKind
from nnef_jax.flattening.emission import ByName
from nnef_jax.flattening.hostvalues import LARGEST, NotFolded, evaluate
from nnef_jax.flattening.operators.site import OperatorSite
from nnef_jax.flattening.tensor_graph import Constant, TensorGraph
from nnef_jax.formats.base import ExtentNeeded

Tensor = Value | Constant
_Graph = TypeVar("_Graph", bound=TensorGraph)
_FEW = 64  # items of whole numbers that are computed here even if they are stored
_KINDS = "iufbO"  # of arrays that are computed with here


class Site(OperatorSite[_Graph]):
    """The place of a layer or a node, whose operands are tensors, known or not.

    `version` is that of the operator's domain, `prefix` begins the names of tensors in a body.
    """

    __slots__ = ()
    version: int
    prefix: str

    @abstractmethod
    def is_read(self, i: int) -> bool:
        """Tell whether something reads an output."""

    def tensor(self, x: int | Tensor) -> Value:
        """Return an input as a tensor of the graph."""
        found = self.operand(x) if isinstance(x, int) else x
        if isinstance(found, Value):
            return found
        return self.graph.tensor(found, found.label or f"{self.name}.constant", self.span)

    def known(self, x: int | Tensor) -> NDArray[Any]:
        """Return an input that decides the structure of the graph; raise where it is computed."""
        found = self.operand(x) if isinstance(x, int) else x
        if isinstance(found, Constant):
            return found.array
        what = self.input_title(x) if isinstance(x, int) else f"'{found.name}'"
        raise InvalidOperation(
            f"{what} is computed by the network, it must be known when the network is read",
            self.graph.fixing(found),
        )

    def input_title(self, i: int) -> str:
        """Return the name of an input in errors."""
        return f"input {i}"

    def integers(self, x: int | Tensor) -> list[int]:
        """Return the items of a known input as whole numbers, which may be symbolic."""
        return [n if is_symbolic(n) else int(n) for n in self.known(x).reshape(-1).tolist()]

    def scalar(self, i: int, default: float | None = None) -> float:
        """Return the first item of a known input; a default where it is not connected."""
        return float(self.known(i).ravel()[0]) if default is None or self.has(i) else default

    def shape(self, x: int | Tensor = 0) -> Shape:
        """Return the shape of an input; extents may be UNKNOWN."""
        found = self.operand(x) if isinstance(x, int) else x
        return found.type.shape if isinstance(found, Value) else found.array.shape

    def known_shape(self, x: int | Tensor = 0) -> Shape:
        """Return the shape of an input; raise ExtentNeeded where an extent is open.

        Extents are symbolic where `jax.export` keeps them open.
        """
        found = self.operand(x) if isinstance(x, int) else x
        shape = self.shape(found)
        if is_known(shape):
            return shape
        if self.graph.symbolic is None or isinstance(found, Constant):
            raise ExtentNeeded
        return self.graph.symbolic.of(found)

    def dtype_of(self, x: int | Tensor = 0) -> str:
        """Return the dtype that an input is computed in, known or not."""
        found = self.operand(x) if isinstance(x, int) else x
        return found.type.dtype if isinstance(found, Value) else self.graph.computed(found.type)

    def _emit(self, kind: str, operands: ByName, attributes: ByName, inserted: bool) -> Any:
        def operand(x: Any) -> Any:
            if isinstance(x, list | tuple):
                return tuple(operand(item) for item in cast("list[Any]", x))
            return self.tensor(x) if isinstance(x, Constant) else x

        given = {key: operand(x) for key, x in operands.items()}
        builder, name = self.graph.builder, f"{self.name}.{kind}" if inserted else self.name
        exact = not inserted and not builder.is_taken(name)
        wanted = [name] if exact else [builder.unreserved(name)]
        results = self.graph.add(kind, given, attributes, wanted, self.span, inserted=inserted)
        return results[0] if len(results) == 1 else results

    # What is known

    def folded(self, kind: str, operands: Iterable[Any], attributes: ByName) -> Any:
        """Return an operation's result on known tensors. Raises NotFolded."""
        operands = list(operands)
        if kind == "cast":
            return self.converted(operands[0], self.graph.element(attributes["dtype"]))
        return self.evaluated(lambda *x: evaluate(kind, x, attributes), operands)

    def evaluated(self, function: Callable[..., Any], operands: Iterable[Any]) -> Any:
        """Return a function of host values, one or several, on known tensors. Raises NotFolded."""
        given, graph = list(operands), self.graph
        known = [x for x in _listed(given) if isinstance(x, Constant)]
        self.spend(sum(x.array.size for x in known))
        found = function(*map(_exact, given))
        types = (x.type for x in known if x.type != graph.TYPES["b"])
        type = next(types, graph.TYPES["b"])
        several = cast("list[Any]", found) if isinstance(found, list) else [found]
        results = [_derived(graph, x, type) for x in several]
        self.spend(sum(x.array.size for x in results))
        return results if isinstance(found, list) else results[0]

    def converted(self, x: Constant, type: str) -> Constant:
        """Return a known tensor in an element type. Raises NotFolded."""
        dtype = self.graph.held(type)
        if x.array.dtype == object and any(map(is_symbolic, x.array.ravel())):
            if dtype.kind == "i":
                return Constant(x.array, type, derived=True)
            raise NotFolded
        with np.errstate(all="ignore"):
            return Constant(x.array.astype(dtype), type, derived=True)

    # Shorthands

    def cast(self, x: Any, dtype: str) -> Any:
        """Return a tensor in a dtype that is computed in."""
        return x if self.dtype_of(x) == dtype else self.insert("cast", {"input": x}, dtype=dtype)

    def reshaped(self, x: Any, shape: Sequence[int], first: int = 0, count: int = -1) -> Any:
        """Return a tensor whose axes, or so many of them from one on, have another shape."""
        if (first, count) != (0, -1):
            return self.step.reshape(x, shape=tuple(shape), axis_start=first, axis_count=count)
        if tuple(shape) == self.shape(x):
            return x
        if isinstance(x, Constant) and not x.label and 0 not in shape and -1 not in shape:
            return Constant(x.array.reshape(tuple(shape)), x.type, derived=x.derived)
        return self.insert("reshape", {"input": x}, shape=tuple(shape), axis_start=0, axis_count=-1)

    def last_reshape(self, x: Any, shape: Sequence[int]) -> Any:
        """Add a reshape that is the layer or the node itself."""
        return self.emit("reshape", {"input": x}, shape=tuple(shape), axis_start=0, axis_count=-1)

    def aligned(self, *operands: Any) -> list[Any]:
        """Return operands of one rank, axes put before their own, as numpy broadcasts.

        A known single item is a literal if it may be. Numbers and scalars stay.
        """
        tensors = [x for x in operands if isinstance(x, Value | Constant)]
        rank = max(map(self.rank, tensors), default=0)

        def align(x: Any) -> Any:
            if not isinstance(x, Value | Constant):
                return x
            if isinstance(x, Constant) and x.array.size == 1 and self.graph.is_literal(x):
                others = (y for y in tensors if y is not x and isinstance(y, Value))
                if any(self.rank(y) == rank for y in others):
                    return x.array.reshape(-1)[0].item()
            if self.rank(x) in (0, rank):
                return x
            missing = rank - self.rank(x)
            if isinstance(x, Constant) and not x.label:
                return self.reshaped(x, (1,) * missing + self.shape(x))
            return self.insert("unsqueeze", {"input": x}, axes=tuple(range(missing)))

        return [align(x) for x in operands]

    def transposed(self, x: Any, axes: Sequence[int]) -> Any:
        """Return a tensor with permuted axes."""
        if list(axes) == list(range(len(axes))):
            return x
        return self.insert("transpose", {"input": x}, axes=tuple(axes))

    def chain(self, x: Any, *steps: tuple[str, Sequence[Any], ByName]) -> Any:
        """Add operations one after the other; the last one is the layer or the node itself.

        A step is a kind, operands besides the tensor, and attributes. Those of no kind are left
        out.
        """
        given = [step for step in steps if step[0]]
        for i, (kind, others, attributes) in enumerate(given, 1):
            x = getattr(self.step_or_last(i == len(given)), kind)(x, *others, **attributes)
        return x if given else self.last.copy(x)

    def root(self, x: Any, add: ByKind | None = None, degree: float = 2) -> Any:
        """Return the root of a sum of powers, whose derivative is 0 where it is 0.

        The last operation is added by `add`, which is `step` by default.
        """
        step = self.step
        is_zero = step.eq(x, 0.0)
        some = step.select(is_zero, 1.0, x)
        found = step.sqrt(some) if degree == 2 else step.pow(some, 1 / degree)
        return (add or step).select(is_zero, x, found)

    def part(self, x: Any, axis: int, first: int, last: int, step: int = 1) -> Any:
        """Return the items along an axis from one to before another."""
        if (first, last, step) == (0, self.shape(x)[axis], 1):
            return x
        return self.step.slice(x, axes=(axis,), begin=(first,), end=(last,), stride=(step,))

    def fitted(self, x: Any, axis: int, size: int, value: float = 0.0) -> Any:
        """Return items along an axis, as many as asked: the first ones, then a value."""
        axis, more = self.axis(axis, self.rank(x)), size - self.known_shape(x)[axis]
        if more <= 0:
            return self.part(x, axis, 0, size)
        around = [(0, more if i == axis else 0) for i in range(self.rank(x))]
        return self.step.pad(x, padding=around, border="constant", value=value)

    def places(self, count: int, axis: int = 0, rank: int = 1) -> Value:
        """Return the whole numbers from 0 to before a count along an axis, others of extent 1."""
        dtype = self.graph.builder.integer
        found = self.insert("range", {}, start=0, end=count, step=1, dtype=dtype)
        rest = tuple(i for i in range(rank) if i != axis)
        return self.insert("unsqueeze", {"input": found}, axes=rest) if rest else found


def decides(operands: Iterable[Any], reals: int = 1) -> bool:
    """Tell whether results are known when the network is read: operands are, and decide shapes.

    Those that follow from shapes do, and few whole numbers, and so many `reals`. Weights stay in
    the graph.
    """
    flat = [*_listed(operands)]
    known = [x for x in flat if isinstance(x, Constant)]
    if not known or any(isinstance(x, Value) for x in flat):
        return False
    if any(x.array.size > LARGEST or x.array.dtype.kind not in _KINDS for x in known):
        return False
    return any(x.derived for x in known) or all(_is_few(x, reals) for x in known)


def _is_few(x: Constant, reals: int) -> bool:
    """Tell whether a tensor is few real numbers or whole ones, but no matrix of codes."""
    if x.array.dtype.kind == "f":
        return x.array.size <= reals
    is_codes = x.array.ndim > 1 and x.type not in ("int32", "int64", "bool")
    return x.array.size <= (1 if is_codes else _FEW)


def _listed(operands: Iterable[Any]) -> Iterator[Any]:
    for x in operands:
        yield from cast("Sequence[Any]", x) if isinstance(x, list | tuple) else [x]


def _exact(x: Any) -> Any:
    """Return an operand as a host value."""
    if isinstance(x, list | tuple):
        return [_exact(item) for item in cast("list[Any]", x)]
    array = x.array if isinstance(x, Constant) else np.asarray(x)
    return array.astype(object) if array.dtype.kind in "iu" else array


def _derived(graph: TensorGraph, x: NDArray[Any], type: str) -> Constant:
    """Return a host value as a known tensor: of a type if it holds such numbers."""
    kind = {"b": "b", "O": "i"}.get(x.dtype.kind, "f")
    held = graph.held(type)
    if kind != {"u": "i"}.get(held.kind, held.kind):
        type = graph.TYPES[kind]
        held = graph.held(type)
    if kind == "i":
        fixed = x if any(map(is_symbolic, x.ravel())) else _wrapped(x, held)
        return Constant(fixed, type, derived=True)
    return Constant(x.astype(held), type, derived=True)


def _wrapped(x: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return whole numbers in a dtype, those beyond its range wrapped as the network does."""
    ends = ml_dtypes.iinfo(dtype)
    low, count = int(ends.min), int(ends.max) - int(ends.min) + 1
    return np.asarray((x - low) % count + low).astype(dtype)
