"""Describes inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass

from lowering.extents import UNKNOWN
from lowering.graph import Value


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape (None for an unknown extent) and dtype of an input or output."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        extents = ",".join("?" if extent is None else str(extent) for extent in self.shape)
        return f"{self.name}: {self.dtype}[{extents}]"


def spec_of(name: str, value: Value) -> TensorSpec:
    """Return the description of a value of the graph."""
    shape = tuple(None if extent is UNKNOWN else extent for extent in value.type.shape)
    return TensorSpec(name, shape, value.type.dtype)
