"""The front end of the dialect, and the writer of the dialect's flat documents.

In a flat document, casts and rounding are separate operations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lowering.extents import UNKNOWN, is_known
from lowering.graph import Graph, Operation, Value
from lowering.location import Source
from nnef_jax.flattening.emission import computation_dtype
from nnef_jax.formats.base import Arrays, Cut, Options, Stored, Written
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.declared_tensors import item_of
from nnef_jax.formats.syntax.flat_document import (
    FlatWriter,
    Invoked,
    Names,
    Number,
    integers,
    invocation,
)
from nnef_jax.formats.syntax.frontend import TextFrontend
from nnef_jax.formats.syntax.printing import print_document, print_expression
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.syntax.types import Type
from nnef_jax.formats.tract import declarations, symbols
from nnef_jax.formats.tract.document import EXTERNALS, TractDocument
from nnef_jax.formats.tract.dtypes import DATUM_PARAMETERS, DATUM_TYPES
from nnef_jax.formats.tract.flat_graph import FlatCalls
from nnef_jax.formats.tract.flatten import flatten
from nnef_jax.formats.tract.quantization import read_quantization
from nnef_jax.formats.tract.unit import Unit
from nnef_jax.storage.archive import Archive

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NAMED_NUMBERS = ("inf", "nan")  # identifiers that stand for numbers
_NO_OFFSET = 0  # the offset of new nodes, which are not from a text


class TractFrontend(TextFrontend):
    """A document of the dialect and its archive.

    To flatten the document, the files of the variables are read, since they declare the variables'
    types.
    """

    def __init__(self, archive: Archive, options: Options) -> None:
        self._unit = Unit(archive, options.meter)
        document = self._unit.document
        self.document: TractDocument = document
        super().__init__(document.source, document.graph, archive, options)
        self.extensions: Sequence[str] = document.extensions
        self.quantizes: bool = options.rounds and bool(self._unit.quantizers)
        registries = ", ".join(self.document.registries) or "tract_nnef"
        self.dialect: str = f"NNEF 1.0 of tract ({registries})"
        self._data: dict[str, NDArray[Any] | None] = {}
        self.integer: str = computation_dtype("int64", options.real)
        self.symbols: Sequence[str] = list(symbols.solve(document, shapes={}, meter=options.meter))

    def flatten(self, options: Options) -> Graph:
        """Return the flat graph for `options.input_shapes`.

        An input that is not in `options.input_shapes` has the shape that the document declares.
        """
        graph, _ = flatten(self._unit, options, self._extents(options), self._data)
        return graph

    def content(self) -> Iterable[object]:
        """Return the dialect, the texts, and small tensors, which together determine the graphs."""
        return self.dialect, *self._unit.content()

    def _extents(self, options: Options) -> Mapping[str, int]:
        """Return the values of the document's symbols for the shapes that the user chose."""
        shapes = {**options.input_shapes, **options.symbolic_shapes}
        return symbols.solve(self.document, shapes, options.meter, options.extents)

    def stored(self, graph: Graph) -> Stored:
        """Return the data of the variables, which `flatten` has read.

        The front end keeps no reference to the data, so that their memory can be freed.
        """
        data = cast(dict[str, NDArray[Any]], self._data)
        self._data = dict.fromkeys(data)
        return Stored(data, self)

    def declared_shapes(self, options: Options) -> Mapping[str, Sequence[int | None]]:
        """Return the declared shape of each input.

        An extent that depends on an open symbol is None. `options.extents` has the values of
        symbols.
        """

        def extent(expression: s.Expression) -> int | None:
            value = symbols.evaluate(expression, options.extents)
            return None if value is UNKNOWN else value

        shapes: dict[str, list[int | None]] = {}
        for name, expressions in self.document.input_shapes.items():
            shapes[name] = [extent(expression) for expression in expressions]
        return shapes

    def extent_names(self) -> Mapping[str, Sequence[str]]:
        """Return a dict from names of inputs to lists of texts, one text for each extent.

        The text is the expression of symbols that the document declares for the extent, or "" for
        an extent without symbols. For example, an input of shape (N, 3) has ["N", ""].
        """

        def extent_name(expression: s.Expression) -> str:
            is_open = symbols.evaluate(expression, values={}) is UNKNOWN
            return print_expression(expression) if is_open else ""

        names: dict[str, list[str]] = {}
        for name, expressions in self.document.input_shapes.items():
            names[name] = [extent_name(expression) for expression in expressions]
        return names

    def symbolic_shapes(self, symbol: Callable[[str], Any]) -> Mapping[str, Sequence[Any]]:
        """Return the declared shape of each input, with symbolic extents for the symbols.

        `symbol` makes the symbolic extent for the name of a symbol.
        """
        values = {name: symbol(name) for name in self.symbols}
        shapes: dict[str, list[Any]] = {}
        for name, expressions in self.document.input_shapes.items():
            shapes[name] = [symbols.evaluate(expression, values) for expression in expressions]
        return shapes

    def quantizers(self, source: Source) -> Mapping[str, Quantizer]:
        """Read a graph.quant, and return a dict from names of tensors to entries."""
        return read_quantization(source, self.document.names, self.options.meter)

    def members(self, arrays: Arrays, quantization: str | None) -> Written:
        """Return the archive that was read, with its data replaced by `arrays`.

        All networks and JSON files that were read are included.
        """
        members = {**super().members(arrays, quantization).members}
        for name, text in self._unit.texts().items():
            members.setdefault(name, text)
        return Written(members)

    def flat_text(self, graph: Graph, options: Options, cut: Cut) -> str:
        """Return the part of the graph that `cut` selects, as a text in the dialect.

        The document is flattened again, since `graph` does not have the operations of the document.
        """
        _, text = self._flat(options, self._data, cut)
        return text

    def converted(self, graph: Graph, data: Arrays | None, *, flat: bool, keep: bool) -> Written:
        """Return the archive with the text that was read, or with a flat text if `flat`.

        In a flat text, rounding of quantised tensors is an operation. `data` are the arrays of the
        variables. If it is None, the archive has no data.
        """
        if not flat:
            return self.members(data or {}, quantization=None)

        def cut_nothing(graph: Graph) -> tuple[Graph, dict[Value, Value]]:
            return graph, {}

        options = replace(self.options, rounds=True)
        flat_data: dict[str, NDArray[Any] | None] = {}  # flattening adds the arrays
        flat_graph, text = self._flat(options, flat_data, cut_nothing)
        arrays: Arrays = {}
        if data is not None:
            stored = cast("dict[str, NDArray[Any]]", flat_data)
            arrays = {x.label: stored[x.label] for x in flat_graph.parameters}
        # A flat text needs no graph.quant, since rounding is an operation in the text.
        return self._archive(text, arrays, quantization=None)

    def _flat(
        self, options: Options, data: dict[str, NDArray[Any] | None], cut: Cut
    ) -> tuple[Graph, str]:
        """Return the part of the graph that `cut` selects, and the flat text of this part.

        Raises UnsupportedError, which names all loops and states. The error also names attributes
        that depend on open extents.
        """
        entire, calls = flatten(self._unit, options, self._extents(options), data)
        part, inputs = cut(entire)
        writer = _DialectWriter(self.document, part, calls, options)
        for old_input, new_input in inputs.items():
            writer.replaced[new_input] = old_input
        flat_document = writer.write()
        extensions = self._extensions_for(writer)
        # The first line of the text has the version. The extensions are inserted after this line.
        version, _, text = print_document(flat_document).partition("\n")
        return part, "\n".join([version, *extensions, text])

    def _extensions_for(self, writer: _DialectWriter) -> list[str]:
        """Return the extension lines for the document that `writer` has written."""
        registries = [*self.document.registries, "tract_core", *writer.registries]
        distinct_registries = dict.fromkeys(registries)
        lines: list[str] = []
        for name in distinct_registries:
            if name not in ("", "tract_nnef"):
                lines.append(f"tract_registry {name}")
        lines += [f"tract_symbol {name}" for name in writer.symbols]
        for line in self.document.extensions:
            if not line.startswith("tract_registry"):
                lines.append(line)
        return [f"extension {line};" for line in lines]


