"""Custom operations: operations beyond NNEF's, kept in a document (spec 3.2.1, 6.2).

Each is a fragment without a body, `nnef_jax_` and the kind of the graph that it stands for, with
the types of its uses; a kind that is used with several types has a number behind it. A graph within
an operation, as of a loop, is a fragment with a body. The argument for it is a tuple: the name of
the fragment, and dtype and shape of each of its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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
REAL = "real"  # the dtype that is the reader's choice
_NUMBER = re.compile(r"_\d+$")
_FORMER = {"tract.tree_ensemble": "tree_ensemble"}  # kinds by names that earlier documents have
_Declared = Sequence[tuple[str, t.Type]]  # names with types


def kept_kind(fragment: s.Fragment) -> str:
    """Return the kind that a fragment without a body stands for, '' if none."""
    if fragment.body is not None or not fragment.name.startswith(_PREFIX):
        return ""
    name = fragment.name.removeprefix(_PREFIX).replace("__", ".")
    kinds = (_FORMER.get(kind, kind) for kind in (name, _NUMBER.sub("", name)))
    return next((kind for kind in kinds if kind in rules), "")


def is_body(value: Any) -> bool:
    """Tell whether an argument stands for a graph."""
    return isinstance(value, tuple | list) and str(next(iter(value), "")).startswith(_BODY)


class KeepingWriter(FlatWriter):
    """Writes a graph as a flat document, with custom operations for what NNEF has not.

    `real` is the dtype that a reader chooses. Other types of items than its own, 32-bit integers
    and truth values are what custom operations make of these.
    """

    def __init__(self, graph: Graph, meter: Meter, real: str, outer: KeepingWriter | None) -> None:
        super().__init__(graph if outer else _with_casts(graph, real), meter)
        self._real, self._outer = real, outer
        self._known: dict[Any, s.Fragment] = outer._known if outer else {}
        self._uses: dict[str, int] = outer._uses if outer else {}

    def write(self) -> s.Document:
        """Return the document; raise UnsupportedError as `FlatWriter` does."""
        document = super().write()
        if not self._known:
            return document
        fragments = tuple(self._known.values())
        return replace(document, extensions=(EXTENSION,), fragments=fragments)

    def invoked(self, operation: Operation) -> Invoked | None:
        """Return how the document invokes an operation, as a custom one where it has to be."""
        errors = len(self.errors)
        found = super().invoked(operation)
        exact = {self._real, "int32", "bool"}
        if len(self.errors) == errors and all(v.type.dtype in exact for v in operation.writes()):
            return found
        del self.errors[errors:]
        return self._kept(operation)

    def _kept(self, operation: Operation) -> Invoked:
        kind, given = operation.kind, {**dict(operation.operands), **dict(operation.attributes)}
        given = {name: self._said(x) for name, x in given.items()}
        operands = {name for name, _ in operation.operands}
        parameters = tuple((n, _type(x, is_tensor=n in operands)) for n, x in given.items())
        results = tuple((f"y{i}", _type(x)) for i, x in enumerate(operation.results))
        key = (kind, parameters, results)
        if key not in self._known:
            name = self._fresh(f"{_PREFIX}{kind.replace('.', '__')}")
            self._known[key] = _fragment(name, parameters, results)
        return Invoked(self._known[key], given)

    def _fresh(self, name: str) -> str:
        self._uses[name] = self._uses.get(name, 0) + 1
        return name if self._uses[name] == 1 else f"{name}_{self._uses[name]}"

    def _said(self, value: Any) -> Any:
        """Return an argument as the language has it: a graph by the name of its fragment."""
        if not isinstance(value, Graph):
            return value
        writer = KeepingWriter(value, self.meter, self._real, self)
        document = writer.write()
        graph, name = document.graph, self._fresh(_BODY)
        parameters, results = (
            [(x.name, _type(v)) for x, v in zip(names, values, strict=True)]
            for names, values in ((graph.parameters, value.inputs), (graph.results, value.outputs))
        )
        body = graph.body[len(parameters) :]  # without the declarations of inputs
        self._known[name] = _fragment(name, parameters, results, body)
        types = [x.type for x in value.inputs]
        return (name, *((REAL if x.dtype == self._real else x.dtype, x.shape) for x in types))


def _fragment(name: str, parameters: _Declared, results: _Declared, body: Any = None) -> s.Fragment:
    given = tuple(s.FormalParameter(0, name, type, None) for name, type in parameters)
    made = tuple(s.ResultDeclaration(0, name, type) for name, type in results)
    return s.Fragment(0, name, False, None, given, made, body, Source("graph.nnef", ""))


def _type(value: Any, *, is_tensor: bool = True) -> t.Type:
    """Return the declared type of a parameter or result of this value."""
    if isinstance(value, Value):
        return t.Tensor(item_of(value.type.dtype))
    if isinstance(value, tuple | list):
        items = [_type(x, is_tensor=is_tensor) for x in value]  # pyright: ignore
        if len(set(map(str, items))) > 1:
            return t.TupleOf(tuple(items))
        return t.ArrayOf(items[0] if items else t.Tensor("scalar") if is_tensor else t.INTEGER)
    item = value.item() if isinstance(value, np.generic) else value
    literal = t.LITERALS.get(type(item), t.SCALAR)
    return t.Tensor(str(literal)) if is_tensor else literal


def _with_casts(graph: Graph, real: str) -> Graph:
    """Return the graph with variables and inputs in dtypes that a document declares.

    A reader makes 32-bit integers and real numbers of these: casts give back what they were where
    more than a cast reads them.
    """
    exact = {real, "int32", "bool"}
    sources = [*graph.inputs, *(p.value for p in graph.parameters)]
    uncast = {
        value
        for operation in graph.operations
        if operation.kind != "cast"
        for value in operation.reads()
    } | set(graph.outputs)
    swapped: dict[Value, Value] = {}
    casts: list[Operation] = []
    for value in sources:
        dtype = value.type.dtype
        if dtype in exact or value not in uncast:
            continue
        swapped[value] = inner = Value(f"{value.name}_{dtype}", value.type, inserted=True)
        given = (("input", value),), (("dtype", dtype),)
        casts.append(Operation("cast", *given, (inner,), None, (), None))
    if not casts:
        return graph

    return replace(
        graph,
        operations=(*casts, *(operation.reading(swapped) for operation in graph.operations)),
        outputs=tuple(swapped.get(value, value) for value in graph.outputs),
        states=tuple(state.substituted(swapped) for state in graph.states),
    )


def types_of(value: Any, real: str) -> list[TensorType]:
    """Return the types of the inputs of a graph that an argument stands for; raise ValueError."""
    try:
        types = [TensorType(tuple(shape), real if x == REAL else x) for x, shape in value[1:]]
        return [replace(type, dtype=np.dtype(type.dtype).name) for type in types]
    except TypeError as error:
        raise ValueError(f"no types of tensors: {error}") from None
