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

from lowering.extents import Extent
from lowering.graph import Graph, Operation, TensorType, Value
from lowering.location import Source
from lowering.ops import rules
from nnef_jax.formats.syntax import tree
from nnef_jax.formats.syntax import types as t
from nnef_jax.formats.syntax.declared_tensors import item_of
from nnef_jax.formats.syntax.flat_document import NO_OFFSET, FlatWriter, Invoked
from nnef_jax.limits import Meter

EXTENSION = "KHR_enable_fragment_definitions"
_PREFIX = "nnef_jax_"
_NAME_OF_BODY = f"{_PREFIX}body"
REAL = "real"  # in a document, the name of the dtype that the reader of the document chooses
_LIST_EXTENT = "list extent: "  # begins a string that stands for an `Extent`, such as `2*n0 + 1`
_EXPRESSION = re.compile(r"[\w +*^(),-]{1,400}", re.ASCII)
_NUMBER_AT_END = re.compile(r"_\d+$")
# Maps former names of kinds to their present names. Old documents have the former names.
_FORMER_KINDS = {"tract.tree_ensemble": "tree_ensemble"}
_Declared = Sequence[tuple[str, t.Type]]  # pairs (name of a parameter or result, its type)


def custom_kind(fragment: tree.Fragment) -> str:
    """Return the kind for which a custom operation stands.

    For example, a fragment `nnef_jax_onnx__erf_2` stands for the kind "onnx.erf". Return "" if the
    fragment is not a custom operation.
    """
    if fragment.body is not None or not fragment.name.startswith(_PREFIX):
        return ""
    name = fragment.name.removeprefix(_PREFIX).replace("__", ".")
    name_without_number = _NUMBER_AT_END.sub("", name)
    # A kind may itself end with a number, so the full name is tried first.
    for candidate in (name, name_without_number):
        kind = _FORMER_KINDS.get(candidate, candidate)
        if kind in rules:
            return kind
    return ""


def is_body(value: object) -> bool:
    """Tell whether an argument is a tuple ("nnef_jax_body", ...), which stands for a graph."""
    if not isinstance(value, tuple | list) or not value:
        return False
    first_item = cast("Sequence[object]", value)[0]
    return str(first_item).startswith(_NAME_OF_BODY)


def _with_strings(argument: Any) -> Any:
    """Replace the `Extent`s of an argument by strings. `with_list_extents` is the inverse."""
    if isinstance(argument, tuple):
        return tuple(map(_with_strings, argument))  # pyright: ignore[reportUnknownArgumentType]
    return f"{_LIST_EXTENT}{argument}" if isinstance(argument, Extent) else argument


def with_list_extents(argument: Any) -> Any:
    """Replace strings by `Extent`s in the argument of a custom operation.

    For example, "list extent: 2*n0 + 1" becomes `Extent("2*n0 + 1")`. Strings without this
    beginning are kept. Raises ValueError if the text of an extent is no expression of symbols.
    """
    if isinstance(argument, list | tuple):
        items: Sequence[Any] = argument
        return type(items)(map(with_list_extents, items))  # pyright: ignore[reportCallIssue]
    if not isinstance(argument, str) or not argument.startswith(_LIST_EXTENT):
        return argument
    text = argument.removeprefix(_LIST_EXTENT)
    if _EXPRESSION.fullmatch(text) is None:
        raise ValueError(f"'{text}' is no extent")
    return Extent(text)


class KeepingWriter(FlatWriter):
    """Writes a graph as a flat document; operations that NNEF lacks become custom operations.

    The document can declare tensors of three dtypes: int32, bool, and `real`, which is the dtype of
    `scalar` items. A tensor of any other dtype is the result of a custom operation.

    A body, such as that of a loop, has a writer of its own. In this writer, `outer` is the writer
    of the graph that contains the loop. The fragments of both writers get into the same document.
    """

    def __init__(self, graph: Graph, meter: Meter, real: str, outer: KeepingWriter | None) -> None:
        if outer is None:
            # The inputs of a body need no casts: the argument that stands for the body has their
            # exact dtypes.
            graph = _with_casts(graph, real)
        super().__init__(graph, meter)
        self._real = real
        # Maps keys to fragments. The key of a custom operation is its kind and types, and the key
        # of a body is its name.
        self._custom: dict[object, tree.Fragment] = outer._custom if outer else {}
        # The number of fragments for each name, where `name_2` counts as `name`.
        self._uses: dict[str, int] = outer._uses if outer else {}

    def write(self) -> tree.Document:
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
        error_count = len(self.errors)
        invoked = super().invoked(operation)
        has_new_errors = len(self.errors) > error_count
        nnef_dtypes = {self._real, "int32", "bool"}
        has_nnef_results = all(x.type.dtype in nnef_dtypes for x in operation.writes())
        if has_nnef_results and not has_new_errors:
            return invoked
        del self.errors[error_count:]  # a custom operation can express the operation
        return self._custom_invocation(operation)

    def _custom_invocation(self, operation: Operation) -> Invoked:
        """Express an operation of the graph as an invocation of a custom fragment.

        Two operations share a fragment if they have the same kind, and if their arguments and
        results have the same types.
        """
        kind = operation.kind
        operands = dict(operation.operands)
        arguments: dict[str, object] = {}
        for name, value in (*operands.items(), *operation.attributes):
            arguments[name] = self._argument(value)
        parameters: list[tuple[str, t.Type]] = []
        for name, argument in arguments.items():
            parameters.append((name, _type(argument, is_tensor=name in operands)))
        results: list[tuple[str, t.Type]] = []
        for i, result in enumerate(operation.results):
            results.append((f"y{i}", _type(result)))
        key = (kind, tuple(parameters), tuple(results))
        if key not in self._custom:
            fragment_name = self._fresh(f"{_PREFIX}{kind.replace('.', '__')}")
            self._custom[key] = _fragment(fragment_name, parameters, results)
        return Invoked(self._custom[key], arguments)

    def _fresh(self, name: str) -> str:
        """Return a name for a fragment, with a number at the end if the name is already used."""
        count = self._uses.get(name, 0) + 1
        self._uses[name] = count
        return name if count == 1 else f"{name}_{count}"

    def _argument(self, value: object) -> object:
        """Return an operand or attribute as an argument of the document.

        A graph is written as a fragment. The argument is then a tuple of the fragment's name and
        the types of the fragment's parameters, such as ("nnef_jax_body", ("real", (1, 3))). An
        `Extent` is written as a string. Any other value is returned unchanged.
        """
        if not isinstance(value, Graph):
            return _with_strings(value)
        graph = KeepingWriter(value, self.meter, self._real, outer=self).write().graph
        name = self._fresh(_NAME_OF_BODY)
        parameters = _typed(graph.parameters, value.inputs)
        results = _typed(graph.results, value.outputs)
        body = graph.body[len(parameters) :]  # the first assignments declare the inputs
        self._custom[name] = _fragment(name, parameters, results, body)
        argument: list[object] = [name]
        for graph_input in value.inputs:
            type = graph_input.type
            dtype = REAL if type.dtype == self._real else type.dtype
            argument.append((dtype, type.shape))
        return tuple(argument)


