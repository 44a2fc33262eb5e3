"""Custom operations, which are fragments for kinds that NNEF does not have (spec 3.2.1, 6.2).

The fragment for a kind has no body. Its name consists of `nnef_jax_` and the kind. Its parameters
have the types of the operation's operands and attributes. If operations of the same kind have
different types, there is a fragment for each combination of types. From the second fragment on, the
names end with a number.

If an attribute is a graph, as in a loop, the graph is written as a fragment with a body. The
argument for the attribute is then a tuple: the name of the fragment, followed by the dtype and
shape of each parameter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from lowering.graph import Graph, Operation, TensorType, Value
from lowering.location import Source
from lowering.ops import rules
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax import types as t
from nnef_jax.formats.syntax.declared_tensors import item_of
from nnef_jax.formats.syntax.flat_document import FlatWriter, Invoked
from nnef_jax.limits import Meter

EXTENSION = "KHR_enable_fragment_definitions"
_PREFIX = "nnef_jax_"
_BODY = f"{_PREFIX}body"
REAL = "real"  # stands for the dtype that the reader of the document chooses
_NUMBER = re.compile(r"_\d+$")
# Maps former names of kinds to the names of today.
_FORMER = {"tract.tree_ensemble": "tree_ensemble"}
_Declared = Sequence[tuple[str, t.Type]]  # pairs (name, type)


def custom_kind(fragment: s.Fragment) -> str:
    """Return the kind for which a custom operation stands.

    Return "" if the fragment is not a custom operation.
    """
    if fragment.body is not None or not fragment.name.startswith(_PREFIX):
        return ""
    name = fragment.name.removeprefix(_PREFIX).replace("__", ".")
    for candidate in (name, _NUMBER.sub("", name)):
        kind = _FORMER.get(candidate, candidate)
        if kind in rules:
            return kind
    return ""


def is_body(value: object) -> bool:
    """Tell whether an argument is the tuple that stands for a graph."""
    if not isinstance(value, tuple | list):
        return False
    items = cast("Sequence[object]", value)
    return bool(items) and str(items[0]).startswith(_BODY)


class KeepingWriter(FlatWriter):
    """Writes a graph as a flat document; operations that NNEF lacks become custom operations.

    In NNEF, the items of a tensor are only of `real` (the dtype that a reader of the document
    chooses), int32 or bool. A tensor of any other dtype is the result of a custom operation. If the
    written graph is an attribute of an operation, `outer` is the writer of the graph around it.
    """

    def __init__(self, graph: Graph, meter: Meter, real: str, outer: KeepingWriter | None) -> None:
        super().__init__(graph if outer else _with_casts(graph, real), meter)
        self._real = real
        self._custom: dict[object, s.Fragment] = {}
        self._uses: dict[str, int] = {}  # the number of fragments with each name
        if outer:
            self._custom = outer._custom
            self._uses = outer._uses

    def write(self) -> s.Document:
        """Return the flat document of the graph.

        Raises UnsupportedError if the document would need something that NNEF cannot express even
        with custom operations.
        """
        document = super().write()
        if not self._custom:
            return document
        fragments = tuple(self._custom.values())
        return replace(document, extensions=(EXTENSION,), fragments=fragments)

    def invoked(self, operation: Operation) -> Invoked | None:
        """Return the invocation of NNEF's operation for an operation of the graph.

        If NNEF has no such operation, return the invocation of a custom operation.
        """
        errors = len(self.errors)
        invoked = super().invoked(operation)
        exact = {self._real, "int32", "bool"}
        if len(self.errors) == errors and all(v.type.dtype in exact for v in operation.writes()):
            return invoked
        del self.errors[errors:]
        return self._customised(operation)

    def _customised(self, operation: Operation) -> Invoked:
        kind = operation.kind
        operands = dict(operation.operands)
        arguments: dict[str, object] = {}
        for name, x in (*operands.items(), *operation.attributes):
            arguments[name] = self._argument(x)
        parameters = tuple(
            (name, _type(x, is_tensor=name in operands)) for name, x in arguments.items()
        )
        results = tuple((f"y{i}", _type(x)) for i, x in enumerate(operation.results))
        key = (kind, parameters, results)
        if key not in self._custom:
            fragment_name = self._fresh(f"{_PREFIX}{kind.replace('.', '__')}")
            self._custom[key] = _fragment(fragment_name, parameters, results)
        return Invoked(self._custom[key], arguments)

    def _fresh(self, name: str) -> str:
        self._uses[name] = self._uses.get(name, 0) + 1
        return name if self._uses[name] == 1 else f"{name}_{self._uses[name]}"

    def _argument(self, value: object) -> object:
        """Return an operand or attribute in the form in which the document has it as an argument.

        A graph is written as a fragment, and becomes a tuple of the fragment's name and the types
        of its parameters. Any other value is returned unchanged.
        """
        if not isinstance(value, Graph):
            return value
        graph = KeepingWriter(value, self.meter, self._real, self).write().graph
        name = self._fresh(_BODY)
        parameters = _typed(graph.parameters, value.inputs)
        results = _typed(graph.results, value.outputs)
        body = graph.body[len(parameters) :]  # the first assignments declare the inputs
        self._custom[name] = _fragment(name, parameters, results, body)
        argument: list[object] = [name]
        for x in value.inputs:
            dtype = REAL if x.type.dtype == self._real else x.type.dtype
            argument.append((dtype, x.type.shape))
        return tuple(argument)


def _typed(identifiers: Sequence[s.Identifier], values: Sequence[Value]) -> _Declared:
    return [(x.name, _type(value)) for x, value in zip(identifiers, values, strict=True)]


def _fragment(
    name: str,
    parameters: _Declared,
    results: _Declared,
    body: tuple[s.Assignment, ...] | None = None,
) -> s.Fragment:
    formal = tuple(s.FormalParameter(0, name, type, None) for name, type in parameters)
    declared = tuple(s.ResultDeclaration(0, name, type) for name, type in results)
    return s.Fragment(0, name, False, None, formal, declared, body, Source("graph.nnef", ""))


def _type(value: object, *, is_tensor: bool = True) -> t.Type:
    """Return the type that a declaration has for a parameter or result with this value.

    If `is_tensor`, numbers stand for tensors with a single item.
    """
    if isinstance(value, Value):
        return t.Tensor(item_of(value.type.dtype))
    if isinstance(value, tuple | list):
        items = [_type(x, is_tensor=is_tensor) for x in cast("Sequence[object]", value)]
        if len(set(map(str, items))) > 1:
            return t.TupleOf(tuple(items))
        if items:
            return t.ArrayOf(items[0])
        return t.ArrayOf(t.Tensor("scalar") if is_tensor else t.INTEGER)
    item = value.item() if isinstance(value, np.generic) else value
    literal = t.LITERALS.get(type(item), t.SCALAR)
    return t.Tensor(str(literal)) if is_tensor else literal


def _with_casts(graph: Graph, real: str) -> Graph:
    """Add a cast after each variable and input whose dtype NNEF does not have.

    The document declares such a tensor as int32 or `real`, and the cast converts it to its dtype.
    If only casts read the tensor, no cast is added.
    """
    exact = {real, "int32", "bool"}
    sources = [*graph.inputs, *(p.value for p in graph.parameters)]
    uncast = set(graph.outputs)
    for operation in graph.operations:
        if operation.kind != "cast":
            uncast.update(operation.reads())
    swapped: dict[Value, Value] = {}
    casts: list[Operation] = []
    for value in sources:
        dtype = value.type.dtype
        if dtype in exact or value not in uncast:
            continue
        swapped[value] = inner = Value(f"{value.name}_{dtype}", value.type, inserted=True)
        operands = (("input", value),)
        attributes = (("dtype", dtype),)
        casts.append(Operation("cast", operands, attributes, (inner,), None, (), None))
    if not casts:
        return graph
    return replace(
        graph,
        operations=(*casts, *(operation.reading(swapped) for operation in graph.operations)),
        outputs=tuple(swapped.get(value, value) for value in graph.outputs),
        states=tuple(state.substituted(swapped) for state in graph.states),
    )


def types_of(value: Sequence[Any], real: str) -> list[TensorType]:
    """Return the types of the inputs of a graph, from the argument that stands for the graph.

    `real` is the dtype of tensors that are declared as real. Raises ValueError if the argument has
    no valid types.
    """
    types: list[TensorType] = []
    try:
        for name, shape in value[1:]:
            dtype = np.dtype(real if name == REAL else name)
            types.append(TensorType(tuple(shape), dtype.name))
    except TypeError as error:
        raise ValueError(f"no types of tensors: {error}") from None
    return types
