"""`convert`: a network of either dialect as one of 1.0 final, compositional or flat."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import get_args

from lowering.graph import Parameter, Value
from lowering.location import Span
from nnef_jax.errors import NnefError, UnsupportedError, raise_all
from nnef_jax.formats.base import Expand, Options
from nnef_jax.formats.nnef.checks import check
from nnef_jax.formats.nnef.flatten import flatten
from nnef_jax.formats.nnef.parser import parse
from nnef_jax.formats.nnef.quantization import QuantizationReader
from nnef_jax.formats.nnef.scope import Scope
from nnef_jax.formats.nnef.variables import read_variables
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.flat_document import flat_document
from nnef_jax.formats.syntax.printing import print_document, print_expression
from nnef_jax.formats.syntax.quantizer import ALGORITHMS, Quantizer
from nnef_jax.formats.syntax.values import ExtentNeeded
from nnef_jax.formats.tract.recognition import Dialect, is_tract
from nnef_jax.limits import Limits, Meter, within_memory
from nnef_jax.loading import Source
from nnef_jax.options import require, require_choice, require_flags, require_path, require_readable
from nnef_jax.storage.archive import Archive, open_archive
from nnef_jax.storage.labels import member_of
from nnef_jax.storage.tensorfile import read_tensor_file
from nnef_jax.storage.writer import Member, write_archive


def convert(
    source: Source,
    path: str | os.PathLike[str] | None = None,
    *,
    flat: bool = False,
    expand: Expand = "auto",
    dialect: Dialect = "auto",
    overwrite: bool = False,
    limits: Limits | None = None,
) -> str:
    """The text of a network as a document of NNEF 1.0 final; with a path, all of it is written.

    A document of 1.0 final keeps its text, unless it is to be flat. One of 1.0 provisional always
    becomes flat: its variables may stand in fragments, which 1.0 final does not allow. Tensor files
    get the layout of 1.0 final, with the same items. Codes whose algorithm stands in the header of
    their file get a line in graph.quant for it, or become real numbers where it would not do.

    Args:
        source: a network as `load` takes it. Without a path its tensor files are not read.
        path: a folder to make, or an archive by its suffix (.tar, .tgz, .tar.gz, .tar.xz).
        flat: expand the fragments of the document: what is left are operations of the standard.
        expand: "all" expands the compound operations of the standard to primitives too, and makes
            the document flat.
        dialect: how to read the document, as `load` takes it.
        overwrite: replace what is at the path; otherwise FileExistsError.
        limits: bounds on what is read.

    Raises:
        NnefError: something is wrong with the network, or (UnsupportedError) it is in tract's
            dialect, or a flat document cannot describe it.
        TypeError, ValueError: an argument is of a wrong type or value.

    Example:
        >>> print(nnef_jax.convert("provisional.tgz", "final.tgz"))
    """
    require_readable("source", source)
    if path is not None:
        require_path("path", path)
    require_flags(flat=flat, overwrite=overwrite)
    require_choice("expand", expand, get_args(Expand))
    if limits is not None:
        require("limits", limits, Limits, "a nnef_jax.Limits")
    require_choice("dialect", dialect, get_args(Dialect))
    options = Options(expand=expand, meter=Meter(limits))
    with within_memory("the network"), open_archive(source, options.meter) as archive:
        network = _Reading(archive, options, dialect)
        make_flat = flat or expand == "all" or network.document.provisional
        result = network.flat() if make_flat else network.kept()
        if path is not None:
            write_archive(path, network.members(result), overwrite=overwrite)
    return result.text


@dataclass(frozen=True, slots=True)
class _Result:
    """A document of 1.0 final, the identifiers of values in it, and its graph.quant or ''."""

    text: str
    names: Mapping[Value, str]
    quantization: str


class _Reading:
    """A network that was read and checked, but for its data."""

    def __init__(self, archive: Archive, options: Options, dialect: Dialect) -> None:
        self._archive = archive
        self._meter = options.meter
        source = archive.read_text("graph.nnef")
        if is_tract(source.text, dialect):
            raise UnsupportedError(
                "a document of tract's dialect has operations that NNEF 1.0 does not have",
                span=Span(source, 0),
                hint="nnef_jax.load reads it, and model.save stores it in its own dialect",
            )
        self.document = parse(source, options.meter)
        scope = Scope(self.document, options.meter)
        check(self.document, scope)
        self._reader = QuantizationReader(self.document, scope, options)
        try:
            self._graph = flatten(self.document, scope, options)
        except ExtentNeeded:
            raise UnsupportedError(
                "the text depends on an extent that is left open",
                hint="write the extents of the inputs into the document",
            ) from None
        self._variables = {v.value for v in (*self._graph.parameters, *self._graph.states)}
        self._quantization = ""
        self._quantizers: dict[str, Quantizer] = {}
        if archive.exists("graph.quant"):
            text = archive.read_text("graph.quant")
            self._quantization = text.text
            self._quantizers = self._reader.entries(text)

    def kept(self) -> _Result:
        """The document as it is."""
        body = self.document.graph.body
        own = {i.name for assignment in body for i in s.identifiers(assignment.target)}
        names = {value: name for name, value in self._graph.values.items() if name in own}
        return _Result(self.document.source.text, names, self._quantization)

    def flat(self) -> _Result:
        """The flat document, with the entries of graph.quant as 1.0 final writes them."""
        flat = flat_document(self._graph, self._meter)
        raise_all(list(self._unfit_entries()))
        values = {name: self._graph.values[name] for name in self._quantizers}
        entries = [
            self._entry(flat.names[values[name]], values[name], quantizer)
            for name, quantizer in self._quantizers.items()
        ]
        return _Result(print_document(flat.document), flat.names, "".join(entries))

    def _unfit_entries(self) -> Iterator[NnefError]:
        """The errors for entries of graph.quant that would mean something else when flat."""
        for name, quantizer in self._quantizers.items():
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
        """A name of the same value that does not stand for what the first name stands for.

        An identifier assigned later reads the value through its first name, be it rounded or not.
        One assigned beside it does not, nor does a variable of the same label.
        """
        value = self._graph.values[name]
        others = self._aliases.get(value, frozenset[str]())
        if name in others:
            return value.name
        if value not in self._variables:
            others = others & self._beside[name]
        return min(others, default=None)

    @cached_property
    def _aliases(self) -> Mapping[Value, Set[str]]:
        """The other names of values."""
        found: dict[Value, set[str]] = {}
        for alias, value in self._graph.aliases.items():
            found.setdefault(value, set()).add(alias)
        return found

    @cached_property
    def _beside(self) -> Mapping[str, Set[str]]:
        """The names that are assigned together with each."""
        found: dict[str, Set[str]] = {}
        for assignment in self.document.graph.body:
            names = {identifier.name for identifier in s.identifiers(assignment.target)}
            found.update(dict.fromkeys(names, names))
        return found

    def _entry(self, name: str, value: Value, quantizer: Quantizer) -> str:
        """The line of graph.quant that quantises a value under a name."""
        node = quantizer.invocation(name, value.type, variable=value in self._variables)
        return f'"{name}": {print_expression(replace(node, arguments=node.arguments[1:]))};\n'

    def members(self, result: _Result) -> dict[str, Member]:
        """The members of the archive of a result."""
        # All the errors of the data are found here, with their places.
        arguments = (self._archive, self._meter, self._quantizers, self._reader.header)
        stored = read_variables(self._graph, *arguments)
        members: dict[str, Member] = {}
        entries = [result.quantization]
        for variable in (*self._graph.parameters, *self._graph.states):
            member = member_of(variable.label)
            data = self._archive.open_tensor(member)
            file = read_tensor_file(data, name=member, meter=self._meter)
            file = replace(file, array=file.array.reshape(variable.value.type.shape))
            members[member] = file
            if not file.quantization:
                continue
            # The header of 1.0 final has no place for the algorithm, graph.quant has: where the
            # variable has an identifier, and rounding it while the network runs changes nothing.
            quantizer = self._reader.header(file.quantization, member)
            name = result.names.get(variable.value)
            if isinstance(variable, Parameter) and name and name not in self._quantizers:
                entries.append(self._entry(name, variable.value, quantizer))
            else:
                members[member] = stored.data[variable.label]
        members["graph.nnef"] = result.text.encode()
        quantization = "\n".join(filter(None, entries))
        if quantization:
            members["graph.quant"] = quantization.encode()
        return members
