"""Builds a flat graph one operation at a time; rules infer the types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import (
    MAX_EXTENT,
    UNKNOWN,
    Extent,
    Shape,
    is_symbolic,
    shapes_differ,
    show,
    volume,
)
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
# Before a suffix is added, a name is cut to this number of characters.
_MOST_CHARACTERS_BEFORE_SUFFIX = 400
# If an axis of a result is empty, the product of the extents before it is at most this number.
# XLA's compiler visits each item along these axes, which takes 0.6 s for this number.
_MOST_ITEMS_BEFORE_EMPTY_AXIS = 1 << 22


@dataclass(slots=True)
class _Variable:
    """A declared variable: a state of the graph if it has an update, otherwise a parameter."""

    label: str
    value: Value
    span: Span | None
    update: Value | None = None
    initial: Value | None = None


@dataclass(slots=True)
class GraphBuilder:
    """Builds an immutable graph of inputs, variables and operations.

    Methods raise InvalidOperation for invalid arguments. `real` and `integer` are the dtypes of
    literals and of tensors without a declared dtype. A new value whose name is taken gets a suffix.
    If a format forbids equal names, its reader calls `is_taken` first.
    """

    real: str = "float32"
    integer: str = "int32"
    operations: list[Operation] = field(default_factory=list[Operation])
    aliases: dict[str, Value] = field(default_factory=dict[str, Value])
    folded: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    symbols: dict[str, Value] = field(default_factory=dict[str, Value])
    _inputs: list[Value] = field(default_factory=list[Value])
    _variables: dict[str, _Variable] = field(default_factory=dict[str, _Variable])
    _variable_of: dict[Value, _Variable] = field(default_factory=dict["Value", _Variable])
    _taken: set[str] = field(default_factory=set[str])
    _reserved: set[str] = field(default_factory=set[str])
    _suffixes: dict[str, int] = field(default_factory=dict[str, int])
    # Maps names to the results of `unreserved` for these names.
    _unreserved: dict[str, str] = field(default_factory=dict[str, str])

    def reserve(self, names: Iterable[str]) -> None:
        """Keep some names free for values that will be created with exactly these names."""
        self._reserved.update(names)
        self._unreserved.clear()

    def unreserved(self, name: str) -> str:
        """Return a name that is not reserved: `name`, with underscores added if need be."""
        tried_names: list[str] = []
        while name in self._reserved:
            tried_names.append(name)
            name = self._unreserved.get(name, f"{name}_")
        self._unreserved.update(dict.fromkeys(tried_names, name))
        return name

    @property
    def inputs(self) -> Sequence[Value]:
        """Return the inputs that the graph has so far, in order."""
        return self._inputs

    def is_input(self, value: Value) -> bool:
        """Tell whether a tensor is an input of the graph."""
        return value in self._inputs

    def is_taken(self, name: str) -> bool:
        """Tell whether a value of the graph already has this name."""
        return name in self._taken

    def _free_name(self, name: str, *, may_be_reserved: bool) -> str:
        """Return a free name and mark it as taken: `name`, with a suffix if need be."""
        free_name = name
        stem = name
        while free_name in self._taken or (free_name in self._reserved and not may_be_reserved):
            stem = stem[:_MOST_CHARACTERS_BEFORE_SUFFIX]
            self._suffixes[stem] = self._suffixes.get(stem, 0) + 1
            free_name = f"{stem}_{self._suffixes[stem]}"
        self._taken.add(free_name)
        return free_name

    def input(self, name: str, type: TensorType) -> Value:
        """Add an input of the graph, and return its tensor. Callers of the graph pass the array."""
        value = Value(self._free_name(name, may_be_reserved=True), type)
        self._inputs.append(value)
        return value

    def variable(self, name: str, label: str, type: TensorType, span: Span | None) -> Value:
        """Declare the variable that is stored under a label, and return its tensor.

        All declarations of a label return the same tensor. A variable becomes a state if
        `update` is called for it, otherwise a parameter.

        Args:
            name: the name of the tensor in the graph.
            label: the name of the variable's array for `trace`.
            type: the type of the tensor. InvalidShape is raised if another declaration of the
                label has another type.
            span: the place of the declaration in the document.
        """
        variable = self._variables.get(label)
        if variable is None:
            # A suffix must not lead to a reserved name, unless the variable's own name is reserved.
            is_reserved = name in self._reserved
            value = Value(self._free_name(name, may_be_reserved=is_reserved), type)
            variable = _Variable(label, value, span)
            self._variables[label] = variable
            self._variable_of[value] = variable
            return value
        earlier_type = variable.value.type
        if shapes_differ(earlier_type.shape, type.shape) or earlier_type.dtype != type.dtype:
            raise InvalidShape(
                f"variable '{label}' is declared as {type} here and as {earlier_type} before",
                hint="variables of one label share their data, so they must have one shape",
            )
        return variable.value

    def variable_of(self, label: str) -> Value | None:
        """Return the tensor of the variable with a label, or None if the label is not declared."""
        variable = self._variables.get(label)
        return None if variable is None else variable.value

    def starting(self, label: str, variable: Value, initial: Value, span: Span | None) -> None:
        """Declare `initial`, the tensor with the initial value of the tensor `variable`.

        In the graph of a first cycle, which starts from initial values, `variable` and
        `initial` are the same tensor.
        """
        declared = self._variables.setdefault(label, _Variable(label, variable, span))
        self._variable_of[variable] = declared
        declared.initial = initial

    def update(self, variable: Operand, value: Value, shape: Shape | None = None) -> Value:
        """Set the value that a variable takes after each cycle, and return this value.

        The value must have the shape `shape`, which is the declared shape of the variable by
        default. Extents that change from cycle to cycle are UNKNOWN in `shape`.
        """
        declared = self._variable_of.get(variable) if isinstance(variable, Value) else None
        if declared is None:
            raise InvalidOperation(
                "the first argument of 'update' must be a variable",
                hint="it must be the result of 'variable' itself, not of an operation on it",
            )
        if declared.update is not None:
            raise InvalidOperation(f"variable '{declared.label}' is updated twice in one cycle")
        type = declared.value.type
        if shape is None:
            shape = type.shape
        if shapes_differ(shape, value.type.shape):
            raise InvalidShape(
                f"variable '{declared.label}' has shape {show(shape)}, "
                f"its new value has {show(value.type.shape)}"
            )
        if type.dtype != value.type.dtype:
            raise InvalidOperation(
                f"variable '{declared.label}' holds {type.dtype}, its new value {value.type.dtype}"
            )
        declared.update = value
        return value

    def literal_type(self, value: Scalar) -> TensorType:
        """Return the type of the tensor for which a literal stands.

        Raises InvalidOperation for an integer that the builder's `integer` dtype cannot hold.
        """
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
        """Return the type of an operand, as it is passed to a rule.

        Raises InvalidShape if an axis has more items than an index of 32 bits can number.
        """
        type = operand.type if isinstance(operand, Value) else self.literal_type(operand)
        for extent in type.shape:
            if extent > MAX_EXTENT:
                raise InvalidShape(
                    f"an operand has the shape {show(type.shape)}; an axis has at most "
                    f"{MAX_EXTENT} items"
                )
        # A rule takes ABSENT as an operand that is left out. Therefore it gets PRESENT for a tensor
        # of the type ABSENT.
        if type == ABSENT and isinstance(operand, Value):
            return PRESENT
        return type

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
        """Add an operation to the graph, and return its results.

        Raises InvalidOperation if the arguments break the rule, and KeyError if `rules` has no
        rule for the kind. The Python types of attributes are not checked. An attribute of a
        wrong type raises an error of Python, such as TypeError.

        Args:
            kind: the kind of the operation, one of `lowering.rules`.
            operands: maps parameters of the rule to tensors, literals, or tuples of tensors and
                literals. A literal stands for a constant tensor.
            attributes: maps parameters of the rule to numbers, strings, or tuples of these.
            names: the names of the results, at least one. If the operation has another number
                of results, their names are made from the first name.
            span: the place of the operation in the document, for errors, HLO and profiles.
            calls: the nested function calls in the document that lead to the operation.
            rule: a user's rule for `kind`, or None for the rule in `rules`.
            inserted: whether a reader added the results, so that the document has no such
                tensors.
        """
        types = self._infer(rule or rules[kind], operands, attributes)
        if isinstance(types, TensorType) and len(names) == 1:  # the usual case
            name = self._free_name(names[0], may_be_reserved=True)
            results = (Value(name, _possible(types), inserted),)
        else:
            results = self._results(types, names, inserted)
        operation = Operation(
            kind=kind,
            operands=tuple(operands.items()),
            attributes=tuple(attributes.items()),
            results=results,
            span=span,
            calls=calls,
            rule=rule,
        )
        self.operations.append(operation)
        if kind == "counted" and rule is None and "extent" in attributes:
            # The first operation that counts a symbol's items gives the symbol's value.
            self.symbols.setdefault(str(attributes["extent"]), next(operation.writes()))
        return results

    def _infer(
        self, rule: Rule, operands: Mapping[str, Operand], attributes: Mapping[str, Attribute]
    ) -> Types:
        """Return the types of an operation's results, by its rule. Errors are as in `operation`."""
        arguments: dict[str, Any] = {**operands, **attributes}
        reads = rule.infer_reads
        infer_arguments: dict[str, Any] = {}
        for name, argument in arguments.items():
            is_read = "**" in reads or name in reads
            if not is_read:
                continue
            if name in operands:
                infer_arguments[python_name(name)] = mapped(argument, self._as_read)
            else:
                infer_arguments[python_name(name)] = _opened(argument)
        # If `infer` reads all arguments, it refuses an unknown one itself.
        are_all_read = len(infer_arguments) == len(arguments)
        if not are_all_read:
            _refuse_unknown(rule, arguments)
        if len(arguments) < len(rule.parameters):
            _require_all(rule, arguments)
        try:
            return rule.infer(**infer_arguments)
        except ZeroDivisionError:  # some rules divide by an extent
            if not any(map(_has_empty, operands.values())):
                raise
            raise InvalidShape("an operand is empty, the operation needs items") from None

    def _results(self, types: Types, names: Sequence[str], inserted: bool) -> tuple[Result, ...]:
        """Return new values of the types `types`, as the results of an operation.

        A list of types gives a list of tensors, as one result. The tensors get the names in
        `names`. If there are more or fewer names than tensors, the names are made from the first
        name. `inserted` is as in `operation`.
        """
        result_types = types if isinstance(types, tuple) else (types,)
        count = 0
        for item in result_types:
            count += len(item) if isinstance(item, list) else 1
        # The caller's names may be reserved names only if there is one for each tensor.
        has_all_names = len(names) == count
        if not has_all_names and count == 1:
            names = names[:1]
        elif not has_all_names:
            stem = names[0][:_MOST_CHARACTERS_BEFORE_SUFFIX]
            names = [f"{stem}_{i}" for i in range(count)]
        remaining_names = iter(names)

        def next_value(type: TensorType) -> Value:
            name = self._free_name(next(remaining_names), may_be_reserved=has_all_names)
            return Value(name, _possible(type), inserted)

        results: list[Result] = []
        for item in result_types:
            if isinstance(item, list):
                results.append(tuple(map(next_value, item)))
            else:
                results.append(next_value(item))
        return tuple(results)

    def graph(
        self,
        name: str,
        outputs: Sequence[Value],
        output_names: Sequence[str],
        input_names: Sequence[str] | None = None,
    ) -> Graph:
        """Return the graph that has been built.

        `outputs` are the graph's outputs, and `output_names` are their names in the document.
        `input_names` gives the order of the graph's inputs. By default inputs are in the order
        of the calls of `input`.
        """
        inputs = {value.name: value for value in self._inputs}
        if input_names is None:
            input_names = tuple(inputs)
        parameters: list[Parameter] = []
        states: list[StateVariable] = []
        for variable in self._variables.values():
            label, value, span = variable.label, variable.value, variable.span
            if variable.update is None:
                parameters.append(Parameter(label, value, span))
            else:
                states.append(StateVariable(label, value, variable.update, span, variable.initial))
        return Graph(
            name=name,
            inputs=tuple(inputs[input_name] for input_name in input_names),
            outputs=tuple(outputs),
            output_names=tuple(output_names),
            operations=tuple(self.operations),
            parameters=tuple(parameters),
            states=tuple(states),
            aliases=dict(self.aliases),
            folded=dict(self.folded),
            symbols=dict(self.symbols),
        )


