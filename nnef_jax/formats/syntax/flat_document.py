"""Writes a flat graph as a syntax tree, which is a flat document of NNEF 1.0 final."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from lowering.extents import UNKNOWN
from lowering.graph import (
    Graph,
    Operation,
    Scalar,
    Value,
    is_complex,
    is_integer,
    symbol_names,
    values_of,
)
from lowering.location import Source
from lowering.ops import rules
from nnef_jax.errors import NnefError, UnsupportedError, raise_all
from nnef_jax.formats.syntax import tree
from nnef_jax.formats.syntax import types as t
from nnef_jax.formats.syntax.declared_tensors import item_of
from nnef_jax.formats.syntax.standard import GENERIC_RESULT, standard
from nnef_jax.formats.syntax.standard_resampling import standard_resampling
from nnef_jax.formats.syntax.tokens import KEYWORDS
from nnef_jax.limits import Meter

NO_OFFSET = 0  # the offset of a node that was not read from a text
_ITEM_WORDS = ("scalar", "integer", "logical")
_INTEGER_DTYPES = ("int32", "int64")  # dtypes in which integers of the language are computed
Number = Scalar | complex
_STEPS_OF_EXPRESSION = 5  # An expression costs so many steps of the limit.
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")  # matches a letter that identifiers cannot have


class Names:
    """A source of valid identifiers that are all different."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken: set[str] = set(taken)
        self._suffixes: dict[str, int] = {}  # the last number that was added to each name

    def fresh(self, name: str) -> str:
        """Return a valid identifier that is not taken, and reserve it.

        The identifier is `name` if possible. Otherwise it is a similar name: `0/x` becomes `_0_x`,
        and if `_0_x` is taken, `_0_x_1`.
        """
        base = _NOT_IN_NAMES.sub("_", name)
        if base == "" or base[0].isdigit():
            base = f"_{base}"
        free_name = base
        while free_name in self.taken:
            number = self._suffixes.get(base, 0) + 1
            self._suffixes[base] = number
            free_name = f"{base}_{number}"
        return self.reserve(free_name)

    def reserve(self, name: str) -> str:
        """Reserve a name, and return it."""
        self.taken.add(name)
        return name


@dataclass(frozen=True, slots=True)
class Invoked:
    """The invocation of an operation in a document: its declaration and its arguments.

    `generic` is the type in `<...>` after the operation's name, or None.
    """

    declaration: tree.Fragment
    arguments: Mapping[str, Any]
    generic: str | None = None


