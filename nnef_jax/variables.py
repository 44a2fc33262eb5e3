"""Reads the stored data of a graph's variables (spec 5.1, 5.2)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from lowering.extents import show
from lowering.graph import Graph, Parameter, StateVariable
from nnef_jax.errors import ArchiveError, DataError, NnefError, UnsupportedError, raise_all
from nnef_jax.limits import Limits
from nnef_jax.storage.archive import Archive
from nnef_jax.storage.labels import member_of
from nnef_jax.storage.tensorfile import read_tensor_file

_KINDS = {"f": "scalars", "i": "integers", "u": "integers", "b": "logical values"}


def read_variables(graph: Graph, archive: Archive, limits: Limits) -> dict[str, NDArray[Any]]:
    """The data of every variable by label, in the dtype that the graph declares, memory-mapped where possible.

    Raises DataError or ArchiveError for all the variables at once that lack data or have data that do not fit.
    """
    found: dict[str, NDArray[Any]] = {}
    errors: list[NnefError] = []
    for variable in (*graph.parameters, *graph.states):
        try:
            found[variable.label] = _read(variable, archive, limits)
        except NnefError as error:
            error.span = error.span or variable.span
            errors.append(error)
    raise_all(errors)
    return found


def _read(variable: Parameter | StateVariable, archive: Archive, limits: Limits) -> NDArray[Any]:
    member = member_of(variable.label)
    if not archive.exists(member):
        raise ArchiveError(
            f"{archive.name} has no member '{member}' for the variable '{variable.label}'",
            hint="each variable is stored in LABEL.dat",
        )
    stored = read_tensor_file(archive.open_tensor(member), name=member, limits=limits)
    if stored.quantized:
        raise UnsupportedError(f"{member} holds quantised data")
    declared = variable.value.type
    array = stored.array
    if _strip(array.shape) != _strip(declared.shape):
        raise DataError(
            f"{member} has shape {show(array.shape)}, variable '{variable.label}' is declared "
            f"with {show(declared.shape)}"
        )
    return _convert(array.reshape(declared.shape), jnp.dtype(declared.dtype), member)


def _strip(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without trailing 1s, which say nothing (spec 4.1.3)."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _convert(array: NDArray[Any], dtype: np.dtype[Any], member: str) -> NDArray[Any]:
    """The array in the declared dtype, refused where that would lose its meaning."""
    if array.dtype == dtype:
        return array
    kind = "f" if jnp.issubdtype(dtype, jnp.floating) else dtype.kind
    if kind != "f" and array.dtype.kind == "f" or (kind == "b") != (array.dtype.kind == "b"):
        raise DataError(
            f"{member} holds {_KINDS.get(array.dtype.kind, array.dtype)}, the variable is declared "
            f"to hold {_KINDS[kind]}"
        )
    if kind in "iu" and array.size:
        low, high, bounds = int(array.min()), int(array.max()), np.iinfo(dtype)
        if low < bounds.min or high > bounds.max:
            raise DataError(
                f"{member} holds values from {low} to {high}, which do not fit {dtype}",
                hint="integer tensors are int32",
            )
    return array.astype(dtype)
