"""The flat graph: single assignment, topological order, immutable; no file format, no jax."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Union

from lowering.extents import Shape, show
from lowering.location import Span

if TYPE_CHECKING:  # the public errors name this module, and importing them must stay light
    import numpy as np

# A literal; numpy's scalars have a dtype that the document gives.
Scalar = Union[float, int, bool, "np.generic"]
# An operation that repeats a graph has it as an attribute.
Attribute = Union[float, int, bool, str, "Graph", tuple["Attribute", ...]]


@dataclass(frozen=True, slots=True)
class TensorType:
    """Says the shape and dtype (numpy's name, such as "float32") of a tensor.

    The shape is a tuple of extents. An extent may be UNKNOWN, of a batch say: then it is any
    number, known when the graph is traced. Nothing checks extents and dtypes here.
    """

    shape: Shape
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{show(self.shape)}"


# The type of a result of an operation that nothing computes.
UNTYPED = TensorType((), "unknown")


class _Present(TensorType):
    """The type of a tensor that is there, other than ABSENT though it is as large."""

    __slots__ = ()


# The type of an absent optional operand; its value is False.
ABSENT = TensorType((), "bool")
# What rules see of a tensor of the same shape and dtype.
PRESENT: TensorType = _Present((), "bool")

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


def is_float(dtype: str) -> bool:
    """Tell whether a dtype holds real numbers."""
    return dtype in _FLOATS


# Dtypes of items that XLA moves and casts; it computes little in them.
NARROW = frozenset({"int2", "uint2", "int4", "uint4", "float4_e2m1fn"})


def is_integer(dtype: str) -> bool:
    """Tell whether a dtype holds integers."""
    return dtype.startswith(("int", "uint"))


def is_complex(dtype: str) -> bool:
    """Tell whether a dtype holds complex numbers."""
    return dtype.startswith("complex")


Types = TensorType | list[TensorType] | tuple[TensorType | list[TensorType], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """Checks and computes one kind of operation.

    `parameters` names all operands and attributes of the kind; those with `defaults` may be left
    out. `help(rule.lower)` describes them, and its annotations are the types of attributes.

    `infer` takes types and attributes, and returns a `TensorType` for one result, a list for a
    result array, a tuple of these for several. `lower(**arrays_and_attributes)` returns arrays
    likewise, and takes a `Context` as `ctx` if `wants_context`. `work` takes types
    and attributes, with 1 for unknown extents, and `result`, the first result's type. None means 0.
    """

    kind: str
    infer: Callable[..., Types]
    lower: Callable[..., Any]
    parameters: tuple[str, ...]  # their names, as the standard writes them
    wants_context: bool
    not_differentiable: str = ""  # the reason, where it is not
    work: Callable[..., int] | None = None
    work_reads: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of the last parameters
    infer_reads: frozenset[str] = frozenset({"**"})  # the names of what it takes, `**` for all


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """Names one tensor of a graph, as the document does, and types it; compared by identity."""

    name: str
    type: TensorType
    # Whether a reader put it in, to say in kinds what the document says otherwise.
    inserted: bool = False


# What an operation reads: a tensor, a literal that stands for a constant one, or an array of these.
Operand = Value | Scalar | tuple["Operand", ...]
# What it yields for one declared result: a tensor, or an array of them.
Result = Value | tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One step of the chain of fragment calls that an operation came from."""

    fragment: str
    span: Span | None


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """Holds one operation: `kind` is canonical, operands and attributes have parameter names."""

    kind: str
    operands: tuple[tuple[str, Operand], ...]
    attributes: tuple[tuple[str, Attribute], ...]
    results: tuple[Result, ...]
    span: Span | None = None
    calls: tuple[Call, ...] = ()
    rule: Rule | None = None  # a user's own; `kind` is then what the document calls it

    def reads(self) -> Iterator[Value]:
        """Yield the tensors that it reads, in order, with repetitions."""
        for _, operand in self.operands:
            if isinstance(operand, Value):  # as most are
                yield operand
            else:
                yield from values_of(operand)

    def writes(self) -> Iterator[Value]:
        """Yield the tensors that it writes, in order."""
        for result in self.results:
            if isinstance(result, Value):
                yield result
            else:
                yield from values_of(result)

    def reading(self, values: Mapping[Value, Value]) -> Operation:
        """Return the operation with operands replaced: `values` has new ones by old ones."""
        operands = [(name, substituted(operand, values)) for name, operand in self.operands]
        return replace(self, operands=tuple(operands))

    @property
    def name(self) -> str:
        """Return its first result's name, for profiles, captures and errors."""
        return next((value.name for value in self.writes()), self.kind)


def mapped(operand: Operand | Result, leaf: Callable[[Any], Any]) -> Any:
    """Apply a function to a tensor or literal; return a list for an array of these."""
    return [mapped(x, leaf) for x in operand] if isinstance(operand, tuple) else leaf(operand)


def substituted(operand: Operand, values: Mapping[Value, Value]) -> Operand:
    """Return the operand with other values for some of those that it reads."""
    if isinstance(operand, tuple):
        return tuple([substituted(item, values) for item in operand])
    return values.get(operand, operand) if isinstance(operand, Value) else operand


def values_of(operand: Operand) -> Iterator[Value]:
    """Yield the tensors that are an operand or a result, or items of it."""
    if isinstance(operand, Value):
        yield operand
    elif isinstance(operand, tuple):
        for item in operand:
            yield from values_of(item)


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """A variable that nothing updates, stored under a label."""

    label: str
    value: Value
    span: Span | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StateVariable:
    """A variable whose `value` is read in a cycle and replaced by `update` after it.

    `initial` is the tensor that it starts with, None for one that is stored. In a graph of a first
    cycle it is `value` itself.
    """

    label: str
    value: Value
    update: Value
    span: Span | None = None
    initial: Value | None = None

    @property
    def is_started(self) -> bool:
        """Tell whether the graph computes what it reads: it is that of a first cycle."""
        return self.value is self.initial

    def reads(self) -> tuple[Value, ...]:
        """Return its update, and its initial tensor where that is computed."""
        return (self.update,) if self.initial is None else (self.update, self.initial)

    def substituted(self, values: Mapping[Value, Value]) -> StateVariable:
        """Return the variable with other values for some of those that it has or reads."""
        own = {name: getattr(self, name) for name in ("value", "update", "initial")}
        return replace(self, **{name: values.get(x, x) for name, x in own.items()})


@dataclass(frozen=True, eq=False)
class Graph:
    """Holds a whole network; any value may be an output, and `output_names` are the document's.

    Each of `parameters` has a `label`, a `value`, whose type is the parameter's, and a `span`. Each
    of `states` has these and an `update`.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    output_names: tuple[str, ...]
    operations: tuple[Operation, ...]
    parameters: tuple[Parameter, ...] = ()
    states: tuple[StateVariable, ...] = ()
    # Further names of values: of variables that share a label, say.
    aliases: dict[str, Value] = field(default_factory=dict[str, Value])
    # Names of tensors that were computed while the document was read, with those of their readers.
    folded: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def readers_of(self, folded: str) -> list[str]:
        """Return the names of the first tensors of the graph that a folded one leads to."""
        readers, waiting = dict[str, None](), [folded]
        for name in waiting:  # which gets longer
            for reader in self.folded[name]:
                if reader in self.folded and reader not in readers:
                    waiting.append(reader)
                readers[reader] = None
        return [name for name in readers if name in self.values]

    @cached_property
    def values(self) -> dict[str, Value]:
        """Return every tensor of the document by its name, aliases included."""
        found = {value.name: value for value in self.inputs}
        found.update((p.value.name, p.value) for p in self.parameters)
        found.update((s.value.name, s.value) for s in self.states)
        for operation in self.operations:
            for value in operation.writes():
                if not value.inserted:  # an input that takes a result's place has its name
                    found.setdefault(value.name, value)
        return found | self.aliases

    @cached_property
    def needed(self) -> frozenset[Value]:
        """Return the values that outputs and next states depend on, these included."""
        return self.dependencies((*self.outputs, *(state.update for state in self.states)))

    def dependencies(self, wanted: Iterable[Value]) -> frozenset[Value]:
        """Return the values that some values depend on, these included."""
        found = set(wanted)
        for operation in reversed(self.operations):
            if not found.isdisjoint(operation.writes()):
                found.update(operation.reads())
        return frozenset(found)


def python_name(name: str) -> str:
    """Return the name of a rule's parameter: `lambda_` for the standard's `lambda`."""
    return "lambda_" if name == "lambda" else name
