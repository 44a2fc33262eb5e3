"""A network of either dialect as one of 1.0 final: its text, tensor files and graph.quant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from lowering.graph import Graph, Parameter, Value
from nnef_jax.errors import NnefError, UnsupportedError, raise_all
from nnef_jax.formats.nnef.quantization import QuantizationReader
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.flat_document import FlatWriter
from nnef_jax.formats.syntax.frontend import GRAPH, QUANTIZATION
from nnef_jax.formats.syntax.printing import print_document, print_expression
from nnef_jax.formats.syntax.quantizer import ALGORITHMS, Quantizer
from nnef_jax.storage.archive import Archive
from nnef_jax.storage.labels import member_of
from nnef_jax.storage.tensorfile import read_tensor_file
from nnef_jax.storage.writer import Member


@dataclass(frozen=True)
class Conversion:
    """A document, its graph as it is without rounding, and the entries of its graph.quant."""

    document: s.Document
    graph: Graph
    reader: QuantizationReader
    entries: Mapping[str, Quantizer]

    def _kept(self, quantization: str) -> tuple[str, Mapping[Value, str], str]:
        """Return the document as it is, the names of values in it, the text of its graph.quant."""
        names = {value: name for name, value in self.graph.values.items() if name in self._beside}
        return self.document.source.text, names, quantization

    def _flat(self) -> tuple[str, Mapping[Value, str], str]:
        """Return the flat document, the names of its values, and its graph.quant of 1.0 final."""
        writer = FlatWriter(self.graph, self.reader.meter)
        document = writer.write()
        raise_all(list(self._unfit_entries()))
        values = {name: self.graph.values[name] for name in self.entries}
        lines = [
            self._entry(writer.names[values[n]], values[n], q) for n, q in self.entries.items()
        ]
        return print_document(document), writer.names, "".join(lines)

    @cached_property
    def _variables(self) -> Set[Value]:
        return {variable.value for variable in (*self.graph.parameters, *self.graph.states)}

    def _unfit_entries(self) -> Iterator[NnefError]:
        """Yield the errors for entries of graph.quant that would mean something else when flat."""
        for name, quantizer in self.entries.items():
            other = self._other_name(name)
            if other:
                reason = (
                    f"'{name}' and '{other}' become one tensor, the entry is for '{name}' alone"
                )
            elif quantizer.operation not in ALGORITHMS:
                reason = f"'{quantizer.operation}' is a fragment of the document"
            elif self.document.provisional and quantizer.operation == "logarithmic_quantize":
                reason = f"'{quantizer.operation}' is another operation in 1.0 final"
            else:
                continue
            message = f"graph.quant cannot go with the flat document: {reason}"
            yield UnsupportedError(message, span=quantizer.span())

    def _other_name(self, name: str) -> str | None:
        """Return a name of the same value that does not stand for what the first name stands for.

        An identifier assigned later reads the value through its first name, be it rounded or not.
        One assigned beside it does not, nor does a variable of the same label.
        """
        value = self.graph.values[name]
        others = self._aliases.get(value, frozenset[str]())
        if name in others:
            return value.name
        if value not in self._variables:
            others = others & self._beside[name]
        return min(others, default=None)

    @cached_property
    def _aliases(self) -> Mapping[Value, Set[str]]:
        """Return the other names of values."""
        found: dict[Value, set[str]] = {}
        for alias, value in self.graph.aliases.items():
            found.setdefault(value, set()).add(alias)
        return found

    @cached_property
    def _beside(self) -> Mapping[str, Set[str]]:
        """Return the names that are assigned together with each."""
        found: dict[str, Set[str]] = {}
        for assignment in self.document.graph.body:
            names = {identifier.name for identifier in s.identifiers(assignment.target)}
            found.update(dict.fromkeys(names, names))
        return found

    def _entry(self, name: str, value: Value, quantizer: Quantizer) -> str:
        """Return the line of graph.quant that quantises a value under a name."""
        node = quantizer.invocation(name, value.type, variable=value in self._variables)
        return f'"{name}": {print_expression(replace(node, arguments=node.arguments[1:]))};\n'

    def members(
        self, archive: Archive, data: Mapping[str, NDArray[Any]] | None, *, flat: bool, kept: str
    ) -> dict[str, Member]:
        """Return the members of the document's archive, flat or with the text of its graph.quant.

        `data` are real numbers, None leaves them out.
        """
        text, names, quantization = self._flat() if flat else self._kept(kept)
        members: dict[str, Member] = {GRAPH: text.encode()}
        entries = [quantization]
        variables = (*self.graph.parameters, *self.graph.states) if data is not None else ()
        for variable in variables:
            member = member_of(variable.label)
            stored = archive.open_tensor(member)
            file = read_tensor_file(stored, name=member, meter=self.reader.meter)
            file = replace(file, array=file.array.reshape(variable.value.type.shape))
            members[member] = file
            if not file.quantization:
                continue
            # The header of 1.0 final has no place for the algorithm, graph.quant has: where the
            # variable has an identifier, and rounding it while the network runs changes nothing.
            quantizer = self.reader.header(file.quantization, member)
            name = names.get(variable.value)
            if isinstance(variable, Parameter) and name and name not in self.entries:
                entries.append(self._entry(name, variable.value, quantizer))
            elif data is not None:
                members[member] = data[variable.label]
        quantization = "\n".join(filter(None, entries))
        if quantization:
            members[QUANTIZATION] = quantization.encode()
        return members
