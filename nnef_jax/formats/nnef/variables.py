"""Reads the stored data of a graph's variables (spec 5.1, 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from numpy.typing import NDArray

from lowering.graph import Graph, Parameter, StateVariable, Value
from nnef_jax.errors import DataError, NnefError, raise_all
from nnef_jax.formats.base import Options
from nnef_jax.formats.syntax.dequantization import dequantize
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.syntax.variables import check_shape, convert, without_member
from nnef_jax.limits import LETTERS_PER_STEP
from nnef_jax.storage.archive import Archive
from nnef_jax.storage.labels import member_of
from nnef_jax.storage.tensorfile import read_tensor_file


def read_variables(
    graph: Graph,
    archive: Archive,
    options: Options,
    quantizers: Mapping[str, Quantizer],
    header: Callable[[str, str], Quantizer],
) -> tuple[dict[str, NDArray[Any]], set[str]]:
    """The data of every variable in the dtype that the graph declares, memory-mapped if possible.

    Quantised data become real numbers: by the algorithm in the header of a provisional file, which
    `header` reads, else by the entry of graph.quant for the variable. Returned with the data are
    the names of these entries: they have nothing to round when the network runs.

    Raises DataError or ArchiveError for all the variables at once whose data are missing or do
    not fit.
    """
    data: dict[str, NDArray[Any]] = {}
    decoded: set[str] = set()
    errors: list[NnefError] = []
    meter, progress = options.meter, options.progress
    variables = (*graph.parameters, *graph.states)
    entries: dict[Value | None, str] = {}  # names in graph.quant
    for name in quantizers:
        entries.setdefault(graph.values.get(name), name)
    for position, variable in enumerate(variables):
        if progress is not None:
            progress(position, len(variables))
        name, declared = entries.get(variable.value), variable.value.type
        try:
            meter.spend(len(variable.label) // LETTERS_PER_STEP, "the label of a variable")
            member = member_of(variable.label)
            if not archive.exists(member):
                raise without_member(archive, member, variable.label)
            file = read_tensor_file(archive.open_tensor(member), name=member, meter=meter)
            array = file.array
            check_shape(array.shape, declared.shape, variable.label, member)
            if file.quantization:
                array = dequantize(file, header(file.quantization, member), member, meter)
            elif file.quantized:
                if name is None:
                    raise _without_entry(variable, member)
                array = dequantize(file, quantizers[name], member, meter)
                # A variable that is updated takes other values later on.
                if isinstance(variable, Parameter):
                    decoded.add(name)
            array = array.reshape(declared.shape)
            data[variable.label] = convert(array, jnp.dtype(declared.dtype), member, meter)
        except NnefError as error:
            error.span = error.span or variable.span
            errors += error.errors
    raise_all(errors)
    return data, decoded


def _without_entry(variable: Parameter | StateVariable, member: str) -> DataError:
    name = variable.value.name
    return DataError(
        f"{member} holds quantised codes, but graph.quant has no entry for '{name}' that says "
        "what they stand for",
        hint=f'write "{name}": linear_quantize(min = ..., max = ..., bits = ...); or another '
        "algorithm into graph.quant",
    )