class FlatWriter:
    """Writes a graph as a flat document with the operations of NNEF 1.0 final.

    `names` has the identifiers of values. The identifier is the name of the value if the language
    allows this name. An output needs a copy if it is an input, or if the output's name differs from
    the value's name. The language has no literal for infinity, so an infinite operand is computed
    by an operation. Updates of states come last, after all operations that read the states.
    """

    def __init__(self, graph: Graph, meter: Meter) -> None:
        self.graph = graph
        self.meter = meter
        self.errors: list[NnefError] = []
        self.names: dict[Value, str] = {}
        self._identifiers = Names(())
        # The assignments that compute infinity (the key True) and -infinity (the key False).
        self._infinities: dict[bool, tree.Assignment] = {}

    def write(self) -> tree.Document:
        """Write the document.

        Raises UnsupportedError, which names everything that the language cannot express. Examples
        are operations that are not in the standard, and attributes that are not finite or that
        depend on unknown extents.
        """
        graph = self.graph
        if not graph.inputs:
            self.refuse("a graph without inputs cannot be written")
        if not graph.outputs:
            self.refuse("a graph without outputs cannot be written")
        names = self.identifiers()
        self._identifiers = names
        for value in graph.inputs:
            self.names[value] = names.fresh(value.name)
        results, copies = self._results(names)
        for value in self._computed():
            if value not in self.names:
                self.names[value] = names.fresh(value.name)
        body = self._body(names, copies)
        raise_all(self.errors)
        inputs = tuple(map(self._tensor, graph.inputs))
        graph_name = Names({*KEYWORDS, *standard()}).fresh(graph.name)
        definition = tree.GraphDefinition(NO_OFFSET, graph_name, inputs, results, body)
        return tree.Document(
            Source("graph.nnef", ""),
            version="1.0",
            provisional=False,
            extensions=(),
            fragments=(),
            graph=definition,
        )

    def _body(self, names: Names, copies: dict[str, Value]) -> tuple[tree.Assignment, ...]:
        """Return the statements of the graph.

        `copies` maps the identifiers of outputs that are copies to the copied values.
        """
        inputs = self.graph.inputs
        declarations = [_assign(self.names[value], self.external(value)) for value in inputs]
        declarations += self._variables()
        operations: list[tree.Assignment] = []
        for operation in self.graph.operations:
            operations += self._operation(operation)
        # The infinities are known only now, but come before the operations that read them.
        infinities = self._infinities.values()
        # The updates are made before the copies: an update that assigns an output removes this
        # output from `copies`.
        updates = list(self._updates(names, copies))
        output_copies: list[tree.Assignment] = []
        for name, value in copies.items():
            output_copies.append(_assign(name, invocation("copy", self._tensor(value))))
        return (*declarations, *infinities, *operations, *output_copies, *updates)

    # Names

    def identifiers(self) -> Names:
        """Return a new source of identifiers for values, in which all keywords are taken."""
        return Names(KEYWORDS)

    def _computed(self) -> Iterator[Value]:
        """Yield all values except the inputs, in the order in which they are assigned."""
        for variable in (*self.graph.parameters, *self.graph.states):
            yield variable.value
        for operation in self.graph.operations:
            yield from operation.writes()

    def _results(self, names: Names) -> tuple[tuple[tree.Identifier, ...], dict[str, Value]]:
        """Return the identifiers of the outputs, and the outputs that are written as copies.

        The copies are returned as a mapping from the output's identifier to the copied value.
        """
        copies: dict[str, Value] = {}
        results: list[tree.Identifier] = []
        computed = set(self._computed())
        for output, value in zip(self.graph.output_names, self.graph.outputs, strict=True):
            name = names.fresh(output)
            results.append(tree.Identifier(NO_OFFSET, name))
            # An input already has an identifier. So has a value that is also an earlier output.
            has_identifier = value in self.names
            if not has_identifier and value not in computed:
                self.refuse(f"result '{output}' is not computed by the graph")
            elif not has_identifier and value.name == output:
                self.names[value] = name
            else:
                copies[name] = value
        return tuple(results), copies

    # Statements

    def _variables(self) -> Iterator[tree.Assignment]:
        """Yield the statements that declare the parameters and the states."""
        for variable in (*self.graph.parameters, *self.graph.states):
            value = variable.value
            label = tree.Literal(NO_OFFSET, variable.label)
            shape = integers(value.type.shape)
            node = invocation("variable", generic=self._item(value), shape=shape, label=label)
            yield _assign(self.names[value], node)

    def _updates(self, names: Names, copies: dict[str, Value]) -> Iterator[tree.Assignment]:
        """Yield the statements that update the states.

        `copies` maps the identifiers of outputs that are copies to the copied values. If an output
        is a copy of the new value of a state, the update assigns the output instead of a new name,
        and the output is removed from `copies`.
        """
        # For each copied value, the identifiers of its copies.
        outputs_by_value: dict[Value, deque[str]] = {}
        for name, value in copies.items():
            outputs_by_value.setdefault(value, deque()).append(name)
        for state in self.graph.states:
            outputs = outputs_by_value.get(state.update)
            if outputs:
                name = outputs.popleft()
                del copies[name]
            else:
                name = names.fresh(f"{self.names[state.value]}_update")
            variable = self._tensor(state.value)
            new_value = self._tensor(state.update)
            yield _assign(name, invocation("update", variable, new_value))

    def external(self, value: Value) -> tree.Invocation:
        """Return the invocation that declares an input. An unknown extent is written as 0."""
        extents = [0 if extent is UNKNOWN else extent for extent in value.type.shape]
        shape = integers(tuple(extents))
        return invocation("external", generic=self._item(value), shape=shape)

    def _item(self, value: Value) -> str:
        """Return the item type with which a tensor is declared, such as "scalar".

        If the tensor has complex numbers, record an error.
        """
        if is_complex(value.type.dtype):
            self.refuse(f"'{value.name}' holds complex numbers, NNEF has none")
        return item_of(value.type.dtype)

    def invoked(self, operation: Operation) -> Invoked | None:
        """Return the invocation of NNEF's operation for an operation of the graph.

        If NNEF has no such operation, record an error and return None.
        """
        kind = operation.kind
        if symbol_names(operation):
            self.refuse(f"an extent of '{kind}' depends on values", operation)
            return None
        arguments: dict[str, Any] = {**dict(operation.operands), **dict(operation.attributes)}
        if kind == "resize" and operation.rule is None:
            resampling = standard_resampling(operation)
            if resampling is not None:
                kind, arguments = resampling
        declaration = standard().get(kind)
        if declaration is None:
            self.refuse(f"'{kind}' is not an operation of the standard", operation)
            return None
        self._check_arguments(operation, kind, declaration, arguments)
        generic = item_of(arguments["dtype"]) if kind in GENERIC_RESULT else None
        return Invoked(declaration, arguments, generic)

    def _check_arguments(
        self,
        operation: Operation,
        kind: str,
        declaration: tree.Fragment,
        arguments: Mapping[str, Any],
    ) -> None:
        """Record an error for each argument that NNEF's operation cannot have.

        `kind`, `declaration` and `arguments` are those of NNEF's operation. `operation` is the
        operation of the graph.
        """
        # A kind may have more parameters than the standard's operation. An argument for such a
        # parameter must be equal to the default.
        defaults = rules[kind].defaults if operation.rule is None else {}
        for name, value in arguments.items():
            # If there is no default, any value is allowed.
            if name in defaults and value != defaults[name]:
                self.refuse(f"'{name}' {value!r} of '{kind}' is not NNEF", operation)
        wrong_dtype = _wrong_dtype(declaration, arguments)
        if wrong_dtype:
            self.refuse(f"'{kind}' of items of {wrong_dtype} is not NNEF", operation)
        if kind == "constant" and 0 in arguments["shape"]:
            self.refuse("a tensor without items is not NNEF", operation)
        if kind == "cast" and not _is_exact_cast(arguments["dtype"], arguments["input"]):
            reason = "limits the range of numbers, but integers of NNEF have 32 bits"
            self.refuse(f"a cast to {arguments['dtype']} {reason}", operation)

    def _operation(self, operation: Operation) -> Iterator[tree.Assignment]:
        """Yield the statement for an operation, unless the operation cannot be written."""
        if not list(operation.writes()):
            return  # an operation without results does nothing
        invoked = self.invoked(operation)
        if invoked is None:
            return
        declaration = invoked.declaration
        arguments = self._arguments(invoked, operation)
        has_default_generic = invoked.generic == declaration.generic_default
        generic = None if has_default_generic else invoked.generic
        call = tree.Invocation(NO_OFFSET, declaration.name, generic, arguments)
        yield tree.Assignment(NO_OFFSET, self._target_of(operation, declaration), call)

    def _arguments(self, invoked: Invoked, operation: Operation) -> tuple[tree.Argument, ...]:
        """Return the arguments of an invocation, without those that equal the defaults.

        Tensors are positional up to the first attribute, or the first argument that is left out.
        All other arguments are named.
        """
        arguments: list[tree.Argument] = []
        is_positional = True
        for parameter in invoked.declaration.parameters:
            type = t.substitute(parameter.type, invoked.generic)
            expression = self._expression(invoked.arguments[parameter.name], type, operation)
            # Texts are compared instead of values, since 1 equals 1.0 and 0.0 equals -0.0.
            has_default = parameter.default is not None
            if has_default and repr(expression) == repr(parameter.default):
                is_positional = False  # the arguments after a gap must be named
                continue
            is_positional = is_positional and t.has_tensor(parameter.type)
            name = None if is_positional else parameter.name
            arguments.append(tree.Argument(NO_OFFSET, name, expression))
        return tuple(arguments)

    def _target_of(self, operation: Operation, declaration: tree.Fragment) -> tree.Target:
        """Return the target of the statement for an operation: the names of its results.

        If a result consists of several tensors, the declaration of NNEF's operation decides whether
        the target for the result is an array or a tuple.
        """
        targets: list[tree.Target] = []
        for result, declared in zip(operation.results, declaration.results, strict=True):
            if isinstance(result, tuple):
                sequence = tree.Tuple if isinstance(declared.type, t.TupleOf) else tree.Array
                targets.append(sequence(NO_OFFSET, tuple(map(self._tensor, result))))
            else:
                targets.append(self._tensor(result))
        return targets[0] if len(targets) == 1 else tree.Tuple(NO_OFFSET, tuple(targets))

    # Expressions

    def _tensor(self, value: Value) -> tree.Identifier:
        """Return the identifier of a value as an expression."""
        return tree.Identifier(NO_OFFSET, self.names[value])

    def _expression(self, value: Any, type: t.Type, operation: Operation) -> tree.Expression:
        """Return an operand or attribute as an expression for a parameter of the type `type`."""
        self.meter.spend(_STEPS_OF_EXPRESSION, "the flat document")
        if isinstance(value, Value):
            return self._tensor(value)
        if not isinstance(value, tuple | list):
            return self.literal(value, type, operation)
        items: Sequence[Any] = value
        types: Sequence[t.Type]
        if isinstance(type, t.TupleOf):
            types = type.items
        elif isinstance(type, t.ArrayOf):
            types = [type.item] * len(items)
        else:
            types = [t.ANY] * len(items)
        nodes: list[tree.Expression] = []
        for item, item_type in zip(items, types, strict=True):
            nodes.append(self._expression(item, item_type, operation))
        sequence = tree.Tuple if isinstance(type, t.TupleOf) else tree.Array
        return sequence(NO_OFFSET, tuple(nodes))

    def literal(self, value: Number | str, type: t.Type, operation: Operation) -> tree.Expression:
        """Return a number, a string or a bool as an expression for a parameter of type `type`."""
        item: Any = value.item() if isinstance(value, np.generic) else value
        if isinstance(item, complex):
            self.refuse(f"an argument of '{operation.kind}' is complex", operation)
            return tree.Literal(NO_OFFSET, 0.0)
        if item is UNKNOWN:
            self.refuse(
                f"an argument of '{operation.kind}' depends on an extent that is left open",
                operation,
                hint="write the extents of the inputs into the document, "
                "or give them by load(..., input_shapes=...)",
            )
            return tree.Literal(NO_OFFSET, item)
        if type in (t.SCALAR, t.Tensor("scalar")):
            item = float(item)
        has_literal = not isinstance(item, float) or math.isfinite(item)
        if has_literal:
            return tree.Literal(NO_OFFSET, item)
        if math.isinf(item) and isinstance(type, t.Tensor):
            return self._infinity(item > 0)
        self.refuse(
            f"an argument of '{operation.kind}' is {item}, for which NNEF has no literal",
            operation,
            hint="cut the network before it",
        )
        return tree.Literal(NO_OFFSET, item)

    def _infinity(self, is_positive: bool) -> tree.Identifier:
        """Return the identifier of a tensor that is infinity if `is_positive`, otherwise -infinity.

        The tensor is computed as rcp(0.0) or log(0.0), once for the graph.
        """
        if is_positive not in self._infinities:
            name = "infinity" if is_positive else "minus_infinity"
            operation = "rcp" if is_positive else "log"
            node = invocation(operation, tree.Literal(NO_OFFSET, 0.0))
            self._infinities[is_positive] = _assign(self._identifiers.fresh(name), node)
        target = self._infinities[is_positive].target
        assert isinstance(target, tree.Identifier)
        return target

    def refuse(self, message: str, operation: Operation | None = None, hint: str = "") -> None:
        """Record an error for an operation that cannot be written."""
        span = operation.span if operation else None
        calls = operation.calls if operation else ()
        self.errors.append(UnsupportedError(message, span=span, calls=calls, hint=hint))


