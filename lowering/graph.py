"""Defines the flat graph of a network.

The graph is immutable, assigns each value once, and has its operations in topological order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Union

from lowering.extents import Shape, show
from lowering.location import Span

if TYPE_CHECKING:  # the public errors import this module, and their import must stay light
    import numpy as np

# A literal has this type. If the document gives the dtype of a literal, the literal is a numpy
# scalar of this dtype.
Scalar = Union[float, int, bool, "np.generic"]
# An attribute has this type. The graph of a loop's body is an attribute too.
Attribute = Union[float, int, bool, str, "Graph", tuple["Attribute", ...]]


@dataclass(frozen=True, slots=True)
class TensorType:
    """The shape and dtype of a tensor.

    The shape is a tuple of extents. An extent that is known only when the graph is traced, such
    as the batch extent, is UNKNOWN. The dtype is a name of numpy, such as "float32". Neither
    the shape nor the dtype is checked here.
    """

    shape: Shape
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{show(self.shape)}"


# The type of the results of an unsupported operation, in a graph that is only shown.
UNTYPED = TensorType((), "unknown")


class _Present(TensorType):
    """The class of PRESENT. It makes PRESENT unequal to ABSENT, which has the same fields."""

    __slots__ = ()


# If an optional operand is left out, its value is False, and rules get this type for it.
ABSENT = TensorType((), "bool")
# A boolean scalar is a tensor of the type ABSENT. If such a tensor is an operand, rules get PRESENT
# as the type. PRESENT is unequal to ABSENT.
PRESENT: TensorType = _Present((), "bool")

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


def is_float(dtype: str) -> bool:
    """Tell whether a dtype is float16, bfloat16, float32 or float64."""
    return dtype in _FLOATS


# These dtypes have few bits. XLA moves and casts their items, but supports few other operations on
# them.
NARROW = frozenset({"int2", "uint2", "int4", "uint4", "float4_e2m1fn"})


def is_integer(dtype: str) -> bool:
    """Tell whether a dtype has integers as items, signed or unsigned."""
    return dtype.startswith(("int", "uint"))


def is_complex(dtype: str) -> bool:
    """Tell whether a dtype has complex numbers as items."""
    return dtype.startswith("complex")


Types = TensorType | list[TensorType] | tuple[TensorType | list[TensorType], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """Checks and computes one kind of operation.

    `parameters` has the names of all operands and attributes of the kind. Parameters that have
    a value in `defaults` may be left out. `help(rule.lower)` describes the parameters, and the
    annotations of `lower` are the types of attributes.

    `infer` takes the types of operands, and the attributes. For a result that is a tensor it
    returns a `TensorType`, and for a result that is an array of tensors it returns a list of
    types. For several results it returns a tuple of types and lists.

    `lower(**arrays_and_attributes)` returns arrays in the structure that `infer` returns. If
    `wants_context` is true, it also takes a `Context` as `ctx`.

    `work` returns the number of multiply-adds. It takes types and attributes in which unknown
    extents are 1, and the type of the first result as `result`. An operation has no
    multiply-adds if its rule has no `work`.
    """

    kind: str
    infer: Callable[..., Types]
    lower: Callable[..., Any]
    parameters: tuple[str, ...]  # names, as the standard writes them
    wants_context: bool
    not_differentiable: str = ""  # the reason why there are no derivatives, or ""
    work: Callable[..., int] | None = None
    work_reads: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])  # by name of the parameter
    # These are the parameters that `infer` reads. `**` stands for all parameters.
    infer_reads: frozenset[str] = frozenset({"**"})


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of a graph, with its name in the document and its type. Compared by identity."""

    name: str
    type: TensorType
    # Whether a reader added the value, so that the document has no tensor of this name.
    inserted: bool = False


# An operand is a tensor, a literal that stands for a constant tensor, or an array of operands.
Operand = Value | Scalar | tuple["Operand", ...]
# A declared result of an operation is a tensor, or an array of tensors.
Result = Value | tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a fragment, which is a function of the document.

    An operation of a graph comes from one call, or from several nested calls, or from none.
    """

    fragment: str
    span: Span | None


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An operation of a graph: its kind, operands, attributes and results.

    `operands` and `attributes` consist of pairs: the name of a parameter of the rule, and a value.
    """

    kind: str
    operands: tuple[tuple[str, Operand], ...]
    attributes: tuple[tuple[str, Attribute], ...]
    results: tuple[Result, ...]
    span: Span | None = None
    calls: tuple[Call, ...] = ()
    rule: Rule | None = None  # a user's rule; `kind` is then the operation's name in the document

    def reads(self) -> Iterator[Value]:
        """Yield the tensors that the operation reads, in order of its operands.

        A tensor that is passed as two operands is yielded twice.
        """
        for _, operand in self.operands:
            if isinstance(operand, Value):  # the usual case
                yield operand
            else:
                yield from values_of(operand)

    def writes(self) -> Iterator[Value]:
        """Yield the tensors that the operation writes, in order."""
        for result in self.results:
            if isinstance(result, Value):
                yield result
            else:
                yield from values_of(result)

    def reading(self, values: Mapping[Value, Value]) -> Operation:
        """Return the operation with other operands: `values` maps each old tensor to a new one."""
        operands = [(name, substituted(operand, values)) for name, operand in self.operands]
        return replace(self, operands=tuple(operands))

    @property
    def name(self) -> str:
        """Return the name of the first result, which profiles, captures and errors show.

        The name of an operation without results is its kind.
        """
        for value in self.writes():
            return value.name
        return self.kind


