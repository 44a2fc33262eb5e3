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
from lowering.graph import Graph, Operation, Scalar, Value, is_complex, is_integer, values_of
from lowering.location import Source
from lowering.ops import rules
from nnef_jax.errors import NnefError, UnsupportedError, raise_all
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax import types as t
from nnef_jax.formats.syntax.declared_tensors import item_of
from nnef_jax.formats.syntax.standard import GENERIC_RESULT, standard
from nnef_jax.formats.syntax.standard_resampling import standard_resampling
from nnef_jax.formats.syntax.tokens import KEYWORDS
from nnef_jax.limits import Meter

_ITEMS = ("scalar", "integer", "logical")
_INTEGERS = ("int32", "int64")  # dtypes in which integers of the language are computed
Number = Scalar | complex
_EXPRESSION = 5  # steps of the meter to make and print an expression
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")


class Names:
    """A source of valid identifiers that are all different."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken: set[str] = set(taken)
        self._suffixes: dict[str, int] = {}

    def fresh(self, name: str) -> str:
        """Return the name, or a changed name if it is taken or is not an identifier."""
        base = _NOT_IN_NAMES.sub("_", name)
        if not base or base[0].isdigit():
            base = f"_{base}"
        name = base
        while name in self.taken:
            self._suffixes[base] = self._suffixes.get(base, 0) + 1
            name = f"{base}_{self._suffixes[base]}"
        return self.reserve(name)

    def reserve(self, name: str) -> str:
        """Reserve a name, and return it."""
        self.taken.add(name)
        return name


@dataclass(frozen=True, slots=True)
class Invoked:
    """The invocation of an operation in a document: its declaration and its arguments.

    `generic` is the type in `<...>` after the operation's name, or None.
    """

    declaration: s.Fragment
    arguments: Mapping[str, Any]
    generic: str | None = None


class FlatWriter:
    """Writes a graph as a flat document with the operations of NNEF 1.0 final.

    `names` has the identifiers of values. An identifier is the name of the value if the language
    allows this name. An unknown extent is written as 0 in `external`. The language has no literal
    for infinity, so an infinite operand is computed by an operation. An output is written as a copy
    if it is an input or has another name in the graph. Updates of states come last, after all
    operations that read the states.
    """

    def __init__(self, graph: Graph, meter: Meter) -> None:
        self.graph = graph
        self.meter = meter
        self.errors: list[NnefError] = []
        self.names: dict[Value, str] = {}
        self._identifiers = Names(())
        # The key tells whether the infinity is positive.
        self._infinities: dict[bool, s.Assignment] = {}

    def write(self) -> s.Document:
        """Write the document.

        Raises UnsupportedError, which names everything that the language cannot express. Examples
        are operations that are not in the standard, and attributes that are not finite or that
        depend on unknown extents.
        """
        graph = self.graph
        for ports, values in (("inputs", graph.inputs), ("outputs", graph.outputs)):
            if not values:
                self.refuse(f"a graph without {ports} cannot be written")
        names = self._identifiers = self.identifiers()
        self.names.update((value, names.fresh(value.name)) for value in graph.inputs)
        results, copies = self._results(names)
        for value in self._computed():
            if value not in self.names:
                self.names[value] = names.fresh(value.name)
        inputs = tuple(map(self._tensor, graph.inputs))
        body = [_assign(self.names[value], self.external(value)) for value in graph.inputs]
        body += self._variables()
        declaration_count = len(body)
        for operation in graph.operations:
            body += self._operation(operation)
        # The operations that compute infinities come before all others.
        body[declaration_count:declaration_count] = self._infinities.values()
        updates = list(self._updates(names, copies))
        for name, value in copies.items():
            body.append(_assign(name, invocation("copy", self._tensor(value))))
        body += updates
        raise_all(self.errors)
        graph_name = Names({*KEYWORDS, *standard()}).fresh(graph.name)
        definition = s.GraphDefinition(0, graph_name, inputs, results, tuple(body))
        return s.Document(Source("graph.nnef", ""), "1.0", False, (), (), definition)

    # Names

    def identifiers(self) -> Names:
        """Return a source of identifiers for values."""
        return Names(KEYWORDS)

    def _computed(self) -> Iterator[Value]:
        """Yield all values except the inputs, in the order in which they are assigned."""
        for variable in (*self.graph.parameters, *self.graph.states):
            yield variable.value
        for operation in self.graph.operations:
            yield from operation.writes()

    def _results(self, names: Names) -> tuple[tuple[s.Identifier, ...], dict[str, Value]]:
        """Return the identifiers of the graph's outputs, and the values of those written as copies.

        The copies are mapped by identifier.
        """
        copies: dict[str, Value] = {}
        results: list[s.Identifier] = []
        computed = set(self._computed())
        for output, value in zip(self.graph.output_names, self.graph.outputs, strict=True):
            name = names.fresh(output)
            results.append(s.Identifier(0, name))
            if value.name == output and value in computed and value not in self.names:
                self.names[value] = name
            elif value in computed or value in self.names:
                copies[name] = value
            else:
                self.refuse(f"result '{output}' is not computed by the graph")
        return tuple(results), copies

    # Statements

    def _variables(self) -> Iterator[s.Assignment]:
        for variable in (*self.graph.parameters, *self.graph.states):
            value = variable.value
            label = s.Literal(0, variable.label)
            shape = integers(value.type.shape)
            node = invocation("variable", generic=self._item(value), shape=shape, label=label)
            yield _assign(self.names[value], node)

    def _updates(self, names: Names, copies: dict[str, Value]) -> Iterator[s.Assignment]:
        """Yield the statements that update the states.

        `copies` maps the identifier of an output that is a copy to the value. If an output copies
        the new value of a state, the update assigns this output instead of a new name, and the
        output is removed from `copies`.
        """
        # The names of outputs, by the value that they copy.
        outputs_of: dict[Value, deque[str]] = {}
        for name, value in copies.items():
            outputs_of.setdefault(value, deque()).append(name)
        for state in self.graph.states:
            outputs = outputs_of.get(state.update)
            if outputs:
                name = outputs.popleft()
                del copies[name]
            else:
                name = names.fresh(f"{self.names[state.value]}_update")
            value = self._tensor(state.value)
            yield _assign(name, invocation("update", value, self._tensor(state.update)))

    def external(self, value: Value) -> s.Invocation:
        """Return the invocation that declares an input."""
        shape = tuple(0 if extent is UNKNOWN else extent for extent in value.type.shape)
        return invocation("external", generic=self._item(value), shape=integers(shape))

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
        arguments: dict[str, Any] = {**dict(operation.operands), **dict(operation.attributes)}
        if kind == "resize" and operation.rule is None:
            resampling = standard_resampling(operation)
            if resampling is not None:
                kind, arguments = resampling
        declaration = standard().get(kind)
        if declaration is None:
            self.refuse(f"'{kind}' is not an operation of the standard", operation)
            return None
        defaults = rules[kind].defaults if operation.rule is None else {}
        for name, value in arguments.items():
            # A parameter that the standard's operation does not have.
            if defaults.get(name, value) != value:
                self.refuse(f"'{name}' {value!r} of '{kind}' is not NNEF", operation)
        for parameter in declaration.parameters:
            type = parameter.type
            if isinstance(type, t.ArrayOf):
                type = type.item
            if not isinstance(type, t.Tensor) or type.item not in _ITEMS:
                continue
            dtypes = {x.type.dtype for x in values_of(arguments.get(parameter.name, ()))}
            wrong = sorted(dtype for dtype in dtypes if item_of(dtype) != type.item)
            if wrong:
                self.refuse(f"'{kind}' of items of {wrong[0]} is not NNEF", operation)
                break
        if kind == "constant" and 0 in arguments["shape"]:
            self.refuse("a tensor without items is not NNEF", operation)
        if kind == "cast" and not _is_exact_cast(arguments["dtype"], arguments["input"]):
            reason = "limits the range of numbers, but integers of NNEF have 32 bits"
            self.refuse(f"a cast to {arguments['dtype']} {reason}", operation)
        generic = item_of(arguments["dtype"]) if kind in GENERIC_RESULT else None
        return Invoked(declaration, arguments, generic)

    def _operation(self, operation: Operation) -> Iterator[s.Assignment]:
        if next(operation.writes(), None) is None:  # there is no result to assign
            return
        invoked = self.invoked(operation)
        if invoked is None:
            return
        declaration = invoked.declaration
        generic = invoked.generic
        arguments: list[s.Argument] = []
        is_positional = True
        for parameter in declaration.parameters:
            type = t.substitute(parameter.type, generic)
            expression = self._expression(invoked.arguments[parameter.name], type, operation)
            # Texts are compared instead of values, since 1 equals 1.0 and 0.0 equals -0.0.
            if parameter.default is not None and repr(expression) == repr(parameter.default):
                is_positional = False
                continue
            is_positional = is_positional and t.has_tensor(parameter.type)
            name = None if is_positional else parameter.name
            arguments.append(s.Argument(0, name, expression))
        if generic == declaration.generic_default:
            generic = None
        invocation = s.Invocation(0, declaration.name, generic, tuple(arguments))
        targets: list[s.Target] = []
        for x, declared in zip(operation.results, declaration.results, strict=True):
            if isinstance(x, tuple):
                sequence = s.Tuple if isinstance(declared.type, t.TupleOf) else s.Array
                targets.append(sequence(0, tuple(map(self._tensor, x))))
            else:
                targets.append(self._tensor(x))
        target = targets[0] if len(targets) == 1 else s.Tuple(0, tuple(targets))
        yield s.Assignment(0, target, invocation)

    # Expressions

    def _tensor(self, value: Value) -> s.Identifier:
        return s.Identifier(0, self.names[value])

    def _expression(self, value: Any, type: t.Type, operation: Operation) -> s.Expression:
        """Return an operand or attribute as an expression for a parameter of a type."""
        self.meter.spend(_EXPRESSION, "the flat document")
        if isinstance(value, Value):
            return self._tensor(value)
        if not isinstance(value, tuple | list):
            return self.literal(value, type, operation)
        items: Sequence[Any] = value
        inner = type.item if isinstance(type, t.ArrayOf) else t.ANY
        types = type.items if isinstance(type, t.TupleOf) else [inner] * len(items)
        pairs = zip(items, types, strict=True)
        nodes = tuple(self._expression(item, item_type, operation) for item, item_type in pairs)
        return s.Tuple(0, nodes) if isinstance(type, t.TupleOf) else s.Array(0, nodes)

    def literal(self, value: Number | str, type: t.Type, operation: Operation) -> s.Expression:
        """Return a number, a string or a bool as an expression for a parameter of a type."""
        item: Any = value.item() if isinstance(value, np.generic) else value
        if isinstance(item, complex):
            self.refuse(f"an argument of '{operation.kind}' is complex", operation)
            return s.Literal(0, 0.0)
        if item is UNKNOWN:
            self.refuse(
                f"an argument of '{operation.kind}' depends on an extent that is left open",
                operation,
                hint="write the extents of the inputs into the document, "
                "or give them by load(..., input_shapes=...)",
            )
        elif type in (t.SCALAR, t.Tensor("scalar")):
            item = float(item)
        is_finite = not isinstance(item, float) or math.isfinite(item)
        if not is_finite and math.isinf(item) and isinstance(type, t.Tensor):
            return self._infinity(item > 0)
        if not is_finite:
            self.refuse(
                f"an argument of '{operation.kind}' is {item}, for which NNEF has no literal",
                operation,
                hint="cut the network before it",
            )
        return s.Literal(0, item)

    def _infinity(self, is_positive: bool) -> s.Identifier:
        """Return the identifier of a tensor that is infinity if `is_positive`, otherwise -infinity.

        The tensor is computed as 1 / 0 or log(0).
        """
        if is_positive not in self._infinities:
            name = "infinity" if is_positive else "minus_infinity"
            operation = "rcp" if is_positive else "log"
            node = invocation(operation, s.Literal(0, 0.0))
            self._infinities[is_positive] = _assign(self._identifiers.fresh(name), node)
        target = self._infinities[is_positive].target
        assert isinstance(target, s.Identifier)
        return target

    def refuse(self, message: str, operation: Operation | None = None, hint: str = "") -> None:
        """Record an error for an operation that cannot be written."""
        span = operation.span if operation else None
        calls = operation.calls if operation else ()
        self.errors.append(UnsupportedError(message, span=span, calls=calls, hint=hint))


def _is_exact_cast(dtype: str, x: object) -> bool:
    """Tell whether a cast of `x` to a dtype can be written.

    This is so if NNEF can express the dtype, or if the dtype represents all numbers that `x` may
    have.
    """
    if not is_integer(dtype) or dtype in _INTEGERS:
        return True
    source = x.type.dtype if isinstance(x, Value) else ""
    if not is_integer(source):
        return source == "bool"
    narrow = ml_dtypes.iinfo(source)
    wide = ml_dtypes.iinfo(dtype)
    return wide.min <= narrow.min and narrow.max <= wide.max


def _assign(name: str, value: s.Expression) -> s.Assignment:
    return s.Assignment(0, s.Identifier(0, name), value)


def invocation(
    operation: str, *tensors: s.Expression, generic: str | None = None, **attributes: s.Expression
) -> s.Invocation:
    """Make an invocation. Tensors are positional arguments, and attributes are named."""
    arguments = [s.Argument(0, None, value) for value in tensors]
    arguments += [s.Argument(0, name, value) for name, value in attributes.items()]
    if generic == "scalar":  # the default
        generic = None
    return s.Invocation(0, operation, generic, tuple(arguments))


def integers(values: tuple[int, ...]) -> s.Array:
    """Return an array of integer literals."""
    return s.Array(0, tuple(s.Literal(0, value) for value in values))