def _wrong_dtype(declaration: tree.Fragment, arguments: Mapping[str, Any]) -> str:
    """Return the dtype of an argument whose items are not of the declared type.

    Return "" if there is no such argument. An example is an operand of int32 for a parameter that
    is declared as `tensor<scalar>`.
    """
    for parameter in declaration.parameters:
        type = parameter.type
        if isinstance(type, t.ArrayOf):
            type = type.item
        if not isinstance(type, t.Tensor) or type.item not in _ITEM_WORDS:
            continue
        values = values_of(arguments.get(parameter.name, ()))
        dtypes = {value.type.dtype for value in values}
        wrong_dtypes = sorted(dtype for dtype in dtypes if item_of(dtype) != type.item)
        if wrong_dtypes:
            return wrong_dtypes[0]
    return ""


def _is_exact_cast(dtype: str, operand: object) -> bool:
    """Tell whether a cast to a dtype can be written as a cast of NNEF.

    A cast to a dtype of few bits, such as int8, limits the range of numbers. A cast of NNEF does
    not. So all numbers of the operand's dtype must be in the range of the new dtype.
    """
    is_limiting = is_integer(dtype) and dtype not in _INTEGER_DTYPES
    if not is_limiting:
        return True
    source_dtype = operand.type.dtype if isinstance(operand, Value) else ""
    if source_dtype == "bool":
        return True
    if not is_integer(source_dtype):
        return False
    source_range = ml_dtypes.iinfo(source_dtype)
    result_range = ml_dtypes.iinfo(dtype)
    return result_range.min <= source_range.min and source_range.max <= result_range.max


def _assign(name: str, value: tree.Expression) -> tree.Assignment:
    """Make the statement `name = value;`."""
    return tree.Assignment(NO_OFFSET, tree.Identifier(NO_OFFSET, name), value)


def invocation(
    operation: str,
    *tensors: tree.Expression,
    generic: str | None = None,
    **attributes: tree.Expression,
) -> tree.Invocation:
    """Make an invocation. Tensors are positional arguments, and attributes are named arguments."""
    arguments = [tree.Argument(NO_OFFSET, None, value) for value in tensors]
    arguments += [tree.Argument(NO_OFFSET, name, value) for name, value in attributes.items()]
    if generic == "scalar":  # the default
        generic = None
    return tree.Invocation(NO_OFFSET, operation, generic, tuple(arguments))


def integers(values: tuple[int, ...]) -> tree.Array:
    """Return an array of integer literals."""
    return tree.Array(NO_OFFSET, tuple(tree.Literal(NO_OFFSET, value) for value in values))
