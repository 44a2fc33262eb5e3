"""A network of the dialect as a flat document of it, with casts and rounding written out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lowering.extents import UNKNOWN, is_known
from lowering.graph import Graph, Operation, Value
from nnef_jax.formats.base import Options
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.flat_document import FlatWriter, Invoked, Names, generic_of
from nnef_jax.formats.syntax.printing import print_document
from nnef_jax.formats.syntax.types import Type
from nnef_jax.formats.tract import declarations
from nnef_jax.formats.tract.document import EXTERNALS, TractDocument
from nnef_jax.formats.tract.dtypes import DATUM_PARAMETERS, DATUM_TYPES
from nnef_jax.formats.tract.flat_graph import Said

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NUMBERS = ("inf", "nan")


def print_flat(document: TractDocument, graph: Graph, said: Said, options: Options) -> str:
    """Return the text of a flat document for the graph of a document.

    Raises UnsupportedError, several at once: loops, streams, what depends on an open extent.
    """
    writer = _Writer(document, graph, said, options)
    flat = writer.write()
    registries = [*document.registries, "tract_core", *writer.registries]
    wanted = dict.fromkeys(name for name in registries if name not in ("", "tract_nnef"))
    lines = [f"tract_registry {name}" for name in wanted]
    lines += [f"tract_symbol {name}" for name in writer.symbols]
    lines += [x for x in document.extensions if not x.startswith("tract_registry")]
    head, _, graph_text = print_document(flat).partition("\n")
    return "\n".join([head, *(f"extension {line};" for line in lines), graph_text])


class _QuotedNames(Names):
    """Hands out the names of a document, in quotes where they are no identifiers."""

    def fresh(self, wanted: str) -> str:
        quoted = f'i"{wanted}"'
        if _IDENTIFIER.fullmatch(wanted) or not re.fullmatch(r'[^"\\\n]+', wanted):
            return super().fresh(wanted)
        return super().fresh(wanted) if quoted in self.taken else self.take(quoted)


class _Writer(FlatWriter):
    def __init__(self, document: TractDocument, graph: Graph, said: Said, options: Options) -> None:
        super().__init__(graph, options.meter)
        self._real = options.real
        self.registries: dict[str, None] = {}
        self.symbols: list[str] = []  # that the document does not have
        self._document_read = document
        self._said = said
        for state in graph.states:
            self.refuse(f"'{state.label}' is kept from call to call, which has no flat form")

    def identifiers(self) -> Names:
        taken = {*super().identifiers().taken, *_NUMBERS, *self._document_read.symbols}
        self._names = _QuotedNames(taken)
        return self._names

    def external(self, value: Value) -> s.Invocation:
        """Return the declaration as it was read, if it has symbols that are open.

        What the document does not declare is another tensor of it: an extent that is open there
        becomes a symbol of its own.
        """
        for assignment in self._document_read.graph.body:
            if (
                isinstance(assignment.value, s.Invocation)
                and assignment.value.operation in EXTERNALS
                and assignment.target == s.Identifier(0, value.name)
            ):
                return self._known(assignment.value, value)
        self.registries["tract_core"] = None
        shape = [self._symbol() if n is UNKNOWN else s.Literal(0, n) for n in value.type.shape]
        arguments = {
            "shape": s.Array(0, tuple(shape)),
            "datum_type": s.Literal(0, self._datum(value.type.dtype)),
        }
        given = tuple(s.Argument(0, name, x) for name, x in arguments.items())
        return s.Invocation(0, "tract_core_external", None, given)

    def _known(self, declared: s.Invocation, value: Value) -> s.Invocation:
        """Return a declaration with the extents of its symbols, where all of them are known."""
        read = self._document_read.input_shapes[value.name]
        if not is_known(value.type.shape) or all(isinstance(n, s.Literal) for n in read):
            return declared
        position = EXTERNALS[declared.operation]
        kept = [
            argument
            for i, argument in enumerate(declared.arguments)
            if argument.name != "shape" and (argument.name or i != position)
        ]
        shape = s.Array(0, tuple(s.Literal(0, n) for n in value.type.shape))
        return replace(declared, arguments=(*kept, s.Argument(0, "shape", shape)))

    def _symbol(self) -> s.Identifier:
        symbol = self._names.fresh("N")
        self.symbols.append(symbol)
        return s.Identifier(0, symbol)

    def invoked(self, operation: Operation) -> Invoked | None:
        first = next(operation.writes())
        given: dict[str, Any] = {**dict(operation.operands), **dict(operation.attributes)}
        if first in self._said:
            name, operands, attributes = self._said[first]
            types = {
                n: self._datum(x) for n, x in attributes.items() if n in DATUM_PARAMETERS and x
            }
            return self._invoked(name, {**operands, **attributes, **types})
        if first.inserted:  # for an operation that says it
            return None
        match operation.kind:
            case "cast":
                given = {"input": given["input"], "to": self._datum(given["dtype"])}
                return self._invoked("tract_core_cast", given)
            case "constant":
                generic = generic_of(given["dtype"]) or "scalar"
                return self._invoked("constant", given, generic)
            case kind:
                self.refuse(f"'{kind}' has no flat form", operation)
                return None

    def _invoked(self, name: str, given: Mapping[str, Any], generic: str | None = None) -> Invoked:
        self.registries[declarations.registry_of(name)] = None
        return Invoked(declarations.declarations()[name], given, generic)

    def literal(self, value: Any, type: Type, operation: Operation) -> s.Expression:
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, float) or math.isfinite(value):
            return super().literal(value, type, operation)
        name = s.Identifier(0, "nan" if math.isnan(value) else "inf")
        return s.Unary(0, "-", name) if value < 0 else name

    def _datum(self, dtype: str) -> str:
        """Return the datum type that stands for a dtype."""
        if dtype == self._real:  # which `load(dtype=)` chooses
            return "f32"
        return next(name for name, stored in DATUM_TYPES.items() if stored == dtype)