class _QuotedNames(Names):
    """A source of distinct names. A name that is no identifier is quoted."""

    def fresh(self, name: str) -> str:
        if _IDENTIFIER.fullmatch(name):
            return super().fresh(name)
        quoted = f'i"{name}"'
        # A name with quotes, backslashes or line breaks is not quoted, but becomes an identifier.
        has_plain_characters = re.fullmatch(r'[^"\\\n]+', name) is not None
        if has_plain_characters and quoted not in self.taken:
            return self.reserve(quoted)
        return super().fresh(name)


class _DialectWriter(FlatWriter):
    """Writes a graph in the operations of the document from which the graph was flattened."""

    def __init__(
        self, document: TractDocument, graph: Graph, calls: FlatCalls, options: Options
    ) -> None:
        super().__init__(graph, options.meter)
        self._real = options.real
        self.registries: dict[str, None] = {}
        self.symbols: Sequence[str] = []  # symbols that the document lacks
        # Maps each input of a part to the value of the entire graph that the input replaces.
        self.replaced: dict[Value, Value] = {}
        self._document_read = document
        self._calls = calls
        for state in graph.states:
            self.refuse(f"'{state.label}' is a state, which has no flat form")

    def identifiers(self) -> Names:
        """Return a source of names that never returns "inf", "nan" or a symbol of the document."""
        taken = {*super().identifiers().taken, *_NAMED_NUMBERS, *self._document_read.symbols}
        self._names = _QuotedNames(taken)
        return self._names

    def external(self, value: Value) -> s.Invocation:
        """Return the invocation that declares an input in a flat document.

        An input of the document keeps its declaration. Numbers replace the symbols in the
        declaration if all extents are numbers. Any other input of a part gets a new symbol for each
        open extent.
        """
        if value in self.replaced:
            replaced_value = self.replaced[value]
            self.names[replaced_value] = self.names[value]
        declared = self._document_read.inputs.get(value.name)
        if declared is not None:
            return self._with_known_shape(declared, value)
        self.registries["tract_core"] = None
        extents: list[s.Expression] = []
        for extent in value.type.shape:
            is_open = extent is UNKNOWN
            extents.append(self._symbol() if is_open else s.Literal(_NO_OFFSET, extent))
        shape = s.Array(_NO_OFFSET, tuple(extents))
        datum_type = s.Literal(_NO_OFFSET, self._datum(value.type.dtype))
        return invocation("tract_core_external", shape=shape, datum_type=datum_type)

    def _with_known_shape(self, declared: s.Invocation, value: Value) -> s.Invocation:
        """Replace the shape in an input's declaration by numbers, if all extents are numbers.

        `declared` is the declaration, and `value` is the input.
        """
        declared_shape = self._document_read.input_shapes[value.name]
        has_symbols = not all(isinstance(extent, s.Literal) for extent in declared_shape)
        if not has_symbols or not is_known(value.type.shape):
            return declared
        shape_position = EXTERNALS[declared.operation]
        arguments: list[s.Argument] = []
        for position, argument in enumerate(declared.arguments):
            is_at_position = not argument.name and position == shape_position
            is_shape = is_at_position or argument.name == "shape"
            if not is_shape:
                arguments.append(argument)
        shape = s.Argument(_NO_OFFSET, "shape", integers(value.type.shape))
        return replace(declared, arguments=(*arguments, shape))

    def _symbol(self) -> s.Identifier:
        """Return a new symbol, and add it to `symbols`."""
        symbol = self._names.fresh("N")
        self.symbols = [*self.symbols, symbol]
        return s.Identifier(_NO_OFFSET, symbol)

    def invoked(self, operation: Operation) -> Invoked | None:
        """Return the invocation for an operation, or None if the operation is not written.

        Errors are recorded by `refuse`.
        """
        first_result = next(operation.writes())
        if first_result in self._calls:
            name, operands, attributes = self._calls[first_result]
            call_arguments = {**operands, **attributes}
            # Attributes that are dtypes become names of datum types again.
            for parameter, dtype in attributes.items():
                if parameter in DATUM_PARAMETERS and dtype:
                    call_arguments[parameter] = self._datum(dtype)
            return self._invoked(name, call_arguments)
        if first_result.inserted:  # the document's operation is written instead of inserted steps
            return None
        arguments: dict[str, Any] = {**dict(operation.operands), **dict(operation.attributes)}
        if operation.kind == "cast":
            datum_type = self._datum(arguments["dtype"])
            cast_arguments = {"input": arguments["input"], "to": datum_type}
            return self._invoked("tract_core_cast", cast_arguments)
        if operation.kind == "constant":
            return self._invoked("constant", arguments, item_of(arguments["dtype"]))
        self.refuse(f"'{operation.kind}' has no flat form", operation)
        return None

    def _invoked(
        self, name: str, arguments: Mapping[str, Any], generic: str | None = None
    ) -> Invoked:
        """Return the invocation of an operation of tract, and note the operation's registry."""
        registry = declarations.registry_of(name)
        self.registries[registry] = None  # the dict serves as an ordered set
        declaration = declarations.declarations()[name]
        return Invoked(declaration, arguments, generic)

    def literal(self, value: Number | str, type: Type, operation: Operation) -> s.Expression:
        """Return the expression for a number or string. Infinity and NaN are identifiers."""
        item: Any = value.item() if isinstance(value, np.generic) else value
        # A real number beside a complex tensor became complex. It is written as a real number
        # again.
        if isinstance(item, complex) and not item.imag:
            item = item.real
        if not isinstance(item, float) or math.isfinite(item):
            return super().literal(item, type, operation)
        name = "nan" if math.isnan(item) else "inf"
        identifier = s.Identifier(_NO_OFFSET, name)
        return s.Unary(_NO_OFFSET, "-", identifier) if item < 0 else identifier

    def _datum(self, dtype: str) -> str:
        """Return the name of the datum type that corresponds to a dtype."""
        if dtype == self._real:
            # The user chose this dtype by `load(dtype=)` for the document's f32.
            return "f32"
        # Of several datum types with this dtype, the first one is written.
        names = [name for name, datum_dtype in DATUM_TYPES.items() if datum_dtype == dtype]
        return names[0]