def mapped(operand: Operand | Result, leaf: Callable[[Any], Any]) -> Any:
    """Apply `leaf` to each tensor or literal of an operand. A tuple of tensors becomes a list."""
    if isinstance(operand, tuple):
        return [mapped(item, leaf) for item in operand]
    return leaf(operand)


def substituted(operand: Operand, values: Mapping[Value, Value]) -> Operand:
    """Return an operand with new tensors: `values` maps old tensors to new ones.

    Tensors that are not in the map stay.
    """
    if isinstance(operand, tuple):
        return tuple([substituted(item, values) for item in operand])
    if isinstance(operand, Value):
        return values.get(operand, operand)
    return operand


def values_of(operand: Operand) -> Iterator[Value]:
    """Yield the tensors in an operand or a result, in order."""
    if isinstance(operand, Value):
        yield operand
    elif isinstance(operand, tuple):
        for item in operand:
            yield from values_of(item)


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """A variable that is never updated. `label` is the name under which its array is stored."""

    label: str
    value: Value
    span: Span | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StateVariable:
    """A variable whose `value` is read in a cycle and replaced by `update` after the cycle.

    A cycle is one run of the network, such as a time step. `initial` is the tensor of the initial
    value, or None if the initial value is stored. In the graph of a first cycle `initial` is
    `value` itself.
    """

    label: str
    value: Value
    update: Value
    span: Span | None = None
    initial: Value | None = None

    @property
    def is_started(self) -> bool:
        """Tell whether the graph computes `value` from an initial value, as in a first cycle."""
        return self.value is self.initial

    def reads(self) -> tuple[Value, ...]:
        """Return the tensor `update`, and also the tensor `initial` if there is one."""
        return (self.update,) if self.initial is None else (self.update, self.initial)

    def substituted(self, values: Mapping[Value, Value]) -> StateVariable:
        """Return the variable with new tensors: `values` maps old tensors to new ones."""
        initial = self.initial
        return replace(
            self,
            value=values.get(self.value, self.value),
            update=values.get(self.update, self.update),
            initial=None if initial is None else values.get(initial, initial),
        )


@dataclass(frozen=True, eq=False)
class Graph:
    """A network as a flat graph.

    Any value may be an output. `output_names` are the names of the outputs in the document.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    output_names: tuple[str, ...]
    operations: tuple[Operation, ...]
    parameters: tuple[Parameter, ...] = ()
    states: tuple[StateVariable, ...] = ()
    # Maps additional names to values. A value has several names if the document names it several
    # times.
    aliases: dict[str, Value] = field(default_factory=dict[str, Value])
    # A folded tensor is computed as a constant when the document is read. This dict maps the name
    # of a folded tensor to the names of the tensors that are computed from it.
    folded: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    # Maps the name of each symbolic extent to a tensor. The computation of the tensor tells the
    # value of the extent.
    symbols: dict[str, Value] = field(default_factory=dict[str, Value])

    def readers_of(self, folded: str) -> list[str]:
        """Return the names of the graph's tensors that are computed from a folded tensor.

        A folded tensor is computed as a constant when the document is read. The list also has the
        tensors that are computed from `folded` through other folded tensors, but it has no folded
        tensors.
        """
        readers: dict[str, None] = {}  # in the order in which they are visited
        pending = [folded]
        for name in pending:  # the loop appends to the list
            for reader in self.folded[name]:
                if reader in self.folded and reader not in readers:
                    pending.append(reader)
                readers[reader] = None
        return [name for name in readers if name in self.values]

    @cached_property
    def values(self) -> dict[str, Value]:
        """Map the names and aliases of all tensors of the document to the tensors."""
        values = {value.name: value for value in self.inputs}
        for variable in (*self.parameters, *self.states):
            values[variable.value.name] = variable.value
        for operation in self.operations:
            for value in operation.writes():
                if not value.inserted:
                    # If an input replaces a result of the same name, the dict keeps the input.
                    values.setdefault(value.name, value)
        return values | self.aliases

    @cached_property
    def needed(self) -> frozenset[Value]:
        """Return the outputs, the updates of states, and all tensors that are needed for these."""
        updates = [state.update for state in self.states]
        return self.dependencies([*self.outputs, *updates])

    def dependencies(self, values: Iterable[Value]) -> frozenset[Value]:
        """Return the tensors `values`, and all tensors from which they are computed."""
        needed = set(values)
        for operation in reversed(self.operations):
            if not needed.isdisjoint(operation.writes()):
                needed.update(operation.reads())
                if self.symbols:
                    # An attribute with a symbol depends on the tensor that gives the symbol's
                    # value.
                    names = symbol_names(operation) & self.symbols.keys()
                    needed.update(self.symbols[name] for name in names)
        return frozenset(needed)


def symbol_names(operation: Operation) -> set[str]:
    """Return the names of the symbols in an operation's attributes.

    For an attribute that is a graph, these are the symbols of the graph's operations.
    """
    from lowering.symbol_values import symbols_in

    names: set[str] = set()
    for _, attribute in operation.attributes:
        if isinstance(attribute, Graph):
            for inner in attribute.operations:
                names |= symbol_names(inner)
        else:
            names |= symbols_in(attribute)
    return names


def python_name(name: str) -> str:
    """Return the Python name of a rule's parameter: `lambda_` for the standard's `lambda`."""
    return "lambda_" if name == "lambda" else name