def _has_empty(operand: Operand) -> bool:
    """Tell whether a tensor of an operand has no items."""
    return any(0 in value.type.shape for value in values_of(operand))


def _refuse_unknown(rule: Rule, names: Iterable[str]) -> None:
    """Raise InvalidOperation if one of the names is no parameter of the rule."""
    if "**" in rule.parameters:
        return
    for name in names:
        if name not in rule.parameters:
            raise InvalidOperation(f"the rule takes no '{name}'")


def _require_all(rule: Rule, names: Iterable[str]) -> None:
    """Raise InvalidOperation if a parameter without a default is not among the names."""
    required = set(rule.parameters) - rule.defaults.keys() - {"**"}
    missing = sorted(required.difference(names))
    if missing:
        raise InvalidOperation(f"the rule needs {', '.join(map(repr, missing))}")


def _possible(type: TensorType) -> TensorType:
    """Return the type of an operation's result, with ABSENT in place of PRESENT.

    Raises InvalidShape for a negative extent. Also raises InvalidShape if an extent is 0, and the
    product of the extents before it exceeds `_MOST_ITEMS_BEFORE_EMPTY_AXIS`: XLA would take long to
    compile an operation with a result of such a shape.
    """
    for extent in type.shape:
        if extent < 0:
            raise InvalidShape(f"the result would have the shape {show(type.shape)}")
    if 0 in type.shape:
        axes_before = type.shape[: type.shape.index(0)]
        if volume(axes_before) > _MOST_ITEMS_BEFORE_EMPTY_AXIS:
            raise InvalidShape(
                f"the result would have the shape {show(type.shape)}: more than "
                f"{_MOST_ITEMS_BEFORE_EMPTY_AXIS} items along the axes before the empty one, which "
                "take long to compile"
            )
    return ABSENT if type is PRESENT else type


def _opened(attribute: Any) -> Any:
    """Return an attribute in which UNKNOWN replaces each symbolic dimension and each `Extent`."""
    if isinstance(attribute, tuple):
        items: tuple[Any, ...] = attribute
        return tuple(map(_opened, items)) if any(map(_is_open, items)) else items
    return UNKNOWN if _is_open(attribute) else attribute


def _is_open(attribute: Any) -> bool:
    """Tell whether an attribute is an extent that is unknown before the graph runs."""
    return isinstance(attribute, Extent) or is_symbolic(attribute)
