"""The front end of NNEF 1.0, final and provisional, and the conversion to 1.0 final."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from numpy.typing import NDArray

from lowering.graph import Graph, Parameter, StateVariable, Value
from lowering.location import Source
from nnef_jax.errors import DataError, NnefError, SemanticError, UnsupportedError, raise_all
from nnef_jax.formats.base import Arrays, Cut, ExtentNeeded, Options, Shapes, Stored, Written
from nnef_jax.formats.nnef.flatten import evaluate, flatten
from nnef_jax.formats.nnef.parser import parse
from nnef_jax.formats.nnef.quantization import QuantizationReader
from nnef_jax.formats.nnef.scope import Scope
from nnef_jax.formats.nnef.semantics import check
from nnef_jax.formats.syntax import tree
from nnef_jax.formats.syntax.declared_tensors import check_shape, convert, without_member
from nnef_jax.formats.syntax.flat_document import FlatWriter
from nnef_jax.formats.syntax.frontend import GRAPH, QUANTIZATION, TextFrontend
from nnef_jax.formats.syntax.printing import print_document, print_expression
from nnef_jax.formats.syntax.quantizer import ALGORITHMS, Quantizer, dequantize
from nnef_jax.limits import LETTERS_PER_STEP, Meter
from nnef_jax.storage.archive import Archive
from nnef_jax.storage.labels import member_of
from nnef_jax.storage.tensorfile import TensorFile, read_tensor_file
from nnef_jax.storage.writer import Member


class StandardFrontend(TextFrontend):
    """A checked document of NNEF 1.0 with the entries of its graph.quant.

    An entry of graph.quant either rounds a tensor in a run, or decodes the codes of a tensor file.
    The data of variables decide which of the two an entry does; see `stored`.
    """

    def __init__(self, archive: Archive, options: Options) -> None:
        document = parse(archive.read_text(GRAPH), options.meter)
        self.document: tree.Document = document
        self.scope: Scope = Scope(document, options.meter)
        self._calls = check(self.scope, outline=options.outline)
        super().__init__(document.source, document.graph, archive, options)
        self.extensions: Sequence[str] = document.extensions
        self.reader: QuantizationReader = QuantizationReader(self.scope, options)
        self._entries = self.quantizers(self.quantization) if self.quantization else {}
        suffix = " provisional" if document.provisional else ""
        self.dialect: str = f"NNEF {document.version}{suffix}"
        self._rounding: Mapping[str, Quantizer] = {}
        self._labels = frozenset[str]()  # the labels of the variables whose data were read

    def quantizers(self, source: Source) -> Mapping[str, Quantizer]:
        """Read a graph.quant, and return a dict from names of tensors to entries."""
        return self.reader.entries(source)

    def declared_shapes(self, options: Options) -> Shapes:
        """Return the shapes of inputs that the `external` operations declare.

        An open extent is None.
        """
        shapes: dict[str, Sequence[int | None]] = {}
        source = self.document.source
        for assignment in self.document.graph.body:
            target, value = assignment.target, assignment.value
            if not isinstance(target, tree.Identifier) or not isinstance(value, tree.Invocation):
                continue
            if value.operation != "external" or len(value.arguments) != 1:
                continue
            (shape_argument,) = value.arguments
            # A shape that depends on the shape of another input is left out.
            with suppress(ExtentNeeded):
                extents = evaluate(shape_argument.value, source, self.scope, options)
                # In a document, the extent 0 is open.
                shapes[target.name] = [extent or None for extent in extents]
        return shapes

    def flatten(self, options: Options) -> Graph:
        """Return the flat graph for `options.input_shapes`.

        An input that is not in `options.input_shapes` has the shape that the document declares.
        """
        graph = flatten(self.scope, self._calls, options, self._rounding)
        if not self._rounding:
            return graph
        # All variables of the document have data. If a variable has no data, it is in a fragment
        # that graph.quant calls.
        message = "a quantisation algorithm must not have variables"
        errors: list[NnefError] = []
        for variable in (*graph.parameters, *graph.states):
            if variable.label not in self._labels:
                errors.append(SemanticError(message, span=variable.span))
        raise_all(errors)
        return graph

    def stored(self, graph: Graph) -> Stored:
        """Return the data of the variables, and a front end that rounds as graph.quant says.

        Quantised data are decoded to real numbers. The header of a provisional tensor file may name
        the algorithm. Otherwise the algorithm is the variable's entry in graph.quant. An entry that
        decodes the data of a parameter does not round the parameter in a run.
        """
        data: dict[str, NDArray[Any]] = {}
        rounding = dict(self._entries)  # `_read` removes entries that only decode data
        errors: list[NnefError] = []
        entry_by_tensor: dict[Value | None, str] = {}  # the name of the first entry of each tensor
        for name in self._entries:
            entry_by_tensor.setdefault(graph.values.get(name), name)
        variables = (*graph.parameters, *graph.states)
        for position, variable in enumerate(variables):
            if self.options.progress is not None:
                self.options.progress(position, len(variables))
            try:
                name = entry_by_tensor.get(variable.value, "")
                data[variable.label] = self._read(variable, name, rounding)
            except NnefError as error:
                error.span = error.span or variable.span
                errors += error.errors
        raise_all(errors)
        rounds_tensors = self.options.rounds and len(rounding) > 0
        if not rounds_tensors:
            return Stored(data, self)
        frontend = copy(self)
        frontend._rounding = rounding
        frontend._labels = frozenset(data)
        frontend.quantizes = True
        return Stored(data, frontend)

    def _read(
        self, variable: Parameter | StateVariable, name: str, rounding: dict[str, Quantizer]
    ) -> NDArray[Any]:
        """Read the data of a variable from its file.

        `name` is the name of the variable's entry in graph.quant, or "" if there is none. If the
        entry decodes the data of a parameter, the entry is removed from `rounding`.
        """
        meter = self.options.meter
        declared = variable.value.type
        meter.spend(len(variable.label) // LETTERS_PER_STEP, "the label of a variable")
        member = member_of(variable.label)
        if not self.archive.exists(member):
            raise without_member(self.archive, member, variable.label)
        file = self._file(member)
        array = file.array
        check_shape(array.shape, declared.shape, variable.label, member)
        if file.quantization:
            quantizer = self.reader.header(file.quantization, member)
            array = dequantize(file, quantizer, member, meter)
        elif file.quantized:
            if not name:
                value = variable.value.name
                raise DataError(
                    f"{member} holds quantised codes, but graph.quant has no entry for '{value}' "
                    "that says what they stand for",
                    hint=f'write "{value}": linear_quantize(min = ..., max = ..., bits = ...); '
                    "or another algorithm into graph.quant",
                )
            array = dequantize(file, self._entries[name], member, meter)
            # Rounding would not change the decoded values of a parameter, so the entry of a
            # parameter is removed. The entry of a state remains, since a run changes the state.
            if isinstance(variable, Parameter):
                rounding.pop(name, None)
        return convert(array.reshape(declared.shape), jnp.dtype(declared.dtype), member, meter)

    def members(self, arrays: Arrays, quantization: str | None) -> Written:
        """Return the archive that was read, with its data replaced by `arrays`.

        `load` makes the same graph from this archive, since graphs do not depend on the data.
        """
        return replace(super().members(arrays, quantization), loads_same_graph=True)

    def flat_text(self, graph: Graph, options: Options, cut: Cut) -> str:
        """Return the part of the graph that `cut` selects, as a flat text in NNEF 1.0 final."""
        part, _ = cut(graph)
        return print_document(FlatWriter(part, options.meter).write())

    def converted(self, graph: Graph, data: Arrays | None, *, flat: bool, keep: bool) -> Written:
        """Return the network as an archive of NNEF 1.0 final.

        If `flat`, or if the document is in 1.0 provisional, the result has a flat document. If
        `data` is None, the archive has no tensor files.
        """
        conversion = _Conversion(self.document, graph, self._entries)
        if flat or self.document.provisional:
            text, names, quantization = conversion.flat(self.options.meter)
        else:
            text = self.document.source.text
            names = conversion.names
            quantization = self.quantization.text if self.quantization else ""
        members: dict[str, Member] = {GRAPH: text.encode()}
        texts_of_entries = [quantization]
        if data is not None:
            for variable in (*graph.parameters, *graph.states):
                name = names.get(variable.value, "")
                content, entry = self._final_file(variable, name, data, conversion)
                members[member_of(variable.label)] = content
                texts_of_entries.append(entry)
        new_quantization = "\n".join([entry for entry in texts_of_entries if entry])
        if new_quantization:
            members[QUANTIZATION] = new_quantization.encode()
        return Written(members)

    def _final_file(
        self,
        variable: Parameter | StateVariable,
        name: str,
        data: Arrays,
        conversion: _Conversion,
    ) -> tuple[Member, str]:
        """Return the file of a variable in 1.0 final, and an entry of graph.quant for the variable.

        The entry is "" if the variable needs no new entry. `name` is the identifier of the
        variable, or "" if it has none. `data` maps labels to the real numbers of variables.
        """
        member = member_of(variable.label)
        stored = self._file(member)
        file = replace(stored, array=stored.array.reshape(variable.value.type.shape))
        if not file.quantization:
            return file, ""
        # The header of the file names an algorithm. A header of 1.0 final cannot name one. If
        # possible, the algorithm becomes an entry of graph.quant. A run then rounds the parameter,
        # which does not change its values.
        quantizer = self.reader.header(file.quantization, member)
        has_entry = name in self._entries
        can_get_entry = isinstance(variable, Parameter) and name != "" and not has_entry
        if can_get_entry:
            return file, conversion.entry(name, variable.value, quantizer)
        # Without an entry, the file gets the real numbers.
        return data[variable.label], ""

    def _file(self, member: str) -> TensorFile:
        """Read the tensor file with the name `member` in the archive."""
        data = self.archive.open_tensor(member)
        return read_tensor_file(data, name=member, meter=self.options.meter)


@dataclass(frozen=True)
class _Conversion:
    """A conversion of a document to NNEF 1.0 final.

    `graph` is the document's graph without rounding, and `entries` are the entries of the
    document's graph.quant.
    """

    document: tree.Document
    graph: Graph
    entries: Mapping[str, Quantizer]

    @property
    def names(self) -> Mapping[Value, str]:
        """Map the values of the graph to their names in the document.

        Values without a name in the document are left out.
        """
        names: dict[Value, str] = {}
        for name, value in self.graph.values.items():
            is_in_document = name in self._same_target
            if is_in_document:
                names[value] = name
        return names

    def flat(self, meter: Meter) -> tuple[str, Mapping[Value, str], str]:
        """Return the texts of a flat document and its graph.quant, in 1.0 final.

        The result is (document, names, graph.quant), where `names` maps the graph's values to their
        names in the flat document. Raises UnsupportedError for entries that do not fit the flat
        document.
        """
        writer = FlatWriter(self.graph, meter)
        document = writer.write()
        raise_all(list(self._unfit_entries()))
        lines: list[str] = []
        for name, quantizer in self.entries.items():
            value = self.graph.values[name]
            lines.append(self.entry(writer.names[value], value, quantizer))
        return print_document(document), writer.names, "".join(lines)

    @cached_property
    def _variables(self) -> Set[Value]:
        """Return the values of parameters and states."""
        return {variable.value for variable in (*self.graph.parameters, *self.graph.states)}

    def _unfit_entries(self) -> Iterator[NnefError]:
        """Yield an error for each entry of graph.quant that would act differently in a flat text.

        There are two reasons. The entry would round a tensor that has several names, or the entry's
        operation has another meaning in 1.0 final.
        """
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
        """Return another name of the value that is called `name`, or None.

        The entry for `name` in graph.quant rounds the value only for operations that read the value
        by this name. Operations that read it by the returned name get the value without rounding. A
        flat document has a single name for the value. There the entry would round the value for all
        operations.
        """
        value = self.graph.values[name]
        aliases = self._aliases.get(value, frozenset[str]())
        if name in aliases:
            # The entry for an alias does not round the value under the value's first name.
            return value.name
        # The entry for the first name also rounds the aliases that later assignments give to the
        # value. The entry does not round aliases in the same assignment, such as (a, b). The entry
        # also does not round other variables with the same label.
        if value not in self._variables:
            aliases = aliases & self._same_target[name]
        return min(aliases, default=None)

    @cached_property
    def _aliases(self) -> Mapping[Value, Set[str]]:
        """Return the aliases of each value of the graph."""
        aliases: dict[Value, set[str]] = {}
        for alias, value in self.graph.aliases.items():
            aliases.setdefault(value, set()).add(alias)
        return aliases

    @cached_property
    def _same_target(self) -> Mapping[str, Set[str]]:
        """Map each name to all names in the target of its assignment.

        For the assignment `(a, b) = ...`, both a and b are mapped to the set of a and b.
        """
        names_by_name: dict[str, Set[str]] = {}
        for assignment in self.document.graph.body:
            names = {identifier.name for identifier in tree.identifiers(assignment.target)}
            for name in names:
                names_by_name[name] = names
        return names_by_name

    def entry(self, name: str, value: Value, quantizer: Quantizer) -> str:
        """Return the line of graph.quant that quantises `value`, whose name is `name`."""
        node = quantizer.invocation(name, value.type, variable=value in self._variables)
        # An entry leaves out the first argument, which is the tensor.
        node = replace(node, arguments=node.arguments[1:])
        return f'"{name}": {print_expression(node)};\n'