def _typed(identifiers: Sequence[tree.Identifier], values: Sequence[Value]) -> _Declared:
    """Return pairs of the names of identifiers and the declared types of their values."""
    pairs = zip(identifiers, values, strict=True)
    return [(identifier.name, _type(value)) for identifier, value in pairs]


def _fragment(
    name: str,
    parameters: _Declared,
    results: _Declared,
    body: tuple[tree.Assignment, ...] | None = None,
) -> tree.Fragment:
    """Make a fragment whose parameters have no defaults."""
    formal_parameters: list[tree.FormalParameter] = []
    for parameter_name, type in parameters:
        parameter = tree.FormalParameter(NO_OFFSET, parameter_name, type, default=None)
        formal_parameters.append(parameter)
    declarations: list[tree.ResultDeclaration] = []
    for result_name, type in results:
        declarations.append(tree.ResultDeclaration(NO_OFFSET, result_name, type))
    source = Source("graph.nnef", "")
    return tree.Fragment(
        NO_OFFSET,
        name,
        generic=False,
        generic_default=None,
        parameters=tuple(formal_parameters),
        results=tuple(declarations),
        body=body,
        source=source,
    )


def _type(value: object, *, is_tensor: bool = True) -> t.Type:
    """Return the type with which a parameter or result of this value is declared.

    If `is_tensor`, the value is an operand or a result. A number is then declared as a tensor.
    """
    if isinstance(value, Value):
        return t.Tensor(item_of(value.type.dtype))
    if isinstance(value, tuple | list):
        items = cast("Sequence[object]", value)
        if not items:
            item_type = t.Tensor("scalar") if is_tensor else t.INTEGER
            return t.ArrayOf(item_type)
        types = [_type(item, is_tensor=is_tensor) for item in items]
        has_equal_types = len(set(map(str, types))) == 1
        return t.ArrayOf(types[0]) if has_equal_types else t.TupleOf(tuple(types))
    number = value.item() if isinstance(value, np.generic) else value
    primitive = t.LITERALS.get(type(number), t.SCALAR)
    return t.Tensor(str(primitive)) if is_tensor else primitive


def _with_casts(graph: Graph, real: str) -> Graph:
    """Add a cast after each variable and input whose dtype NNEF does not have.

    For example, a document declares an input of int64 as an integer, which is read as int32. The
    added cast makes it int64. If only casts read the input, its dtype does not matter, and no cast
    is added.
    """
    nnef_dtypes = {real, "int32", "bool"}
    # The outputs, and the values read by operations other than casts.
    read_values = set(graph.outputs)
    for operation in graph.operations:
        if operation.kind != "cast":
            read_values.update(operation.reads())
    result_by_source: dict[Value, Value] = {}  # for each variable or input, the result of its cast
    casts: list[Operation] = []
    for source in (*graph.inputs, *[parameter.value for parameter in graph.parameters]):
        dtype = source.type.dtype
        if dtype in nnef_dtypes or source not in read_values:
            continue
        result = Value(f"{source.name}_{dtype}", source.type, inserted=True)
        result_by_source[source] = result
        operands = (("input", source),)
        attributes = (("dtype", dtype),)
        casts.append(Operation("cast", operands, attributes, (result,)))
    if not casts:
        return graph
    operations = [operation.reading(result_by_source) for operation in graph.operations]
    outputs = [result_by_source.get(value, value) for value in graph.outputs]
    states = [state.substituted(result_by_source) for state in graph.states]
    return replace(
        graph, operations=(*casts, *operations), outputs=tuple(outputs), states=tuple(states)
    )


def types_of(value: Sequence[Any], real: str) -> list[TensorType]:
    """Return the types of a graph's inputs. `value` is the argument that stands for the graph.

    For example, ("nnef_jax_body", ("real", (1, 3)), ("int32", ())) has two inputs, of the shapes
    (1, 3) and (). `real` is the dtype to which the word "real" refers. Raises ValueError if the
    argument has no valid types.
    """
    types: list[TensorType] = []
    _, *pairs = value  # the first item is the name of the fragment
    try:
        for dtype_name, shape in pairs:
            dtype = np.dtype(real if dtype_name == REAL else dtype_name)
            types.append(TensorType(tuple(shape), dtype.name))
    except TypeError as error:
        raise ValueError(f"no types of tensors: {error}") from None
    return types
