"""Reads the stored data of a graph's variables (spec 5.1, 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from lowering.extents import Shape, show
from lowering.graph import Graph, Parameter, StateVariable, Value
from nnef_jax.dequantization import dequantize
from nnef_jax.errors import ArchiveError, DataError, NnefError, raise_all
from nnef_jax.limits import LETTERS_PER_STEP, Meter
from nnef_jax.quantizer import Quantizer
from nnef_jax.storage.archive import Archive
from nnef_jax.storage.arrays import aligned
from nnef_jax.storage.labels import member_of
from nnef_jax.storage.tensorfile import TensorFile, read_tensor_file

Progress = Callable[[int, int], None]  # of how many variables are read, of how many

_KINDS = {
    "f": "scalars",
    "i": "integers",
    "u": "integers",
    "b": "logical values",
    "c": "complex numbers",
    "O": "strings",
}
_CONVERTIBLE = {"f": "fiu", "i": "iu", "u": "iu", "b": "b", "c": "cfiu"}  # kinds, to each kind


@dataclass(frozen=True, slots=True)
class Stored:
    """The data of variables by label, and which entries of graph.quant they are the codes of.

    These entries, by the identifiers of their tensors, have nothing to round when the network runs.
    """

    data: dict[str, NDArray[Any]]
    dequantized: set[str]


def read_variables(
    graph: Graph,
    archive: Archive,
    meter: Meter,
    quantizers: Mapping[str, Quantizer],
    header: Callable[[str, str], Quantizer],
    progress: Progress | None = None,
) -> Stored:
    """The data of every variable in the dtype that the graph declares, memory-mapped if possible.

    Quantised data become real numbers: by the algorithm in the header of a provisional file, which
    `header` reads, else by the entry of graph.quant for the variable.

    Raises DataError or ArchiveError for all the variables at once whose data are missing or do
    not fit.
    """
    stored = Stored({}, set())
    errors: list[NnefError] = []
    variables = (*graph.parameters, *graph.states)
    entries: dict[Value | None, str] = {}  # names in graph.quant
    for name in quantizers:
        entries.setdefault(graph.values.get(name), name)
    for position, variable in enumerate(variables):
        if progress is not None:
            progress(position, len(variables))
        name = entries.get(variable.value)
        try:
            meter.spend(len(variable.label) // LETTERS_PER_STEP, "the label of a variable")
            member = member_of(variable.label)
            file = _open(variable, member, archive, meter)
            array = file.array
            if file.quantization:
                array = dequantize(file, header(file.quantization, member), member, meter)
            elif file.quantized:
                if name is None:
                    raise _without_entry(variable, member)
                array = dequantize(file, quantizers[name], member, meter)
                # A variable that is updated takes other values later on.
                if isinstance(variable, Parameter):
                    stored.dequantized.add(name)
            declared = variable.value.type
            dtype = jnp.dtype(declared.dtype)
            stored.data[variable.label] = convert(
                array.reshape(declared.shape), dtype, member, meter
            )
        except NnefError as error:
            error.span = error.span or variable.span
            errors += error.errors
    raise_all(errors)
    return stored


def _open(
    variable: Parameter | StateVariable, member: str, archive: Archive, meter: Meter
) -> TensorFile:
    if not archive.exists(member):
        raise without_member(archive, member, variable.label)
    file = read_tensor_file(archive.open_tensor(member), name=member, meter=meter)
    declared = variable.value.type.shape
    check_shape(file.array.shape, declared, variable.label, member)
    return file


def without_member(archive: Archive, member: str, label: str) -> ArchiveError:
    """What to raise where a variable has no data."""
    return ArchiveError(
        f"{archive.name} has no member '{member}' for the variable '{label}'",
        hint="each variable is stored in LABEL.dat: correct the label, or add the file",
    )


def check_shape(stored: Shape, declared: Shape, label: str, member: str) -> None:
    """Raise DataError where the stored shape is not the declared one, but for trailing 1s."""
    if _strip(stored) != _strip(declared):
        raise DataError(
            f"{member} has shape {show(stored)}, variable '{label}' is declared "
            f"with {show(declared)}",
            hint="declare the shape that is stored, or store a tensor of the declared shape",
        )


def _without_entry(variable: Parameter | StateVariable, member: str) -> DataError:
    name = variable.value.name
    return DataError(
        f"{member} holds quantised codes, but graph.quant has no entry for '{name}' that says "
        "what they stand for",
        hint=f'write "{name}": linear_quantize(min = ..., max = ..., bits = ...); or another '
        "algorithm into graph.quant",
    )


def _strip(shape: Shape) -> Shape:
    """The shape without trailing 1s, which say nothing (spec 4.1.3)."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def convert(
    array: NDArray[Any],
    dtype: np.dtype[Any],
    member: str,
    meter: Meter,
    hint: str = "integer tensors are int32",
) -> NDArray[Any]:
    """The array in another dtype; DataError where that would lose the meaning of what is stored.

    `hint` says what to do about integers that are too large.
    """
    if array.dtype == dtype:
        return array
    require_kind(array, dtype, member)
    if dtype.kind in "iu" and array.size:
        low, high, bounds = int(array.min()), int(array.max()), np.iinfo(dtype)
        if low < bounds.min or high > bounds.max:
            raise DataError(
                f"{member} holds values from {low} to {high}, which do not fit {dtype}", hint=hint
            )
    meter.expand(array.size * dtype.itemsize, member)
    converted = aligned(array.shape, dtype)
    with np.errstate(over="ignore"):  # to infinity, as in any computation
        np.copyto(converted, array, casting="unsafe")
    return converted


def require_kind(array: NDArray[Any], dtype: np.dtype[Any], what: str) -> None:
    """Raise DataError for items of another kind than a dtype's: logical ones for scalars, say."""
    kind, stored = _kind(dtype), _kind(array.dtype)
    if stored not in _CONVERTIBLE[kind]:
        raise DataError(
            f"{what} holds {_KINDS.get(stored, array.dtype)}, the variable is declared "
            f"to hold {_KINDS[kind]}"
        )


def _kind(dtype: np.dtype[Any]) -> str:
    return "f" if jnp.issubdtype(dtype, jnp.floating) else dtype.kind
