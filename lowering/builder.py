"""Builds a flat graph one operation at a time; the rules infer types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import MAX_EXTENT, UNKNOWN, Shape, is_symbolic, shapes_differ, show, volume
from lowering.graph import (
    ABSENT,
    PRESENT,
    Attribute,
    Call,
    Graph,
    Operand,
    Operation,
    Parameter,
    Result,
    Rule,
    Scalar,
    StateVariable,
    TensorType,
    Types,
    Value,
    mapped,
    python_name,
    values_of,
)
from lowering.location import Span
from lowering.ops import require, rules

_X64 = "jax's x64 mode keeps 64 bits: jax.config.update('jax_enable_x64', True)"
_LONGEST = 400  # letters of a name that others are made of
_MOST_EMPTY = 1 << 22  # places before an empty axis: XLA on CPUs counts through them, 0.6 s


@dataclass(slots=True)
class _Variable:
    label: str
    value: Value
    span: Span | None
    update: Value | None = None
    initial: Value | None = None


@dataclass(slots=True)
class GraphBuilder:
    """Builds an immutable graph of inputs, variables and operations; raises InvalidOperation.

    `real` and `integer` are the dtypes of literals and untyped tensors. A name that another value
    has gets a suffix: a reader asks `is_taken` first, where its document forbids that.
    """

    real: str = "float32"
    integer: str = "int32"
    operations: list[Operation] = field(default_factory=list[Operation])
    aliases: dict[str, Value] = field(default_factory=dict[str, Value])
    folded: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    _inputs: list[Value] = field(default_factory=list[Value])
    _variables: dict[str, _Variable] = field(default_factory=dict[str, _Variable])
    _variable_of: dict[Value, _Variable] = field(default_factory=dict["Value", _Variable])
    _taken: set[str] = field(default_factory=set[str])
    _reserved: set[str] = field(default_factory=set[str])
    _suffixes: dict[str, int] = field(default_factory=dict[str, int])
    _unreserved: dict[str, str] = field(default_factory=dict[str, str])  # what `unreserved` found

    def reserve(self, names: Iterable[str]) -> None:
        """Keep names for the values that are created under exactly them."""
        self._reserved.update(names)
        self._unreserved.clear()

    def unreserved(self, name: str) -> str:
        """Return the name, or a longer one where it is reserved."""
        passed: list[str] = []
        while name in self._reserved:
            passed.append(name)
            name = self._unreserved.get(name, f"{name}_")
        self._unreserved.update(dict.fromkeys(passed, name))
        return name

    def is_input(self, value: Value) -> bool:
        """Tell whether a tensor is fed from outside."""
        return value in self._inputs

    def is_taken(self, name: str) -> bool:
        """Tell whether a value has this name."""
        return name in self._taken

    def _name(self, wanted: str, exact: bool) -> str:
        name = wanted
        while name in self._taken or (name in self._reserved and not exact):
            wanted = wanted[:_LONGEST]
            self._suffixes[wanted] = self._suffixes.get(wanted, 0) + 1
            name = f"{wanted}_{self._suffixes[wanted]}"
        self._taken.add(name)
        return name

    def input(self, name: str, type: TensorType) -> Value:
        """Add a tensor that is fed from outside."""
        value = Value(self._name(name, exact=True), type)
        self._inputs.append(value)
        return value

    def variable(self, name: str, label: str, type: TensorType, span: Span | None) -> Value:
        """Return the tensor stored under a label, the same each time; declare it the first time.

        `name` is the tensor's in the graph. `trace` finds its array by the label. `span` is the
        place of its declaration, which the graph keeps. A variable that nothing updates is a
        parameter, another one a state.
        """
        known = self._variables.get(label)
        if known is None:
            value = Value(self._name(name, exact=name in self._reserved), type)
            known = _Variable(label, value, span)
            self._variables[label] = known
            self._variable_of[value] = known
        elif (
            shapes_differ(known.value.type.shape, type.shape)
            or known.value.type.dtype != type.dtype
        ):
            raise InvalidShape(
                f"variable '{label}' is declared as {type} here and as {known.value.type} before",
                hint="variables of one label share their data, so they must have one shape",
            )
        return known.value

    def variable_of(self, label: str) -> Value | None:
        """Return the tensor stored under a label, None if it is not declared."""
        known = self._variables.get(label)
        return known and known.value

    def starting(self, label: str, variable: Value, initial: Value, span: Span | None) -> None:
        """Declare the tensor that the variable of a label starts with.

        In the graph of a first cycle `variable` is that tensor.
        """
        known = self._variables.setdefault(label, _Variable(label, variable, span))
        self._variable_of[variable] = known
        known.initial = initial

    def update(self, variable: Operand, value: Value, shape: Shape | None = None) -> Value:
        """Have a variable take a value after each cycle; return that value.

        `shape` is what it may have, with UNKNOWN where that changes from cycle to cycle: by default
        the shape that it is declared with.
        """
        target = self._variable_of.get(variable) if isinstance(variable, Value) else None
        if target is None:
            raise InvalidOperation(
                "the first argument of 'update' must be a variable",
                hint="it must be the result of 'variable' itself, not of an operation on it",
            )
        if target.update is not None:
            raise InvalidOperation(f"variable '{target.label}' is updated twice in one cycle")
        shape = target.value.type.shape if shape is None else shape
        if shapes_differ(shape, value.type.shape):
            raise InvalidShape(
                f"variable '{target.label}' has shape {show(shape)}, "
                f"its new value has {show(value.type.shape)}"
            )
        if target.value.type.dtype != value.type.dtype:
            raise InvalidOperation(
                f"variable '{target.label}' holds {target.value.type.dtype}, "
                f"its new value {value.type.dtype}"
            )
        target.update = value
        return value

    def literal_type(self, value: Scalar) -> TensorType:
        """Return the type of a literal where a tensor is due; InvalidOperation if none has it."""
        match value:
            case np.generic():
                return TensorType((), value.dtype.name)
            case bool():
                return TensorType((), "bool")
            case int():
                require.within(self.integer, (value,), hint=_X64)
                return TensorType((), self.integer)
            case float():
                return TensorType((), self.real)

    def _as_read(self, operand: Value | Scalar) -> TensorType:
        """Return the type that rules see; raise InvalidShape where none can read the tensor."""
        type = operand.type if isinstance(operand, Value) else self.literal_type(operand)
        for extent in type.shape:
            if extent > MAX_EXTENT:
                raise InvalidShape(
                    f"an operand has the shape {show(type.shape)}, an axis that is read has at "
                    f"most {MAX_EXTENT} items"
                )
        return PRESENT if type == ABSENT and isinstance(operand, Value) else type

    def operation(
        self,
        kind: str,
        operands: Mapping[str, Operand],
        attributes: Mapping[str, Attribute],
        names: Sequence[str],
        span: Span | None = None,
        calls: tuple[Call, ...] = (),
        *,
        rule: Rule | None = None,
        inserted: bool = False,
    ) -> tuple[Result, ...]:
        """Add an operation and return its results, named by `names`; missing names are made.

        Raise InvalidOperation where its arguments break the rule, KeyError where `rules` has no
        such kind. Nothing checks the Python types of attributes: what the rule does with others is
        an error of Python.

        Args:
            kind: one of `lowering.rules`.
            operands: tensors, literals in the place of constant ones, or tuples of these, by the
                names of the rule's parameters.
            attributes: numbers, strings, or tuples of these, no lists, by such names.
            names: names of the results, of which there is one at least.
            span: its place in the document, which errors, HLO and profiles tell.
            calls: the chain of a document's own functions that it comes from.
            rule: a user's own for `kind`.
            inserted: whether the document does not know its results.
        """
        known = rule or rules[kind]
        given: dict[str, Any] = {**operands, **attributes}
        reads, arguments = known.infer_reads, dict[str, Any]()
        for name, x in given.items():
            if "**" in reads or name in reads:
                read = mapped(x, self._as_read) if name in operands else _opened(x)
                arguments[python_name(name)] = read
        if len(arguments) < len(given) and "**" not in known.parameters:
            for name in given:
                if name not in known.parameters:
                    raise InvalidOperation(f"the rule takes no '{name}'")
        if len(given) < len(known.parameters):
            required = set(known.parameters) - known.defaults.keys() - {"**"}
            if missing := sorted(required - given.keys()):
                raise InvalidOperation(f"the rule needs {', '.join(map(repr, missing))}")
        try:
            inferred = known.infer(**arguments)
        except ZeroDivisionError:  # some divide by an extent
            if not any([0 in v.type.shape for x in operands.values() for v in values_of(x)]):
                raise
            raise InvalidShape("an operand is empty, it needs items") from None
        if isinstance(inferred, TensorType) and len(names) == 1:  # as nearly always
            results = (Value(self._name(names[0], True), _possible(inferred), inserted),)
        else:
            results = self._results(inferred, names, inserted)
        own = tuple(operands.items()), tuple(attributes.items())
        self.operations.append(Operation(kind, *own, results, span, calls, rule))
        return results

    def _results(self, types: Types, names: Sequence[str], inserted: bool) -> tuple[Result, ...]:
        structure = types if isinstance(types, tuple) else (types,)
        count = sum([len(item) if isinstance(item, list) else 1 for item in structure])
        exact = len(names) == count
        stem = names[0][:_LONGEST]
        wanted = iter(
            names if exact else [f"{stem}_{i}" if count > 1 else names[0] for i in range(count)]
        )

        def value(type: TensorType) -> Value:
            return Value(self._name(next(wanted), exact), _possible(type), inserted)

        return tuple([tuple(map(value, i)) if isinstance(i, list) else value(i) for i in structure])

    def graph(
        self,
        name: str,
        outputs: Sequence[Value],
        output_names: Sequence[str],
        input_names: Sequence[str] | None = None,
    ) -> Graph:
        """Return the graph of all that was added, inputs in the order of `input_names` if given."""
        variables = self._variables.values()
        inputs = {value.name: value for value in self._inputs}
        return Graph(
            name,
            tuple(inputs[n] for n in (inputs if input_names is None else input_names)),
            tuple(outputs),
            tuple(output_names),
            tuple(self.operations),
            tuple(Parameter(v.label, v.value, v.span) for v in variables if v.update is None),
            tuple(
                StateVariable(v.label, v.value, v.update, v.span, v.initial)
                for v in variables
                if v.update is not None
            ),
            dict(self.aliases),
            dict(self.folded),
        )


def _possible(type: TensorType) -> TensorType:
    """Return the type of a result; raise InvalidShape for one that no array has."""
    for extent in type.shape:
        if extent < 0:
            raise InvalidShape(f"the result would have the shape {show(type.shape)}")
    if 0 in type.shape and volume(type.shape[: type.shape.index(0)]) > _MOST_EMPTY:
        raise InvalidShape(
            f"the result would have the shape {show(type.shape)}: more than {_MOST_EMPTY} places "
            "before an axis without items, which take long to compile"
        )
    return ABSENT if type is PRESENT else type


def _opened(attribute: Any) -> Any:
    if isinstance(attribute, tuple):
        items: tuple[Any, ...] = attribute
        return tuple(map(_opened, items)) if any(map(is_symbolic, items)) else items
    return UNKNOWN if is_symbolic(attribute) else attribute
