"""The site of a call in a document: the arguments of the call, and the operations it becomes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from jax.errors import InconclusiveDimensionOperation
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.extents import Shape
from lowering.graph import Operand, Rule, TensorType, Value
from lowering.location import Span
from lowering.ops import rules
from lowering.ops.require import normal_axes, normal_axis
from nnef_jax.errors import NnefError, UnsupportedError
from nnef_jax.flattening.by_kind import ByKind
from nnef_jax.flattening.emission import ByName, refused
from nnef_jax.flattening.host_operations import evaluate
from nnef_jax.flattening.hostvalues import Host, NotFolded, host, is_plain
from nnef_jax.flattening.operators.site import ON_ITEMS, OperatorSite
from nnef_jax.formats.base import EXPORT_KNOWN, GIVE_SHAPES, ExtentNeeded
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.emitter import Frame
from nnef_jax.formats.syntax.types import INTEGER, LOGICAL, SCALAR, STRING, ArrayOf, Type
from nnef_jax.formats.tract import declarations
from nnef_jax.formats.tract.attributes import attribute, known_integer
from nnef_jax.formats.tract.dtypes import converted, default_dtype, dtype_of
from nnef_jax.formats.tract.flat_graph import FlatGraph
from nnef_jax.formats.tract.tensor_file import LARGEST_ATTRIBUTE
from nnef_jax.formats.tract.unit import Unit

_NO_OPERANDS: ByName = {}
# The type of the operands that the function of an operator takes. At a site that folds, each
# operand is a host value, which is known while the document is flattened. An operand that the
# document leaves out is False.
TractOperand = Operand | Host
# The exceptions that `CallSite.located` converts to errors with a span.
REFUSALS = (NnefError, InvalidOperation, InconclusiveDimensionOperation, ExtentNeeded)


class _Evaluator(Protocol):
    """The part of a network's evaluation that call sites and intrinsics use.

    The class `_UnitFlattener` in the module `flatten` implements the protocol.
    """

    unit: Unit
    graph: FlatGraph
    # Maps the names in the header of the unit to the values of the inputs. An input of the entire
    # network is None.
    inputs: ByName

    def into(self, graph: FlatGraph) -> _Evaluator: ...

    def submodel(
        self, unit: Unit, extents: ByName, inputs: ByName, frame: Frame
    ) -> list[Value]: ...

    def evaluate(self, node: s.Expression, frame: Frame, names: Sequence[str] = ()) -> Any: ...

    def lookup(self, node: s.Identifier, frame: Frame) -> Any: ...

    def enter(self, fragment: s.Fragment, arguments: ByName, site: CallSite) -> Frame:
        """Evaluate the body of a fragment that `site` calls, and return the body's frame.

        `arguments` are the values of the fragment's parameters.
        """
        ...


@dataclass(slots=True)
class CallSite(OperatorSite[FlatGraph]):
    """A call of an operation in the document, while the operation is applied.

    Args:
        names: the names of the results.
        operation: the name of the operation.
        arguments: maps names of arguments of the operation to their values.
        operands: the tensors among the arguments.
        words: maps names of parameters of the function that flattens the operation to names of
            arguments in the document. For example, `depth` of a one-hot is the argument `dim` in
            the document.
        folds: whether operands are host values. Operations are then computed on the host, and are
            not added to the graph.
    """

    evaluator: _Evaluator
    node: s.SyntaxNode
    frame: Frame
    names: Sequence[str] = ()
    arguments: ByName = field(default_factory=dict[str, Any])
    operation: str = ""
    operands: Sequence[Any] = ()
    words: Mapping[str, str] = field(default_factory=dict[str, str])
    folds: bool = False
    graph: FlatGraph = field(init=False)

    def __post_init__(self) -> None:
        self.graph = self.evaluator.graph

    @property
    def operator(self) -> str:
        """Return the name of the operation in its declaration."""
        return self.operation

    @property
    def unit(self) -> Unit:
        """Return the network that contains the call."""
        return self.evaluator.unit

    @property
    def span(self) -> Span:
        """Return the place of the call in the document."""
        return s.span_in(self.frame.source, self.node)

    @property
    def kind(self) -> str:
        """Return the word that the document has for the operation: a name such as "conv", or "+".

        Return "" if the expression is not an operation, such as a list.
        """
        # An invocation has the field `operation`. A unary or binary expression has `operator`.
        called_operation = getattr(self.node, "operation", "")
        return called_operation or getattr(self.node, "operator", "")

    @property
    def generic(self) -> str:
        """Return the generic argument of the call, such as "integer" in `cast<integer>`, or ""."""
        return getattr(self.node, "generic", "") or ""

    @property
    def title(self) -> str:
        """Return the description of the operation that errors show."""
        return f"'{self.operation}'"

    @property
    def name(self) -> str:
        """Return the name of the first result. The default is derived from the operation."""
        if self.names:
            return self.names[0]
        return self.frame.prefix + (self.operation or self.kind)

    def named(self, *names: str) -> CallSite:
        """Return a copy of the site whose results get the names `names`."""
        return replace(self, names=names)

    def into(self, graph: FlatGraph) -> CallSite:
        """Return a copy of the site that adds its operations to another graph."""
        return replace(self, evaluator=self.evaluator.into(graph))

    # The methods below read arguments. An argument that the call leaves out has the default of the
    # declaration.

    def has_attribute(self, name: str) -> bool:
        """Tell whether the operation has an argument with this name."""
        return name in self.arguments

    def argument(self, name: str) -> Any:
        """Return the argument `name` as it is, without a conversion to an attribute."""
        return self.arguments[name]

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an attribute that is true or false."""
        return self._attribute(name, LOGICAL)

    def number(self, name: str, default: float | None = None) -> float:
        """Return an attribute that is a real number."""
        return self._attribute(name, SCALAR)

    def int(self, name: str, default: int | None = None) -> int:
        """Return an attribute that is an integer. It may be UNKNOWN or symbolic."""
        return self._attribute(name, INTEGER)

    def numbers(self, name: str, default: Sequence[float] | None = None) -> Sequence[float]:
        """Return an attribute that is a list of real numbers."""
        return self._attribute(name, ArrayOf(SCALAR))

    def ints(self, name: str, default: Sequence[int] | None = None) -> Sequence[int]:
        """Return an attribute that is a list of integers. Some may be UNKNOWN or symbolic."""
        return self._attribute(name, ArrayOf(INTEGER))

    def text(self, name: str, default: str | None = None) -> str:
        """Return an attribute that is a string."""
        return self._attribute(name, STRING)

    def _attribute(self, name: str, type: Type) -> Any:
        """Return the argument `name`, converted to an attribute of a type.

        If the call leaves the argument out, the declared default is taken.
        """
        return attribute(self.arguments[name], type)

    def integer(self, name: str) -> Any:
        """Return the argument `name`, an integer on which the structure of the graph depends.

        Raises InvalidOperation if the integer depends on an open extent or is symbolic.
        """
        return known_integer(self.arguments[name], name)

    def dtype(self, name: str, default: str | None = None) -> str:
        """Return the dtype in which the network computes tensors of a datum type.

        The argument `name` is the name of the datum type, such as "f16".
        """
        return dtype_of(self.text(name), self.graph.builder.real)

    def choice(self, name: str, *allowed: Any, default: Any = None) -> Any:
        """Return an argument. Raises InvalidOperation if the argument is not one of `allowed`."""
        value = self.arguments[name]
        if value not in allowed:
            values = ", ".join(map(repr, allowed))
            raise InvalidOperation(f"'{name}' must be one of {values}, it is {value!r}")
        return value

    def axis_of(self, name: str, default: int | None = None, rank: int | None = None) -> int:
        """Return the axis in the argument `name`, counted from 0.

        `rank` is the number of axes from which the axis is chosen. If `rank` is None, this is the
        rank of the first operand.
        """
        if rank is None:
            rank = self.rank()
        return normal_axis(self.arguments[name], rank)

    def axes_of(self, name: str) -> Sequence[int]:
        """Return the axes in the argument `name`, counted from 0. They are axes of operand 0."""
        return normal_axes(self.arguments[name], self.rank())

    # Operands

    def shape(self, x: Any = 0) -> Shape:
        """Return the shape of an operand. Extents may be UNKNOWN.

        `x` is the operand, or its index.
        """
        operand = self.operands[x] if type(x) is int else x
        return operand.type.shape if isinstance(operand, Value) else np.shape(operand)

    def dtype_of(self, x: Any = 0) -> str:
        """Return the dtype of an operand. `x` is the operand, or its index."""
        operand = self.operands[x] if type(x) is int else x
        return operand.type.dtype if isinstance(operand, Value) else operand.dtype.name

    # Errors

    def error(self, message: str, hint: str = "") -> NnefError:
        """Return an error with a message, a hint, and the place of the call in the document."""
        return self.graph.error(message, self.node, self.frame, hint)

    def located(self, error: Exception) -> NnefError:
        """Convert one of the exceptions in `REFUSALS` to an error that has a place in the document.

        If the exception has no place yet, the error has the place of the call.
        """
        if isinstance(error, ExtentNeeded):
            message = "the number of its results depends on an open extent"
            error = InvalidOperation(message, GIVE_SHAPES)
        if isinstance(error, InvalidOperation):
            if self.kind:
                return self.invalid(error, self.kind)
            return self.error(error.message, error.hint)
        if isinstance(error, NnefError):
            if error.span is None:
                error.span = self.span
                error.calls = self.frame.calls
            return error
        return UnsupportedError(
            f"'{self.kind}' needs the value of an extent that is symbolic",
            span=self.span,
            calls=self.frame.calls,
            hint=EXPORT_KNOWN,
        )

    def invalid(
        self, error: InvalidOperation, kind: str, operands: ByName = _NO_OPERANDS
    ) -> NnefError:
        """Return the error to raise for an operation `kind` that refuses its operands.

        `error` is the exception that the operation raised. The message of `error` has the names of
        operands in the graph. In the returned error, the document's names of arguments replace
        these names.
        """
        # `self.words` has words for operands of the called operation only, not of other kinds.
        words = self.words if kind == self.operation else dict[str, str]()
        operands_by_word = {words.get(name, name): x for name, x in operands.items()}

        def translated(text: str) -> str:
            """Replace each name in quotes by the document's word for this name."""

            def translated_name(match: re.Match[str]) -> str:
                name = match[1]
                return f"'{words.get(name, name)}'"

            return re.sub(r"'(\w+)'", translated_name, text)

        return refused(error, kind, operands_by_word, self.span, self.frame.calls, translated)

    # Operations

    def add(
        self, kind: str, operands: ByName, attributes: ByName, names: Sequence[str], *,
        shown: str = "", rule: Rule | None = None, inserted: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Add an operation to the graph and return a tuple of its results.

        A result that is an array of tensors is a list. `rule` is the user's rule for the operation,
        if there is one. Errors name `shown` instead of the kind. If `inserted`, the document has no
        tensors with the names `names`; see `Value`. Raises NnefError with the place of the call.
        """
        graph = self.graph
        calls = self.frame.calls
        shown = shown or kind
        names = names or [graph.builder.unreserved(self.frame.prefix + shown)]
        try:
            return graph.add(
                kind, operands, attributes, names, self.span, calls, rule=rule, inserted=inserted
            )
        except InvalidOperation as error:
            raise self.invalid(error, shown, operands) from None

    def step_on(self, name: str) -> ByKind:
        """Return an object whose methods add operations on the operand `name`.

        The names of the results of these operations end with `name`.
        """

        def insert(kind: str, operands: ByName, **attributes: Any) -> Any:
            return self._insert(kind, operands, attributes, suffix=name)

        return ByKind(insert)

    def _typed(self, kind: str, operands: ByName) -> ByName:
        """Convert the operands that are numbers to the dtype of the operands that are tensors.

        Only operands of elementwise kinds are converted.
        """
        dtypes = [x.type.dtype for x in operands.values() if isinstance(x, Value)]
        if not dtypes:
            return operands
        dtype = dtypes[-1]
        builder = self.graph.builder
        is_default = dtype in (builder.real, builder.integer)  # dtypes of Python numbers
        is_elementwise = kind in ON_ITEMS or "y" in operands  # x and y are two tensors
        if is_default or not is_elementwise:
            return operands
        number_type = jnp.dtype(dtype).type
        typed = {**operands}
        for name, operand in operands.items():
            if type(operand) in (int, float):
                typed[name] = number_type(operand)
        return typed

    def _insert(self, kind: str, operands: ByName, attributes: ByName, suffix: str) -> Any:
        """Add an operation that is not the last one of the call, or compute it if the site folds.

        Return the result, or a tuple of results. The name of the result ends with `suffix`.
        """
        if self.folds:
            return self._folded(kind, operands, attributes)
        operands = self._typed(kind, operands)
        names = [self.graph.builder.unreserved(f"{self.name}.{suffix}")]
        results = self.add(kind, operands, attributes, names, inserted=True)
        return results[0] if len(results) == 1 else results

    def _emit(self, kind: str, operands: ByName, attributes: ByName, inserted: bool) -> Any:
        """Add an operation, or compute it on the host if the site folds. Return its result.

        If `inserted` is false, the operation is the call's last one, and gets the call's names. If
        the last operation lacks an operand or attribute, the call's argument with the same name is
        taken.
        """
        if inserted:
            return self._insert(kind, operands, attributes, kind)
        operands = {**operands}
        attributes = {**attributes}
        operand_names = declarations.operands(self.operation)
        for name in rules[kind].parameters:
            is_missing = name not in operands and name not in attributes
            if is_missing and name in self.arguments:
                if name in operand_names:
                    operands[name] = self.arguments[name]
                else:
                    attributes[name] = self.arguments[name]
        if self.folds:
            return self._folded(kind, operands, attributes)
        operands = self._typed(kind, operands)
        results = self.add(kind, operands, attributes, self.names, shown=self.operation)
        return results[0] if len(results) == 1 else results

    def _folded(self, kind: str, operands: ByName, attributes: ByName) -> Any:
        """Compute an operation of a kind on host values.

        Raises NotFolded if an operand is a tensor of the graph, and NnefError if operands are
        invalid.
        """
        if not all(isinstance(x, np.ndarray) for x in operands.values()):
            raise NotFolded
        try:
            return evaluate(kind, operands.values(), attributes)
        except InvalidOperation as error:
            raise self.located(error) from None

    def cast(self, x: Value, dtype: str, *names: str) -> Value:
        """Cast a tensor to a dtype. If it has this dtype already, return it unchanged.

        `names` may have the name of the result.
        """
        if x.type.dtype == dtype:
            return x
        graph = self.graph
        result_names = names or [graph.builder.unreserved(f"{x.name}_{dtype}")]
        (result,) = self.add("cast", {"input": x}, {"dtype": dtype}, result_names)
        stored = graph.constants.get(x)
        if stored is not None:
            # Attributes may read the stored items of a small tensor. Therefore these items are
            # converted too.
            is_small = stored.size <= LARGEST_ATTRIBUTE
            graph.constants[result] = converted(stored, dtype) if is_small else stored
        return result

    def constant(self, value: object, dtype: str, *names: str) -> Value:
        """Return a number, a list or a host value as a tensor of a dtype.

        If `dtype` is "", the dtype follows from the value. `names` may have the name of the tensor.
        """
        graph = self.graph
        try:
            array = host(value)
            dtype = dtype or default_dtype(array, graph.defaults)
            items = tuple(array.ravel().tolist())
            graph.require_known(items)
            if is_plain(items):
                items = graph.literals(array, dtype)
        except InvalidOperation as error:
            raise self.invalid(error, "constant") from None
        attributes = {"shape": array.shape, "value": items, "dtype": dtype}
        (constant,) = self.add("constant", operands={}, attributes=attributes, names=names)
        return constant

    def state(self, type: TensorType, name: str, initial: NDArray[Any] | None = None) -> Value:
        """Add a state to the graph and return its tensor.

        The initial value of the state is `initial`, or zeros if `initial` is None.
        """
        return self.graph.state(type, name, self.unit.labels + name, self.span, initial)
