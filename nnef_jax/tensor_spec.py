"""Describes the inputs and outputs of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lowering.extents import UNKNOWN, show
from lowering.graph import UNTYPED, Value


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The name, shape and dtype of an input or output.

    An unknown extent is None in the shape. `extents` has the names that the document gives to the
    extents, and "" for an extent without a name. `extents` may be shorter than the shape.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    extents: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        is_untyped = self.dtype == UNTYPED.dtype  # neither the dtype nor the shape is known
        shape = "" if is_untyped else show(self.shape, self.extents)
        return f"{self.name}: {self.dtype}{shape}"


def spec_of(name: str, value: Value, extents: Sequence[str] = ()) -> TensorSpec:
    """Return a spec with the type of a graph's value. `extents` are the names of its extents."""
    shape = tuple(None if extent is UNKNOWN else extent for extent in value.type.shape)
    return TensorSpec(name, shape, value.type.dtype, tuple(extents))
